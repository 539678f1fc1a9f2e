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

// Submission is a refund that somebody hands in.
type Submission struct {
	Refund refund.Refund
	// Client is the client of the intake API that hands it in, and may look the
	// case up from then on. Empty for those that come another way.
	Client string
	// Deadline is how long after its acceptance the case goes to review.
	Deadline time.Duration
	// Admit is asked before a refund is stored that isn't known yet; its error
	// is returned as it is, and nothing was stored. It must not block. Defaults
	// to admitting all.
	Admit func() error
}

// Accept makes the refund durable and opens its case. The same refund again
// returns the case as it stands, with created false; any number of callers may
// race with one id. (created can also be false for the one whose commit was
// only confirmed by asking again.) The case comes without its calls, notices
// and decisions.
//
// Errors: *refund.InvalidError, ErrConflict, *PaymentExceededError,
// *PaymentMismatchError and those of Admit; nothing was stored then.
func (l *Ledger) Accept(ctx context.Context, s Submission) (c refund.Case, created bool, err error) {
	if err := s.Refund.Validate(); err != nil {
		return refund.Case{}, false, err
	}
	// Most repeats end here, without taking a lock.
	if c, err = l.repeated(ctx, s); !errors.Is(err, ErrNotFound) {
		return c, false, err
	}
	if s.Admit != nil {
		if err := s.Admit(); err != nil {
			return refund.Case{}, false, err
		}
	}
	err = l.tx(ctx, func(tx *sql.Tx) (err error) {
		c, err = l.accept(ctx, tx, s)
		return err
	})
	switch {
	case err == nil:
		return c, true, nil
	// A duplicate key: another payment's refund took the id in the meantime.
	case errors.Is(err, errTaken), errno(err) == errnoDuplicateKey:
		c, err = l.repeated(ctx, s)
		return c, false, err
	}
	return refund.Case{}, false, fmt.Errorf("accepting refund %s: %w", s.Refund.ID, err)
}

// errTaken says that the id was accepted meanwhile, with this content or other.
var errTaken = errors.New("the refund id is taken")

// repeated returns the case of an accepted refund if s hands in the same
// refund: its content is that of any of the case's generations. A case that is
// no client's yet becomes the one's who knows all of it.
func (l *Ledger) repeated(ctx context.Context, s Submission) (refund.Case, error) {
	id, fingerprint := s.Refund.ID, s.Refund.Fingerprint()
	c, err := caseRow(ctx, l.pool, id)
	if err != nil {
		return refund.Case{}, fmt.Errorf("reading refund %s: %w", id, err)
	}
	known := c.Fingerprint == fingerprint
	if !known {
		err = l.pool.QueryRowContext(ctx, `
			SELECT COUNT(*) > 0 FROM refund_generations WHERE refund_id = ? AND fingerprint = ?`,
			id, fingerprint).Scan(&known)
	}
	switch {
	case err != nil:
		return refund.Case{}, fmt.Errorf("reading the generations of refund %s: %w", id, err)
	case !known:
		return refund.Case{}, fmt.Errorf("refund %s: %w", id, ErrConflict)
	case c.Client != "" || s.Client == "":
		return c, nil
	}
	_, err = l.pool.ExecContext(ctx, `UPDATE refunds SET client = ? WHERE refund_id = ? AND client = ''`, s.Client, id)
	if err != nil {
		return refund.Case{}, fmt.Errorf("giving refund %s to its client: %w", id, err)
	}
	return caseRow(ctx, l.pool, id) // another client may have been quicker
}

// accept stores the refund. It fails with errTaken if its id is taken.
func (l *Ledger) accept(ctx context.Context, tx *sql.Tx, s Submission) (refund.Case, error) {
	r := s.Refund
	if err := lockPayment(ctx, tx, r); err != nil {
		return refund.Case{}, err
	}
	// Whoever held the payment before us may have accepted this very refund.
	switch _, err := caseRow(ctx, tx, r.ID); {
	case err == nil:
		return refund.Case{}, errTaken
	case !errors.Is(err, ErrNotFound):
		return refund.Case{}, err
	}
	if err := reserve(ctx, tx, r); err != nil {
		return refund.Case{}, err
	}
	now := l.now()
	c := refund.Case{
		Refund: r, Fingerprint: r.Fingerprint(), Client: s.Client, Status: refund.StatusQueued, Version: 1, Generation: 1,
		AcceptedAt: now, DeadlineAt: now.Add(s.Deadline),
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO refunds (refund_id, account, order_id, payment_id, amount, currency, payment_amount,
			reason, requested_by, client, fingerprint, status, accepted_at, deadline_at, updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.Account, r.OrderID, r.PaymentID, r.Amount.Value, r.Amount.Currency, paymentAmount(r),
		r.Reason, r.RequestedBy, c.Client, c.Fingerprint, c.Status, c.AcceptedAt, c.DeadlineAt, now)
	if err != nil {
		return refund.Case{}, fmt.Errorf("inserting the refund: %w", err)
	}
	return c, addEvent(ctx, tx, r.ID, refund.Event{
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
	err := l.execOne(ctx, `
		UPDATE refunds SET workflow_started_at = COALESCE(workflow_started_at, ?) WHERE refund_id = ?`,
		l.now(), refundID)
	if err != nil {
		return fmt.Errorf("marking refund %s as started: %w", refundID, err)
	}
	return nil
}
