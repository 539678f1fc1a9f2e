package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// reviewIDs are the ids of the reviews that the filter selects, over all pages.
func reviewIDs(t *testing.T, l *Ledger, f ReviewFilter) (ids []string) {
	t.Helper()
	for range 20 {
		page, err := l.Reviews(t.Context(), f)
		require.NoError(t, err)
		for _, c := range page.Cases {
			require.Equal(t, refund.StatusReview, c.Status)
			ids = append(ids, c.Refund.ID)
		}
		if page.Next == "" {
			return ids
		}
		require.Len(t, page.Cases, f.Limit)
		f.Cursor = page.Next
	}
	require.FailNow(t, "the pages don't end")
	return nil
}

func TestReviews_PagesLongestWaitingFirst(t *testing.T) {
	t.Parallel()
	// Every two refunds share their instant, as they may: the id decides.
	reads := 0
	start := time.Date(2026, 3, 1, 0, 0, 0, 999999000, time.UTC)
	l := openLedger(t, migrated(t), Options{Now: func() time.Time {
		reads++
		return start.Add(time.Duration(reads/2) * time.Microsecond)
	}})
	var want []string
	for i := range 11 {
		id := fmt.Sprintf("r-%02d", i)
		accept(t, l, newRefund(id))
		if i%5 != 4 { // the others are no reviews
			want = append(want, id)
		}
	}
	for _, id := range want {
		toReview(t, l, id)
	}
	for limit := 1; limit <= len(want)+1; limit++ {
		require.Equal(t, want, reviewIDs(t, l, ReviewFilter{Limit: limit}), "pages of %d", limit)
	}
	_, err := l.Reviews(t.Context(), ReviewFilter{Cursor: "x"})
	require.ErrorIs(t, err, ErrBadCursor)
}

func TestReviews_Filter(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for _, c := range []struct{ id, account, owner string }{
		{"r-1", "main", ""}, {"r-2", "main", "lin"}, {"r-3", "other", ""}, {"r-4", "other", "bo"},
	} {
		r := newRefund(c.id)
		r.Account = c.account
		accept(t, l, r)
		reason := refund.ReviewDeadlineUnknown
		if c.id == "r-3" {
			reason = refund.ReviewAttempts
		}
		require.NoError(t, l.Save(t.Context(), Change{RefundID: c.id, Status: refund.StatusReview, ReviewReason: reason}))
		if c.owner != "" {
			a := newAct(c.id, "a-1", refund.ActionAssign)
			a.Account, a.Input.Owner = c.account, c.owner
			mustAct(t, l, a)
		}
	}
	accept(t, l, newRefund("r-5"))
	for want, f := range map[string]ReviewFilter{
		"[r-1 r-2 r-3 r-4]": {},
		"[r-1 r-2]":         {Account: "main"},
		"[r-2]":             {Owner: "lin"},
		"[r-1 r-3]":         {Unassigned: true},
		"[r-3]":             {Reason: refund.ReviewAttempts},
		"[r-1]":             {Unassigned: true, Account: "main", Reason: refund.ReviewDeadlineUnknown},
		"[]":                {Owner: "mei"},
	} {
		f.Limit = 3
		require.Equal(t, want, fmt.Sprint(reviewIDs(t, l, f)))
	}
}
