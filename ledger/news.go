package ledger

import (
	"context"
	"database/sql"
	"fmt"

	"refundgate/refund"
)

// News says that a case has notices that its workflow was not told of.
type News struct {
	Refund refund.Refund
	// Notices names them, for MarkTold: one that is stored or matched later
	// is another piece of news.
	Notices []int64
}

// Untold returns the cases with notices that no workflow was told of, in the
// order in which the first of them was stored. limit bounds the notices, and
// so the cases.
func (l *Ledger) Untold(ctx context.Context, limit int) ([]News, error) {
	untold, err := queryAll(ctx, l.pool, scanUntold, `
		SELECT id, refund_id FROM notices WHERE told_at IS NULL AND refund_id IS NOT NULL
		ORDER BY id LIMIT ?`, limit)
	if err != nil {
		return nil, fmt.Errorf("listing untold notices: %w", err)
	}
	news := []News{}
	position := map[string]int{}
	for _, u := range untold {
		at, known := position[u.refundID]
		if !known {
			c, err := caseRow(ctx, l.pool, u.refundID)
			if err != nil {
				return nil, fmt.Errorf("reading refund %s: %w", u.refundID, err)
			}
			at = len(news)
			position[u.refundID] = at
			news = append(news, News{Refund: c.Refund})
		}
		news[at].Notices = append(news[at].Notices, u.notice)
	}
	return news, nil
}

// MarkTold notes that a workflow was told to look at the case again. The first
// time stands.
func (l *Ledger) MarkTold(ctx context.Context, n News) error {
	if len(n.Notices) == 0 {
		return nil
	}
	args := []any{l.now(), n.Refund.ID}
	for _, id := range n.Notices {
		args = append(args, id)
	}
	err := l.tx(ctx, func(tx *sql.Tx) error {
		// The order of the locks: whoever matches a notice holds the case.
		if _, err := lockCase(ctx, tx, n.Refund.ID); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `
			UPDATE notices SET told_at = COALESCE(told_at, ?) WHERE refund_id = ? AND id IN (`+placeholders(len(n.Notices))+`)`,
			args...)
		return err
	})
	if err != nil {
		return fmt.Errorf("marking the notices of refund %s as told: %w", n.Refund.ID, err)
	}
	return nil
}

type untold struct {
	notice   int64
	refundID string
}

func scanUntold(row scanner) (u untold, err error) {
	err = row.Scan(&u.notice, &u.refundID)
	return u, err
}
