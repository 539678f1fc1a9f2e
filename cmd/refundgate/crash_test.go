package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/devenv"
	"refundgate/internal/testenv"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// kill -9 between the provider's acceptance and our record: the case stays
// unknown, is checked by the next owner and settled; nothing is sent again.
func TestCase03_KilledBetweenAcceptanceAndRecord(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	require.NoError(t, s.control.SetPlan(t.Context(), standin.Rule{
		Match: standin.Match{Method: http.MethodPost}, Fault: standin.Fault{Kind: standin.Delay, DelayMS: 2500}, Times: 1,
	}))
	s.start("serve").waitFor("intake:")
	first := s.start("worker")
	first.waitFor("egress: owner")
	s.submit("crash", "demo")
	_, err := s.control.WaitRecord(t.Context(), 1)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // it has the request, and acts on it a moment later
		executions, err := s.control.Executions(t.Context())
		return err == nil && executions["crash"] == 1
	}, time.Second, time.Millisecond, "the provider has accepted")
	first.kill()

	c, err := s.ledger.Case(t.Context(), "crash")
	require.NoError(t, err)
	require.Len(t, c.Calls, 1, "the intent was there before the first byte")
	require.False(t, c.Calls[0].Done())

	s.start("worker").waitFor("egress: owner")
	c = s.settled("crash", time.Minute)
	require.Equal(t, refund.StatusSucceeded, c.Status, describeCalls(c))
	require.Equal(t, 1, c.Attempts)
	require.Equal(t, refund.CodeLost, c.Calls[0].Result.Code)
	require.Equal(t, refund.KindCheck, c.Calls[1].Key.Kind)
	s.requireMatched("crash")
}

// Two workers: one owns the egress, the other stands by, says who holds it and
// sends nothing; when the owner ends in order, it has handed back what waited,
// and the other one goes on.
func TestStandbyTakesOverInOrder(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start("serve").waitFor("intake:")
	first := s.start("worker")
	first.waitFor("egress: owner")
	second := s.start("worker", "--roles", "orchestrator,egress", "--account", "demo")
	second.waitFor("egress: standby (held by ")

	const n = 20
	ids := make([]string, n)
	for i := range n {
		ids[i] = fmt.Sprintf("r-%02d", i)
		s.submit(ids[i], "demo")
	}
	_, err := s.control.WaitRecord(t.Context(), 5)
	require.NoError(t, err)
	require.NotContains(t, second.lines(), "egress: owner")
	require.NoError(t, first.stop())
	gone := time.Now()
	second.waitFor("egress: owner")
	for _, id := range ids {
		c := s.settled(id, time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status, describeCalls(c))
		require.Equal(t, 1, c.Attempts, "handing back uses up no attempt")
		for _, call := range c.Calls {
			require.Equal(t, refund.OutcomeSucceeded, call.Result.Outcome, describeCalls(c))
			if call.Epoch > 1 {
				require.True(t, call.StartedAt.After(gone), "the second one sent while the first one existed")
			}
		}
	}
	s.requireMatched(ids...)
}

