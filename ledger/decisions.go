package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"refundgate/refund"
)

// maxDecisionID bounds Act.ID, in characters.
const maxDecisionID = 128

// Act is what a person does to a case.
type Act struct {
	RefundID string
	// Account is the case's; empty if the caller doesn't know it.
	Account string
	// ID names the action for good, in up to 128 characters: the same one again
	// has no second effect. Unique within the case.
	ID     string
	Action refund.Action // any but correct
	Input  refund.ActionInput
	// At is when the person did it. A repeat of the action has the time of the
	// first try.
	At time.Time
	// Refused says why the caller refuses the action, if it does: then it is
	// only recorded that it was.
	Refused string
}

// ActionRefusedError says that the case, as it is, doesn't allow the action, or
// didn't when the action came first. The case was not changed.
type ActionRefusedError struct {
	Why string // for people
}

func (e *ActionRefusedError) Error() string { return "the action is refused: " + e.Why }

// Act carries out the action: it records the decision and its line on the trail
// and changes the case, in one transaction that finds the case at the version
// that the person has seen (if one is given) and in a state that allows the
// action. It returns the case after it. Calls that the decision orders are made
// by others.
//
// The same action again returns the case as it is by now, whatever has followed
// on the first time. One that was refused stays refused: that is recorded, and
// what is to be tried again needs another ID.
//
// Errors: *refund.InvalidError, ErrNotFound, *ActionRefusedError; the case was
// not changed then.
func (l *Ledger) Act(ctx context.Context, a Act) (refund.Case, error) {
	if err := a.validate(); err != nil {
		return refund.Case{}, err
	}
	err := l.tx(ctx, func(tx *sql.Tx) error { return l.act(ctx, tx, a) })
	var refused *ActionRefusedError
	if errors.As(err, &refused) {
		err = errors.Join(err, l.refuse(ctx, a, refused.Why))
	}
	if err != nil {
		return refund.Case{}, fmt.Errorf("%s on refund %s: %w", a.Action, a.RefundID, err)
	}
	return l.Case(ctx, a.RefundID)
}

