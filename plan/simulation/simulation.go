// Package simulation plays a backlog through in virtual time: the decisions are
// those of workflows.Decide, the order, the spacing, the places in flight and
// the breaker those of limiter's gate. Only the provider and the clock are made
// up. What it leaves out: the time that MySQL and Temporal take, connecting,
// and people.
package simulation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"refundgate/limiter"
	"refundgate/plan"
	"refundgate/refund"
)

// Arrivals says how new refunds come.
type Arrivals string

// The kinds of arrivals.
const (
	ArrivalsEven    Arrivals = "even"    // at equal distances
	ArrivalsPoisson Arrivals = "poisson" // at random and independently of each other
)

// Bounds of what is simulated.
const (
	MaxBacklog = 100_000
	// MaxCalls ends a run: what needs more is not going to drain soon.
	MaxCalls = 500_000
)

// Params describes what is simulated.
type Params struct {
	// Backlog is how many refunds wait at the beginning, all of them accepted
	// just then: from 0 to MaxBacklog.
	Backlog int
	// Inflow is how many new refunds come per second, from 0 to plan.MaxRate.
	Inflow   float64
	Arrivals Arrivals
	// CallsPerRefund is how many calls a refund takes if nothing fails: one
	// send, which the provider accepts, and result checks until it is done. A
	// fraction is the share of refunds that take one call more. From 1 to
	// plan.MaxCallsPerRefund.
	CallsPerRefund float64
	// Latency is how long the provider takes to answer. What takes longer than
	// the gate's CallTimeout is carried out, and unknown to us.
	Latency plan.Latency
	// Busy is the share (0 to 1) of calls that the provider does not accept and
	// asks to make again; Lost that of calls that are carried out and whose
	// answer never comes; Reject that of sends that are refused for good. Each
	// call meets one of them at most, so they add up to 1 or less.
	Busy, Reject, Lost float64
	// Gate holds the account's budgets, and Policy what the case is tried by.
	Gate   limiter.Config
	Policy refund.Policy
	// Seed makes a run what it is: the same one gives the same run.
	Seed uint64
	// Horizon is how long is simulated at most, in virtual time.
	Horizon time.Duration
}

// Validate returns nil or an error that says all that is wrong.
func (p Params) Validate() error {
	var bad []error
	add := func(format string, args ...any) { bad = append(bad, fmt.Errorf(format, args...)) }
	if p.Backlog < 0 || p.Backlog > MaxBacklog {
		add("a simulation's backlog must be from 0 to %d refunds; it is %d", MaxBacklog, p.Backlog)
	}
	if !(p.Inflow >= 0 && p.Inflow <= plan.MaxRate) {
		add("the inflow must be from 0 to %d refunds per second; it is %v", plan.MaxRate, p.Inflow)
	}
	if p.Arrivals != ArrivalsEven && p.Arrivals != ArrivalsPoisson {
		add("the arrivals must be %s or %s, not %q", ArrivalsEven, ArrivalsPoisson, p.Arrivals)
	}
	if !(p.CallsPerRefund >= 1 && p.CallsPerRefund <= plan.MaxCallsPerRefund) {
		add("the calls per refund must be from 1 to %d; they are %v", plan.MaxCallsPerRefund, p.CallsPerRefund)
	}
	if err := p.Latency.Validate(); err != nil {
		add("the latency: %w", err)
	}
	for _, share := range []float64{p.Busy, p.Reject, p.Lost, p.Busy + p.Reject + p.Lost} {
		if !(share >= 0 && share <= 1) {
			add("the shares of busy, rejected and lost calls must be from 0 to 1, and together at most 1; they are %v, %v and %v", p.Busy, p.Reject, p.Lost)
			break
		}
	}
	if p.Horizon <= 0 {
		add("the horizon must be more than zero; it is %s", p.Horizon)
	}
	return errors.Join(bad...)
}

// Run is what came of one simulated run.
type Run struct {
	// Drained tells whether the backlog came to its end, and After when: every
	// refund of it was closed or with people, and a start time passed with
	// nobody waiting for it. If not, After is when the run was given up.
	Drained bool
	After   time.Duration
	// Calls were sent in all. Closed refunds got a final result, and Review
	// were handed to people.
	Calls, Closed, Review int
	// Called is how many of the refunds closed or handed over were ever sent,
	// and CalledCalls how many calls those took.
	Called, CalledCalls int
	// PlaceWaits counts the starts that were due and waited for a place in
	// flight.
	PlaceWaits int
	// BreakerOpened counts how often the circuit breaker opened.
	BreakerOpened int
	// Oldest is the highest age that an open refund reached.
	Oldest time.Duration
}

// Summary is what came of several runs.
type Summary struct {
	Runs    int
	Drained int // of them
	// P50 and P95 are over the runs; +Inf seconds where that many did not
	// drain.
	P50, P95 float64
	// CallsPerRefund is the average over the refunds that were closed or handed
	// to people, leaving out those that were never sent; 0 if there are none.
	CallsPerRefund float64
	// Review, PlaceWaits and BreakerOpened are per run, on average.
	Review, PlaceWaits, BreakerOpened float64
	Oldest                            time.Duration // of all runs
	// GivenUp is when the first run that did not drain was given up.
	GivenUp time.Duration
}

// Runs simulates n runs, at least one, with the seeds p.Seed, p.Seed+1 and so
// on.
func Runs(ctx context.Context, p Params, n int) (Summary, error) {
	var s Summary
	var drains []float64
	var calls, called int
	for i := range n {
		p := p
		p.Seed += uint64(i)
		run, err := Simulate(ctx, p)
		if err != nil {
			return Summary{}, err
		}
		s.Runs++
		calls, called = calls+run.CalledCalls, called+run.Called
		s.Review += float64(run.Review) / float64(n)
		s.PlaceWaits += float64(run.PlaceWaits) / float64(n)
		s.BreakerOpened += float64(run.BreakerOpened) / float64(n)
		s.Oldest = max(s.Oldest, run.Oldest)
		if !run.Drained {
			drains = append(drains, math.Inf(1))
			if s.GivenUp == 0 || run.After < s.GivenUp {
				s.GivenUp = run.After
			}
			continue
		}
		s.Drained++
		drains = append(drains, run.After.Seconds())
	}
	if called > 0 {
		s.CallsPerRefund = float64(calls) / float64(called)
	}
	s.P50, s.P95 = percentile(drains, 50), percentile(drains, 95)
	return s, nil
}

// percentile returns the smallest of the values that at least p percent of
// them don't exceed; values may be reordered.
func percentile(values []float64, p int) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[(len(values)*p+99)/100-1]
}
