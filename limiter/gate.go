// Package limiter is the one way out to a provider account: a gate that every
// call passes, first attempts, retries, result checks and manual calls alike.
//
// The gate holds two separate budgets. Starts are spaced: between the first
// byte of one request and the first byte of the next lies at least the
// interval, measured on the monotonic clock at the connection's first Write,
// and idle time earns no credit. And no more than a fixed number of calls is
// in flight, from that first Write until the socket is closed.
//
// A call goes through these stages:
//
//	waiting --> prepared --> next --> started --> closed
//	   |           |          |          |
//	   |           |          |          +- the place in flight is held until here
//	   |           |          +- one at a time: its intent is recorded, and its
//	   |           |             first Write is held until the slot is due
//	   |           +- dialled (TCP and TLS) ahead of its turn
//	   +- in one of two groups, served alternately, earliest accepted first
//
// Until the first Write a call can be given up without a trace at the
// provider; Passage.Sent tells the two apart by counting bytes, never by the
// text of an error.
package limiter

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"refundgate/refund"
)

// Config holds an account's budgets. Zero values mean the default.
type Config struct {
	// Target is where calls go: http or https, and a host. Required.
	Target *url.URL
	// Interval is the least time between two starts. Defaults to 200 ms, which
	// is 5 starts per second.
	Interval time.Duration
	// MaxInFlight bounds the calls between first Write and closed socket.
	// Defaults to 10.
	MaxInFlight int
	// Endpoints limits calls of one kind further, under the account's total.
	Endpoints map[refund.CallKind]EndpointLimit
	// ConnectTimeout bounds DNS, TCP and TLS together. Defaults to 1 s.
	ConnectTimeout time.Duration
	// CallTimeout bounds a call: connecting, writing, waiting for the answer
	// and reading it whole. Waiting for a slot is no part of it. Defaults to
	// 3 s.
	CallTimeout time.Duration
	// IntentMaxAge is how old a recorded intent may be at the last check
	// before the first byte; past it the call is not sent. Defaults to 1 s.
	IntentMaxAge time.Duration
	// Breaker stops calls to a provider that fails.
	Breaker BreakerConfig
	// MaxBody bounds an answer's body in bytes; a longer one is an error.
	// Defaults to 1 MiB.
	MaxBody int64
	// TLS configures https targets. Defaults to the system's roots.
	TLS *tls.Config
	// Dial opens the TCP connection. Defaults to net.Dialer.DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Clock defaults to the host's CLOCK_MONOTONIC.
	Clock Clock
	// Events are told what happened; every field may be nil.
	Events Events
}

// Events receives what happens at the gate, each kind in the order in which it
// happened. The functions must not block and must not call the gate.
type Events struct {
	Started     func(call Call, p Passage) // after the first Write
	HiddenRetry func(call Call)            // a second send on one ticket was refused
	Paused      func(until time.Time, why string)
	Resumed     func()
	Breaker     func(from, to BreakerState) // every change of the breaker's state
}

// dialAhead bounds how many calls of a line may hold or open a connection
// before their turn. At 100 starts per second it covers dials of 80 ms.
const dialAhead = 8

// maxIdleConn is how long a prepared connection may wait for its turn before
// it is dialled anew. Servers commonly wait 5 s or more for the first request.
const maxIdleConn = 4 * time.Second

// maxLead bounds how long before its slot a call becomes the next one, so
// that an intent is young when the first byte leaves and a call that arrives
// late in the interval can still be considered.
const maxLead = 100 * time.Millisecond

// Call asks for one passage.
type Call struct {
	Key   refund.CallKey
	Group refund.Group
	// Origin is why the call is made. The gate only hands it to Events.
	Origin refund.Origin
	// AcceptedAt orders the calls of a group: the earliest goes first.
	AcceptedAt time.Time
	// Deadline is the end of the case's own time; a call neither starts nor
	// goes on after it. Zero means none.
	Deadline time.Time
	// Intent records durably that the call is about to be sent. It runs when
	// the call is next, at most once; an error means that the call is not
	// sent. Required.
	Intent func(ctx context.Context) error
	// Send makes the call over the ticket, its only way out. It runs at most
	// once, after Intent. Its context ends with the call's budgets. Required.
	Send func(ctx context.Context, t *Ticket)
}

