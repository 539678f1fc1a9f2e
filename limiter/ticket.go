package limiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"refundgate/refund"
)

// Errors of Ticket.RoundTrip.
var (
	// ErrTicketUsed: one ticket carries one request; a second is refused,
	// counted and reported, whoever asked for it.
	ErrTicketUsed = errors.New("limiter: the ticket has been used; a second send is refused")
	// ErrWrongTarget: the request isn't for the account's provider.
	ErrWrongTarget = errors.New("limiter: the request is for another host than the account's")
)

// TimeoutError says which budget ended a call after its first byte had left.
type TimeoutError struct {
	Budget refund.Budget
}

func (e *TimeoutError) Error() string { return fmt.Sprintf("the call's %s budget ran out", e.Budget) }

// Timeout marks the error as a time-out for those who ask as net.Error does.
func (e *TimeoutError) Timeout() bool { return true }

// Is makes errors.Is(err, context.DeadlineExceeded) true.
func (e *TimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// Ticket is the right to send one request. It is an http.RoundTripper: the
// first RoundTrip goes out on the connection that the gate has prepared, every
// further one is refused. It is worthless once Call.Send has returned.
type Ticket struct {
	gate     *Gate
	waiter   *waiter
	wait     context.Context // of the caller; its end stops a start
	flight   context.Context // of the call; its end stops the request
	cancel   context.CancelCauseFunc
	intentAt time.Duration

	mu       sync.Mutex // guards what follows; held through every Write
	used     bool
	started  bool
	finished bool
	refusal  *NotSentError // why the last check said no
	err      error         // of the request
	verdict  *Verdict      // as judged by the caller
	passage  Passage
	overall  *time.Timer

	holdMu      sync.Mutex         // guards what follows; taken while mu is held through a wait
	abandonHold context.CancelFunc // set while the first Write waits for its slot
	// holdOver: the call is over; a first Write that has not begun to wait for
	// its slot must not begin.
	holdOver bool
}

// RoundTrip sends the request and returns the answer with its whole body read.
// A body over Config.MaxBody is an *http.MaxBytesError, a budget that ran out a
// *TimeoutError.
func (t *Ticket) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.roundTrip(req)
	if err != nil && req.Body != nil {
		_ = req.Body.Close() // as RoundTripper demands; the request failed anyway
	}
	return resp, err
}

