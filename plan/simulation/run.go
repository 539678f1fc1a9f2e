package simulation

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"refundgate/limiter"
	"refundgate/refund"
	"refundgate/workflows"
)

// origin is the wall-clock time of the virtual time zero. Any would do.
var origin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

func wall(at time.Duration) time.Time { return origin.Add(at) }

// run is one run under way.
type run struct {
	p        Params
	random   *rand.Rand
	gate     *limiter.Rehearsal
	now      time.Duration
	events   events
	serial   uint64                 // of the latest event
	accepted int                    // refunds so far
	open     map[string]*refundCase // by refund id
	backlog  int                    // how many of the open ones have waited from the beginning
	full     bool                   // the next start was due, and there was no place for it
	result   Run

	// Tests look on here; nil otherwise.
	entered, left func(call limiter.Call)
	started       func(f *limiter.Flight)
}

// refundCase is one refund: the case as its workflow has it, and what the
// provider makes of it.
type refundCase struct {
	refund.Case
	backlog bool
	waiting *limiter.Call // in the gate's waiting room, if it is
	sent    int           // calls that were sent
	// checks is how many answered checks the provider needs until it is done
	// with an accepted refund. It is done at once where that is 0.
	checks int
}

// Simulate plays one run through. The error is that of the parameters, or ctx's.
func Simulate(ctx context.Context, p Params) (Run, error) {
	r, err := newRun(p)
	if err != nil {
		return Run{}, err
	}
	return r.play(ctx)
}

func newRun(p Params) (*run, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	r := &run{p: p, random: rand.New(rand.NewPCG(p.Seed, 0)), open: map[string]*refundCase{}}
	r.p.Gate = p.Gate.WithDefaults()
	r.p.Gate.Events = limiter.Events{Breaker: func(_, to limiter.BreakerState) {
		if to == limiter.BreakerOpen {
			r.result.BreakerOpened++
		}
	}}
	var err error
	if r.gate, err = limiter.NewRehearsal(r.p.Gate); err != nil {
		return nil, fmt.Errorf("setting up the gate: %w", err)
	}
	return r, nil
}

// play lets things happen, each at its time, until the backlog is gone or the
// run is given up.
func (r *run) play(ctx context.Context) (Run, error) {
	for range r.p.Backlog {
		r.accept(true)
	}
	if r.p.Inflow > 0 {
		// Even arrivals begin anywhere in their first interval.
		r.at(time.Duration(r.random.Float64()*float64(r.arrival())), r.arrive)
	}
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return Run{}, fmt.Errorf("simulating: %w", context.Cause(ctx))
		}
		wait := r.startAll()
		if r.result.Drained = r.drained(); r.result.Drained || r.result.Calls >= MaxCalls {
			break
		}
		next := r.next(wait)
		if next >= r.p.Horizon {
			r.now = r.p.Horizon
			break
		}
		r.now = next
		for len(r.events) > 0 && r.events[0].at <= r.now {
			heap.Pop(&r.events).(event).happen()
		}
	}
	r.result.After = r.now
	for _, c := range r.open {
		r.age(c)
	}
	return r.result, nil
}

// drained tells whether a start time has come that nobody waits for, with the
// whole backlog out of the way.
func (r *run) drained() bool {
	return r.backlog == 0 && r.gate.Waiting() == 0 && r.gate.Due() <= r.now
}

// next returns when something happens again: an event, or what the gate waits
// for, or a start time that nobody waits for yet.
func (r *run) next(wait time.Duration) time.Duration {
	next := r.now + max(1, min(wait, r.p.Horizon))
	if len(r.events) > 0 {
		next = min(next, r.events[0].at)
	}
	if due := r.gate.Due(); due > r.now {
		next = min(next, due)
	}
	return next
}

// at lets something happen at an instant.
func (r *run) at(at time.Duration, happen func()) {
	r.serial++
	heap.Push(&r.events, event{at, r.serial, happen})
}

// arrive accepts a new refund and lets the next one come.
func (r *run) arrive() {
	r.accept(false)
	r.at(r.now+r.arrival(), r.arrive)
}

// arrival draws the time between two new refunds.
func (r *run) arrival() time.Duration {
	mean := float64(time.Second) / r.p.Inflow
	if r.p.Arrivals == ArrivalsPoisson {
		mean *= r.random.ExpFloat64()
	}
	// No shorter than the clock can tell, no longer than is ever looked at.
	return time.Duration(min(max(mean, 1), float64(r.p.Horizon)+1))
}

// accept opens a case.
func (r *run) accept(backlog bool) {
	r.accepted++
	c := &refundCase{backlog: backlog}
	c.Refund.ID = fmt.Sprintf("s%d-%d", r.p.Seed, r.accepted) // jitter hangs on it
	c.Status, c.Generation = refund.StatusQueued, 1
	c.AcceptedAt = wall(r.now)
	c.DeadlineAt = c.AcceptedAt.Add(r.p.Policy.Deadline)
	whole, part := math.Modf(r.p.CallsPerRefund)
	c.checks = int(whole) - 1
	if r.random.Float64() < part {
		c.checks++
	}
	r.open[c.Refund.ID] = c
	if backlog {
		r.backlog++
	}
	r.at(r.now+r.p.Policy.Deadline, func() { r.deadline(c) })
	r.decide(c)
}

