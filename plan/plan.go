// Package plan answers capacity questions with arithmetic: how long a backlog
// takes to drain, and what rate a promised time needs. The package simulation
// below it plays the same question through with the production code's
// decisions and order.
//
// It is about averages. Refunds and calls are amounts that flow, so the answer
// is exact for long times and knows nothing of luck.
package plan

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Bounds of what is taken. What is beyond is a typing mistake rather than an
// account. The rates, per second, are those that an account may have.
const (
	MaxBacklog        = 10_000_000
	MinRate           = 0.01
	MaxRate           = 1000
	MaxCallsPerRefund = 1000
)

// Question is what the answer depends on.
type Question struct {
	// Backlog is how many refunds wait now, from 0 to MaxBacklog.
	Backlog float64
	// Inflow is how many new refunds come per second, from 0 to MaxRate.
	Inflow float64
	// Rate is how many calls may start per second, from MinRate to MaxRate.
	Rate float64
	// CallsPerRefund is how many calls a refund takes on average: its attempts
	// and checks together. From 1 to MaxCallsPerRefund.
	CallsPerRefund float64
	// MaxInFlight is how many calls may be in flight at once, and Hold how long
	// one holds its place on average. Where either is 0, places don't count.
	MaxInFlight int
	Hold        time.Duration
	// Within is the promised time; 0 if none is.
	Within time.Duration
}

// InvalidError says which field of a Question is out of its range.
type InvalidError struct {
	Field   string // the name of the field in Question
	Message string // what is expected and what it is
}

func (e *InvalidError) Error() string { return e.Field + " " + e.Message }

// Validate returns nil or an error that joins an *InvalidError per bad field.
func (q Question) Validate() error {
	var bad []error
	add := func(field, format string, args ...any) {
		bad = append(bad, &InvalidError{field, fmt.Sprintf(format, args...)})
	}
	// Written so that NaN fails too.
	if !(q.Backlog >= 0 && q.Backlog <= MaxBacklog) {
		add("Backlog", "must be from 0 to %d refunds; it is %v", MaxBacklog, q.Backlog)
	}
	if !(q.Inflow >= 0 && q.Inflow <= MaxRate) {
		add("Inflow", "must be from 0 to %d refunds per second; it is %v", MaxRate, q.Inflow)
	}
	if !(q.Rate >= MinRate && q.Rate <= MaxRate) {
		add("Rate", "must be from %v to %d calls per second; it is %v", MinRate, MaxRate, q.Rate)
	}
	if !(q.CallsPerRefund >= 1 && q.CallsPerRefund <= MaxCallsPerRefund) {
		add("CallsPerRefund", "must be from 1 to %d calls; it is %v", MaxCallsPerRefund, q.CallsPerRefund)
	}
	if q.MaxInFlight < 0 {
		add("MaxInFlight", "must not be negative; it is %d", q.MaxInFlight)
	}
	if q.Hold < 0 {
		add("Hold", "must not be negative; it is %s", q.Hold)
	}
	if q.Within < 0 {
		add("Within", "must not be negative; it is %s", q.Within)
	}
	return errors.Join(bad...)
}

// Bound names what limits the calls per second.
type Bound string

// The two resources of an egress.
const (
	BoundStarts Bound = "starts" // how many calls may start per second
	BoundPlaces Bound = "places" // how many may be in flight at once
)

// Answer is what follows from a Question. Rates are per second.
type Answer struct {
	// Capacity is how many calls go out per second, and Bound what limits them.
	Capacity float64
	Bound    Bound
	// Places is how many calls the places in flight carry per second; 0 if
	// they don't count.
	Places float64
	// Load is how many calls the new refunds take per second. The backlog falls
	// only while Capacity is more than that.
	Load float64
	// Drains tells whether the backlog comes to its end, and Drain after how
	// many seconds; without an end Drain is +Inf.
	Drains bool
	Drain  float64
	// Growth is by how many refunds per second the backlog grows; 0 if it
	// doesn't.
	Growth float64
	// Needed is how many calls per second end the backlog within the promised
	// time, and Suffices whether Capacity is that much. Both are zero without a
	// promise. NeededPlaces is how many calls would be in flight at that rate;
	// 0 if nothing is known of how long one takes.
	Needed       float64
	Suffices     bool
	NeededPlaces int
}

// even is how far apart, relatively, two rates may be and still count as the
// same: what decimal fractions lose in a float64, and no more.
const even = 1e-9

// Solve answers the question, which must be valid.
//
// Of the calls per second, the new refunds take inflow x calls; what is left
// works on the backlog, which is backlog x calls:
//
//	drain time = backlog x calls / (rate - inflow x calls)
//
// Solved for the rate, with a promised time instead:
//
//	rate = calls x (backlog / time + inflow)
func Solve(q Question) Answer {
	a := Answer{Capacity: q.Rate, Bound: BoundStarts, Load: q.Inflow * q.CallsPerRefund}
	if q.MaxInFlight > 0 && q.Hold > 0 {
		a.Places = float64(q.MaxInFlight) / q.Hold.Seconds()
		if a.Places < q.Rate {
			a.Capacity, a.Bound = a.Places, BoundPlaces
		}
	}
	spare := a.Capacity - a.Load
	if math.Abs(spare) <= even*a.Load {
		spare = 0
	}
	switch {
	case spare > 0 || (spare == 0 && q.Backlog == 0):
		a.Drains = true
		if q.Backlog > 0 {
			a.Drain = q.Backlog * q.CallsPerRefund / spare
		}
	default:
		a.Drain = math.Inf(1)
		a.Growth = -spare / q.CallsPerRefund
	}
	if q.Within > 0 {
		a.Needed = q.CallsPerRefund * (q.Backlog/q.Within.Seconds() + q.Inflow)
		a.Suffices = a.Capacity >= a.Needed*(1-even)
		if q.Hold > 0 {
			a.NeededPlaces = int(math.Ceil(a.Needed * q.Hold.Seconds() * (1 - even)))
		}
	}
	return a
}