// Passage is what the gate measured of a call that it let out.
type Passage struct {
	StartedAt   time.Time     // wall clock at the first Write
	StartedMono time.Duration // Clock.Now at the first Write
	InFlight    int           // calls in flight at the start, this one included
	FinishedAt  time.Time     // wall clock when the socket was closed
	Duration    time.Duration // from the first Write to the closed socket
	Connect     time.Duration // what DNS, TCP and TLS took
	Bytes       int64         // of the request that were handed to the network
	Budget      refund.Budget // the budget that ended the call, if one did
	HiddenRetry bool          // a second send on the ticket was refused
}

// Sent tells whether any byte of the request may have left. False is proof
// that the provider can't have seen it.
func (p Passage) Sent() bool { return p.Bytes > 0 }

// NotSentError says why a call was provably not sent.
type NotSentError struct {
	Code   string        // one of the refund.Code constants
	Budget refund.Budget // the budget that ran out, if one did
	Err    error         // the cause; may be nil
}

func (e *NotSentError) Error() string {
	if e.Err == nil {
		return "not sent: " + e.Code
	}
	return fmt.Sprintf("not sent: %s: %v", e.Code, e.Err)
}

func (e *NotSentError) Unwrap() error { return e.Err }

// Causes with which the contexts of a call end.
var (
	errConnectBudget  = errors.New("connect budget used up")
	errOverallBudget  = errors.New("overall budget used up")
	errDeadlineBudget = errors.New("the case's deadline came")
	errFinished       = errors.New("the call is over")
)

// Gate is the egress of one provider account. Its methods may be called by
// any number of goroutines. Create it with New.
type Gate struct {
	cfg  Config
	ctx  context.Context // ends with Close; dials hang on it
	stop context.CancelFunc
	done sync.WaitGroup // the dispatcher

	kick chan struct{} // wakes the dispatcher; buffered, 1

	mu          sync.Mutex
	room        room
	endpoints   endpoints
	next        *waiter       // picked, not yet started
	nextStart   time.Duration // earliest next start on the clock
	pausedUntil time.Duration // no start before it
	pauseWall   time.Time     // the same for people
	paused      bool          // a pause was announced and not yet its end
	breaker     *breaker
	dialsFail   bool          // the last dial failed
	dialAfter   time.Duration // no new dial before it, while dials fail
	inFlight    int
	refusal     *NotSentError // set: nothing starts any more
	idle        chan struct{} // closed when refusing and nothing is under way
	active      int           // calls inside Do
}

// New returns an open gate. It must be closed with Close.
func New(cfg Config) (*Gate, error) {
	if cfg.Target == nil || cfg.Target.Host == "" || (cfg.Target.Scheme != "http" && cfg.Target.Scheme != "https") {
		return nil, errors.New("limiter: the target must be an http or https URL with a host")
	}
	cfg = cfg.WithDefaults()
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{KeepAlive: -1}).DialContext
	}
	if cfg.Clock == nil {
		cfg.Clock = MonotonicClock()
	}
	if err := cfg.Breaker.validate(); err != nil {
		return nil, err
	}
	if cfg.Interval < 0 || cfg.MaxInFlight < 0 || cfg.ConnectTimeout < 0 || cfg.CallTimeout < 0 {
		return nil, errors.New("limiter: budgets must be positive")
	}
	g := &Gate{
		cfg: cfg, kick: make(chan struct{}, 1), idle: make(chan struct{}),
		breaker: newBreaker(cfg.Breaker, cfg.Events.Breaker),
	}
	if err := g.endpoints.set(cfg); err != nil {
		return nil, err
	}
	g.room.init(&g.endpoints)
	g.nextStart = cfg.Clock.Now()
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.done.Go(g.dispatch)
	return g, nil
}

