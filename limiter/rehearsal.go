package limiter

import (
	"errors"
	"time"

	"refundgate/refund"
)

// Rehearsal is a gate that sends nothing: its caller says what time it is and
// how each call ends. Who goes first, when, and what holds a call back is
// decided by the code of the Gate itself, so a simulation can't drift away
// from it. Dialling and recording take no time here.
//
// It is not safe for concurrent use.
type Rehearsal struct {
	gate *Gate // never started: nothing but this type calls it
}

// NewRehearsal returns a rehearsal with the budgets of cfg at time zero. What
// is only of use on a network is ignored.
func NewRehearsal(cfg Config) (*Rehearsal, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Breaker.validate(); err != nil {
		return nil, err
	}
	if cfg.Interval < 0 || cfg.MaxInFlight < 0 {
		return nil, errors.New("limiter: budgets must be positive")
	}
	g := &Gate{cfg: cfg, breaker: newBreaker(cfg.Breaker, cfg.Events.Breaker)}
	if err := g.endpoints.set(cfg); err != nil {
		return nil, err
	}
	g.room.init(&g.endpoints)
	return &Rehearsal{g}, nil
}

// Flight is a call that has had its turn.
type Flight struct {
	Call     Call
	InFlight int // calls in flight at the start, this one included
	// NotSent is set if the call had to leave at its turn without being sent.
	// Then it holds no place, and End must not be called.
	NotSent *NotSentError

	waiter *waiter
}

// Enter puts a call into the waiting room. Its Intent, Send and Deadline are
// not used.
func (r *Rehearsal) Enter(call Call) {
	r.gate.room.add(&waiter{call: call, rehearsed: true, turn: make(chan struct{})})
}

// Leave gives up the waiting call with the given key. It tells whether it was
// still waiting.
func (r *Rehearsal) Leave(key refund.CallKey) bool {
	g := r.gate
	w, ok := g.room.waiting[key]
	if !ok {
		if w = g.next; w == nil || w.call.Key != key {
			return false
		}
	}
	g.room.remove(w)
	g.forgo(w)
	return true
}

// Step lets the next call start at now, which must not go back, and returns
// it. It is to be called again until nothing starts; then it returns nil and
// how long nothing will happen by time alone.
func (r *Rehearsal) Step(now time.Duration) (*Flight, time.Duration) {
	g := r.gate
	wait := g.breaker.tick(now)
	for l := range g.room.all() {
		l.advance()
	}
	wait = min(wait, g.choose(now))
	w := g.next
	if w == nil {
		return nil, wait
	}
	endpoint := g.endpoints.of(w.call.Key.Kind)
	if w.generation != g.breaker.generation {
		g.forgo(w)
		return &Flight{Call: w.call, NotSent: &NotSentError{Code: refund.CodeBreaker}, waiter: w}, 0
	}
	if due := max(g.due(), endpoint.nextStart); due > now {
		return nil, min(wait, due-now)
	}
	f := &Flight{Call: w.call, InFlight: g.occupy(endpoint), waiter: w}
	g.started(endpoint, now)
	return f, 0
}

// End ends a call that Step has returned.
func (r *Rehearsal) End(f *Flight, v Verdict, now time.Duration) { r.gate.ended(f.waiter, v, now) }

// Waiting returns how many calls wait for their start.
func (r *Rehearsal) Waiting() int {
	n := r.gate.room.first.len() + r.gate.room.followUp.len()
	if r.gate.next != nil {
		n++
	}
	return n
}

// Due returns the earliest instant of the next start.
func (r *Rehearsal) Due() time.Duration { return r.gate.due() }

// Full tells whether all places in flight are taken.
func (r *Rehearsal) Full() bool { return r.gate.inFlight >= r.gate.cfg.MaxInFlight }
