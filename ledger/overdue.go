package ledger

import (
	"context"
	"fmt"
	"time"

	"refundgate/refund"
)

// Overdue returns the refunds whose deadline came before the given instant and
// whose cases are neither closed nor with people, earliest accepted first, at
// most limit of them. A case whose workflow runs is among them for a moment
// only.
func (l *Ledger) Overdue(ctx context.Context, before time.Time, limit int) ([]refund.Refund, error) {
	open := automatic()
	cases, err := queryAll(ctx, l.pool, scanCase, `
		SELECT `+caseColumns+` FROM refunds
		WHERE status IN (`+placeholders(len(open))+`) AND deadline_at < ?
		ORDER BY accepted_at, refund_id LIMIT ?`, append(open, stored(before), limit)...)
	if err != nil {
		return nil, fmt.Errorf("listing overdue refunds: %w", err)
	}
	return contents(cases), nil
}
