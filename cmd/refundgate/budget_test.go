package main

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider/standin"
	"refundgate/refund"
	"refundgate/workflows"
)

func itoa(n int) string { return strconv.Itoa(n) }

// CASE 34: sixty refunds at once, half of which the provider takes and leaves pending:
// no two starts are nearer than 200 ms at the first Write, never more than ten
// calls are in flight, the groups take turns while both wait, and the budget is
// used while there is work.
func TestCase34_SixtyAtOnceKeepTheBudget(t *testing.T) {
	t.Parallel()
	const n, leftPending = 60, 30
	s := newSystem(t)
	require.NoError(t, s.control.SetPlan(t.Context(), standin.Rule{
		Match: standin.Match{Method: http.MethodPost}, Times: leftPending,
		Fault: standin.Fault{Kind: standin.Pending, Status: http.StatusCreated, SettleMS: 8000},
	}))
	s.start("serve").waitFor("intake:")
	var wg sync.WaitGroup
	ids := make([]string, n)
	for i := range n {
		ids[i] = fmt.Sprintf("r-%02d", i)
		wg.Go(func() { s.submit(ids[i], "demo") })
	}
	wg.Wait()
	s.start("worker").waitFor("egress: owner")

	var calls []dueCall
	for _, id := range ids {
		c := s.settled(id, 2*time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status)
		require.Equal(t, 1, c.Attempts)
		calls = append(calls, withDue(c)...)
	}
	s.requireMatched(ids...)
	slices.SortFunc(calls, func(a, b dueCall) int { return cmp.Compare(a.StartedMono, b.StartedMono) })

	const interval = 200 * time.Millisecond
	smallest := time.Hour
	for i, c := range calls {
		require.LessOrEqual(t, c.InFlight, 10)
		if i > 0 {
			smallest = min(smallest, time.Duration(c.StartedMono-calls[i-1].StartedMono))
		}
	}
	require.GreaterOrEqual(t, smallest, interval)

	// Until the last first attempt there was always work.
	last := 0
	for i, c := range calls {
		if c.Origin == refund.OriginFirst {
			last = i
		}
	}
	span := time.Duration(calls[last].StartedMono - calls[0].StartedMono)
	used := float64(time.Duration(last)*interval) / float64(span)
	t.Logf("%d starts, budget used %.2f %%, smallest gap %v", len(calls), 100*used, smallest)
	require.GreaterOrEqual(t, used, 0.97)

	// Of one group twice in a row only if nobody of the other one waited. What
	// is due takes a moment through Temporal to the gate, on a machine that runs other
	// tests too; without turns a check would wait for all the first attempts.
	const arrival = 3 * time.Second
	turns := 0
	for i := 1; i < len(calls); i++ {
		if calls[i].Origin.Group() != calls[i-1].Origin.Group() {
			turns++
			continue
		}
		for _, later := range calls[i+1:] {
			if later.Origin.Group() != calls[i].Origin.Group() {
				require.Greater(t, later.due.Add(arrival), *calls[i].StartedAt, "start %d is of the same group as the one before, and %s waited", i, later.Key)
			}
		}
	}
	require.Greater(t, turns, 20, "the two groups hardly met")
}

// dueCall is a call and when the workflow asked for it.
type dueCall struct {
	refund.Call
	due time.Time
}

// withDue replays the decisions of a case and returns those of its calls that
// were sent: on a busy machine one may miss its slot.
func withDue(c refund.Case) []dueCall {
	then := c
	then.Status, then.Attempts = refund.StatusQueued, 0
	var all []dueCall
	for i, call := range c.Calls {
		then.Calls = c.Calls[:i]
		if call.StartedAt == nil {
			continue
		}
		step := workflows.Decide(then, refund.DefaultPolicy(), c.AcceptedAt)
		all = append(all, dueCall{call, step.At})
	}
	return all
}
