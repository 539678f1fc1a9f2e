package starter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/refund"
)

// headerActionID names an action, so that it can be sent again without being
// carried out twice.
const headerActionID = "Idempotency-Key"

var (
	problemInvalidAction = newProblem("invalid-action", http.StatusUnprocessableEntity, "The action's content was refused")
	problemActionRefused = newProblem("action-refused", http.StatusConflict, "The case does not allow the action")
)

// Actor carries out what people decide. See Desk.
type Actor interface {
	Act(ctx context.Context, refundID, id string, action refund.Action, in refund.ActionInput) (refund.Case, error)
	Correct(ctx context.Context, refundID, id string, c refund.Correction) (refund.Case, error)
}

// act carries out an action on a case.
func (a *API) act(w http.ResponseWriter, r *http.Request, by caller) {
	refundID, action := r.PathValue("id"), refund.Action(r.PathValue("action"))
	if refund.ValidateID(refundID) != nil || !slices.Contains(refund.Actions, action) {
		problemNotFound.write(w)
		return
	}
	about := []slog.Attr{slog.String(telemetry.KeyRefundID, refundID), slog.String("action", string(action))}
	id, err := actionID(r)
	if err != nil {
		a.refuse(w, r, by, problemInvalidAction.with("", refund.FieldError{Field: headerActionID, Message: err.Error()}), about...)
		return
	}
	body, refused := readBody(w, r)
	if refused != nil {
		a.refuse(w, r, by, *refused, about...)
		return
	}
	do, err := a.decodeAct(refundID, id, action, body)
	if err != nil {
		a.refuse(w, r, by, actProblem(refundID, id, err), about...)
		return
	}

	// From here on it is done: a person who goes away changes nothing.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actTimeout+ledgerTimeout)
	defer cancel()
	c, err := do(ctx)
	if err != nil {
		p := actProblem(refundID, id, err)
		if p.Status >= http.StatusInternalServerError {
			about = append(about, slog.Any("error", err))
		}
		a.refuse(w, r, by, p, about...)
		return
	}
	telemetry.Event(ctx, a.log, slog.LevelInfo, telemetry.EventReviewAction, append(about,
		slog.String("action_id", id), slog.String("status", string(c.Status)), slog.String("client", by.name))...)
	writeJSON(w, http.StatusOK, a.detail(c))
}

// decodeAct reads the body and returns what it asks the desk to do.
func (a *API) decodeAct(refundID, id string, action refund.Action, body []byte) (func(context.Context) (refund.Case, error), error) {
	if action == refund.ActionCorrect {
		correction, err := DecodeCorrection(body)
		return func(ctx context.Context) (refund.Case, error) {
			return a.opts.Desk.Correct(ctx, refundID, id, correction)
		}, err
	}
	in, err := DecodeAction(action, body)
	return func(ctx context.Context) (refund.Case, error) {
		return a.opts.Desk.Act(ctx, refundID, id, action, in)
	}, err
}

// actionID returns the id that the caller gave the action, or a new one.
func actionID(r *http.Request) (string, error) {
	id := r.Header.Get(headerActionID)
	if id == "" {
		return NewActionID(), nil
	}
	return id, refund.ValidateID(id)
}

// NewActionID returns an id for an action that nobody has named.
func NewActionID() string { return rand.Text() }

// actProblem is the answer for an action that was not carried out.
func actProblem(refundID, id string, err error) problem {
	var malformed *malformedError
	var invalid *refund.InvalidError
	var refused *ledger.ActionRefusedError
	var exceeded *ledger.PaymentExceededError
	var mismatch *ledger.PaymentMismatchError
	switch {
	case errors.As(err, &malformed):
		return problemMalformed.with(malformed.Error())
	case errors.As(err, &invalid):
		return problemInvalidAction.with("", invalid.Fields...)
	case errors.Is(err, ledger.ErrNotFound):
		return problemNotFound
	case errors.As(err, &refused):
		return problemActionRefused.with(refused.Why).about(refundID)
	case errors.As(err, &exceeded), errors.As(err, &mismatch):
		return acceptProblem(refundID, err)
	}
	return problemAway.
		with(fmt.Sprintf("It is not certain whether the action was recorded. Sending it again with the header %s: %s is safe.", headerActionID, id)).
		about(refundID)
}
