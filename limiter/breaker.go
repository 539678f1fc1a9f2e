package limiter

import (
	"fmt"
	"time"

	"refundgate/refund"
)

// BreakerConfig sets a circuit breaker. Zero values mean the default.
type BreakerConfig struct {
	// Window is how many of the latest results are looked at. The breaker
	// can't open before that many are in. Defaults to 10.
	Window int
	// FailureRate is the share of failures in the window, above 0 and up to
	// 1, from which on the breaker opens. Defaults to 0.5.
	FailureRate float64
	// OpenFor is how long it stays open before it tries again. Defaults to
	// 30 s.
	OpenFor time.Duration
	// Probes is how many calls a half-open breaker lets out in total. Fewer
	// than half of them failing closes it. Defaults to 3.
	Probes int
	// ProbeTimeout is how long after its first probe a half-open breaker waits
	// for the results; what is missing then counts as failed, so that it can't
	// stay half-open. Defaults to 30 s, ten times a call's budget.
	ProbeTimeout time.Duration
}

func (c BreakerConfig) withDefaults() BreakerConfig {
	setDefault(&c.Window, 10)
	setDefault(&c.FailureRate, 0.5)
	setDefault(&c.OpenFor, 30*time.Second)
	setDefault(&c.Probes, 3)
	setDefault(&c.ProbeTimeout, 30*time.Second)
	return c
}

func (c BreakerConfig) validate() error {
	if c.Window < 0 || c.FailureRate < 0 || c.FailureRate > 1 || c.OpenFor < 0 || c.Probes < 0 || c.ProbeTimeout < 0 {
		return fmt.Errorf("limiter: the breaker's values must be positive, and its failure rate at most 1")
	}
	return nil
}

// BreakerState is where a breaker stands. The values are logged and shown.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed   BreakerState = "closed"    // calls go out
	BreakerOpen     BreakerState = "open"      // calls wait
	BreakerHalfOpen BreakerState = "half_open" // a few calls go out to see
)

// Verdict is what a call's end says about the provider's health.
type Verdict int

// The verdicts. The zero value says nothing.
const (
	Neutral  Verdict = iota // the provider answered on the matter: a reject
	Healthy                 // it works
	Failing                 // it does not: a time-out, a disconnect, an error
	CutShort                // we ended the call before the provider had its time
)

// VerdictOf is what a call's result says. An answer on the matter, whatever it
// is, is no failure; neither is one about our quota or our credentials, which
// have brakes of their own. A call that its own case's deadline ended had less
// time than the provider is given.
func VerdictOf(r refund.Result) Verdict {
	switch {
	case r.AccountWide || r.NeverResend:
		return Neutral
	case r.Budget == refund.BudgetDeadline:
		return CutShort
	case r.Outcome == refund.OutcomeRejected:
		return Neutral
	case r.Outcome == refund.OutcomeUnknown || r.Outcome == refund.OutcomeBusy:
		return Failing
	default:
		return Healthy
	}
}

// breaker is a circuit breaker over a window of the last results:
//
//	         >= 50 % of the last 10 failing
//	closed ---------------------------------> open
//	   ^                                      |  ^
//	   | fewer than half failing        30 s  |  | otherwise
//	   |                                      v  |
//	   +------------------------------- half-open (3 probes)
//
// Every state begins a new generation. A result carries the generation in
// which its call was let out and is ignored in any other, so a call that hangs
// for long can't decide about a state it wasn't part of.
//
// It is not safe for concurrent use: the gate's lock guards it.
type breaker struct {
	cfg        BreakerConfig
	state      BreakerState
	generation uint64
	until      time.Duration // open: when it ends; half-open: the probes' deadline, 0 before the first
	window     []bool        // closed: the last results, true is a failure; a ring
	next       int           // the ring's next place
	failures   int           // closed: in the window; half-open: of the probes
	taken      int           // half-open: probes let out
	ended      int           // half-open: probes whose result is in
	neutral    int           // half-open: of these, those with an answer that says nothing
	cut        int           // half-open: of these, those without even that
	onChange   func(from, to BreakerState)
}

