package activities

import (
	"errors"
	"time"

	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/refund"
)

// This file says what every failure around a call means for the case. The
// rule behind all of it: only zero bytes on the wire prove "not sent", and
// whatever else is not a definite answer is unknown.

// sentResult is the meaning of a call of which a byte left: the adapter's
// reading of the answer, with the budget that ended it, if one did.
func sentResult(answer refund.Result, ended refund.Budget) refund.Result {
	r := answer
	if r.Outcome == "" || r.Outcome == refund.OutcomeNotSent {
		// An adapter that says nothing, or that contradicts the wire.
		r = refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeUnreadable, Detail: "the adapter gave no outcome"}
	}
	if ended != "" && r.Outcome == refund.OutcomeUnknown {
		r.Budget, r.Code = ended, refund.CodeTimeout
	}
	return r
}

// withinDeadline is the result as the case takes it: it waits for nothing
// beyond its own time, however long the account has to rest.
func withinDeadline(r refund.Result, deadline time.Time) refund.Result {
	if r.RetryAt != nil && r.RetryAt.After(deadline) {
		r.RetryAt = &deadline
	}
	return r
}

// notSentResult is the meaning of an error from the gate, which gives one only
// when no byte left.
func notSentResult(err error) refund.Result {
	r := refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeStorage}
	var notSent *limiter.NotSentError
	if errors.As(err, &notSent) {
		r.Code, r.Budget = notSent.Code, notSent.Budget
		r.NeverResend = notSent.Code == refund.CodeKeyTaken
	}
	return r
}

// intentFailure puts the ledger's refusal of an intent into the gate's terms.
func intentFailure(err error) *limiter.NotSentError {
	code := refund.CodeStorage
	var refused *ledger.RefusedError
	switch {
	case errors.As(err, &refused):
		code = refused.Code
	case errors.Is(err, ledger.ErrLockLost):
		code = refund.CodeNotOwner
	case errors.Is(err, ledger.ErrKeyTaken):
		code = refund.CodeKeyTaken
	}
	return &limiter.NotSentError{Code: code, Err: err}
}

// unsupported: the provider can't be asked for this refund at all.
func unsupported() refund.Result {
	return refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeUnsupported, NeverResend: true, Detail: "the adapter can't express this refund"}
}
