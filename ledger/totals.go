package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"refundgate/refund"
)

// OpenCases counts an account's cases of one status that is not final.
type OpenCases struct {
	Account string
	Status  refund.Status
	Count   int
	// Oldest is when the oldest of them was accepted.
	Oldest time.Time
}

// OpenCases counts the open cases, by account and status. What there is none
// of is left out.
func (l *Ledger) OpenCases(ctx context.Context) ([]OpenCases, error) {
	var open []any
	for _, s := range refund.Statuses {
		if !s.Final() {
			open = append(open, s)
		}
	}
	all, err := queryAll(ctx, l.pool, func(row scanner) (o OpenCases, err error) {
		err = row.Scan(&o.Status, &o.Account, &o.Count, &o.Oldest)
		return o, err
	}, `
		SELECT status, account, COUNT(*), MIN(accepted_at) FROM refunds
		WHERE status IN (?`+strings.Repeat(", ?", len(open)-1)+`) GROUP BY status, account`, open...)
	if err != nil {
		return nil, fmt.Errorf("counting the open cases: %w", err)
	}
	return all, nil
}

// Settled counts how often cases of an account reached one final status.
type Settled struct {
	Account string
	Status  refund.Status
	Total   int64
}

// Settled returns the totals by account and status. They only ever grow.
func (l *Ledger) Settled(ctx context.Context) ([]Settled, error) {
	all, err := queryAll(ctx, l.pool, func(row scanner) (s Settled, err error) {
		err = row.Scan(&s.Account, &s.Status, &s.Total)
		return s, err
	}, `SELECT account, status, total FROM settled_totals`)
	if err != nil {
		return nil, fmt.Errorf("reading the totals of settled cases: %w", err)
	}
	return all, nil
}

// countSettled adds one to the total of a final status. It comes last in its
// transaction: the row is shared by all of the account's cases and is to be
// locked for a moment only.
func countSettled(ctx context.Context, tx *sql.Tx, account string, s refund.Status) error {
	if !s.Final() {
		return nil
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO settled_totals (account, status, total) VALUES (?, ?, 1)
		ON DUPLICATE KEY UPDATE total = total + 1`, account, s)
	if err != nil {
		return fmt.Errorf("counting the settled case: %w", err)
	}
	return nil
}