// WithDefaults returns the configuration with the default in place of every
// zero budget.
func (c Config) WithDefaults() Config {
	setDefault(&c.Interval, 200*time.Millisecond)
	setDefault(&c.MaxInFlight, 10)
	setDefault(&c.ConnectTimeout, time.Second)
	setDefault(&c.CallTimeout, 3*time.Second)
	setDefault(&c.IntentMaxAge, time.Second)
	setDefault(&c.MaxBody, 1<<20)
	return c
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Do takes the call through the gate and returns when its socket is closed or
// when it is certain that nothing was sent; then the error is a
// *NotSentError. While the call waits, the end of ctx gives it up. Once its
// first byte has left, only its budgets end it.
func (g *Gate) Do(ctx context.Context, call Call) (Passage, error) {
	if !call.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, call.Deadline, errDeadlineBudget)
		defer cancel()
	}
	w := &waiter{call: call, turn: make(chan struct{}), failed: make(chan struct{})}
	if err := g.enter(w); err != nil {
		return Passage{}, err
	}
	defer g.leave(w)

	select {
	case <-w.turn:
	case <-w.failed:
		return Passage{}, w.err
	case <-ctx.Done():
		if err := g.giveUp(ctx, w); err != nil {
			return Passage{}, err
		}
		// The turn came in the same instant; the last check will see ctx.
	}
	return g.pass(ctx, w)
}

// pass runs the call that is next: intent, send, measure.
func (g *Gate) pass(ctx context.Context, w *waiter) (Passage, error) {
	defer w.prep.close()
	if err := ctx.Err(); err != nil {
		return Passage{}, contextNotSent(ctx)
	}
	// From here on the end of ctx is honoured by the last check inside the
	// first Write: an intent is not interrupted half-way, and a call in flight
	// is ended only by its budgets.
	flight, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(errFinished)
	if !w.call.Deadline.IsZero() {
		var stop context.CancelFunc
		flight, stop = context.WithDeadlineCause(flight, w.call.Deadline, errDeadlineBudget)
		defer stop()
	}

	t := &Ticket{gate: g, waiter: w, wait: ctx, flight: flight, cancel: cancel, intentAt: g.cfg.Clock.Now()}
	if err := w.call.Intent(flight); err != nil {
		var notSent *NotSentError
		if errors.As(err, &notSent) {
			return Passage{}, notSent
		}
		return Passage{}, &NotSentError{Code: refund.CodeStorage, Err: err}
	}
	w.prep.conn.ticket.Store(t)
	// Deferred so that a panic in Send can't leave a request that might still
	// start, or a place in flight that is never given back.
	defer t.finish()
	w.call.Send(flight, t)
	p := t.finish()
	if p.Sent() {
		return p, nil
	}
	return p, t.whyNotSent()
}

// enter puts the call into the waiting room.
func (g *Gate) enter(w *waiter) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refusal != nil {
		return g.refusal
	}
	g.active++
	g.room.add(w)
	g.wake()
	return nil
}

// occupy takes a place in flight for a call to the endpoint and returns how
// many are taken. The caller holds g.mu.
func (g *Gate) occupy(e *endpoint) int {
	g.inFlight++
	e.inFlight++
	return g.inFlight
}

// started takes the slots of the next call, which left at now. The caller holds
// g.mu.
func (g *Gate) started(e *endpoint, now time.Duration) {
	g.nextStart = now + g.cfg.Interval
	e.started(now)
	g.next = nil
}

// ended gives back the place of a call that has been in flight. The caller
// holds g.mu.
func (g *Gate) ended(w *waiter, v Verdict, now time.Duration) {
	g.inFlight--
	g.endpoints.of(w.call.Key.Kind).inFlight--
	g.breaker.report(w.generation, v, now)
}

// forgo gives back the turn of a call that did not start, if it has it. The
// caller holds g.mu.
func (g *Gate) forgo(w *waiter) {
	if g.next == w {
		g.next = nil
		g.breaker.giveBack(w.generation)
	}
}

