package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

func TestOverdue(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	l := openLedger(t, migrated(t), Options{Now: ticking(start)})
	first, second := newRefund("b"), newRefund("a")
	deadline := accept(t, l, first).DeadlineAt
	accept(t, l, second)
	for id, s := range map[string]refund.Status{"closed": refund.StatusSucceeded, "reviewed": refund.StatusReview, "b": refund.StatusPending} {
		if id != "b" {
			accept(t, l, newRefund(id))
		}
		c := Change{RefundID: id, Status: s}
		if s == refund.StatusReview {
			c.ReviewReason = refund.ReviewChecks
		}
		require.NoError(t, l.Save(t.Context(), c))
	}
	overdue := func(before time.Time, limit int) []refund.Refund {
		all, err := l.Overdue(t.Context(), before, limit)
		require.NoError(t, err)
		return all
	}
	require.Empty(t, overdue(deadline, 10), "not yet")
	require.Equal(t, []refund.Refund{first}, overdue(deadline.Add(time.Microsecond), 10))
	require.Equal(t, []refund.Refund{first, second}, overdue(deadline.Add(time.Hour), 10))
	require.Equal(t, []refund.Refund{first}, overdue(deadline.Add(time.Hour), 1))
}