func newBreaker(cfg BreakerConfig, onChange func(from, to BreakerState)) *breaker {
	return &breaker{cfg: cfg.withDefaults(), state: BreakerClosed, onChange: onChange}
}

// enter begins a state.
func (b *breaker) enter(s BreakerState, until time.Duration) {
	from := b.state
	b.state, b.until = s, until
	b.generation++
	b.window, b.next = b.window[:0], 0
	b.failures, b.taken, b.ended, b.neutral, b.cut = 0, 0, 0, 0, 0
	if b.onChange != nil {
		b.onChange(from, s)
	}
}

// tick lets time do its work: an open breaker becomes half-open, and a
// half-open one whose probes don't come back opens again. It returns how long
// nothing else will happen by time alone.
func (b *breaker) tick(now time.Duration) time.Duration {
	switch {
	case b.state == BreakerOpen && now >= b.until:
		b.enter(BreakerHalfOpen, 0)
	case b.state == BreakerHalfOpen && b.taken > 0 && now >= b.until:
		b.enter(BreakerOpen, now+b.cfg.OpenFor)
	}
	if b.state == BreakerOpen || (b.state == BreakerHalfOpen && b.taken > 0) {
		return b.until - now
	}
	return never
}

// permits tells whether a call may go out now.
func (b *breaker) permits() bool {
	return b.state == BreakerClosed || (b.state == BreakerHalfOpen && b.taken < b.cfg.Probes)
}

// take counts a call that goes out; permits must be true. The result is to be
// reported, or given back, with the returned generation.
func (b *breaker) take(now time.Duration) (generation uint64) {
	if b.state == BreakerHalfOpen {
		if b.taken == 0 {
			b.until = now + b.cfg.ProbeTimeout
		}
		b.taken++
	}
	return b.generation
}

// giveBack undoes a take: the call was not sent and says nothing.
func (b *breaker) giveBack(generation uint64) {
	if generation == b.generation && b.state == BreakerHalfOpen {
		b.taken--
	}
}

// report adds a call's result.
func (b *breaker) report(generation uint64, v Verdict, now time.Duration) {
	if generation != b.generation {
		return
	}
	switch b.state {
	case BreakerClosed:
		b.reportClosed(v, now)
	case BreakerHalfOpen:
		b.reportProbe(v, now)
	}
}

func (b *breaker) reportClosed(v Verdict, now time.Duration) {
	if v == Neutral || v == CutShort {
		return
	}
	failed := v == Failing
	if len(b.window) < b.cfg.Window {
		b.window = append(b.window, failed)
	} else {
		if b.window[b.next] {
			b.failures--
		}
		b.window[b.next] = failed
	}
	b.next = (b.next + 1) % b.cfg.Window
	if failed {
		b.failures++
	}
	if len(b.window) == b.cfg.Window && float64(b.failures) >= b.cfg.FailureRate*float64(b.cfg.Window) {
		b.enter(BreakerOpen, now+b.cfg.OpenFor)
	}
}

func (b *breaker) reportProbe(v Verdict, now time.Duration) {
	b.ended++
	switch v {
	case Failing:
		b.failures++
	case Neutral:
		b.neutral++
	case CutShort:
		b.cut++
	}
	if b.ended < b.cfg.Probes {
		return
	}
	// Where no probe says whether it works, an answer of any kind will do: the
	// provider is there. Calls that were cut short don't even tell that.
	said := b.ended - b.neutral - b.cut
	if 2*b.failures < said || (said == 0 && b.neutral > 0) {
		b.enter(BreakerClosed, 0)
	} else {
		b.enter(BreakerOpen, now+b.cfg.OpenFor)
	}
}
