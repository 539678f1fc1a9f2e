package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// A8: the provider takes fewer sends than calls. Sends keep to their own limit,
// and what it leaves of the account's budget goes to the checks.
func TestEndpointsHaveLimitsOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.configure(map[string]string{"demo": s.provider.URL()}, "defaults:\n  endpoints: {submit: {starts_per_second: 2}}\n")
	require.NoError(t, s.control.SetPlan(t.Context(), standin.Rule{
		Match: standin.Match{Method: http.MethodPost}, Fault: standin.Fault{Kind: standin.Pending, Status: http.StatusCreated, SettleMS: 1},
	}))
	s.start("serve").waitFor("intake:")
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprintf("r-%02d", i))
		s.submit(ids[i], "demo")
	}
	s.start("worker").waitFor("egress: owner")
	last := map[refund.CallKind]time.Duration{}
	for _, id := range ids {
		require.Equal(t, refund.StatusSucceeded, s.settled(id, time.Minute).Status)
	}
	record, err := s.control.Record(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(record), 2*len(ids), "each send is checked")
	rows, err := s.db.QueryContext(t.Context(), `SELECT kind, started_mono_ns FROM provider_calls WHERE started_mono_ns IS NOT NULL ORDER BY started_mono_ns`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var kind refund.CallKind
		var at time.Duration
		require.NoError(t, rows.Scan(&kind, &at))
		if before, ok := last[kind]; ok && kind == refund.KindSubmit {
			require.GreaterOrEqual(t, at-before, 500*time.Millisecond)
		}
		last[kind] = at
	}
	require.NoError(t, rows.Err())
	s.requireMatched(ids...)
}
