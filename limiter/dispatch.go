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

// maxDials bounds how often a call is dialled anew because its prepared
// connection died or grew old before its turn.
const maxDials = 5

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

// prepare opens connections for the calls at the front of both lines. The
// caller holds g.mu.
func (g *Gate) prepare(now time.Duration) time.Duration {
	if early := g.due() - g.cfg.ConnectTimeout - g.cfg.Interval - now; early > 0 {
		return early // paused: a connection opened now would be old by then
	}
	if !g.breaker.permits() && g.breaker.state == BreakerHalfOpen {
		return never // the probes are out; their results will wake the dispatcher
	}
	wait := never
	for i := range g.room.lines {
		l := &g.room.lines[i]
		l.advance()
		for _, w := range slices.Clone(l.front) { // fail takes out of it
			if w.ready() && now < w.prep.readyAt+maxIdleConn {
				wait = min(wait, w.prep.readyAt+maxIdleConn-now)
				continue
			}
			if w.prep != nil && w.prep.client == nil {
				continue // dialling
			}
			if now < g.dialAfter {
				wait = min(wait, g.dialAfter-now)
				continue
			}
			if w.prep != nil { // died or grew old while it waited
				w.dropPreparation()
				g.dialsFail = true
			}
			if g.dialsFail {
				// While connections fail, dials are as far apart as starts
				// would be: failing fast must not become a storm.
				g.dialAfter = now + g.cfg.Interval
			}
			if w.dials++; w.dials > maxDials {
				g.room.fail(w, &NotSentError{Code: refund.CodeConnect, Err: errors.New("the provider keeps closing idle connections")})
				continue
			}
			g.dial(w)
		}
	}
	return wait
}

// choose makes the call whose turn it is the next one, once its slot is near.
// The caller holds g.mu.
func (g *Gate) choose(now time.Duration) time.Duration {
	if g.next != nil || g.inFlight >= g.cfg.MaxInFlight || !g.breaker.permits() {
		return never // a start, an end or the breaker will wake the dispatcher
	}
	lead := min(g.cfg.Interval, maxLead)
	left := g.due() - now
	if left > lead {
		return left - lead
	}
	// For most of the lead the turn is reserved for its rightful owner even if
	// that one still dials; the last quarter is for writing the intent.
	reserved := left - lead/4
	var w *waiter
	if g.breaker.state == BreakerHalfOpen {
		w = g.room.pickCheck()
	}
	if w == nil {
		w = g.room.pick(reserved > 0)
	}
	if w == nil {
		if reserved > 0 {
			return reserved
		}
		return never // a finished dial or an arrival will wake the dispatcher
	}
	g.room.take(w)
	g.next = w
	w.generation = g.breaker.take(now)
	close(w.turn)
	return never
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
