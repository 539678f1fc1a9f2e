package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"refundgate/refund"
)

// Correct submits a rejected refund again with corrected data, as the next
// generation of its case: queued, with a key, attempts and a deadline of its
// own, due deadline from now, and the amount reserved on its payment again. id
// and at are those of the decision, as in Act. It returns the case after it.
//
// The same correction again returns the case as it is by now, whatever has
// followed on the first time.
//
// Errors: *refund.InvalidError, ErrNotFound, *ActionRefusedError, and as from
// Accept *PaymentExceededError and *PaymentMismatchError; nothing was changed
// then.
func (l *Ledger) Correct(ctx context.Context, refundID, id string, c refund.Correction, deadline time.Duration, at time.Time) (refund.Case, error) {
	if err := validateDecision(id, at); err != nil {
		return refund.Case{}, err
	}
	err := l.tx(ctx, func(tx *sql.Tx) error { return l.correct(ctx, tx, refundID, id, c, deadline, stored(at)) })
	if err != nil {
		return refund.Case{}, fmt.Errorf("correcting refund %s: %w", refundID, err)
	}
	return l.Case(ctx, refundID)
}

func (l *Ledger) correct(ctx context.Context, tx *sql.Tx, refundID, id string, c refund.Correction, deadline time.Duration, at time.Time) error {
	// Which payment to lock depends on the case, and the payment is locked
	// first. So the case is read twice.
	seen, err := caseRow(ctx, tx, refundID)
	if err != nil {
		return err
	}
	d := refund.Decision{ID: id, Generation: seen.Generation, Action: refund.ActionCorrect, By: c.By, Reason: c.Reason, At: at}
	if done, err := decided(ctx, tx, seen, d); done || err != nil {
		return err
	}
	corrected, err := c.Apply(seen.Refund)
	if err != nil {
		return err
	}
	if err := lockPayment(ctx, tx, corrected); err != nil {
		return err
	}
	current, err := lockCase(ctx, tx, refundID)
	if err != nil {
		return err
	}
	// Whoever held the case before us may have made this very correction.
	if done, err := decided(ctx, tx, current, d); done || err != nil {
		return err
	}
	if err := allows(current, refund.ActionCorrect, c.Version); err != nil {
		return err
	}
	if current.Generation != seen.Generation {
		return &ActionRefusedError{Why: "it was corrected in the meantime"}
	}
	if err := reserve(ctx, tx, corrected); err != nil {
		return err
	}
	if err := l.nextGeneration(ctx, tx, current, corrected, d, deadline); err != nil {
		return err
	}
	return l.decide(ctx, tx, current, d, describeCorrection(current, corrected, d))
}

// nextGeneration puts the case back to its start with the corrected content.
// What the first generation asked for is written down now: as long as there is
// only one, the case itself says it.
func (l *Ledger) nextGeneration(ctx context.Context, tx *sql.Tx, c refund.Case, corrected refund.Refund, d refund.Decision, deadline time.Duration) error {
	if c.Generation == 1 {
		if err := insertGeneration(ctx, tx, c.Refund, 1, c.AcceptedAt, c.Refund.RequestedBy, "accepted"); err != nil {
			return err
		}
	}
	generation := c.Generation + 1
	if err := insertGeneration(ctx, tx, corrected, generation, d.At, d.By, d.Reason); err != nil {
		return err
	}
	now := l.now()
	_, err := tx.ExecContext(ctx, `
		UPDATE refunds SET payment_id = ?, amount = ?, currency = ?, payment_amount = ?, reason = ?, fingerprint = ?,
			generation = ?, attempts = 0, provider_refund_id = '', status = ?, review_reason = '', owner = '',
			deadline_at = ?, closed_at = NULL, workflow_started_at = NULL, updated_at = ?
		WHERE refund_id = ?`,
		corrected.PaymentID, corrected.Amount.Value, corrected.Amount.Currency, paymentAmount(corrected), corrected.Reason, corrected.Fingerprint(),
		generation, refund.StatusQueued, now.Add(deadline), now, corrected.ID)
	if err != nil {
		return fmt.Errorf("beginning generation %d: %w", generation, err)
	}
	return nil
}

// insertGeneration writes down what a generation asks for.
func insertGeneration(ctx context.Context, tx *sql.Tx, r refund.Refund, generation int, at time.Time, actor, reason string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding generation %d: %w", generation, err)
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO refund_generations (refund_id, generation, fingerprint, content, at, actor, reason)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, r.ID, generation, r.Fingerprint(), string(text), at, actor, reason)
	if err != nil {
		return fmt.Errorf("inserting generation %d: %w", generation, err)
	}
	return nil
}

// content returns what a generation of the case asks for.
func content(ctx context.Context, tx *sql.Tx, c refund.Case, generation int) (r refund.Refund, err error) {
	if generation == c.Generation {
		return c.Refund, nil
	}
	var text []byte
	err = tx.QueryRowContext(ctx, `
		SELECT content FROM refund_generations WHERE refund_id = ? AND generation = ?`, c.Refund.ID, generation).Scan(&text)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return refund.Refund{}, fmt.Errorf("reading generation %d: %w", generation, err)
	}
	return r, nil
}

// describeCorrection says for people what is different from now on. The reason
// of the refund is not repeated: it may be anybody's words.
func describeCorrection(c refund.Case, corrected refund.Refund, d refund.Decision) string {
	var changes []string
	change := func(what string, from, to any) {
		if from, to := fmt.Sprint(from), fmt.Sprint(to); from != to {
			changes = append(changes, fmt.Sprintf("%s %s instead of %s", what, to, from))
		}
	}
	change("payment", c.Refund.PaymentID, corrected.PaymentID)
	change("amount", c.Refund.Amount, corrected.Amount)
	change("payment's amount", orUnknown(c.Refund.PaymentAmount), orUnknown(corrected.PaymentAmount))
	if c.Refund.Reason != corrected.Reason {
		changes = append(changes, "another reason")
	}
	return fmt.Sprintf("generation %d: %s: %s", c.Generation+1, strings.Join(changes, ", "), d.Reason)
}

func orUnknown(m *refund.Money) string {
	if m == nil {
		return "unknown"
	}
	return m.String()
}
