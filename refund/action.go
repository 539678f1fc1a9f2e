package refund

import (
	"fmt"
	"time"
)

// Action is what a person does to a case. The values name updates, signals,
// commands and paths of the API, and are stored; never change one.
type Action string

const (
	ActionAssign  Action = "assign"  // give it to somebody, or to nobody
	ActionNote    Action = "note"    // add words to the trail
	ActionCheck   Action = "check"   // ask the provider once more
	ActionResend  Action = "resend"  // send once more, same key and bytes
	ActionSettle  Action = "settle"  // end it on the strength of evidence
	ActionCorrect Action = "correct" // resubmit a rejected refund with corrected data
)

// Actions lists every action.
var Actions = []Action{ActionAssign, ActionNote, ActionCheck, ActionResend, ActionSettle, ActionCorrect}

// ManualWindow is how long after an order the call that a person ordered may
// still be sent. What found no slot by then is not sent any more: the person
// who wanted it may have learnt better.
const ManualWindow = 15 * time.Minute

// MaxEvidenceLen bounds ActionInput.Evidence, in characters.
const MaxEvidenceLen = 1000

// ActionInput is an action with its reason. It is what updates and signals
// carry and what the API takes.
type ActionInput struct {
	// By is who does it and Reason why. Required.
	By     string `json:"by"`
	Reason string `json:"reason"`
	// Owner is whom to assign the case to. Nobody takes it from whoever has it,
	// which has to be meant: a misspelt owner isn't. Assigning takes one of the
	// two.
	Owner  string `json:"owner,omitempty"`
	Nobody bool   `json:"nobody,omitempty"`
	// Status is how to settle: succeeded or not_refunded.
	Status Status `json:"status,omitempty"`
	// Evidence is what a settlement rests on: a statement's line, the
	// provider's word, a ticket. Required to settle.
	Evidence string `json:"evidence,omitempty"`
	// Version is the version of the case that the person has seen; if the case
	// has moved on since, the action is refused. 0 means whatever it is now.
	Version int64 `json:"version,omitempty"`
}

// Validate returns nil or an *InvalidError that names every field that is bad
// or doesn't go with the action.
func (in ActionInput) Validate(a Action) error {
	bad := validateText("by", in.By, MaxActorLen)
	bad = append(bad, validateText("reason", in.Reason, MaxReasonLen)...)
	add := func(field, format string, args ...any) {
		bad = append(bad, FieldError{field, fmt.Sprintf(format, args...)})
	}
	switch {
	case a == ActionAssign && in.Nobody && in.Owner != "":
		add("owner", "goes without nobody")
	case a == ActionAssign && !in.Nobody:
		bad = append(bad, validateText("owner", in.Owner, MaxActorLen)...)
	case a != ActionAssign && (in.Owner != "" || in.Nobody):
		add("owner", "goes with %s only", ActionAssign)
	}
	switch {
	case a != ActionSettle && in.Status != "":
		add("status", "goes with %s only", ActionSettle)
	case a == ActionSettle && in.Status != StatusSucceeded && in.Status != StatusNotRefunded:
		add("status", "must be %s or %s", StatusSucceeded, StatusNotRefunded)
	}
	switch {
	case a == ActionSettle:
		bad = append(bad, validateText("evidence", in.Evidence, MaxEvidenceLen)...)
	case in.Evidence != "":
		add("evidence", "goes with %s only", ActionSettle)
	}
	if in.Version < 0 {
		add("version", "must not be negative")
	}
	if len(bad) > 0 {
		return &InvalidError{What: "action", Fields: bad}
	}
	return nil
}

// Decision is an action as it was recorded.
type Decision struct {
	// ID names the action for good: the same one again is not carried out
	// twice. It is the update's id, or derived from a signal's place in its
	// workflow's history.
	ID         string    `json:"id"`
	Generation int       `json:"generation"`
	Action     Action    `json:"action"`
	By         string    `json:"by"`
	Reason     string    `json:"reason"`
	Owner      string    `json:"owner,omitempty"`
	Status     Status    `json:"status,omitempty"`
	Evidence   string    `json:"evidence,omitempty"`
	At         time.Time `json:"at"`
}

// Orders tells whether the decision asks for a call, and of which kind.
func (d Decision) Orders() (CallKind, bool) {
	switch d.Action {
	case ActionCheck:
		return KindCheck, true
	case ActionResend:
		return KindSubmit, true
	}
	return "", false
}

// Correction is the data with which a rejected refund is submitted again. Empty
// fields keep what they are. The id, the account and the order stay.
type Correction struct {
	By            string `json:"by"`
	Reason        string `json:"reason"` // why it is corrected
	PaymentID     string `json:"payment_id,omitempty"`
	Amount        *Money `json:"amount,omitempty"`
	PaymentAmount *Money `json:"payment_amount,omitempty"`
	// RefundReason replaces Refund.Reason.
	RefundReason string `json:"refund_reason,omitempty"`
	// Version is as in ActionInput.
	Version int64 `json:"version,omitempty"`
}

// Apply returns the corrected refund. An *InvalidError names what is wrong with
// the correction or with the refund as it would be then.
func (c Correction) Apply(r Refund) (Refund, error) {
	bad := validateText("by", c.By, MaxActorLen)
	bad = append(bad, validateText("reason", c.Reason, MaxReasonLen)...)
	if c.Version < 0 {
		bad = append(bad, FieldError{"version", "must not be negative"})
	}
	if len(bad) > 0 {
		return Refund{}, &InvalidError{What: "correction", Fields: bad}
	}
	before := r.Fingerprint()
	if c.PaymentID != "" {
		r.PaymentID = c.PaymentID
	}
	if c.Amount != nil {
		r.Amount = *c.Amount
	}
	if c.PaymentAmount != nil {
		r.PaymentAmount = c.PaymentAmount
	}
	if c.RefundReason != "" {
		r.Reason = c.RefundReason
	}
	if r.Fingerprint() == before {
		return Refund{}, &InvalidError{What: "correction", Fields: []FieldError{{"payment_id", "nothing is corrected: give payment_id, amount, payment_amount or refund_reason another value"}}}
	}
	return r, r.Validate()
}
