package refund

import "time"

// Source is how the provider told us something without being asked. Stored;
// never change a value.
type Source string

const (
	SourceNotification Source = "notification" // a signed message to our endpoint
	SourceSettlement   Source = "settlement"   // a row of its settlement report
)

// Notice is one thing that the provider told us about one of its refunds. A
// notice that belongs to a case is a fact about it, as good as the answer to a
// check.
type Notice struct {
	Account string `json:"account"`
	Source  Source `json:"source"`
	// EventID names the message: the same id of the same account and source
	// again is the same notice. A settlement row's is computed from its content.
	EventID string `json:"event_id"`
	// ProviderRefundID and Reference say whose refund it is about: the
	// provider's id and ours. One of them may be missing.
	ProviderRefundID string `json:"provider_refund_id,omitempty"`
	Reference        string `json:"reference,omitempty"`
	PaymentID        string `json:"payment_id,omitempty"`
	Amount           Money  `json:"amount"`
	// Outcome is what it says: succeeded, pending, rejected (the refund failed
	// there), or unknown for a status that the contract doesn't list.
	Outcome Outcome `json:"outcome"`
	// Code is the failure's code, or the status where it is not a listed one.
	Code string `json:"code,omitempty"`
	// SaidAt is when the provider says that it happened.
	SaidAt time.Time `json:"said_at"`

	// ReceivedAt is when the ledger stored it.
	ReceivedAt time.Time `json:"received_at"`
	// RefundID is the case that it belongs to, and Generation the generation;
	// empty and 0 while nothing matches it: then it is parked.
	RefundID   string `json:"refund_id,omitempty"`
	Generation int    `json:"generation,omitempty"`
	// Problem says why it is parked, or why it is no fact about the case that
	// it names; empty where it is one.
	Problem NoticeProblem `json:"problem,omitempty"`
}

// NoticeProblem says what is wrong with a notice. Stored; never change a value.
type NoticeProblem string

const (
	// ProblemNoMatch: neither its reference nor its id is known (yet).
	ProblemNoMatch NoticeProblem = "no_match"
	// ProblemTwoCases: its reference names one case and its id another.
	ProblemTwoCases NoticeProblem = "two_cases"
	// ProblemContent: the amount, currency or payment isn't the case's.
	ProblemContent NoticeProblem = "content"
)

// Parked tells whether the notice waits for a case that it belongs to.
func (n Notice) Parked() bool { return n.RefundID == "" }
