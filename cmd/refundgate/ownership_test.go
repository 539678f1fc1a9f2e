package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	s.requireSpaced(ids)
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
	s.requireSpaced(ids)
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

// requireSpaced holds every two consecutive starts to the interval, whoever
// made them.
func (s *system) requireSpaced(ids []string) {
	s.t.Helper()
	var calls []refund.Call
	for _, id := range ids {
		c, err := s.ledger.Case(s.t.Context(), id)
		require.NoError(s.t, err)
		for _, call := range c.Calls {
			if call.StartedMono > 0 {
				calls = append(calls, call)
			}
		}
	}
	slices.SortFunc(calls, func(a, b refund.Call) int { return cmp.Compare(a.StartedMono, b.StartedMono) })
	for i := 1; i < len(calls); i++ {
		gap := time.Duration(calls[i].StartedMono - calls[i-1].StartedMono)
		require.GreaterOrEqual(s.t, gap, 200*time.Millisecond, "%s and %s", calls[i-1].Key, calls[i].Key)
		require.LessOrEqual(s.t, calls[i].InFlight, 10)
	}
}

func prefixes(lines []string, n int) []string {
	var cut []string
	for _, l := range lines {
		cut = append(cut, l[:min(n, len(l))])
	}
	return cut
}
