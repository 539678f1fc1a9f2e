package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// MaxPayload bounds the payload of an inbox row, in bytes, as the intake API
// bounds a body.
const MaxPayload = 64 << 10

// maxRefusal is how many characters of a refusal are kept.
const maxRefusal = 1000

// InboxRow is a refund that an order service has handed in with a row in its
// own transaction.
type InboxRow struct {
	ID       int64  `json:"id"`
	RefundID string `json:"refund_id"`
	// Payload is what the intake API would get as a body; nil if it is larger
	// than MaxPayload, and in lists.
	Payload   []byte    `json:"-"`
	CreatedAt time.Time `json:"created_at"`
	// RefusedAt and Refusal say since when and why the row is set aside.
	RefusedAt *time.Time `json:"refused_at,omitempty"`
	Refusal   string     `json:"refusal,omitempty"`
}

// ClaimInbox returns the rows that are due, in the order in which they came, at
// most limit of them. They are the caller's for so long; after that they are
// due again. What it does with them must be idempotent all the same, since it
// may take longer. A row that is done is deleted with DeleteInbox.
func (l *Ledger) ClaimInbox(ctx context.Context, limit int, lease time.Duration) (rows []InboxRow, err error) {
	err = l.tx(ctx, func(tx *sql.Tx) error {
		now := l.now()
		rows, err = queryAll(ctx, tx, scanInbox, `
			SELECT id, refund_id, IF(LENGTH(payload) <= ?, payload, NULL), created_at, refused_at, refusal FROM refund_inbox
			WHERE refused_at IS NULL AND due_at <= ?
			ORDER BY due_at, id LIMIT ? FOR UPDATE SKIP LOCKED`, MaxPayload, now, limit)
		if err != nil || len(rows) == 0 {
			return err
		}
		args := []any{now.Add(lease)}
		for _, r := range rows {
			args = append(args, r.ID)
		}
		_, err = tx.ExecContext(ctx, `UPDATE refund_inbox SET due_at = ? WHERE id IN (`+placeholders(len(rows))+`)`, args...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claiming rows of the inbox: %w", err)
	}
	return rows, nil
}

func scanInbox(row scanner) (r InboxRow, err error) {
	err = row.Scan(&r.ID, &r.RefundID, &r.Payload, &r.CreatedAt, &r.RefusedAt, &r.Refusal)
	return r, err
}

// DeleteInbox removes a row whose refund was accepted.
func (l *Ledger) DeleteInbox(ctx context.Context, id int64) error {
	return l.execInbox(ctx, "deleting", id, `DELETE FROM refund_inbox WHERE id = ?`, id)
}

// DelayInbox leaves rows alone until the given instant; one that has passed
// makes them due.
func (l *Ledger) DelayInbox(ctx context.Context, until time.Time, ids ...int64) error {
	if len(ids) == 0 {
		return nil
	}
	args := []any{stored(until)}
	for _, id := range ids {
		args = append(args, id)
	}
	_, err := l.pool.ExecContext(ctx, `UPDATE refund_inbox SET due_at = ? WHERE id IN (`+placeholders(len(ids))+`)`, args...)
	if err != nil {
		return fmt.Errorf("delaying %d rows of the inbox: %w", len(ids), err)
	}
	return nil
}

// RefuseInbox sets a row aside for people, with the reason.
func (l *Ledger) RefuseInbox(ctx context.Context, id int64, reason string) error {
	short := []rune(reason)
	short = short[:min(len(short), maxRefusal)]
	return l.execInbox(ctx, "setting aside", id, `UPDATE refund_inbox SET refused_at = ?, refusal = ? WHERE id = ?`,
		l.now(), string(short), id)
}

func (l *Ledger) execInbox(ctx context.Context, doing string, id int64, query string, args ...any) error {
	if _, err := l.pool.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("%s row %d of the inbox: %w", doing, id, err)
	}
	return nil
}

// RefusedInbox returns the rows that are set aside, the oldest first, at most
// limit of them.
func (l *Ledger) RefusedInbox(ctx context.Context, limit int) ([]InboxRow, error) {
	rows, err := queryAll(ctx, l.pool, scanInbox, `
		SELECT id, refund_id, NULL, created_at, refused_at, refusal FROM refund_inbox
		WHERE refused_at IS NOT NULL ORDER BY refused_at, id LIMIT ?`, limit)
	if err != nil {
		return nil, fmt.Errorf("listing the inbox: %w", err)
	}
	return rows, nil
}

// RetryInbox makes a row that is set aside due again. ErrNotFound if there is
// no such row.
func (l *Ledger) RetryInbox(ctx context.Context, id int64) error {
	err := l.execOne(ctx, `
		UPDATE refund_inbox SET refused_at = NULL, refusal = '', due_at = ? WHERE id = ? AND refused_at IS NOT NULL`, l.now(), id)
	if err != nil {
		return fmt.Errorf("retrying row %d of the inbox: %w", id, err)
	}
	return nil
}

// InboxLoad is what is in the inbox.
type InboxLoad struct {
	Waiting, Refused int
	// Oldest is when the earliest of those that wait was written; nil if there
	// is none.
	Oldest *time.Time
}

// InboxLoad counts the rows of the inbox.
func (l *Ledger) InboxLoad(ctx context.Context) (load InboxLoad, err error) {
	err = l.pool.QueryRowContext(ctx, `
		SELECT COALESCE(SUM(refused_at IS NULL), 0), COALESCE(SUM(refused_at IS NOT NULL), 0), MIN(IF(refused_at IS NULL, created_at, NULL))
		FROM refund_inbox`).Scan(&load.Waiting, &load.Refused, &load.Oldest)
	if err != nil {
		return InboxLoad{}, fmt.Errorf("counting the inbox: %w", err)
	}
	return load, nil
}
