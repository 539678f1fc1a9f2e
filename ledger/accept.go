package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"refundgate/refund"
)

// ActionAccepted is the action of the first event of every case.
const ActionAccepted = "refund.accepted"

// Accept makes the refund durable and opens its case, due deadline after now.
// The same refund again returns the case as it stands, with created false;
// any number of callers may race with one id. (created can also be false for
// the one whose commit was only confirmed by asking again.)
//
// Errors: *refund.InvalidError, ErrConflict, *PaymentExceededError,
// *PaymentMismatchError; nothing was stored then.
func (l *Ledger) Accept(ctx context.Context, r refund.Refund, deadline time.Duration) (c refund.Case, created bool, err error) {
	if err := r.Validate(); err != nil {
		return refund.Case{}, false, err
	}
	// Most repeats end here, without taking a lock.
	if c, err = l.repeated(ctx, r); !errors.Is(err, ErrNotFound) {
		return c, false, err
	}
	err = l.tx(ctx, func(tx *sql.Tx) (err error) {
		created, err = l.accept(ctx, tx, r, deadline)
		return err
	})
	// A duplicate key: another payment's refund took the id in the meantime.
	if err != nil && errno(err) != errnoDuplicateKey {
		return refund.Case{}, false, fmt.Errorf("accepting refund %s: %w", r.ID, err)
	}
	c, err = l.repeated(ctx, r)
	return c, created && err == nil, err
}

// repeated returns the case of an accepted refund if r is the same refund: its
// content is that of any of the case's generations.
func (l *Ledger) repeated(ctx context.Context, r refund.Refund) (refund.Case, error) {
	c, err := l.Case(ctx, r.ID)
	if err != nil {
		return refund.Case{}, err
	}
	if c.Fingerprint == r.Fingerprint() {
		return c, nil
	}
	var known bool
	err = l.pool.QueryRowContext(ctx, `
		SELECT COUNT(*) > 0 FROM refund_generations WHERE refund_id = ? AND fingerprint = ?`,
		r.ID, r.Fingerprint()).Scan(&known)
	switch {
	case err != nil:
		return refund.Case{}, fmt.Errorf("reading the generations of refund %s: %w", r.ID, err)
	case !known:
		return refund.Case{}, fmt.Errorf("refund %s: %w", r.ID, ErrConflict)
	}
	return c, nil
}

// accept stores r unless its id is taken.
func (l *Ledger) accept(ctx context.Context, tx *sql.Tx, r refund.Refund, deadline time.Duration) (created bool, err error) {
	if err := lockPayment(ctx, tx, r); err != nil {
		return false, err
	}
	// Whoever held the payment before us may have accepted this very refund.
	switch _, err := caseRow(ctx, tx, r.ID); {
	case err == nil:
		return false, nil
	case !errors.Is(err, ErrNotFound):
		return false, err
	}
	if err := reserve(ctx, tx, r); err != nil {
		return false, err
	}
	now := l.now()
	_, err = tx.ExecContext(ctx, `
		INSERT INTO refunds (refund_id, account, order_id, payment_id, amount, currency, payment_amount,
			reason, requested_by, fingerprint, status, accepted_at, deadline_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.Account, r.OrderID, r.PaymentID, r.Amount.Value, r.Amount.Currency, paymentAmount(r),
		r.Reason, r.RequestedBy, r.Fingerprint(), refund.StatusQueued, now, now.Add(deadline), now)
	if err != nil {
		return false, fmt.Errorf("inserting the refund: %w", err)
	}
	return true, addEvent(ctx, tx, r.ID, refund.Event{
		At:     now,
		Actor:  r.RequestedBy,
		Action: ActionAccepted,
		Detail: fmt.Sprintf("%s of payment %s for order %s", r.Amount, r.PaymentID, r.OrderID),
	})
}

// Unstarted returns the open refunds whose workflow is not known to have been
// started, earliest accepted first, at most limit of them.
func (l *Ledger) Unstarted(ctx context.Context, limit int) ([]refund.Refund, error) {
	cases, err := queryAll(ctx, l.pool, scanCase, `
		SELECT `+caseColumns+` FROM refunds
		WHERE workflow_started_at IS NULL AND closed_at IS NULL
		ORDER BY accepted_at, refund_id LIMIT ?`, limit)
	if err != nil {
		return nil, fmt.Errorf("listing refunds to start: %w", err)
	}
	return contents(cases), nil
}

// MarkStarted notes that the refund's workflow was started. The first time
// stands. ErrNotFound if there is no such refund.
func (l *Ledger) MarkStarted(ctx context.Context, refundID string) error {
	res, err := l.pool.ExecContext(ctx, `
		UPDATE refunds SET workflow_started_at = COALESCE(workflow_started_at, ?) WHERE refund_id = ?`,
		l.now(), refundID)
	if err != nil {
		return fmt.Errorf("marking refund %s as started: %w", refundID, err)
	}
	matched, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("marking refund %s as started: %w", refundID, err)
	}
	if matched == 0 {
		return fmt.Errorf("marking refund %s as started: %w", refundID, ErrNotFound)
	}
	return nil
}