// MySQL and Temporal go away for a while, killed and started again in turn,
// while refunds come in: what was accepted is carried out, once.
func TestNothingIsLostWhileServersAreAway(t *testing.T) {
	t.Parallel()
	db, temporal := testenv.OwnMariaDB(t), testenv.OwnTemporal(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refundgate"))
	s := newSystemOn(t, db.DSN("refundgate"), temporal.HostPort(), devenv.DefaultNamespace)
	s.start("serve").waitFor("intake:")
	s.start("worker").waitFor("egress: owner")

	var accepted []string
	submit := func(n int) (refused int) {
		for range n {
			id := fmt.Sprintf("r-%03d", len(accepted)+refused)
			switch status, answer := s.request(http.MethodPost, "/v1/refunds", newRefund(id, "demo")); status {
			case http.StatusAccepted, http.StatusOK:
				accepted = append(accepted, id)
			case http.StatusServiceUnavailable:
				refused++
			default:
				require.Fail(t, "unexpected answer", "%d %v", status, answer)
			}
		}
		return refused
	}
	require.Zero(t, submit(8))
	_, err := s.control.WaitRecord(t.Context(), 2)
	require.NoError(t, err)

	require.NoError(t, temporal.Kill())
	require.Zero(t, submit(4), "the intake doesn't need Temporal")
	time.Sleep(2 * time.Second)
	require.NoError(t, temporal.Start(t.Context()))
	require.Zero(t, submit(2))
	time.Sleep(3 * time.Second)

	require.NoError(t, db.Kill())
	time.Sleep(2 * time.Second)
	require.NoError(t, db.Start(t.Context()))
	submit(4)

	for _, id := range accepted {
		c := s.settled(id, 3*time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status, "%s: %v", id, describeCalls(c))
	}
	s.requireMatched(accepted...)
	executions, err := s.control.Executions(t.Context())
	require.NoError(t, err)
	for _, id := range accepted {
		require.Equal(t, 1, executions[id], id)
	}
}

// kill -9 of the only worker again and again, at arbitrary moments, while the
// provider misbehaves in every way: each case ends right, nothing is executed
// twice, sent under two keys or sent again once it is executed, and no request
// was on the wire without an intent.
func TestKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var rules []standin.Rule
	for _, f := range []struct {
		reference string
		fault     standin.Fault
	}{
		{"drop-*", standin.Fault{Kind: standin.AcceptThenDrop}},
		{"slow-*", standin.Fault{Kind: standin.Delay, DelayMS: 1500}},
		{"pend-*", standin.Fault{Kind: standin.Pending, Status: http.StatusAccepted, EmptyBody: true, SettleMS: 5000}},
		{"busy-*", standin.Fault{Kind: standin.Busy, RetryAfter: "1"}},
	} {
		rules = append(rules, standin.Rule{
			Match: standin.Match{Method: http.MethodPost, Reference: f.reference}, Fault: f.fault, Times: 1, PerReference: true,
		})
	}
	require.NoError(t, s.control.SetPlan(t.Context(), rules...))
	s.start("serve").waitFor("intake:")
	var ids []string
	for i := range 6 {
		for _, kind := range []string{"fast", "drop", "slow", "pend", "busy"} {
			id := fmt.Sprintf("%s-%d", kind, i)
			ids = append(ids, id)
			s.submit(id, "demo")
		}
	}
	for i := range 4 {
		worker := s.start("worker")
		worker.waitFor("egress: owner")
		// Past the wait of a new owner, and then somewhere among its calls.
		time.Sleep(5*time.Second + time.Duration(700+531*i)*time.Millisecond)
		worker.kill()
	}
	s.start("worker").waitFor("egress: owner")
	for _, id := range ids {
		c := s.settled(id, 4*time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status, "%s: %v", id, describeCalls(c))
	}
	executions, err := s.control.Executions(t.Context())
	require.NoError(t, err)
	record, err := s.control.Record(t.Context())
	require.NoError(t, err)
	wire := map[string]int{}
	for _, r := range record {
		wire[r.Method+" "+r.Reference]++
		if r.Method == http.MethodPost {
			require.Equal(t, "refund-"+r.Reference, r.Key)
			require.False(t, r.Replayed, "%s was executed and is sent again", r.Reference)
		}
	}
	for _, id := range ids {
		require.Equal(t, 1, executions[id], id)
		c, err := s.ledger.Case(t.Context(), id)
		require.NoError(t, err)
		intents := map[refund.CallKind]int{}
		for _, call := range c.Calls {
			if call.MayHaveReached() {
				intents[call.Key.Kind]++
			}
		}
		require.LessOrEqual(t, wire["POST "+id], intents[refund.KindSubmit], "%s: sends", id)
		require.LessOrEqual(t, wire["GET "+id], intents[refund.KindCheck], "%s: checks", id)
	}
	s.requireSpaced("demo")
}
