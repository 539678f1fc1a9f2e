package refund

import (
	"fmt"
	"time"
)

// CallKind is what a call asks of the provider. Stored; never change a value.
type CallKind string

const (
	KindSubmit CallKind = "submit" // send the refund; may move money
	KindCheck  CallKind = "check"  // ask what became of it; moves nothing
)

// Origin is why a call is made. Stored; never change a value.
type Origin string

const (
	OriginFirst  Origin = "first"  // the first automatic send of a generation
	OriginRetry  Origin = "retry"  // a later automatic send, same key and bytes
	OriginCheck  Origin = "check"  // an automatic result check
	OriginManual Origin = "manual" // a person's resend or check
)

// Group is the half of the waiting room that a call of this origin waits in.
func (o Origin) Group() Group {
	if o == OriginFirst {
		return GroupFirst
	}
	return GroupFollowUp
}

// Group is one of the two groups that the egress serves alternately. The
// values are also the Temporal fairness keys.
type Group string

const (
	GroupFirst    Group = "first"     // first attempts
	GroupFollowUp Group = "follow-up" // retries, checks and manual calls
)

// CallKey names one call for good. At most one request ever goes out on the
// wire for a key; a repeat of the key returns what was recorded.
type CallKey struct {
	RefundID   string   `json:"refund_id"`
	Generation int      `json:"generation"`
	Kind       CallKind `json:"kind"`
	Seq        int      `json:"seq"` // counts from 1 within generation and kind
}

// String returns the key as it is logged: "r-1/g1/submit/2".
func (k CallKey) String() string {
	return fmt.Sprintf("%s/g%d/%s/%d", k.RefundID, k.Generation, k.Kind, k.Seq)
}

// Outcome is what is known about a call once it is over. Stored; never change
// a value.
type Outcome string

const (
	// OutcomeSucceeded: the provider says the money is on its way.
	OutcomeSucceeded Outcome = "succeeded"
	// OutcomePending: the provider has accepted and not finished.
	OutcomePending Outcome = "pending"
	// OutcomeRejected: the provider definitely refused, or the refund failed
	// there; the same request will not be sent again.
	OutcomeRejected Outcome = "rejected"
	// OutcomeBusy: the provider explicitly did not accept and allows a retry.
	OutcomeBusy Outcome = "busy"
	// OutcomeNotFound: a check found no trace. By itself it proves nothing.
	OutcomeNotFound Outcome = "not_found"
	// OutcomeUnknown: a send may have been executed; a check learnt nothing.
	OutcomeUnknown Outcome = "unknown"
	// OutcomeNotSent: provably no byte of the request left.
	OutcomeNotSent Outcome = "not_sent"
)

// Outcomes lists every outcome.
var Outcomes = []Outcome{OutcomeSucceeded, OutcomePending, OutcomeRejected, OutcomeBusy, OutcomeNotFound, OutcomeUnknown, OutcomeNotSent}

// Budget names the time budget that ended a call. Stored and logged.
type Budget string

const (
	BudgetConnect  Budget = "connect"  // DNS, TCP and TLS
	BudgetOverall  Budget = "overall"  // connecting, writing, waiting, reading
	BudgetDeadline Budget = "deadline" // the case's own deadline
)