func (t *Ticket) roundTrip(req *http.Request) (*http.Response, error) {
	target := t.gate.cfg.Target
	t.mu.Lock()
	refused := t.used || t.finished
	t.used = true
	if refused {
		t.passage.HiddenRetry = true
	}
	t.mu.Unlock()
	if refused {
		if f := t.gate.cfg.Events.HiddenRetry; f != nil {
			f(t.waiter.call)
		}
		return nil, ErrTicketUsed
	}
	if req.URL.Scheme != target.Scheme || req.URL.Host != target.Host {
		return nil, t.fail(ErrWrongTarget)
	}

	// The request ends with its own context and with the call's.
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(errFinished)
	defer context.AfterFunc(t.flight, func() { cancel(context.Cause(t.flight)) })()
	req = req.Clone(ctx)
	req.Close = true
	req.GetBody = nil

	resp, err := t.waiter.prep.client.RoundTrip(req)
	if err != nil {
		return nil, t.fail(err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, t.gate.cfg.MaxBody+1))
	_ = resp.Body.Close() // everything wanted has been read
	if err != nil {
		return nil, t.fail(err)
	}
	if int64(len(body)) > t.gate.cfg.MaxBody {
		return nil, t.fail(&http.MaxBytesError{Limit: t.gate.cfg.MaxBody})
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// Judge tells the breaker what the call says about the provider's health. A
// call that isn't judged is Failing if its request failed, and Neutral if not.
func (t *Ticket) Judge(v Verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.verdict = &v
}

// Budget names the time budget that ended the request; empty if none did.
func (t *Ticket) Budget() refund.Budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.passage.Budget
}

// fail notes why the request failed and puts a budget's name to a time-out.
func (t *Ticket) fail(err error) error {
	var budget refund.Budget
	switch cause := context.Cause(t.flight); {
	case errors.Is(cause, errOverallBudget):
		budget = refund.BudgetOverall
	case errors.Is(cause, errDeadlineBudget):
		budget = refund.BudgetDeadline
	}
	if budget != "" {
		err = &TimeoutError{Budget: budget}
	}
	// A first Write that is still waiting for its slot must not outlive its
	// request.
	t.endHold()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	if t.started {
		t.passage.Budget = budget
	}
	return err
}

// write passes the request's bytes on to the network; the first of them is
// the start of the call.
func (t *Ticket) write(conn net.Conn, b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.finished {
		return 0, errFinished
	}
	if t.refusal != nil {
		return 0, t.refusal
	}
	if t.started {
		n, err := conn.Write(b)
		t.passage.Bytes += int64(n)
		return n, err
	}
	if t.refusal = t.hold(); t.refusal != nil {
		return 0, t.refusal
	}

	g := t.gate
	t.started = true
	t.overall = time.AfterFunc(g.cfg.CallTimeout-t.waiter.prep.took, func() { t.cancel(errOverallBudget) })
	t.passage.Connect = t.waiter.prep.took
	t.passage.StartedAt = time.Now()
	t.passage.StartedMono = g.cfg.Clock.Now()
	n, err := conn.Write(b)
	// The byte left somewhere between the stamp and now, and if the process
	// was stopped in between, that is long after the stamp. Counting from now
	// keeps the distance to the next start whichever it was.
	after := g.cfg.Clock.Now()
	t.passage.Bytes = int64(n)

	if n > 0 && g.cfg.Events.Started != nil {
		// Before the next call may start, so that the record is in order.
		g.cfg.Events.Started(t.waiter.call, t.passage)
	}
	g.mu.Lock()
	g.started(g.endpoints.of(t.waiter.call.Key.Kind), after)
	g.mu.Unlock()
	g.wake()
	return n, err
}

// hold waits for the slot and makes the last check: nothing about the call
// may have changed since it became the next one. On success the call has its
// place in flight.
func (t *Ticket) hold() *NotSentError {
	ctx, ok := t.beginHold()
	if !ok {
		return t.heldNotSent()
	}
	defer t.endHold()
	g := t.gate
	endpoint := g.endpoints.of(t.waiter.call.Key.Kind)
	for {
		g.mu.Lock()
		due := max(g.due(), endpoint.nextStart)
		now := g.cfg.Clock.Now()
		switch {
		case g.refusal != nil:
			g.mu.Unlock()
			return g.refusal
		case ctx.Err() != nil:
			g.mu.Unlock()
			return t.heldNotSent()
		case t.waiter.generation != g.breaker.generation:
			g.mu.Unlock()
			return &NotSentError{Code: refund.CodeBreaker}
		case max(due, now)-t.intentAt > g.cfg.IntentMaxAge:
			g.mu.Unlock()
			return &NotSentError{Code: refund.CodeStale}
		case due <= now:
			// The dispatcher let the call be next with a place free, and only
			// the next call takes places.
			t.passage.InFlight = g.occupy(endpoint)
			g.mu.Unlock()
			return nil
		}
		g.mu.Unlock()
		if err := g.cfg.Clock.WaitUntil(ctx, due); err != nil {
			return t.heldNotSent()
		}
	}
}

// heldNotSent says why the wait for the slot ended: either the caller gave up,
// or the prepared connection did.
func (t *Ticket) heldNotSent() *NotSentError {
	if t.wait.Err() != nil {
		return contextNotSent(t.wait)
	}
	return &NotSentError{Code: refund.CodeConnect, Err: errors.New("the connection ended before its turn")}
}

// beginHold returns the context of the wait for the slot, or false if the
// call is over already.
func (t *Ticket) beginHold() (context.Context, bool) {
	t.holdMu.Lock()
	defer t.holdMu.Unlock()
	if t.holdOver {
		return nil, false
	}
	ctx, cancel := context.WithCancel(t.wait)
	t.abandonHold = cancel
	return ctx, true
}

// endHold ends the wait for the slot, or keeps it from beginning.
func (t *Ticket) endHold() {
	t.holdMu.Lock()
	defer t.holdMu.Unlock()
	t.holdOver = true
	if t.abandonHold != nil {
		t.abandonHold()
	}
}

// finish ends the ticket: the socket is closed, the place in flight given
// back, and nothing can be written any more. It returns the final passage and
// may be called again.
func (t *Ticket) finish() Passage {
	t.endHold()
	t.waiter.prep.close() // before the lock: it ends a Write that blocks
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.finished {
		return t.passage
	}
	t.finished = true
	t.cancel(errFinished)
	if t.started {
		t.overall.Stop()
		t.passage.FinishedAt = time.Now()
		t.passage.Duration = t.gate.cfg.Clock.Now() - t.passage.StartedMono
		verdict := Neutral
		switch {
		case t.verdict != nil:
			verdict = *t.verdict
		case t.err != nil:
			verdict = Failing
		}
		t.gate.mu.Lock()
		t.gate.ended(t.waiter, verdict, t.gate.cfg.Clock.Now())
		t.gate.mu.Unlock()
		t.gate.wake()
	}
	return t.passage
}

// whyNotSent explains a finished ticket of which no byte left.
func (t *Ticket) whyNotSent() *NotSentError {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.refusal != nil:
		return t.refusal
	case t.err != nil:
		return &NotSentError{Code: refund.CodeConnect, Err: t.err}
	default:
		return &NotSentError{Code: refund.CodeNoRequest, Err: errors.New("the adapter made no request")}
	}
}
