// Package refund is the language of the domain: what a refund is, what a call
// to a provider can turn out to mean, which states a case passes through, and
// the names under which all of that is stored and shown.
//
// A case moves through these states; only an answer from the provider (or a
// person, in review) moves it to a final one:
//
//	           +--------- busy ----------+
//	           v                         |
//	queued ----+--> (send) --------------+
//	  |             |   |   |
//	  |             |   |   +-- definite reject ----------> rejected
//	  |             |   +------ confirmed ----------------> succeeded
//	  |             +---------- time-out, disconnect, ... -> unknown --+
//	  |                                                       ^  |     |
//	  |                         accepted, not done --> pending   |  (checks)
//	  |                                                  |       v     |
//	  +--- deadline, out of attempts or checks ----------+--> review <-+
//	                                                            |
//	                      settled by a person: succeeded, rejected, not_refunded
//
// The package imports only the standard library and does no I/O.
package refund

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of the text fields of a Refund.
const (
	MaxReferenceLen = 64   // bytes of an order, payment or account id, as of a refund id
	MaxReasonLen    = 1000 // characters (not bytes) of a reason
	MaxActorLen     = 128  // characters of requested_by and of any other person's name
)

// idPattern is what a refund id, an order id and a payment id look like: safe
// in a URL path, in a workflow id and in an ASCII database column. 64
// characters leave room for "refund-" and ".g<N>" in every provider's limits.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// accountPattern names a provider account; it becomes part of a task queue
// and of a database lock's name (64 characters at most).
var accountPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// Refund is one business operation: give back this amount of that payment,
// once. It is what an order service submits and what the Refund workflow
// takes as its input.
type Refund struct {
	// ID identifies the operation for good: the same id is the same refund.
	ID string `json:"refund_id"`
	// Account names the provider account that the payment was made with.
	Account string `json:"account"`
	// OrderID is the order service's own reference; shown, never interpreted.
	OrderID string `json:"order_id"`
	// PaymentID is the provider's reference of the payment to refund.
	PaymentID string `json:"payment_id"`
	// Amount is what to give back. It must be positive.
	Amount Money `json:"amount"`
	// PaymentAmount is the amount of the payment where the caller knows it;
	// then the sum of the payment's refunds is held under it.
	PaymentAmount *Money `json:"payment_amount,omitempty"`
	// Reason is free text for people; adapters pass it on, cleaned.
	Reason string `json:"reason"`
	// RequestedBy is the person or system that asked for the refund.
	RequestedBy string `json:"requested_by"`
}

// FieldError says what is wrong with one field of an input, in words meant
// for the one who sent it.
type FieldError struct {
	Field   string `json:"field"`   // JSON path, such as "amount.value"
	Message string `json:"message"` // what is wrong and what is expected
}

// InvalidError lists every field of an input that was refused.
type InvalidError struct {
	What   string // what is invalid; empty is a refund
	Fields []FieldError
}

func (e *InvalidError) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		parts[i] = f.Field + ": " + f.Message
	}
	what := e.What
	if what == "" {
		what = "refund"
	}
	return "invalid " + what + ": " + strings.Join(parts, "; ")
}

// Validate returns nil or an *InvalidError that names every bad field.
func (r Refund) Validate() error {
	var bad []FieldError
	add := func(field, format string, args ...any) {
		bad = append(bad, FieldError{field, fmt.Sprintf(format, args...)})
	}
	if err := ValidateID(r.ID); err != nil {
		add("refund_id", "%v", err)
	}
	if err := ValidateAccount(r.Account); err != nil {
		add("account", "%v", err)
	}
	for _, f := range []struct{ name, value string }{{"order_id", r.OrderID}, {"payment_id", r.PaymentID}} {
		if err := ValidateID(f.value); err != nil {
			add(f.name, "%v", err)
		}
	}
	bad = append(bad, r.Amount.validate("amount")...)
	if p := r.PaymentAmount; p != nil {
		if errs := p.validate("payment_amount"); len(errs) > 0 {
			bad = append(bad, errs...)
		} else if p.Currency != r.Amount.Currency {
			add("payment_amount.currency", "is %s but the refund's is %s; a refund is made in the payment's currency", p.Currency, r.Amount.Currency)
		} else if r.Amount.Value > p.Value {
			add("amount.value", "is more than the payment_amount")
		}
	}
	bad = append(bad, validateText("reason", r.Reason, MaxReasonLen)...)
	bad = append(bad, validateText("requested_by", r.RequestedBy, MaxActorLen)...)
	if len(bad) > 0 {
		return &InvalidError{Fields: bad}
	}
	return nil
}

