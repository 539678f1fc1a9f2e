// Package report is what a drill found, and how it is shown: report.json for
// programs, and report.html, one file that needs nothing else, for people who
// weren't there.
package report

import "time"

// Report is everything that one run of the drill found.
type Report struct {
	// Passed: every check of every scenario held.
	Passed bool      `json:"passed"`
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended"`
	// Short: less work per scenario; the checks are the same.
	Short bool `json:"short"`
	// Sabotage names the promise that was broken on purpose, if one was: then
	// the drill has to fail.
	Sabotage string `json:"sabotage,omitempty"`
	// Environment says what it ran on.
	Environment Environment `json:"environment"`
	// Budget is what the calls were held to.
	Budget    Budget     `json:"budget"`
	Scenarios []Scenario `json:"scenarios"`
}

// Environment is the machine and the versions of what ran.
type Environment struct {
	Cores      int    `json:"cores"`
	System     string `json:"system"` // operating system and kernel
	Go         string `json:"go"`
	Refundgate string `json:"refundgate"` // version or commit
	Database   string `json:"database"`
	Temporal   string `json:"temporal"`
}

// Budget is the account's configuration in the drill. Times are in
// milliseconds.
type Budget struct {
	IntervalMS     float64 `json:"interval_ms"` // between two starts
	MaxInFlight    int     `json:"max_in_flight"`
	ConnectMS      int64   `json:"connect_timeout_ms"`
	CallMS         int64   `json:"call_timeout_ms"`
	MaxAttempts    int     `json:"max_attempts"`
	MaxChecks      int     `json:"max_checks"`
	DeadlineMS     int64   `json:"deadline_ms"`
	LateDeadlineMS int64   `json:"late_deadline_ms"` // of the refunds that are to run out of time
}

// Scenario is one part of the drill and what came of it. All times are in
// seconds since Report.Began.
type Scenario struct {
	Name        string `json:"name"`        // as given to --scenario
	Requirement string `json:"requirement"` // G1 to G8
	Title       string `json:"title"`
	// Story says in a few sentences what is done and what has to come of it.
	Story  string  `json:"story"`
	Passed bool    `json:"passed"`
	Began  float64 `json:"began_s"`
	Ended  float64 `json:"ended_s"`
	// Problem is why the scenario could not be carried out; its checks may be
	// missing then.
	Problem string   `json:"problem,omitempty"`
	Checks  []Check  `json:"checks"`
	Figures []Figure `json:"figures"`
	// Windows are spans in which the provider or a process was made to
	// misbehave, or that explain what is seen.
	Windows []Window `json:"windows"`
	// Starts are the calls that left, in the order of their first bytes.
	Starts []Start `json:"starts"`
	// Settled are the instants at which cases were closed or handed to people.
	Settled []float64 `json:"settled_s"`
	// Oldest is the age of the oldest open case over time.
	Oldest []Age `json:"oldest"`
}

// Check is one promise and whether it held.
type Check struct {
	Name    string `json:"name"`    // fixed, such as "gap"
	Promise string `json:"promise"` // what has to hold
	// Measured is the figure that it was judged by, in words.
	Measured string `json:"measured"`
	Passed   bool   `json:"passed"`
	// Problems names what broke it, the first few.
	Problems []string `json:"problems,omitempty"`
}

// Figure is one measured number.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
}

// Window is a span of time.
type Window struct {
	Label string  `json:"label"`
	From  float64 `json:"from_s"`
	To    float64 `json:"to_s"`
}

// Start is one call at the instant its first byte left.
type Start struct {
	At       float64 `json:"at_s"`
	RefundID string  `json:"refund_id"`
	Kind     string  `json:"kind"`   // submit or check
	Origin   string  `json:"origin"` // first, retry, check or manual
	InFlight int     `json:"in_flight"`
	Process  string  `json:"process"` // who sent it
	// GapMS is the time since the start before it; 0 for the first one.
	GapMS   float64 `json:"gap_ms"`
	Outcome string  `json:"outcome"`
	Code    string  `json:"code,omitempty"`
}

// Age is how old the oldest open case was at an instant.
type Age struct {
	At      float64 `json:"at_s"`
	Seconds float64 `json:"seconds"`
	Open    int     `json:"open"` // how many were open
}
