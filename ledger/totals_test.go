package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/refund"
)

func TestOpenCases(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	l := openLedger(t, migrated(t), Options{Now: ticking(start)})
	all, err := l.OpenCases(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)

	first := accept(t, l, newRefund("a"))
	second := accept(t, l, newRefund("b"))
	accept(t, l, newRefund("c"))
	other := newRefund("d")
	other.Account = "other"
	fourth := accept(t, l, other)
	save := func(id string, s refund.Status, r refund.ReviewReason) {
		require.NoError(t, l.Save(t.Context(), Change{RefundID: id, Status: s, ReviewReason: r}))
	}
	save("a", refund.StatusReview, refund.ReviewChecks)

	all, err = l.OpenCases(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []OpenCases{
		{Account: account, Status: refund.StatusReview, Count: 1, Oldest: first.AcceptedAt},
		{Account: account, Status: refund.StatusQueued, Count: 2, Oldest: second.AcceptedAt},
		{Account: "other", Status: refund.StatusQueued, Count: 1, Oldest: fourth.AcceptedAt},
	}, all)
	for _, id := range []string{"a", "b", "c", "d"} {
		save(id, refund.StatusSucceeded, "")
	}
	all, err = l.OpenCases(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)

	require.Contains(t, plan(t, l, `SELECT status, account, COUNT(*), MIN(accepted_at) FROM refunds
		WHERE status IN ('queued', 'retrying') GROUP BY status, account`), "Using index", "a backlog is counted in the index")
}

// A total counts each case once, however often its end is saved, and by however
// many at once.
func TestSettled(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	var savers errgroup.Group
	for i := range 20 {
		id := fmt.Sprintf("r-%d", i)
		accept(t, l, newRefund(id))
		status := refund.StatusSucceeded
		if i%4 == 0 {
			status = refund.StatusRejected
		}
		for range 3 {
			savers.Go(func() error { return l.Save(t.Context(), Change{RefundID: id, Status: status}) })
		}
	}
	accept(t, l, newRefund("open"))
	require.NoError(t, l.Save(t.Context(), Change{RefundID: "open", Status: refund.StatusPending}))
	require.NoError(t, savers.Wait())
	accept(t, l, newRefund("by-hand"))
	toReview(t, l, "by-hand")
	for range 2 {
		_, err := l.Act(t.Context(), Act{
			RefundID: "by-hand", ID: "d-1", Action: refund.ActionSettle, At: time.Now(),
			Input: refund.ActionInput{By: "mei", Reason: "why", Status: refund.StatusNotRefunded, Evidence: "statement"},
		})
		require.NoError(t, err)
	}

	all, err := l.Settled(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []Settled{
		{Account: account, Status: refund.StatusSucceeded, Total: 15},
		{Account: account, Status: refund.StatusRejected, Total: 5},
		{Account: account, Status: refund.StatusNotRefunded, Total: 1},
	}, all)
}