func validateText(field, s string, maxRunes int) []FieldError {
	switch {
	case !utf8.ValidString(s):
		return []FieldError{{field, "is not valid UTF-8"}}
	case strings.TrimSpace(s) == "":
		return []FieldError{{field, "is required"}}
	case utf8.RuneCountInString(s) > maxRunes:
		return []FieldError{{field, fmt.Sprintf("is longer than %d characters", maxRunes)}}
	case strings.ContainsRune(s, 0):
		return []FieldError{{field, "must not contain a NUL character"}}
	}
	return nil
}

// ValidateID says whether s may name a refund, an order or a payment.
func ValidateID(s string) error {
	if s == "" {
		return fmt.Errorf("is required")
	}
	if !idPattern.MatchString(s) {
		return fmt.Errorf("must be 1 to %d characters of A-Z a-z 0-9 . _ - and start with a letter or digit", MaxReferenceLen)
	}
	return nil
}

// ValidateAccount says whether s may name a provider account.
func ValidateAccount(s string) error {
	if s == "" {
		return fmt.Errorf("is required")
	}
	if !accountPattern.MatchString(s) {
		return fmt.Errorf("must be 1 to 32 characters of a-z 0-9 _ - and start with a letter or digit")
	}
	return nil
}

// Fingerprint identifies the content of the refund: two submissions of one id
// are the same operation exactly if their fingerprints are equal. It covers
// every field: what a caller words anew is another request, and a conflict is
// the honest answer to it.
func (r Refund) Fingerprint() string {
	b, err := json.Marshal(r)
	if err != nil { // strings and integers always marshal
		panic(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Case is a refund together with everything that has happened to it. It is
// what the API and the command line show and what the workflow decides on.
type Case struct {
	Refund Refund `json:"refund"`
	// Fingerprint is Refund.Fingerprint of the accepted content.
	Fingerprint string `json:"-"`
	// Client is the client of the intake API that submitted the refund; empty
	// if it came another way.
	Client string `json:"client,omitempty"`
	Status Status `json:"status"`
	// ReviewReason says why people have to look; empty outside review.
	ReviewReason ReviewReason `json:"review_reason,omitempty"`
	// Owner is the person a review case is assigned to.
	Owner string `json:"owner,omitempty"`
	// Version counts the changes of the case; an action may name the one that
	// it is based on.
	Version int64 `json:"version"`
	// Generation counts corrected resubmissions: 1 for the refund as it was
	// accepted. Every generation has its own idempotency key.
	Generation int `json:"generation"`
	// Attempts counts the automatic sends of this generation that may have
	// reached the provider.
	Attempts int `json:"attempts"`
	// ProviderRefundID is the provider's own id, once it is known.
	ProviderRefundID string `json:"provider_refund_id,omitempty"`
	// AcceptedAt is when the refund was durably accepted; the deadline hangs
	// on it, whatever happens to workflows.
	AcceptedAt time.Time  `json:"accepted_at"`
	DeadlineAt time.Time  `json:"deadline_at"`
	ClosedAt   *time.Time `json:"closed_at,omitempty"`
	// Calls are the case's calls in the order of their intents.
	Calls []Call `json:"calls"`
	// Notices are what the provider said of itself, in the order in which it
	// was stored.
	Notices []Notice `json:"notices,omitempty"`
	// Decisions are what people did, in the order in which they did it.
	Decisions []Decision `json:"decisions,omitempty"`
}

// Open tells whether the case still waits for a final result.
func (c Case) Open() bool { return !c.Status.Final() }

// NextSeq returns the sequence number of the next call of the given kind in
// the current generation; sequences start at 1.
func (c Case) NextSeq(kind CallKind) int {
	next := 1
	for _, call := range c.Calls {
		if call.Key.Generation == c.Generation && call.Key.Kind == kind {
			next = max(next, call.Key.Seq+1)
		}
	}
	return next
}

// CountAttempts counts the automatic sends of the current generation that may
// have reached the provider, from the calls.
func (c Case) CountAttempts() int {
	n := 0
	for _, call := range c.Calls {
		if call.Key.Generation == c.Generation && call.Key.Kind == KindSubmit && call.Origin != OriginManual && call.MayHaveReached() {
			n++
		}
	}
	return n
}

// Event is one line of a case's trail that is not a call: acceptance,
// decisions, changes of state, what people did.
type Event struct {
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`  // a person's name or the component
	Action string    `json:"action"` // short, stable, lower case with dots
	Detail string    `json:"detail"` // words for people; never bodies or secrets
}