// Codes that refundgate itself gives to calls, beside the provider's own
// codes, which are stored as they came. Stored; never change a value.
const (
	CodeTimeout       = "timeout"        // unknown: a budget ran out after the first byte
	CodeDisconnected  = "disconnected"   // unknown: the connection ended before a whole answer
	CodeUnreadable    = "unreadable"     // unknown: an answer that the contract does not list
	CodeContradiction = "contradiction"  // unknown: an answer about a different refund
	CodeLost          = "lost"           // unknown: the process ended between intent and record
	CodeConnect       = "connect_failed" // not sent: no connection within the budget
	CodeCancelled     = "cancelled"      // not sent: the caller gave up in time
	CodeDeadline      = "deadline"       // not sent: the case's deadline came first
	CodeShutdown      = "shutdown"       // not sent: the egress is stopping
	CodeNotOwner      = "not_owner"      // not sent: the right to send could not be proven
	CodeBreaker       = "breaker_open"   // not sent: the circuit breaker changed its state before the first byte
	CodeStopped       = "stopped"        // not sent: the account is stopped until someone acts
	CodeStale         = "stale_intent"   // not sent: too long between intent and first byte
	CodeExhausted     = "exhausted"      // not sent: the attempts of this generation are used up
	CodeClosed        = "closed"         // not sent: the case was closed meanwhile
	CodeAbandoned     = "abandoned"      // not sent: given up before an intent existed
	CodeStorage       = "storage"        // not sent: the intent could not be recorded
	CodeUnsupported   = "unsupported"    // not sent: the adapter can't ask for this refund
	CodeKeyTaken      = "key_taken"      // not sent: the idempotency key belongs to another request
	CodeNoRequest     = "no_request"     // not sent: the adapter made no request (a defect)
)

// Call is the record of one call: the intent, what was measured on the wire,
// and what it turned out to mean.
type Call struct {
	Key     CallKey `json:"key"`
	Origin  Origin  `json:"origin"`
	Account string  `json:"account"`
	// DecisionID names the decision that ordered the call; empty for an
	// automatic one.
	DecisionID string `json:"decision_id,omitempty"`
	// Epoch numbers the egress ownership under which the intent was written; 0 if
	// there was none.
	Epoch    int64     `json:"epoch"`
	IntentAt time.Time `json:"intent_at"`
	// StartedAt is the instant of the request's first Write; nil if none left.
	StartedAt *time.Time `json:"started_at,omitempty"`
	// StartedMono is the same instant on the host's CLOCK_MONOTONIC, in
	// nanoseconds: comparable between processes of one boot.
	StartedMono int64 `json:"started_mono_ns,omitempty"`
	// InFlight counts the account's calls in flight at the start, this one
	// included.
	InFlight   int        `json:"in_flight,omitempty"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`
	Result     Result     `json:"result"`
}

// Done tells whether an outcome was recorded. A call that is not done has an
// intent and may or may not have been sent: it counts as unknown.
func (c Call) Done() bool { return c.Result.Outcome != "" }

// MayHaveReached tells whether the call may have reached the provider, which
// is what counts against the attempts.
func (c Call) MayHaveReached() bool { return c.Result.Outcome != OutcomeNotSent }

// Result is the meaning of a finished call.
type Result struct {
	Outcome Outcome `json:"outcome,omitempty"`
	// Code is the provider's code or one of the Code constants.
	Code string `json:"code,omitempty"`
	// HTTPStatus is 0 when no answer was read.
	HTTPStatus int `json:"http_status,omitempty"`
	// Budget is set when a time budget ended the call.
	Budget Budget `json:"budget,omitempty"`
	// ProviderRefundID is the provider's id where the answer carried one.
	ProviderRefundID string `json:"provider_refund_id,omitempty"`
	// RetryAt is the earliest instant of a retry that the provider asked for.
	RetryAt *time.Time `json:"retry_at,omitempty"`
	// AccountWide: the answer is about the account, not about this refund
	// (quota used up, credentials refused).
	AccountWide bool `json:"account_wide,omitempty"`
	// Ambiguous marks a reject that an earlier attempt that worked would also
	// have caused ("already refunded"). After an unknown attempt of the same
	// key it proves nothing.
	Ambiguous bool `json:"ambiguous,omitempty"`
	// NeverResend marks an answer after which no automatic send may follow,
	// whatever else is known (the provider saw our key with other content).
	NeverResend bool `json:"never_resend,omitempty"`
	// Detail says in bounded, cleaned words what was seen; for people.
	Detail string `json:"detail,omitempty"`
}

// MaxDetailLen bounds Result.Detail, in bytes.
const MaxDetailLen = 300
