package activities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"

	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/provider"
	"refundgate/refund"
)

// heartbeatEvery is how often a call tells the server that its worker lives
// and learns of a cancellation. The workflow's heartbeat time-out is five
// times as long.
const heartbeatEvery = 2 * time.Second

// Gate is the account's way out.
type Gate interface {
	Do(ctx context.Context, call limiter.Call) (limiter.Passage, error)
	Ahead(key refund.CallKey) (int, bool)
}

// Brake stops the gate: for a while, or until a person has acted.
type Brake interface {
	Pause(until time.Time, why string)
	Refuse(code string, cause error)
}

// Intents records, on the session that proves the right to send, that a call
// is about to be made, and returns the bytes to send.
type Intents interface {
	Intent(ctx context.Context, in ledger.Intent) ([]byte, error)
}

// Egress holds the activities that call one account's provider. Exactly one
// process runs them at any time.
type Egress struct {
	Account string
	Epoch   int64 // of the ownership under which the calls are made
	Gate    Gate
	Brake   Brake
	Intents Intents
	Calls   CallRecords
	Adapter provider.Adapter
	Log     *slog.Logger

	mu      sync.Mutex
	running map[refund.CallKey]*execution
}

// execution is a call that is being made by this process.
type execution struct {
	done   chan struct{} // closed when the rest is set
	result refund.CallResult
	err    error
}

// place is what a waiting call heartbeats.
type place struct {
	Ahead int `json:"calls_ahead"`
}

// SubmitRefund sends the refund once, or returns what became of it before. An
// error means that the ledger has to be asked what became of the call: it
// could not be asked now, or the adapter panicked.
func (e *Egress) SubmitRefund(ctx context.Context, in refund.CallInput) (refund.CallResult, error) {
	return e.once(ctx, in)
}

// CheckRefund asks the provider once what became of the refund. Its errors are
// those of SubmitRefund.
func (e *Egress) CheckRefund(ctx context.Context, in refund.CallInput) (refund.CallResult, error) {
	return e.once(ctx, in)
}

// once makes sure that a call key is worked on by one execution at a time: a
// repeat (a reset workflow, a second start) waits for the first one's result.
func (e *Egress) once(ctx context.Context, in refund.CallInput) (refund.CallResult, error) {
	stop := e.heartbeat(ctx, in.Key)
	defer stop()

	e.mu.Lock()
	if first, ok := e.running[in.Key]; ok {
		e.mu.Unlock()
		select {
		case <-first.done:
			e.duplicate(ctx, in)
			res := first.result
			res.Repeat = true
			return res, first.err
		case <-ctx.Done():
			return refund.CallResult{}, fmt.Errorf("waiting for the first execution of %s: %w", in.Key, ctx.Err())
		}
	}
	if e.running == nil {
		e.running = map[refund.CallKey]*execution{}
	}
	// Should the adapter panic, this is what a waiting repeat gets.
	x := &execution{done: make(chan struct{}), err: fmt.Errorf("the first execution of %s panicked", in.Key)}
	e.running[in.Key] = x
	e.mu.Unlock()

	defer func() {
		e.mu.Lock()
		delete(e.running, in.Key)
		e.mu.Unlock()
		close(x.done)
	}()
	x.result, x.err = e.make(ctx, in)
	return x.result, x.err
}

// make makes the call if its key wasn't used before, and records what became
// of it.
func (e *Egress) make(ctx context.Context, in refund.CallInput) (refund.CallResult, error) {
	if res, err := e.earlier(ctx, in); !errors.Is(err, ledger.ErrNotFound) {
		return res, err
	}

	call := newCall(in)
	intent := ledger.Intent{Call: call, IdempotencyKey: refund.IdempotencyKey(in.Key.RefundID, in.Key.Generation), MaxAttempts: in.MaxAttempts}
	if in.Key.Kind == refund.KindSubmit {
		var err error
		if intent.Body, err = e.Adapter.Encode(in.Refund); err != nil {
			return e.notSent(ctx, call, unsupported(), err), nil
		}
	}
	var body []byte
	var answer refund.Result
	var intended bool // the ledger has, or may have, the intent
	passage, err := e.Gate.Do(ctx, limiter.Call{
		Key: in.Key, Group: in.Origin.Group(), Origin: in.Origin, AcceptedAt: in.AcceptedAt, Deadline: in.Deadline,
		Intent: func(ctx context.Context) error {
			intent.Call.IntentAt = time.Now()
			stored, err := e.Intents.Intent(ctx, intent)
			if err != nil {
				intended = errors.Is(err, ledger.ErrMayBeRecorded)
				return e.refusedIntent(err)
			}
			body, intended = stored, true
			call.IntentAt, call.Epoch = intent.Call.IntentAt, e.Epoch
			return nil
		},
		Send: func(ctx context.Context, t *limiter.Ticket) {
			if in.Key.Kind == refund.KindSubmit {
				answer = e.Adapter.Submit(ctx, t, provider.Submission{Refund: in.Refund, Key: intent.IdempotencyKey, Body: body})
			} else {
				answer = e.Adapter.Check(ctx, t, provider.Query{Refund: in.Refund, ProviderRefundID: in.ProviderRefundID, Foreign: in.Foreign})
			}
			answer = sentResult(answer, t.Budget())
			t.Judge(limiter.VerdictOf(answer))
		},
	})
	if errors.Is(err, ledger.ErrDuplicateCall) {
		// Another process recorded this key between the look-up and now.
		return e.earlier(ctx, in)
	}
	if err != nil {
		res := e.notSent(ctx, call, notSentResult(err), err)
		if intended {
			res.Unrecorded = !e.record(ctx, res.Call)
		}
		return res, nil
	}

	call.StartedAt, call.FinishedAt = &passage.StartedAt, &passage.FinishedAt
	call.StartedMono, call.InFlight = int64(passage.StartedMono), passage.InFlight
	e.react(answer)
	call.Result = withinDeadline(answer, in.Deadline)
	e.logFinished(ctx, call, passage)
	return refund.CallResult{Call: call, Unrecorded: !e.record(ctx, call)}, nil
}

