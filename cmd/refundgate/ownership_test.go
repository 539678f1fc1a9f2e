package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// B2: the owner is stopped at arbitrary points (waiting, dialling, between
// intent and byte, in flight) and a new version started beside it. It must not
// send as long as the old process exists. After SIGCONT there is one egress,
// nothing is made up in a burst, and nothing is sent twice.
func TestStoppedOwnerKeepsTheEgress(t *testing.T) {
	t.Parallel()
	s, owner, standby, ids := twoEgresses(t, 60)
	_, err := s.control.WaitRecord(t.Context(), 3)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		out, errs, code := refundgate(t, "", "egress", "status", "--config", s.config)
		require.Zero(t, code, errs)
		return strings.Contains(out, "owned") && strings.Contains(out, "closed") && strings.Contains(out, "first, 0 follow-up")
	}, 10*time.Second, 200*time.Millisecond, "the owner's gate in the status")
	for i := range 5 {
		owner.signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(300+170*i) * time.Millisecond)
		owner.signal(syscall.SIGCONT)
		time.Sleep(time.Duration(330+90*i) * time.Millisecond)
	}
	// Longer than the heartbeat time-out: its waiting calls are given up and
	// their keys closed, so it finds them used when it goes on.
	owner.signal(syscall.SIGSTOP)
	time.Sleep(12 * time.Second)
	require.NotContains(t, standby.lines(), "egress: owner")
	owner.signal(syscall.SIGCONT)

	for _, id := range ids {
		c := s.settled(id, 2*time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status, "%s: %v", id, describeCalls(c))
	}
	require.Equal(t, []string{"egress: standby"}, prefixes(standby.lines(), len("egress: standby")))
	s.requireMatched(ids...)
	s.requireSpaced("demo")
}

// B3, B5: a person releases the stopped owner's egress, and the standby takes
// over. When the old one goes on it can't prove its right any more and sends
// nothing; gaps hold across both.
func TestOwnerWithoutProofSendsNothing(t *testing.T) {
	t.Parallel()
	s, old, next, ids := twoEgresses(t, 40)
	_, err := s.control.WaitRecord(t.Context(), 4)
	require.NoError(t, err)
	old.signal(syscall.SIGSTOP)
	release := []string{"egress", "release", "--account", "demo", "--by", "alice", "--reason", "it hangs", "--config", s.config}
	_, errs, code := refundgate(t, "", release...)
	require.Equal(t, exitFailed, code, "it was seen a moment ago")
	require.Contains(t, errs, "it is alive; stop it in order")
	out, errs, code := refundgate(t, "", append(release, "--force")...)
	require.Zero(t, code, errs)
	require.Contains(t, out, "account demo: released from ")
	next.waitFor("egress: owner")
	time.Sleep(7 * time.Second) // past the wait of a new owner
	goesOn := time.Now()
	old.signal(syscall.SIGCONT)

	for _, id := range ids {
		c := s.settled(id, 2*time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status, "%s: %v", id, describeCalls(c))
		for _, call := range c.Calls {
			if call.StartedAt != nil && call.StartedAt.After(goesOn) {
				require.Equal(t, int64(2), call.Epoch, "the old owner sent %s", call.Key)
			}
		}
	}
	require.Eventually(t, func() bool { return strings.Contains(old.log(), `"event":"egress.owner_lost"`) }, 10*time.Second, 50*time.Millisecond)
	s.requireMatched(ids...)
	s.requireSpaced("demo")
}

// B3: a running owner loses its database session, because the server goes away
// (by kill -9 and in order), or because the session alone is ended and somebody
// else, the test, takes the right to send at once. It sends nothing without a
// proof, and it or the standby goes on under a new epoch.
func TestRunningOwnerLosesItsProof(t *testing.T) {
	t.Parallel()
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refundgate"))
	hostPort, ns := testenv.Temporal(t)
	p := newPair(newSystemOn(t, db.DSN("refundgate"), hostPort, ns))
	restart := func(end func() error) {
		require.NoError(t, end())
		// What the owner had proven a moment before may still go out.
		q := quiet{from: monotonic() + intentMaxAge, epoch: anyEpoch}
		time.Sleep(2 * time.Second)
		require.NoError(t, db.Start(t.Context()))
		q.to = monotonic()
		p.quiet = append(p.quiet, q)
	}
	var ids []string
	for i, lose := range []func(){
		func() { restart(db.Kill) },
		p.snatch,
		func() { restart(db.Stop) },
		p.snatch,
	} {
		for range 40 {
			// Seventeen of these would be under way if ten didn't bound them.
			ids = append(ids, fmt.Sprintf("slow-%d-%03d", i, len(ids)))
			p.submit(ids[len(ids)-1], "demo")
		}
		p.awaitRequests(5)
		lose()
		p.awaitChange()
		p.requireOneEgress()
	}
	p.requireAllSucceeded(ids)
}

