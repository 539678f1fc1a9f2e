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
)

func itoa(n int) string { return strconv.Itoa(n) }

// Sixty refunds at once, of which the provider first turns thirty away: no two
// starts are nearer than 200 ms at the first Write, never more than ten calls
// are in flight, the groups take turns while both wait, and the budget is used
// while there is work.
func TestSixtyAtOnceKeepTheBudget(t *testing.T) {
	t.Parallel()
	const n, turnedAway = 60, 30
	s := newSystem(t)
	// The first thirty come back 7 s later: while as many first attempts are
	// still waiting, retries arrive faster than their half of the turns.
	require.NoError(t, s.control.SetPlan(t.Context(), standin.Rule{
		Match: standin.Match{Method: http.MethodPost, ToRequest: turnedAway},
		Fault: standin.Fault{Kind: standin.Busy, RetryAfter: "7"},
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

	var calls []refund.Call
	for _, id := range ids {
		c := s.settled(id, 2*time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status)
		calls = append(calls, c.Calls...)
	}
	s.requireMatched(ids...)
	require.Len(t, calls, n+turnedAway)
	slices.SortFunc(calls, func(a, b refund.Call) int { return cmp.Compare(a.StartedMono, b.StartedMono) })

	const interval = 200 * time.Millisecond
	smallest := time.Hour
	for i, c := range calls {
		require.LessOrEqual(t, c.InFlight, 10)
		if i > 0 {
			smallest = min(smallest, time.Duration(c.StartedMono-calls[i-1].StartedMono))
		}
	}
	require.GreaterOrEqual(t, smallest, interval)

	span := time.Duration(calls[len(calls)-1].StartedMono - calls[0].StartedMono)
	used := float64(time.Duration(len(calls)-1)*interval) / float64(span)
	t.Logf("budget used %.2f %%, smallest gap %v", 100*used, smallest)
	require.GreaterOrEqual(t, used, 0.97)

	// Both groups wait from the third retry (the first two may have been served
	// before others came) until the last first attempt.
	retries, from, to := 0, 0, 0
	for i, c := range calls {
		if c.Origin == refund.OriginRetry {
			if retries++; retries == 3 {
				from = i
			}
		} else {
			to = i
		}
	}
	require.Greater(t, to-from, 20, "the two groups hardly met")
	for i := from + 1; i <= to; i++ {
		require.NotEqual(t, calls[i-1].Origin, calls[i].Origin, "starts %d and %d of %d..%d are of one group", i-1, i, from, to)
	}
}