// earlier returns what became of a call whose key was used before, or
// ledger.ErrNotFound. No other error says that nothing was sent: whoever gets
// one has to ask the ledger again.
func (e *Egress) earlier(ctx context.Context, in refund.CallInput) (refund.CallResult, error) {
	call, err := e.Calls.Call(ctx, in.Key)
	if err == nil && !call.Done() {
		// An intent without an outcome that isn't this process's: whoever
		// wrote it is gone, and what it did is unknown.
		call, err = e.Calls.Abandon(ctx, newCall(in))
	}
	if err != nil {
		return refund.CallResult{}, fmt.Errorf("asking whether %s was made before: %w", in.Key, err)
	}
	e.duplicate(ctx, in)
	return refund.CallResult{Call: call, Repeat: true}, nil
}

// refusedIntent stops the gate when the proof of ownership is gone, and says
// in the gate's terms why the call must not be sent.
func (e *Egress) refusedIntent(err error) error {
	if errors.Is(err, ledger.ErrLockLost) {
		e.Brake.Refuse(refund.CodeNotOwner, err)
	}
	return intentFailure(err)
}

// quotaPause is how long the account rests after an answer about its quota
// that doesn't say how long.
const quotaPause = time.Second

// react slows or stops the account where the answer was about all of it: a
// quota that is used up passes, refused credentials need a person.
func (e *Egress) react(r refund.Result) {
	switch {
	case !r.AccountWide:
	case r.Outcome == refund.OutcomeBusy && r.RetryAt != nil:
		e.Brake.Pause(*r.RetryAt, r.Code)
	case r.Outcome == refund.OutcomeBusy:
		e.Brake.Pause(time.Now().Add(quotaPause), r.Code)
	default:
		e.Brake.Refuse(refund.CodeStopped, fmt.Errorf("the provider refused the account's credentials (%s)", r.Code))
	}
}

// record writes the outcome and tells whether it was written. The call is
// over: the end of its context must not keep its outcome from the ledger.
func (e *Egress) record(ctx context.Context, call refund.Call) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := e.Calls.Complete(ctx, call); err != nil {
		e.Log.WarnContext(ctx, "the outcome could not be recorded; bookkeeping will", telemetry.KeyCallKey, call.Key.String(), "error", err)
		return false
	}
	return true
}

// notSent returns the result of a call of which no byte left, and why.
func (e *Egress) notSent(ctx context.Context, call refund.Call, r refund.Result, why error) refund.CallResult {
	call = finished(call, r)
	attrs := append(callAttrs(call), slog.String("code", r.Code), slog.Any("error", why))
	e.logTimeout(ctx, call)
	telemetry.Event(ctx, e.Log, slog.LevelInfo, telemetry.EventCallNotSent, attrs...)
	return refund.CallResult{Call: call}
}

func (e *Egress) duplicate(ctx context.Context, in refund.CallInput) {
	telemetry.Event(ctx, e.Log, slog.LevelInfo, telemetry.EventDuplicateStopped, callAttrs(newCall(in))...)
}

func (e *Egress) logFinished(ctx context.Context, call refund.Call, p limiter.Passage) {
	r := call.Result
	attrs := append(callAttrs(call),
		slog.String("outcome", string(r.Outcome)), slog.String("code", r.Code),
		slog.Int("http_status", r.HTTPStatus), slog.Int64("duration_ms", p.Duration.Milliseconds()))
	telemetry.Event(ctx, e.Log, slog.LevelInfo, telemetry.EventCallFinished, attrs...)
	e.logTimeout(ctx, call)
}

// logTimeout tells which budget ended the call, if one did.
func (e *Egress) logTimeout(ctx context.Context, call refund.Call) {
	if budget := call.Result.Budget; budget != "" {
		telemetry.Event(ctx, e.Log, slog.LevelWarn, telemetry.EventCallTimeout,
			append(callAttrs(call), slog.String(telemetry.KeyBudget, string(budget)))...)
	}
}

func callAttrs(call refund.Call) []slog.Attr {
	return append(telemetry.Call(call.Key, call.Account), slog.String("origin", string(call.Origin)))
}

// heartbeat tells the server, until stop is called, that the call is alive and
// how many go before it.
func (e *Egress) heartbeat(ctx context.Context, key refund.CallKey) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(heartbeatEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-end:
				return
			}
			ahead, _ := e.Gate.Ahead(key)
			activity.RecordHeartbeat(ctx, place{Ahead: ahead})
		}
	}()
	// The activity must not end under a heartbeat.
	return func() {
		close(end)
		<-ended
	}
}

func newCall(in refund.CallInput) refund.Call {
	return refund.Call{Key: in.Key, Origin: in.Origin, Account: in.Account, DecisionID: in.DecisionID, IntentAt: time.Now()}
}

func finished(call refund.Call, r refund.Result) refund.Call {
	now := time.Now()
	call.FinishedAt, call.Result = &now, r
	return call
}