// snatch ends the owner's session and takes the right to send, unless the
// standby asks for it in the same milliseconds. It keeps it for longer than an
// owner takes to notice, and sends nothing.
func (p *pair) snatch() {
	p.t.Helper()
	ctx := p.t.Context()
	p.endSession()
	lock, err := p.ledger.AcquireEgress(ctx, "demo", "the test")
	if held := (*ledger.HeldError)(nil); errors.As(err, &held) {
		return
	}
	require.NoError(p.t, err)
	now, err := p.ledger.EgressOwner(ctx, "demo")
	require.NoError(p.t, err)
	require.Equal(p.t, lock.Epoch(), now.Epoch)
	p.acquired[now.Epoch] = now.AcquiredAt
	time.Sleep(2 * time.Second)
	require.NoError(p.t, lock.Release(ctx))
}

// twoEgresses starts a system with an owner of the egress and a standby beside
// it, and submits n refunds.
func twoEgresses(t *testing.T, n int) (s *system, owner, standby *process, ids []string) {
	t.Helper()
	s = newSystem(t)
	s.start("serve").waitFor("intake:")
	s.start("worker", "--roles", "orchestrator")
	owner = s.start("worker", "--roles", "egress")
	owner.waitFor("egress: owner")
	standby = s.start("worker", "--roles", "egress")
	standby.waitFor("egress: standby (held by ")
	for i := range n {
		ids = append(ids, fmt.Sprintf("r-%02d", i))
		s.submit(ids[i], "demo")
	}
	return s, owner, standby, ids
}

// starts returns the account's calls of which a byte has left, whoever made
// them, in the order of the stamps.
func (s *system) starts(account string) []refund.Call {
	s.t.Helper()
	rows, err := s.db.QueryContext(s.t.Context(), `
		SELECT refund_id, generation, kind, seq, epoch, intent_at, started_at, started_mono_ns, in_flight, finished_at
		FROM provider_calls WHERE account = ? AND started_mono_ns IS NOT NULL ORDER BY started_mono_ns`, account)
	require.NoError(s.t, err)
	defer rows.Close()
	var calls []refund.Call
	for rows.Next() {
		var c refund.Call
		require.NoError(s.t, rows.Scan(&c.Key.RefundID, &c.Key.Generation, &c.Key.Kind, &c.Key.Seq, &c.Epoch,
			&c.IntentAt, &c.StartedAt, &c.StartedMono, &c.InFlight, &c.FinishedAt))
		calls = append(calls, c)
	}
	require.NoError(s.t, rows.Err())
	return calls
}

// requireSpaced holds every two consecutive starts of the account to the
// default interval, whoever made them, and each to the ten places in flight.
func (s *system) requireSpaced(account string) {
	s.t.Helper()
	calls := s.starts(account)
	require.NotEmpty(s.t, calls)
	requireGaps(s.t, calls, 200*time.Millisecond)
}

func requireGaps(t *testing.T, calls []refund.Call, interval time.Duration) {
	t.Helper()
	for i, c := range calls {
		require.LessOrEqual(t, c.InFlight, 10, c.Key)
		if i > 0 {
			before := calls[i-1]
			require.GreaterOrEqual(t, time.Duration(c.StartedMono-before.StartedMono), interval, "%s and %s", before.Key, c.Key)
		}
	}
}

func prefixes(lines []string, n int) []string {
	var cut []string
	for _, l := range lines {
		cut = append(cut, l[:min(n, len(l))])
	}
	return cut
}
