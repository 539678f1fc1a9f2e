package refund

import "fmt"

// Names that operators type, dashboards filter by, and stored histories
// contain. They are public surface: a test holds each to its value.
const (
	// WorkflowType is the type of the workflow that owns one refund.
	WorkflowType = "Refund"
	// TaskQueue is the queue of workflows and bookkeeping activities; any
	// number of workers may serve it.
	TaskQueue = "refunds"
	// egressQueuePrefix and the account name a queue that exactly one worker
	// serves at any time.
	egressQueuePrefix = "refund-egress."

	ActivitySubmit  = "SubmitRefund"
	ActivityCheck   = "CheckRefund"
	ActivityOpen    = "OpenCase"
	ActivitySave    = "SaveCase"
	ActivityRecord  = "RecordCall"
	ActivityResolve = "ResolveCall"
	ActivityAct     = "ActOnCase"
	QueryCase       = "case"
	// SignalNotice tells a workflow that the ledger has a notice for its case.
	// The actions of people are updates, and signals for those who have no
	// updates; both have the names of the actions.
	SignalNotice     = "notice"
	AttributeStatus  = "RefundStatus"       // Keyword
	AttributeAccount = "RefundAccount"      // Keyword
	AttributeReview  = "RefundReviewReason" // Keyword
	AttributeOwner   = "RefundOwner"        // Keyword
	AttributeOrder   = "RefundOrderId"      // Keyword
	AttributeTries   = "RefundAttempts"     // Int
	AttributeDue     = "RefundDeadline"     // Datetime
)

// WorkflowID returns the id of the workflow that owns the refund.
func WorkflowID(refundID string) string { return "refund-" + refundID }

// EgressQueue returns the task queue of an account's egress.
func EgressQueue(account string) string { return egressQueuePrefix + account }

// IdempotencyKey returns the key sent to the provider with every attempt of a
// generation. It never depends on anything but these two.
func IdempotencyKey(refundID string, generation int) string {
	if generation <= 1 {
		return "refund-" + refundID
	}
	return fmt.Sprintf("refund-%s.g%d", refundID, generation)
}

// ErrorTypeConflict and ErrorTypeInvalid are the types of the application
// errors with which a directly started workflow fails.
const (
	ErrorTypeConflict = "RefundConflict" // the id was accepted with other content
	ErrorTypeInvalid  = "RefundInvalid"  // the input is no valid refund
	// ErrorTypeRefused is the type with which an update fails whose action the
	// case, as it is, doesn't allow.
	ErrorTypeRefused = "ActionRefused"
)
