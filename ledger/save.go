package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"refundgate/refund"
)

// Change is a new state of a case.
type Change struct {
	RefundID string
	Status   refund.Status
	// Generation and Was say where the case stands before the change; the
	// change is refused if it stands elsewhere. 0 and "" are anywhere.
	Generation int
	Was        refund.Status
	// Reopen lets a case that is closed as Was go to review. Event is required
	// with it.
	Reopen bool
	// ReviewReason says why the case goes to review; empty for any other
	// status.
	ReviewReason refund.ReviewReason
	// ProviderRefundID is the provider's id if it was learnt; an empty one
	// leaves what is known.
	ProviderRefundID string
	// Event goes on the trail with the change, if it is set. Its time must be
	// the same when the change is repeated: it tells a repeat from a second
	// event.
	Event *refund.Event
}

func (c Change) validate() error {
	switch inReview := c.Status == refund.StatusReview; {
	case !c.Status.Valid():
		return fmt.Errorf("%q is not a status", c.Status)
	case inReview && c.ReviewReason == "":
		return errors.New("a review needs a reason")
	case !inReview && c.ReviewReason != "":
		return fmt.Errorf("a review reason does not go with status %s", c.Status)
	case c.Reopen && (!inReview || !c.Was.Final() || c.Event == nil):
		return errors.New("a case is reopened from a final status to review, with an event")
	}
	return nil
}

// Save writes the change and its event in one transaction. A final status
// stands: ErrClosed if the case has another one, and the same one again
// changes nothing. Only Reopen ends it, once for its event. Repeating a change
// changes nothing either, whatever has followed on it. ErrNotFound if there is
// no such refund.
func (l *Ledger) Save(ctx context.Context, c Change) error {
	err := c.validate()
	if err == nil {
		err = l.tx(ctx, func(tx *sql.Tx) error { return l.save(ctx, tx, c) })
	}
	if err != nil {
		return fmt.Errorf("saving refund %s: %w", c.RefundID, err)
	}
	return nil
}

func (l *Ledger) save(ctx context.Context, tx *sql.Tx, c Change) error {
	current, err := lockCase(ctx, tx, c.RefundID)
	if err != nil {
		return err
	}
	repeat := false
	if c.Event != nil {
		if repeat, err = hasEvent(ctx, tx, c.RefundID, *c.Event); err != nil {
			return err
		}
	}
	switch reopens := c.Reopen && current.Status == c.Was && !repeat; {
	case current.Status == c.Status && current.Status.Final():
		return nil
	case current.Status.Final() && !reopens:
		return fmt.Errorf("it is %s: %w", current.Status, ErrClosed)
	case repeat:
		return nil
	case c.Generation != 0 && c.Generation != current.Generation, c.Was != "" && c.Was != current.Status:
		return fmt.Errorf("it is %s, generation %d: %w", current.Status, current.Generation, ErrClosed)
	}
	if err := l.setStatus(ctx, tx, c); err != nil {
		return err
	}
	if c.Event != nil {
		if err := addEvent(ctx, tx, c.RefundID, *c.Event); err != nil {
			return err
		}
	}
	return countSettled(ctx, tx, current.Refund.Account, c.Status)
}

// setStatus writes where the case stands. It must be locked.
func (l *Ledger) setStatus(ctx context.Context, tx *sql.Tx, c Change) error {
	now := l.now()
	var closedAt *time.Time
	if c.Status.Final() {
		closedAt = &now
	}
	_, err := tx.ExecContext(ctx, `
		UPDATE refunds SET status = ?, review_reason = ?, provider_refund_id = COALESCE(?, provider_refund_id),
			closed_at = ?, updated_at = ?, version = version + 1
		WHERE refund_id = ?`,
		c.Status, c.ReviewReason, orNull(storableID(c.ProviderRefundID)), closedAt, now, c.RefundID)
	if err != nil {
		return fmt.Errorf("updating the case: %w", err)
	}
	return nil
}
