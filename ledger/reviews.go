package ledger

import (
	"context"

	"refundgate/refund"
)

// ReviewFilter selects cases in review; an empty field selects all.
type ReviewFilter struct {
	Reason  refund.ReviewReason
	Account string
	Owner   string
	// Unassigned selects the cases that nobody has been given. It doesn't go
	// with Owner.
	Unassigned bool
	// Limit and Cursor are as in Filter.
	Limit  int
	Cursor string
}

// Reviews returns one page of the cases in review, those first that wait
// longest since they were accepted. A cursor of another list is taken for a
// position in this one.
func (l *Ledger) Reviews(ctx context.Context, f ReviewFilter) (Page, error) {
	s := selection{what: "reviews", direction: "ASC", beyond: ">"}
	s.add("status = ?", refund.StatusReview)
	if f.Reason != "" {
		s.add("review_reason = ?", f.Reason)
	}
	if f.Account != "" {
		s.add("account = ?", f.Account)
	}
	switch {
	case f.Unassigned:
		s.add("owner = ''")
	case f.Owner != "":
		s.add("owner = ?", f.Owner)
	}
	return l.page(ctx, s, f.Limit, f.Cursor)
}
