package telemetry

// Names of metrics. They are public surface: alarms and dashboards query them.
// docs/metrics.md says what each means.
const (
	// Of an account's egress, as its owner counts and sees them.
	MetricCallStarts           = "refundgate_call_starts_total"
	MetricCallOutcomes         = "refundgate_call_outcomes_total"
	MetricCallDuration         = "refundgate_call_duration_seconds"
	MetricConnectDuration      = "refundgate_connect_duration_seconds"
	MetricStartGap             = "refundgate_start_gap_seconds"
	MetricInFlight             = "refundgate_in_flight"
	MetricWaiting              = "refundgate_waiting"
	MetricBreakerState         = "refundgate_breaker_state"
	MetricHiddenRetriesBlocked = "refundgate_hidden_retries_blocked_total"
	MetricEgressOwner          = "refundgate_egress_owner"

	// Of the cases, from the ledger.
	MetricSettled       = "refundgate_settled_total"
	MetricOpenCases     = "refundgate_open_cases"
	MetricOldestOpenAge = "refundgate_oldest_open_age_seconds"

	// Of the intake API.
	MetricIntakeRequests = "refundgate_intake_requests_total"

	// Of the inbox, from the ledger.
	MetricInboxRows      = "refundgate_inbox_rows"
	MetricInboxOldestAge = "refundgate_inbox_oldest_age_seconds"

	// Of admission: how an account's backlog is being worked off.
	MetricDrain        = "refundgate_drain_per_second"
	MetricCallsPerCase = "refundgate_calls_per_case"
	MetricExpectedWait = "refundgate_expected_wait_seconds"
	MetricBacklogLate  = "refundgate_backlog_late"
)

// Labels of metrics. No label ever holds an id of a refund, an order or a
// payment: each value makes a series that is kept.
const (
	LabelAccount = "account"
	LabelKind    = "kind"    // refund.CallKind
	LabelOrigin  = "origin"  // refund.Origin
	LabelOutcome = "outcome" // refund.Outcome
	LabelGroup   = "group"   // refund.Group
	LabelState   = "state"   // of the breaker: limiter.BreakerState; of rows of the inbox
	LabelStatus  = "status"  // refund.Status
	LabelResult  = "result"  // of a submission
)