// refuse records that the action was refused, so that it stays refused: the
// person has been told so, and must not find it done after a reset.
func (l *Ledger) refuse(ctx context.Context, a Act, why string) error {
	err := l.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO refusals (refund_id, id, why, at) VALUES (?, ?, ?, ?) ON DUPLICATE KEY UPDATE id = id`,
			a.RefundID, a.ID, why, stored(a.At))
		return err
	})
	if err != nil {
		return fmt.Errorf("recording the refusal: %w", err)
	}
	return nil
}

// stillRefused returns an *ActionRefusedError if the action was refused before,
// or is by its caller now.
func stillRefused(ctx context.Context, tx *sql.Tx, a Act) error {
	why, err := scanString(tx.QueryRowContext(ctx, `SELECT why FROM refusals WHERE refund_id = ? AND id = ?`, a.RefundID, a.ID))
	switch err := orNotFound(err); {
	case errors.Is(err, ErrNotFound):
		why = a.Refused
	case err != nil:
		return fmt.Errorf("looking for an earlier refusal: %w", err)
	}
	if why != "" {
		return &ActionRefusedError{Why: why}
	}
	return nil
}

func (a Act) validate() error {
	switch a.Action {
	case refund.ActionAssign, refund.ActionNote, refund.ActionCheck, refund.ActionResend, refund.ActionSettle:
	default:
		return fmt.Errorf("%q is no action that a case takes", a.Action)
	}
	if err := validateDecision(a.ID, a.At); err != nil {
		return err
	}
	return a.Input.Validate(a.Action)
}

// validateDecision refuses what could not tell a repeat from another decision.
func validateDecision(id string, at time.Time) error {
	if !storableKey(id, maxDecisionID) {
		return &refund.InvalidError{What: "action", Fields: []refund.FieldError{
			{Field: "id", Message: fmt.Sprintf("must be 1 to %d characters, without space around them", maxDecisionID)},
		}}
	}
	if !storableTime(at) {
		return errors.New("the action has no time")
	}
	return nil
}

func (l *Ledger) act(ctx context.Context, tx *sql.Tx, a Act) error {
	c, err := lockCase(ctx, tx, a.RefundID)
	if err != nil {
		return err
	}
	if a.Account != "" && a.Account != c.Refund.Account {
		return ErrNotFound
	}
	d := refund.Decision{
		ID: a.ID, Generation: c.Generation, Action: a.Action, By: a.Input.By, Reason: a.Input.Reason,
		Owner: a.Input.Owner, Status: a.Input.Status, Evidence: a.Input.Evidence, At: stored(a.At),
	}
	if done, err := decided(ctx, tx, c, d); done || err != nil {
		return err
	}
	if err := stillRefused(ctx, tx, a); err != nil {
		return err
	}
	if err := allows(c, a.Action, a.Input.Version); err != nil {
		return err
	}
	if a.Action == refund.ActionSettle && a.Input.Version == 0 {
		if err := weighed(ctx, tx, c); err != nil {
			return err
		}
	}
	if err := l.decide(ctx, tx, c, d, describeDecision(d)); err != nil {
		return err
	}
	switch a.Action {
	case refund.ActionAssign:
		_, err = tx.ExecContext(ctx, `UPDATE refunds SET owner = ? WHERE refund_id = ?`, d.Owner, a.RefundID)
		if err != nil {
			return fmt.Errorf("assigning the case: %w", err)
		}
	case refund.ActionSettle:
		if err := l.setStatus(ctx, tx, Change{RefundID: a.RefundID, Status: d.Status}); err != nil {
			return err
		}
		return countSettled(ctx, tx, c.Refund.Account, d.Status)
	}
	return nil
}

// allows refuses an action that the state of the case doesn't allow, or that is
// based on another version of it; 0 is any.
func allows(c refund.Case, a refund.Action, version int64) error {
	refuse := func(format string, args ...any) error {
		return &ActionRefusedError{Why: fmt.Sprintf(format, args...)}
	}
	switch a {
	case refund.ActionNote:
	case refund.ActionAssign, refund.ActionCheck:
		if !c.Open() {
			return refuse("it is already %s", c.Status)
		}
	case refund.ActionResend, refund.ActionSettle:
		if !c.Open() {
			return refuse("it is already %s", c.Status)
		}
		if c.Status != refund.StatusReview {
			return refuse("it is %s, not in review", c.Status)
		}
	case refund.ActionCorrect:
		if c.Status != refund.StatusRejected {
			return refuse("it is %s, not %s", inWords(c.Status), refund.StatusRejected)
		}
	}
	if version != 0 && version != c.Version {
		return refuse("it has changed since version %d and is at version %d now", version, c.Version)
	}
	return nil
}

func inWords(s refund.Status) string {
	if s == refund.StatusReview {
		return "in review"
	}
	return string(s)
}

// weighed refuses a settlement of whatever the case is by now while the provider
// has reported something that its workflow doesn't know yet: the person can't
// have weighed it, and it may settle the case by itself.
func weighed(ctx context.Context, tx *sql.Tx, c refund.Case) error {
	var news bool
	err := tx.QueryRowContext(ctx, `
		SELECT COUNT(*) > 0 FROM notices WHERE refund_id = ? AND told_at IS NULL`, c.Refund.ID).Scan(&news)
	switch {
	case err != nil:
		return fmt.Errorf("looking for notices: %w", err)
	case news:
		return &ActionRefusedError{Why: "the provider has just reported something about it; look at the case again"}
	}
	return nil
}

// decided tells whether the decision was recorded before. One id for two
// decisions is a mistake that must not pass for a success.
func decided(ctx context.Context, tx *sql.Tx, c refund.Case, d refund.Decision) (bool, error) {
	recorded, err := decisionRow(ctx, tx, c.Refund.ID, d.ID)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	d.Generation, d.At = recorded.Generation, recorded.At
	if d != recorded {
		return false, &ActionRefusedError{Why: "its id was used for another action before"}
	}
	return true, nil
}

// decide records the decision and its line on the trail, and counts it as a
// change of the case.
func (l *Ledger) decide(ctx context.Context, tx *sql.Tx, c refund.Case, d refund.Decision, detail string) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO decisions (refund_id, id, generation, action, actor, reason, owner, status, evidence, at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		c.Refund.ID, d.ID, d.Generation, d.Action, d.By, d.Reason, d.Owner, d.Status, d.Evidence, d.At)
	if err != nil {
		return fmt.Errorf("recording the decision: %w", err)
	}
	_, err = tx.ExecContext(ctx, `
		UPDATE refunds SET version = version + 1, updated_at = ? WHERE refund_id = ?`, l.now(), c.Refund.ID)
	if err != nil {
		return fmt.Errorf("updating the case: %w", err)
	}
	return addEvent(ctx, tx, c.Refund.ID, refund.Event{At: d.At, Actor: d.By, Action: "review." + string(d.Action), Detail: detail})
}

// describeDecision says for people what was decided.
func describeDecision(d refund.Decision) string {
	switch {
	case d.Action == refund.ActionAssign && d.Owner == "":
		return "to nobody: " + d.Reason
	case d.Action == refund.ActionAssign:
		return fmt.Sprintf("to %s: %s", d.Owner, d.Reason)
	case d.Action == refund.ActionSettle:
		return fmt.Sprintf("as %s: %s; evidence: %s", d.Status, d.Reason, d.Evidence)
	}
	return d.Reason
}

const decisionColumns = `id, generation, action, actor, reason, owner, status, evidence, at`

func scanDecision(row scanner) (d refund.Decision, err error) {
	err = row.Scan(&d.ID, &d.Generation, &d.Action, &d.By, &d.Reason, &d.Owner, &d.Status, &d.Evidence, &d.At)
	return d, err
}

func decisionRow(ctx context.Context, db queryer, refundID, id string) (refund.Decision, error) {
	d, err := scanDecision(db.QueryRowContext(ctx, `
		SELECT `+decisionColumns+` FROM decisions WHERE refund_id = ? AND id = ?`, refundID, id))
	if err := orNotFound(err); err != nil {
		return refund.Decision{}, fmt.Errorf("reading decision %q: %w", id, err)
	}
	return d, nil
}
