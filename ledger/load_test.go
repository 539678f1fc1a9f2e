package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// setStatus brings the case to the status.
func setStatus(t *testing.T, l *Ledger, id string, s refund.Status) {
	t.Helper()
	change := Change{RefundID: id, Status: s}
	if s == refund.StatusReview {
		change.ReviewReason = refund.ReviewDeadlineUnknown
	}
	require.NoError(t, l.Save(t.Context(), change))
}

func TestLoad(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Microsecond)
	accepted := now
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return accepted }})
	load := func() Load {
		t.Helper()
		load, err := l.Load(t.Context(), account, now.Add(-90*time.Second))
		require.NoError(t, err)
		return load
	}
	require.Equal(t, Load{}, load())

	// One of each status, a minute apart: 2 m 0 s ago was the earliest queued.
	for i, s := range []refund.Status{
		refund.StatusUnknown, refund.StatusPending, refund.StatusRetrying, refund.StatusReview,
		refund.StatusSucceeded, refund.StatusRejected, refund.StatusNotRefunded,
	} {
		accepted = now.Add(time.Duration(i-10) * time.Minute)
		id := fmt.Sprintf("r-%d", i)
		accept(t, l, newRefund(id))
		setStatus(t, l, id, s)
	}
	for i, ago := range []time.Duration{2 * time.Minute, time.Minute, 0} {
		accepted = now.Add(-ago)
		accept(t, l, newRefund(fmt.Sprintf("q-%d", i)))
	}
	other := newRefund("r-other")
	other.Account = "other"
	accept(t, l, other)
	oldest := now.Add(-2 * time.Minute)
	accepted = now
	require.Equal(t, Load{Open: 6, OldestQueued: &oldest, QueuedBefore: 1}, load(), "what was settled was settled more than a minute ago")

	for i, ago := range []time.Duration{59 * time.Second, 61 * time.Second} {
		id := fmt.Sprintf("q-%d", i)
		accepted = now.Add(-ago)
		require.NoError(t, l.Save(t.Context(), Change{RefundID: id, Status: refund.StatusSucceeded}))
	}
	accepted = now
	k := acquire(t, l)
	took(t, l, k, submit("q-2", 1), now.Add(-50*time.Second), 3*time.Second, refund.BudgetOverall)
	took(t, l, k, check("q-2", 1), now.Add(-40*time.Second), time.Second, "")
	took(t, l, k, check("q-2", 2), now.Add(-61*time.Second), time.Hour, "")
	intend(t, k, check("q-2", 3)) // no start is known of it yet
	require.Equal(t, Load{Open: 4, OldestQueued: &now, Calls: 2, CallTime: 2 * time.Second, Settled: 1}, load())
}

func TestDues(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := newLedger(t)
	dues, err := l.Dues(t.Context(), account, now)
	require.NoError(t, err)
	require.Empty(t, dues)

	from := now.Add(time.Minute)
	l = openLedger(t, migrated(t), Options{Now: func() time.Time { return from }})
	for i, deadline := range []time.Duration{-2 * time.Hour, -time.Second, time.Second, 14 * time.Second, 15 * time.Second, 31 * time.Second} {
		_, _, err := l.Accept(t.Context(), Submission{Refund: newRefund(fmt.Sprintf("r-%d", i)), Deadline: deadline})
		require.NoError(t, err)
	}
	for id, s := range map[string]refund.Status{"done": refund.StatusSucceeded, "people": refund.StatusReview} {
		accept(t, l, newRefund(id))
		setStatus(t, l, id, s)
	}
	dues, err = l.Dues(t.Context(), account, from)
	require.NoError(t, err)
	require.Equal(t, []Due{
		{Until: from, Cases: 2},
		{Until: from.Add(15 * time.Second), Cases: 2},
		{Until: from.Add(30 * time.Second), Cases: 1},
		{Until: from.Add(45 * time.Second), Cases: 1},
	}, dues)
}
