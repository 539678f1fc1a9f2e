package starter

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// roundInterval is how often a backlog is looked at that nobody woke us
	// for: what another process put there, or is left from an outage.
	roundInterval = time.Second
	// While rounds fail they are this far apart. The longest wait is also what
	// a recovery costs those that waited.
	minRoundBackoff = time.Second
	maxRoundBackoff = 5 * time.Second
)

// rounds goes over a backlog again and again: when it is woken, else once a
// second, and with growing waits while that fails.
type rounds struct {
	failing string // what can't be done while it fails, for the log
	round   func(context.Context) error
	log     *slog.Logger
	wake    chan struct{}
}

func newRounds(failing string, round func(context.Context) error, log *slog.Logger) *rounds {
	return &rounds{failing: failing, round: round, log: log, wake: make(chan struct{}, 1)}
}

// awake asks for a round now. It never blocks.
func (r *rounds) awake() {
	select {
	case r.wake <- struct{}{}:
	default: // it is awake, or about to be
	}
}

// run makes rounds until ctx ends.
func (r *rounds) run(ctx context.Context) {
	for failures := 0; ; {
		if err := r.round(ctx); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			r.log.WarnContext(ctx, r.failing+"; trying again", "failures", failures, "error", err)
		}
		if !r.rest(ctx, failures) {
			return
		}
	}
}

// rest waits until the next round is due and tells whether there is one.
// During an outage a wake-up does not shorten the wait.
func (r *rounds) rest(ctx context.Context, failures int) bool {
	wait, wake := roundInterval, r.wake
	if failures > 0 {
		wait, wake = roundBackoff(failures), nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// roundBackoff doubles with every failed round; jitter keeps several processes
// from knocking together.
func roundBackoff(failures int) time.Duration {
	wait := maxRoundBackoff
	if failures < 4 {
		wait = min(wait, minRoundBackoff<<(failures-1))
	}
	return wait - rand.N(wait/4)
}
