package refund

import "time"

// The inputs and results that the workflow and its activities exchange. They
// end up in histories: fields are added, never renamed or reused.

// OpenInput asks the ledger for the case of a refund; a refund that isn't
// there yet (its workflow was started directly) is accepted.
type OpenInput struct {
	Refund Refund `json:"refund"`
	// WorkflowID is that of the workflow that asks. Empty in old histories.
	WorkflowID string `json:"workflow_id,omitempty"`
}

// OpenResult is the case as the ledger knows it and the policy to decide by.
type OpenResult struct {
	Case   Case   `json:"case"`
	Policy Policy `json:"policy"`
}

// CallInput asks the egress for one call.
type CallInput struct {
	Key     CallKey `json:"key"`
	Origin  Origin  `json:"origin"`
	Account string  `json:"account"`
	Refund  Refund  `json:"refund"`
	// AcceptedAt orders the calls of a group.
	AcceptedAt time.Time `json:"accepted_at"`
	// Deadline is the end of the case's automatic time.
	Deadline         time.Time `json:"deadline"`
	MaxAttempts      int       `json:"max_attempts"`
	ProviderRefundID string    `json:"provider_refund_id,omitempty"`
	// Foreign are the provider's ids of the case's earlier generations, which
	// have the same reference and are no trace of this one.
	Foreign []string `json:"foreign,omitempty"`
	// DecisionID names the decision that ordered the call, if a person did.
	DecisionID string `json:"decision_id,omitempty"`
}

// CallResult is what became of a call.
type CallResult struct {
	Call Call `json:"call"`
	// Unrecorded: the ledger was away when the outcome came; bookkeeping has
	// to write it.
	Unrecorded bool `json:"unrecorded,omitempty"`
	// Repeat: nothing was sent now; this is what an earlier execution of the
	// same call recorded.
	Repeat bool `json:"repeat,omitempty"`
}

// SaveInput records where a case stands now.
type SaveInput struct {
	RefundID         string       `json:"refund_id"`
	Account          string       `json:"account"`
	Status           Status       `json:"status"`
	ReviewReason     ReviewReason `json:"review_reason,omitempty"`
	ProviderRefundID string       `json:"provider_refund_id,omitempty"`
	// Detail says in words what led here.
	Detail string `json:"detail"`
	// Generation and Was say where the run believes the case to stand. If it
	// stands elsewhere, the run was reset or is one of two, and knows less than
	// the ledger. 0 and "" in the histories of earlier versions: not compared.
	Generation int    `json:"generation,omitempty"`
	Was        Status `json:"was,omitempty"`
	// Reopen lets a case that was closed as Was go to review.
	Reopen bool `json:"reopen,omitempty"`
}

// SaveResult tells whether the case stood elsewhere than the run believed; then
// nothing was changed, and the ledger's truth stands.
type SaveResult struct {
	Superseded bool `json:"superseded,omitempty"`
}

// ActInput asks the ledger to carry out an action of a person.
type ActInput struct {
	RefundID string      `json:"refund_id"`
	Account  string      `json:"account"`
	ID       string      `json:"id"` // Decision.ID
	Action   Action      `json:"action"`
	Input    ActionInput `json:"input"`
	// Refused says why the workflow refuses it, if it does: the ledger only
	// records that, so that a reset doesn't have it carried out later.
	Refused string `json:"refused,omitempty"`
}

// ActResult is the case after an action, or why it was refused.
type ActResult struct {
	Status  Status `json:"status"`
	Version int64  `json:"version"`
	// Refused says why nothing was done; empty if it was.
	Refused string `json:"refused,omitempty"`
}

// Closing is a workflow's result: how the case ended.
type Closing struct {
	Status           Status `json:"status"`
	Attempts         int    `json:"attempts"`
	ProviderRefundID string `json:"provider_refund_id,omitempty"`
	Detail           string `json:"detail"`
}
