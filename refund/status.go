package refund

// Status is where a case stands. Stored, and the value of the search
// attribute RefundStatus; never change a value.
type Status string

const (
	StatusQueued   Status = "queued"   // accepted; nothing reached the provider yet
	StatusRetrying Status = "retrying" // the provider was busy; another attempt follows
	StatusUnknown  Status = "unknown"  // an attempt may have been executed; checking
	StatusPending  Status = "pending"  // accepted by the provider; checking
	StatusReview   Status = "review"   // people have taken over

	StatusSucceeded   Status = "succeeded"    // final: confirmed by the provider or with evidence
	StatusRejected    Status = "rejected"     // final until corrected: definitely refused
	StatusNotRefunded Status = "not_refunded" // final: a person settled that no money moved
)

// Statuses lists every status in the order of a case's life.
var Statuses = []Status{StatusQueued, StatusRetrying, StatusUnknown, StatusPending, StatusReview, StatusSucceeded, StatusRejected, StatusNotRefunded}

// Final tells whether the status ends a case.
func (s Status) Final() bool {
	return s == StatusSucceeded || s == StatusRejected || s == StatusNotRefunded
}

// Valid tells whether s is a known status.
func (s Status) Valid() bool {
	for _, known := range Statuses {
		if s == known {
			return true
		}
	}
	return false
}

// ReviewReason says why a case was handed to people. Stored, and the value of
// the search attribute RefundReviewReason; never change a value.
type ReviewReason string

const (
	// ReviewDeadlineUnsent: the deadline came and no attempt ever reached the
	// provider.
	ReviewDeadlineUnsent ReviewReason = "deadline_unsent"
	// ReviewDeadlineUnknown: the deadline came and an attempt may have been
	// executed.
	ReviewDeadlineUnknown ReviewReason = "deadline_unknown"
	// ReviewDeadlinePending: the deadline came and the provider still says
	// pending.
	ReviewDeadlinePending ReviewReason = "deadline_pending"
	// ReviewDeadlineBusy: the deadline came and the provider had accepted
	// nothing.
	ReviewDeadlineBusy ReviewReason = "deadline_busy"
	// ReviewAttempts: all automatic attempts are used and none was accepted.
	ReviewAttempts ReviewReason = "attempts_exhausted"
	// ReviewChecks: all automatic checks are used and the result is open.
	ReviewChecks ReviewReason = "checks_exhausted"
	// ReviewKeyExpired: only a resend could help and the idempotency key is
	// past its lifetime.
	ReviewKeyExpired ReviewReason = "key_expired"
	// ReviewNoSafeResend: only a resend could help and the provider's
	// contract does not make resends safe.
	ReviewNoSafeResend ReviewReason = "resend_not_safe"
	// ReviewMismatch: the provider knows our key with other content, which is
	// a defect of ours.
	ReviewMismatch ReviewReason = "idempotency_mismatch"
	// ReviewAmbiguousReject: a reject that may be the echo of an attempt that
	// worked, and checks could not tell.
	ReviewAmbiguousReject ReviewReason = "ambiguous_reject"
	// ReviewLateFailure: the provider says that the refund failed after it had
	// said that it succeeded.
	ReviewLateFailure ReviewReason = "late_failure"
	// ReviewContradiction: the provider says what can't be true together with
	// what was known or decided: another amount, a second refund, money that
	// moved although the case was closed without.
	ReviewContradiction ReviewReason = "contradiction"
	// ReviewUnsupported: the account or its adapter cannot handle the refund.
	ReviewUnsupported ReviewReason = "unsupported"
)

// ReviewReasons lists every reason.
var ReviewReasons = []ReviewReason{
	ReviewDeadlineUnsent, ReviewDeadlineUnknown, ReviewDeadlinePending, ReviewDeadlineBusy, ReviewAttempts, ReviewChecks,
	ReviewKeyExpired, ReviewNoSafeResend, ReviewMismatch, ReviewAmbiguousReject, ReviewUnsupported, ReviewLateFailure, ReviewContradiction,
}

// reviewWords says for people what each reason means.
var reviewWords = map[ReviewReason]string{
	ReviewDeadlineUnsent:  "the deadline came and nothing ever reached the provider",
	ReviewDeadlineUnknown: "the deadline came and an attempt may have been executed",
	ReviewDeadlinePending: "the deadline came and the provider still works on it",
	ReviewDeadlineBusy:    "the deadline came and the provider had accepted nothing",
	ReviewAttempts:        "all attempts are used and the provider accepted none",
	ReviewChecks:          "all checks are used and the result is open",
	ReviewKeyExpired:      "only a resend could help, and the idempotency key is past its lifetime",
	ReviewNoSafeResend:    "only a resend could help, and the provider's contract does not make it safe",
	ReviewMismatch:        "the provider knows our key with other content, a defect of ours",
	ReviewAmbiguousReject: "the reject may be the echo of an attempt that worked",
	ReviewUnsupported:     "the account or its adapter can't handle the refund",
	ReviewLateFailure:     "the provider reports success and failure",
	ReviewContradiction:   "what the provider reports contradicts what is known or was decided",
}

// InWords says for people what the reason means.
func (r ReviewReason) InWords() string { return reviewWords[r] }

// Sticky tells whether only people end a review of this reason: what is known
// contradicts itself, and one more fact wouldn't settle it.
func (r ReviewReason) Sticky() bool {
	return r == ReviewLateFailure || r == ReviewContradiction
}