// decide does what the workflow does: it asks for the next step and takes it.
func (r *run) decide(c *refundCase) {
	step := workflows.Decide(c.Case, r.p.Policy, wall(r.now))
	c.Status, c.ReviewReason = step.Status, step.Reason
	switch step.Kind {
	case workflows.StepClose:
		r.result.Closed++
		r.close(c)
	case workflows.StepReview:
		r.result.Review++
		r.close(c)
	case workflows.StepSubmit, workflows.StepCheck:
		at := step.At
		if step.Until.Before(at) {
			at = step.Until
		}
		if due := at.Sub(origin); due > r.now {
			r.at(due, func() { r.decide(c) })
			return
		}
		r.call(c, step)
	}
}

// close takes leave of a case that is closed or with people.
func (r *run) close(c *refundCase) {
	r.age(c)
	if c.sent > 0 {
		r.result.Called++
		r.result.CalledCalls += c.sent
	}
	delete(r.open, c.Refund.ID)
	if c.backlog {
		r.backlog--
	}
}

func (r *run) age(c *refundCase) {
	r.result.Oldest = max(r.result.Oldest, wall(r.now).Sub(c.AcceptedAt))
}

// call puts the step's call into the waiting room.
func (r *run) call(c *refundCase, step workflows.Step) {
	kind := refund.KindSubmit
	if step.Kind == workflows.StepCheck {
		kind = refund.KindCheck
	}
	c.waiting = &limiter.Call{
		Key:   refund.CallKey{RefundID: c.Refund.ID, Generation: c.Generation, Kind: kind, Seq: c.NextSeq(kind)},
		Group: step.Origin.Group(), Origin: step.Origin, AcceptedAt: c.AcceptedAt,
	}
	if r.entered != nil {
		r.entered(*c.waiting)
	}
	r.gate.Enter(*c.waiting)
}

// deadline gives up the case's call if it still waits for its turn.
func (r *run) deadline(c *refundCase) {
	if c.waiting == nil || !r.gate.Leave(c.waiting.Key) {
		return
	}
	r.notSent(c, *c.waiting, refund.CodeDeadline)
}

// notSent tells the case that its call left the gate without being sent.
func (r *run) notSent(c *refundCase, call limiter.Call, code string) {
	c.waiting = nil
	if r.left != nil {
		r.left(call)
	}
	r.learn(c, call, r.now, refund.Result{Outcome: refund.OutcomeNotSent, Code: code})
}

// learn adds a call that is over to the case, as the workflow does.
func (r *run) learn(c *refundCase, call limiter.Call, intentAt time.Duration, result refund.Result) {
	end := wall(r.now)
	rec := refund.Call{Key: call.Key, Origin: call.Origin, IntentAt: wall(intentAt), FinishedAt: &end, Result: result}
	if result.Outcome != refund.OutcomeNotSent {
		start := wall(intentAt)
		rec.StartedAt = &start
	}
	c.Calls = append(c.Calls, rec)
	c.Attempts = max(c.Attempts, c.CountAttempts())
	r.decide(c)
}

// startAll lets out whatever may start now, and returns how long nothing else
// will by time alone.
func (r *run) startAll() time.Duration {
	for {
		f, wait := r.gate.Step(r.now)
		switch {
		case f == nil:
			r.full = r.full || (r.gate.Full() && r.gate.Waiting() > 0 && r.gate.Due() <= r.now)
			return wait
		case f.NotSent != nil:
			r.notSent(r.open[f.Call.Key.RefundID], f.Call, f.NotSent.Code)
		default:
			r.fly(r.open[f.Call.Key.RefundID], f)
		}
	}
}

// fly lets a call that has started meet the provider.
func (r *run) fly(c *refundCase, f *limiter.Flight) {
	c.waiting = nil
	c.sent++
	r.result.Calls++
	if r.full {
		r.result.PlaceWaits++
		r.full = false
	}
	if r.started != nil {
		r.started(f)
	}
	began := r.now
	result, took := r.answer(c, f.Call.Key.Kind)
	if left := c.DeadlineAt.Sub(wall(began)); left < took {
		// The case's own deadline ends the call, and nothing was learnt.
		took, result = left, refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: refund.BudgetDeadline}
	}
	r.at(began+took, func() {
		r.gate.End(f, limiter.VerdictOf(result), r.now)
		r.learn(c, f.Call, began, result)
	})
}

// answer is what the provider does with a call, and how long the call takes.
func (r *run) answer(c *refundCase, kind refund.CallKind) (refund.Result, time.Duration) {
	took, fate := r.p.Latency.Draw(r.random), r.random.Float64()
	timeout := r.p.Gate.CallTimeout
	result := refund.Result{Outcome: refund.OutcomeSucceeded}
	switch {
	case fate < r.p.Lost || took >= timeout:
		return refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: refund.BudgetOverall}, timeout
	case fate < r.p.Lost+r.p.Busy:
		result.Outcome = refund.OutcomeBusy
	case kind == refund.KindSubmit && fate < r.p.Lost+r.p.Busy+r.p.Reject:
		result.Outcome = refund.OutcomeRejected
	case kind == refund.KindCheck && c.checks > 1:
		c.checks--
		result.Outcome = refund.OutcomePending
	case kind == refund.KindSubmit && c.checks > 0:
		result.Outcome = refund.OutcomePending
	}
	return result, took
}

// event is something that happens at an instant of the virtual time.
type event struct {
	at     time.Duration
	serial uint64 // breaks ties: what was said first happens first
	happen func()
}

// events orders what is going to happen for container/heap, earliest on top.
type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e events) Less(i, j int) bool {
	if e[i].at != e[j].at {
		return e[i].at < e[j].at
	}
	return e[i].serial < e[j].serial
}

func (e *events) Push(x any) { *e = append(*e, x.(event)) }

func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = event{} // it holds on to a case
	*e = old[:len(old)-1]
	return last
}
