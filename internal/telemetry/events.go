package telemetry

// Names of log events, as the "event" attribute carries them. They are public
// surface: alarms and dashboards match on them.
const (
	EventRefundAccepted     = "refund.accepted"
	EventRefundDuplicate    = "refund.duplicate" // the same id and content again
	EventRefundConflict     = "refund.conflict"  // the same id, other content
	EventRefundReview       = "refund.review"
	EventRefundSettled      = "refund.settled"
	EventCallStarted        = "call.started"
	EventCallFinished       = "call.finished"
	EventCallTimeout        = "call.timeout" // KeyBudget says which budget
	EventCallNotSent        = "call.not_sent"
	EventHiddenRetryBlocked = "call.hidden_retry_blocked"
	EventRetryScheduled     = "retry.scheduled"    // KeyAttempt, KeyWaitMS
	EventBreakerTransition  = "breaker.transition" // KeyFrom, KeyTo
	EventGatePaused         = "gate.paused"
	EventGateResumed        = "gate.resumed"
	EventOwnerAcquired      = "egress.owner_acquired"
	EventStandby            = "egress.standby"
	EventOwnerLost          = "egress.owner_lost"
	EventReleased           = "egress.released"
	EventDuplicateStopped   = "idempotency.duplicate_stopped"
	EventIntakeRefused      = "intake.refused"
	EventTLSReloaded        = "tls.reloaded"      // the server's TLS files have changed and are used
	EventTLSReloadFailed    = "tls.reload_failed" // they have changed and can't be used; the old ones are
	EventNoticeStored       = "notice.stored"     // with whether it is parked, and its problem
	EventNoticeDuplicate    = "notice.duplicate"  // the same message again
	EventNoticeRefused      = "notice.refused"
	EventReviewAction       = "review.action"   // what a person did
	EventReviewDigest       = "review.digest"   // what waits for people
	EventBacklogLate        = "backlog.late"    // open cases won't meet their deadlines at the measured drain
	EventBacklogOnTime      = "backlog.on_time" // they will again
)

// Names of the attributes that events share.
const (
	KeyEvent    = "event"
	KeyRefundID = "refund_id"
	KeyAccount  = "account"
	KeyKind     = "kind" // refund.CallKind
	KeySeq      = "seq"
	KeyCallKey  = "call_key" // refund.CallKey.String
	KeyBudget   = "budget"   // refund.Budget
	KeyAttempt  = "attempt"
	KeyWaitMS   = "wait_ms"
	KeyFrom     = "from"
	KeyTo       = "to"
)
