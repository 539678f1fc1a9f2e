package ledger

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// took records a call that started when it did and took that long.
func took(t *testing.T, l *Ledger, k *EgressLock, in Intent, started time.Time, d time.Duration, budget refund.Budget) {
	t.Helper()
	intend(t, k, in)
	finished := started.Add(d)
	call := in.Call
	call.StartedAt, call.FinishedAt = &started, &finished
	call.Result = refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: budget}
	require.NoError(t, l.Complete(t.Context(), call))
}

func TestLatencies(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	all, err := l.Latencies(t.Context(), account)
	require.NoError(t, err)
	require.Empty(t, all)

	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	now := time.Now().UTC().Truncate(time.Microsecond)
	begin := now.Add(-time.Hour)
	// 100 checks of 1 to 100 ms, in no order.
	for i, ms := range rand.Perm(100) {
		took(t, l, k, check("r-1", i+1), begin.Add(time.Duration(i)*time.Second), time.Duration(ms+1)*time.Millisecond, "")
	}
	took(t, l, k, submit("r-1", 1), now.Add(-2*time.Minute), 3001234*time.Microsecond, refund.BudgetOverall)
	took(t, l, k, submit("r-1", 2), now.Add(-time.Minute), time.Millisecond, "")
	// None of these took any time that says something.
	took(t, l, k, check("r-1", 201), now.Add(-LatencyWindow-time.Minute), time.Hour, "") // long ago
	intend(t, k, submit("r-1", 3))                                                       // no outcome yet
	notSent := check("r-1", 202)
	intend(t, k, notSent)
	require.NoError(t, l.Complete(t.Context(), finished(notSent.Call, refund.OutcomeNotSent, refund.CodeConnect)))
	lost := check("r-1", 203)
	intend(t, k, lost)
	_, err = l.Abandon(t.Context(), lost.Call)
	require.NoError(t, err)

	all, err = l.Latencies(t.Context(), account)
	require.NoError(t, err)
	ms := time.Millisecond
	require.Equal(t, []Latency{
		{Kind: refund.KindSubmit, Calls: 2, TimedOut: 1, P50: ms, P95: 3001234 * time.Microsecond, P99: 3001234 * time.Microsecond, Max: 3001234 * time.Microsecond, Since: now.Add(-2 * time.Minute)},
		{Kind: refund.KindCheck, Calls: 100, P50: 50 * ms, P95: 95 * ms, P99: 99 * ms, Max: 100 * ms, Since: begin},
	}, all)
	others, err := l.Latencies(t.Context(), "other")
	require.NoError(t, err)
	require.Empty(t, others)

	b, err := json.Marshal(all[0])
	require.NoError(t, err)
	require.JSONEq(t, fmt.Sprintf(`{"kind":"submit","calls":2,"timed_out":1,"p50_ms":1,"p95_ms":3001.234,"p99_ms":3001.234,"max_ms":3001.234,"since":%q}`,
		now.Add(-2*time.Minute).Format(time.RFC3339Nano)), string(b))
}

// Only the latest calls count, and reading them touches nothing but the index.
func TestLatencies_AreBounded(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	_, err := l.pool.ExecContext(t.Context(), `
		INSERT INTO provider_calls (refund_id, generation, kind, seq, origin, account, epoch, intent_at, started_at, finished_at, outcome)
		SELECT 'r-1', 1, 'check', n.seq, 'check', ?, 1, n.at, n.at, n.at + INTERVAL IF(n.seq <= 500, 60, 1) SECOND, 'pending'
		FROM (SELECT a.d * 100 + b.d * 10 + c.d + 1 AS seq, ? - INTERVAL (1500 - (a.d * 100 + b.d * 10 + c.d + 1)) SECOND AS at
			FROM (`+digits(15)+`) a, (`+digits(10)+`) b, (`+digits(10)+`) c) n`, account, l.now())
	require.NoError(t, err)

	all, err := l.Latencies(t.Context(), account)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, MaxLatencies, all[0].Calls)
	require.Equal(t, time.Second, all[0].Max, "the 500 before the latest 1000 took longer")

	require.Equal(t, "Using where; Using index", plan(t, l, `
		SELECT started_at, finished_at, budget IS NOT NULL FROM provider_calls
		WHERE account = 'acme' AND kind = 'check' AND started_at >= '2026-01-01' AND finished_at IS NOT NULL
		ORDER BY started_at DESC LIMIT 1000`))
}

// digits is a query for the numbers 0 to n-1 as d.
func digits(n int) string {
	q := "SELECT 0 AS d"
	for i := 1; i < n; i++ {
		q += fmt.Sprintf(" UNION ALL SELECT %d", i)
	}
	return q
}

// plan is what the server says about how it answers the query.
func plan(t *testing.T, l *Ledger, query string) string {
	t.Helper()
	rows, err := l.pool.QueryContext(t.Context(), "EXPLAIN "+query)
	require.NoError(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(t, err)
	values := make([]any, len(columns))
	for i := range values {
		values[i] = new([]byte)
	}
	require.True(t, rows.Next())
	require.NoError(t, rows.Scan(values...))
	require.False(t, rows.Next())
	require.NoError(t, rows.Err())
	return string(*values[len(values)-1].(*[]byte))
}
