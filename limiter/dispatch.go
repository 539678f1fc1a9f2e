package limiter

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"time"

	"refundgate/refund"
)

const never = time.Duration(math.MaxInt64)

// maxDeaths bounds how often a call's prepared connection may be closed by the
// provider before its turn.
const maxDeaths = 4

// dispatch decides, whenever something changed or time has come, who dials
// and who is next. It is the only goroutine that makes a call the next one.
func (g *Gate) dispatch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var timeout <-chan time.Time
		if wait := g.step(); wait != never {
			timer.Reset(wait)
			timeout = timer.C
		}
		select {
		case <-g.ctx.Done():
			return
		case <-g.kick:
		case <-timeout:
		}
	}
}

// step does what is due and returns how long nothing else will be.
func (g *Gate) step() time.Duration {
	g.mu.Lock()
	now := g.cfg.Clock.Now()
	resumed := g.paused && now >= g.pausedUntil
	if resumed {
		g.paused = false
	}
	wait := g.breaker.tick(now)
	if g.refusal == nil {
		wait = min(wait, g.prepare(now), g.choose(now))
	}
	if g.paused {
		wait = min(wait, g.pausedUntil-now)
	}
	g.mu.Unlock()
	if resumed && g.cfg.Events.Resumed != nil {
		g.cfg.Events.Resumed()
	}
	return wait
}

// due is the earliest instant of the next start. The caller holds g.mu.
func (g *Gate) due() time.Duration {
	due := max(g.nextStart, g.pausedUntil)
	if g.breaker.state == BreakerOpen {
		due = max(due, g.breaker.until)
	}
	return due
}

// prepare opens connections for the calls at the front of every line whose
// turn is near. The caller holds g.mu.
func (g *Gate) prepare(now time.Duration) time.Duration {
	if !g.breaker.permits() && g.breaker.state == BreakerHalfOpen {
		return never // the probes are out; their results will wake the dispatcher
	}
	slot := max(g.due(), now) // the earliest for those in the lines
	if g.next != nil {
		slot += g.cfg.Interval
	}
	wait := never
	for l := range g.room.all() {
		l.advance()
		turn := max(slot, l.endpoint.nextStart)
		for _, w := range slices.Clone(l.front) { // fail takes out of it
			begin := turn - g.cfg.ConnectTimeout - maxLead
			turn += max(g.cfg.Interval, l.endpoint.limit.Interval)
			wait = min(wait, g.prepareOne(w, begin, now))
		}
	}
	return wait
}

// prepareOne opens w's connection once begin has come, and anew when it has
// died or grown old. It returns how long nothing else is to be done for w. The
// caller holds g.mu.
func (g *Gate) prepareOne(w *waiter, begin, now time.Duration) time.Duration {
	switch {
	case w.prep != nil && w.prep.client == nil:
		return never // dialling; its end will wake the dispatcher
	case w.ready() && now < w.prep.readyAt+maxIdleConn:
		return w.prep.readyAt + maxIdleConn - now
	case w.prep != nil && !w.ready():
		g.dialsFail = true
		if w.deaths++; w.deaths > maxDeaths {
			g.room.fail(w, &NotSentError{Code: refund.CodeConnect, Err: errors.New("the provider keeps closing idle connections")})
			return never
		}
	}
	w.dropPreparation()
	if begin = max(begin, g.dialAfter); now < begin {
		return begin - now
	}
	if g.dialsFail {
		// While connections fail, dials are as far apart as starts would be:
		// failing fast must not become a storm.
		g.dialAfter = now + g.cfg.Interval
	}
	g.dial(w)
	return never
}

// choose makes the call whose turn it is the next one, once its slot is near.
// The caller holds g.mu.
func (g *Gate) choose(now time.Duration) time.Duration {
	if g.next != nil || g.inFlight >= g.cfg.MaxInFlight || !g.breaker.permits() {
		return never // a start, an end or the breaker will wake the dispatcher
	}
	lead := min(g.cfg.Interval, maxLead)
	slot := max(g.due(), now)
	if slot-now > lead {
		return slot - now - lead
	}
	// For most of the lead the turn is reserved for its rightful owner even if
	// that one still dials; the last quarter is for writing the intent.
	last := lead / 4
	reserved := slot - now - last
	w := g.pick(slot, reserved > 0)
	if w == nil && reserved <= 0 {
		// Nobody can use the slot. Then it may wait a moment for a kind whose
		// own limit has it start a little later.
		w = g.pick(slot+last, false)
	}
	if w == nil {
		wait := never // a finished dial or an arrival will wake the dispatcher
		if reserved > 0 {
			wait = reserved
		}
		return min(wait, g.room.opens(slot+last)-last-now)
	}
	g.room.take(w)
	g.next = w
	w.generation = g.breaker.take(now)
	close(w.turn)
	return never
}

// pick returns the call that may start at the given slot, or nil. The caller
// holds g.mu.
func (g *Gate) pick(slot time.Duration, strict bool) *waiter {
	if g.breaker.state == BreakerHalfOpen {
		// The probes ask rather than send, where there is something to ask.
		if w := g.room.pickCheck(slot); w != nil {
			return w
		}
	}
	return g.room.pick(slot, strict)
}

// dial opens w's connection in the background. The caller holds g.mu.
func (g *Gate) dial(w *waiter) {
	ctx, cancel := context.WithTimeoutCause(g.ctx, g.cfg.ConnectTimeout, errConnectBudget)
	p := &preparation{cancel: cancel}
	w.prep = p
	g.done.Go(func() {
		defer cancel()
		begin := g.cfg.Clock.Now()
		conn, client, err := g.connect(ctx)
		end := g.cfg.Clock.Now()

		g.mu.Lock()
		defer g.mu.Unlock()
		defer g.wake()
		if w.prep != p { // given up or sent back in line meanwhile
			if err == nil {
				go client.Close()
			}
			return
		}
		if err != nil {
			notSent := &NotSentError{Code: refund.CodeConnect, Err: err}
			if errors.Is(context.Cause(ctx), errConnectBudget) {
				notSent.Budget = refund.BudgetConnect
			}
			g.dialsFail = true
			g.dialAfter = max(g.dialAfter, end+g.cfg.Interval)
			g.room.fail(w, notSent)
			// Nothing was sent, but it tells as much about the provider as if.
			if g.breaker.permits() {
				g.breaker.report(g.breaker.take(end), Failing, end)
			}
			return
		}
		g.dialsFail = false
		p.conn, p.client, p.took, p.readyAt = conn, client, end-begin, end
		client.SetStateHook(func(*http.ClientConn) { g.wake() }) // it may die while it waits
	})
}
