package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// A8: one account's provider hangs, until its ten places are taken and its
// breaker opens. The other account, served by the same process, doesn't notice.
func TestAccountsAreIsolated(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	sick, err := standin.New(standin.Options{})
	require.NoError(t, err)
	require.NoError(t, sick.Start("127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, sick.Close()) })
	require.NoError(t, standin.NewClient(sick.URL()).SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.Hang}}))
	s.configure(map[string]string{"well": s.provider.URL(), "sick": sick.URL()})
	s.start("serve").waitFor("intake:")
	const n = 30
	var well []string
	for i := range n {
		s.submit(fmt.Sprintf("sick-%02d", i), "sick")
		well = append(well, fmt.Sprintf("well-%02d", i))
		s.submit(well[i], "well")
	}
	s.start("worker").waitFor("egress: owner, account ")

	var first, last time.Time
	for _, id := range well {
		c := s.settled(id, time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status)
		require.Equal(t, 1, c.Attempts)
		at := *c.Calls[0].StartedAt
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	require.LessOrEqual(t, last.Sub(first), n*200*time.Millisecond*5/4, "the sick account slows the other")
	s.requireMatched(well...)
	s.requireSpaced(well)
	record, err := standin.NewClient(sick.URL()).Record(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, record)
	for _, r := range record {
		require.LessOrEqual(t, r.InFlight, 11) // an answer given up is noticed there a moment later
	}
}
