package ledger

import (
	"context"
	"fmt"
	"strings"

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
	where, args := []string{"status = ?"}, []any{refund.StatusReview}
	add := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	if f.Reason != "" {
		add("review_reason = ?", f.Reason)
	}
	if f.Account != "" {
		add("account = ?", f.Account)
	}
	switch {
	case f.Unassigned:
		add("owner = ''")
	case f.Owner != "":
		add("owner = ?", f.Owner)
	}
	if f.Cursor != "" {
		at, id, err := parseCursor(f.Cursor)
		if err != nil {
			return Page{}, err
		}
		// The first half is what an index can serve.
		add("accepted_at >= ? AND (accepted_at > ? OR refund_id > ?)", at, at, id)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = DefaultPageSize
	}
	limit = min(limit, MaxPageSize)

	// One more than asked for tells whether there is a next page.
	cases, err := queryAll(ctx, l.pool, scanCase, `
		SELECT `+caseColumns+` FROM refunds WHERE `+strings.Join(where, " AND ")+`
		ORDER BY accepted_at, refund_id LIMIT ?`, append(args, limit+1)...)
	if err != nil {
		return Page{}, fmt.Errorf("listing reviews: %w", err)
	}
	if len(cases) <= limit {
		return Page{Cases: cases}, nil
	}
	cases = cases[:limit]
	last := cases[limit-1]
	return Page{Cases: cases, Next: formatCursor(last.AcceptedAt, last.Refund.ID)}, nil
}