// leave gives back whatever the call still holds.
func (g *Gate) leave(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.room.remove(w)
	g.forgo(w)
	g.active--
	if g.refusal != nil && g.active == 0 {
		close(g.idle)
	}
	g.wake()
}

// giveUp takes a call out of the waiting room whose context has ended. It
// returns nil if the call's turn has come meanwhile.
func (g *Gate) giveUp(ctx context.Context, w *waiter) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == w {
		return nil
	}
	g.room.remove(w)
	return contextNotSent(ctx)
}

func contextNotSent(ctx context.Context) *NotSentError {
	if cause := context.Cause(ctx); errors.Is(cause, errDeadlineBudget) {
		return &NotSentError{Code: refund.CodeDeadline, Budget: refund.BudgetDeadline, Err: cause}
	}
	return &NotSentError{Code: refund.CodeCancelled, Err: context.Cause(ctx)}
}

// Pause stops starts until the given instant, as a provider's Retry-After for
// the whole account asks. It never shortens a pause and never speeds up.
func (g *Gate) Pause(until time.Time, why string) {
	g.mu.Lock()
	at := g.cfg.Clock.Now() + time.Until(until)
	longer := at > g.pausedUntil && at > g.cfg.Clock.Now()
	if longer {
		g.pausedUntil, g.pauseWall, g.paused = at, until, true
	}
	g.wake()
	g.mu.Unlock()
	if longer && g.cfg.Events.Paused != nil {
		g.cfg.Events.Paused(until, why)
	}
}

// Refuse stops the gate before its next byte: what waits and what comes is
// not sent, for the reason given by code. Calls in flight go on. The first
// refusal stands.
func (g *Gate) Refuse(code string, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refusal != nil {
		return
	}
	g.refusal = &NotSentError{Code: code, Err: cause}
	g.room.failAll(g.refusal)
	if g.active == 0 {
		close(g.idle)
	}
	g.wake()
}

// Close refuses all further calls, waits until those in flight are over (no
// longer than their budgets) or ctx ends, and releases the gate's resources.
func (g *Gate) Close(ctx context.Context) error {
	g.Refuse(refund.CodeShutdown, nil)
	var err error
	select {
	case <-g.idle:
	case <-ctx.Done():
		err = fmt.Errorf("closing the gate: %w", context.Cause(ctx))
	}
	g.stop()
	g.done.Wait()
	return err
}

// Status is a snapshot of the gate.
type Status struct {
	InFlight        int       `json:"in_flight"`
	WaitingFirst    int       `json:"waiting_first"`
	WaitingFollowUp int       `json:"waiting_follow_up"`
	PausedUntil     time.Time `json:"paused_until,omitzero"`
	// Breaker is the breaker's state; OpenUntil is when an open one tries again.
	Breaker   BreakerState `json:"breaker"`
	OpenUntil time.Time    `json:"open_until,omitzero"`
	Refusing  string       `json:"refusing,omitempty"` // code of the refusal
}

// Status returns what the gate is doing now.
func (g *Gate) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Status{
		InFlight:        g.inFlight,
		WaitingFirst:    g.room.group(refund.GroupFirst).len(),
		WaitingFollowUp: g.room.group(refund.GroupFollowUp).len(),
	}
	now := g.cfg.Clock.Now()
	if now < g.pausedUntil {
		s.PausedUntil = g.pauseWall
	}
	s.Breaker = g.breaker.state
	if s.Breaker == BreakerOpen {
		s.OpenUntil = time.Now().Add(g.breaker.until - now)
	}
	if g.refusal != nil {
		s.Refusing = g.refusal.Code
	}
	return s
}

// Ahead estimates how many waiting calls go before the one with the given key,
// counting no further than MaxAhead; false if it doesn't wait (any more).
func (g *Gate) Ahead(key refund.CallKey) (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.room.ahead(key, MaxAhead)
}

// MaxAhead is where Gate.Ahead stops counting: nobody who waits is told more by
// a larger number, and the gate's lock is held meanwhile.
const MaxAhead = 1000

// wake makes the dispatcher look again. The caller holds g.mu or nothing.
func (g *Gate) wake() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}
