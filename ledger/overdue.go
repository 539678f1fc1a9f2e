package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"refundgate/refund"
)

// Overdue returns the refunds whose deadline came before the given instant and
// whose cases are neither closed nor with people, earliest accepted first, at
// most limit of them. A case whose workflow runs is among them for a moment
// only.
func (l *Ledger) Overdue(ctx context.Context, before time.Time, limit int) ([]refund.Refund, error) {
	var automatic []any
	for _, s := range refund.Statuses {
		if !s.Final() && s != refund.StatusReview {
			automatic = append(automatic, s)
		}
	}
	cases, err := queryAll(ctx, l.pool, scanCase, `
		SELECT `+caseColumns+` FROM refunds
		WHERE status IN (?`+strings.Repeat(", ?", len(automatic)-1)+`) AND deadline_at < ?
		ORDER BY accepted_at, refund_id LIMIT ?`, append(automatic, stored(before), limit)...)
	if err != nil {
		return nil, fmt.Errorf("listing overdue refunds: %w", err)
	}
	return contents(cases), nil
}
