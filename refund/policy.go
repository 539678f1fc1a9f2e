package refund

import "time"

// Policy holds the values by which the next step of a case is decided. It is
// read once when a workflow opens its case and recorded in the history with
// it, so a change of configuration never changes a decision already made.
type Policy struct {
	// MaxAttempts bounds the automatic sends of a generation that may have
	// reached the provider.
	MaxAttempts int `json:"max_attempts"`
	// Deadline is how long after acceptance people take over.
	Deadline time.Duration `json:"deadline"`
	// Backoff holds the range of the wait before the second, third, ... send;
	// the last range serves all further ones.
	Backoff []Range `json:"backoff"`
	Checks  Checks  `json:"checks"`
	// NotSentInitial and NotSentMax bound the wait after a call that was
	// provably not sent; it doubles from the first to the second.
	NotSentInitial time.Duration `json:"not_sent_initial"`
	NotSentMax     time.Duration `json:"not_sent_max"`
	// CallBudget is the longest that one call takes from its first Write on.
	CallBudget time.Duration `json:"call_budget"`
	Contract   Contract      `json:"contract"`
}

// Range is a uniform range of durations.
type Range struct {
	Min time.Duration `json:"min"`
	Max time.Duration `json:"max"`
}

// Checks is the schedule of automatic result checks. The interval before a
// check grows from Initial by Factor for each check since the last send, is
// spread by +-Jitter (0.5 is half of it), and never exceeds Cap.
type Checks struct {
	Max     int           `json:"max"` // per generation
	Initial time.Duration `json:"initial"`
	Factor  float64       `json:"factor"`
	Cap     time.Duration `json:"cap"`
	Jitter  float64       `json:"jitter"`
}

// Contract is what a provider promises about resends and look-ups. The
// decision what to do next is made from these values, so each must come from
// the provider's documentation, and a promise not made there stays false.
type Contract struct {
	// IdempotentResends: a second send with the same key and bytes has no
	// second effect.
	IdempotentResends bool `json:"idempotent_resends"`
	// KeyLifetime is how long after first use the key keeps that effect. 0
	// goes with resends that have no such effect at any time.
	KeyLifetime time.Duration `json:"key_lifetime"`
	// NotFoundAfter is how long after the last possible send "not found" may
	// begin to count. 0 means that it never counts.
	NotFoundAfter time.Duration `json:"not_found_after"`
	// NotFoundChecks is how many checks in a row must have found no trace, the
	// last of them NotFoundAfter or more past the last possible send. A check
	// that learnt nothing neither counts nor breaks the row; one that saw some
	// trace, however contradictory, breaks it.
	NotFoundChecks int `json:"not_found_checks"`
}

// DefaultPolicy is the policy of the reference provider's accounts: the
// numbers of SPEC A3, C1 and C4 to C7.
func DefaultPolicy() Policy {
	return Policy{
		MaxAttempts:    3,
		Deadline:       15 * time.Minute,
		Backoff:        []Range{{time.Second, 2 * time.Second}, {time.Second, 4 * time.Second}},
		Checks:         Checks{Max: 20, Initial: 2 * time.Second, Factor: 2, Cap: time.Minute, Jitter: 0.5},
		NotSentInitial: time.Second,
		NotSentMax:     30 * time.Second,
		CallBudget:     3 * time.Second,
		Contract:       Contract{IdempotentResends: true, KeyLifetime: 24 * time.Hour, NotFoundAfter: time.Minute, NotFoundChecks: 3},
	}
}
