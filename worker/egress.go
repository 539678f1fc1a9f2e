package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"refundgate/activities"
	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/provider"
	"refundgate/refund"
)

const (
	// standbyEvery is how often a standby asks for the right to send.
	standbyEvery = time.Second
	// proveEvery is how often the owner proves that it still has the right,
	// beside the proof that every intent is.
	proveEvery = time.Second
	// startMargin is added to the call budget in the wait after every start.
	startMargin = time.Second
	// pollers is how many requests for tasks are open at a time. It is set so
	// that the SDK doesn't scale them.
	pollers = 2
)

// Egress makes the calls of one provider account.
type Egress struct {
	Account  string
	Holder   string // who this process is, for people: host, process id
	Temporal client.Client
	Ledger   *ledger.Ledger
	Adapter  provider.Adapter
	// Gate holds the account's budgets, defaults for those that are zero;
	// Target and Events are set here.
	Gate limiter.Config
	// WaitingRoom is how many calls are taken from the task queue beyond those
	// that can be in flight. Defaults to 32.
	WaitingRoom int
	// Announce is told about every change of ownership: "owner", or "standby
	// (held by ...)". May be nil.
	Announce func(state string)
	// Metrics measures the egress. Defaults to metrics that only the ledger is
	// told.
	Metrics *Metrics
	Log     *slog.Logger

	// stopped is why the account is stopped until this process is started
	// anew. Losing the ownership and getting it back must not lift that.
	stopped atomic.Pointer[stop]
}

// stop is an order to send nothing more.
type stop struct {
	code  string
	cause error
}

// Run makes calls whenever this process owns the account's egress, and stands
// by when another one does, until ctx ends. Then what waits is handed back
// unsent, what is in flight finishes, and only then the ownership is given up.
func (e *Egress) Run(ctx context.Context) error {
	e.Gate = e.Gate.WithDefaults()
	if e.Metrics == nil {
		e.Metrics = NewMetrics(e.Account, e.Gate)
	}
	for {
		// An owner that gets no work would only keep one that does from owning.
		if !awaitTemporal(ctx, e.Temporal, e.Log) {
			return nil // told to stop before there was anything to do
		}
		lock, err := e.acquire(ctx)
		if err != nil {
			return nil //nolint:nilerr // the only error is the end of ctx
		}
		err = e.own(ctx, lock)
		if ctx.Err() != nil || !errors.Is(err, ledger.ErrLockLost) {
			return err
		}
	}
}

func (e *Egress) account() slog.Attr { return slog.String(telemetry.KeyAccount, e.Account) }

func (e *Egress) announce(state string) {
	if e.Announce != nil {
		e.Announce(state)
	}
}

// acquire stands by until the right to send is this process's.
func (e *Egress) acquire(ctx context.Context) (*ledger.EgressLock, error) {
	last := ""
	for {
		lock, err := e.Ledger.AcquireEgress(ctx, e.Account, e.Holder)
		if err == nil {
			telemetry.Event(ctx, e.Log, slog.LevelInfo, telemetry.EventOwnerAcquired, e.account(), slog.Int64("epoch", lock.Epoch()))
			return lock, nil
		}
		state := "standby (the database can't be asked)"
		var held *ledger.HeldError
		if errors.As(err, &held) {
			state = fmt.Sprintf("standby (held by %s, epoch %d)", held.Owner.Holder, held.Owner.Epoch)
		} else if ctx.Err() == nil {
			e.Log.WarnContext(ctx, "asking for the egress failed; trying again", telemetry.KeyAccount, e.Account, "error", err)
		}
		if state != last {
			last = state
			telemetry.Event(ctx, e.Log, slog.LevelInfo, telemetry.EventStandby, e.account(), slog.String("state", state))
			e.announce(state)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(standbyEvery):
		}
	}
}

// own serves the account's queue until ctx ends or the lock is lost.
func (e *Egress) own(ctx context.Context, lock *ledger.EgressLock) (err error) {
	defer func() {
		// The right to send is given up last, whatever went before.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		switch releaseErr := lock.Release(ctx); {
		case releaseErr == nil:
			telemetry.Event(ctx, e.Log, slog.LevelInfo, telemetry.EventReleased, e.account(), slog.Int64("epoch", lock.Epoch()))
		case !errors.Is(err, ledger.ErrLockLost):
			err = errors.Join(err, releaseErr)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer e.Metrics.owned()()
	e.announce("owner")
	lost := e.prove(ctx, lock)
	if err := e.settleDown(ctx, lost); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}

	cfg := e.Gate
	cfg.Target = e.Adapter.Target()
	cfg.Events = e.events(ctx)
	gate, err := limiter.New(cfg)
	if err != nil {
		return fmt.Errorf("opening the gate of account %s: %w", e.Account, err)
	}
	if s := e.stopped.Load(); s != nil {
		gate.Refuse(s.code, s.cause)
	}
	e.Metrics.gate.Store(gate)
	fatal := make(chan error, 1)
	w := e.worker(gate, lock, fatal)
	if err := w.Start(); err != nil {
		return errors.Join(fmt.Errorf("starting the egress of account %s: %w", e.Account, err), gate.Close(ctx))
	}

	var why error
	select {
	case <-ctx.Done():
	case why = <-fatal:
	case why = <-lost:
	}
	if errors.Is(why, ledger.ErrLockLost) {
		gate.Refuse(refund.CodeNotOwner, why)
	} else {
		gate.Refuse(refund.CodeShutdown, why)
	}
	// What waits is answered "not sent" at once; stopping the worker waits for
	// those answers to be reported and for what is in flight.
	w.Stop()
	drain, stop := context.WithTimeout(context.WithoutCancel(ctx), e.budget())
	defer stop()
	return errors.Join(why, gate.Close(drain))
}

// budget is the longest that a call takes, connecting included, and a margin.
func (e *Egress) budget() time.Duration {
	return e.Gate.ConnectTimeout + e.Gate.CallTimeout + startMargin
}

// settleDown waits, as the new owner, until no call of an owner before can be
// in flight any more, however that one ended. It fails if the ownership is
// lost meanwhile.
func (e *Egress) settleDown(ctx context.Context, lost <-chan error) error {
	e.Log.InfoContext(ctx, "egress: waiting out the calls of an owner before", telemetry.KeyAccount, e.Account, "wait", e.budget().String())
	select {
	case <-ctx.Done():
		return nil
	case err := <-lost:
		return err
	case <-time.After(e.budget()):
		return nil
	}
}

// prove checks the ownership again and again and tells the ledger what the
// egress is doing. It reports the ownership's loss.
func (e *Egress) prove(ctx context.Context, lock *ledger.EgressLock) <-chan error {
	lost := make(chan error, 1)
	go func() {
		tick := time.NewTicker(proveEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := e.verify(ctx, lock); err != nil {
				lost <- err
				return
			}
		}
	}()
	return lost
}

// verify returns ledger.ErrLockLost if the ownership is lost. Other trouble
// with the database is only told to people: no call goes out without a proof
// of its own.
func (e *Egress) verify(ctx context.Context, lock *ledger.EgressLock) error {
	report, err := e.Metrics.report()
	if err != nil {
		e.Log.ErrorContext(ctx, "the egress can't say what it is doing", telemetry.KeyAccount, e.Account, "error", err)
	}
	err = lock.Report(ctx, report)
	switch {
	case errors.Is(err, ledger.ErrLockLost):
		telemetry.Event(ctx, e.Log, slog.LevelError, telemetry.EventOwnerLost, e.account(),
			slog.Int64("epoch", lock.Epoch()), slog.Any("error", err))
		return err
	case err != nil && ctx.Err() == nil:
		e.Log.WarnContext(ctx, "the egress lock could not be checked", telemetry.KeyAccount, e.Account, "error", err)
	}
	return nil
}

// worker returns the Temporal worker that takes calls from the account's
// queue: as many as can be in flight and a small waiting room. What doesn't
// fit stays in the queue.
func (e *Egress) worker(gate *limiter.Gate, lock *ledger.EgressLock, fatal chan<- error) worker.Worker {
	room := e.WaitingRoom
	if room == 0 {
		room = 32
	}
	w := worker.New(e.Temporal, refund.EgressQueue(e.Account), worker.Options{
		DisableWorkflowWorker:              true,
		MaxConcurrentActivityExecutionSize: e.Gate.MaxInFlight + room,
		MaxConcurrentActivityTaskPollers:   pollers,
		MaxHeartbeatThrottleInterval:       2 * time.Second,
		DefaultHeartbeatThrottleInterval:   2 * time.Second,
		WorkerStopTimeout:                  e.budget() + 5*time.Second,
		Identity:                           e.Holder,
		OnFatalError:                       func(err error) { fatal <- err },
	})
	acts := &activities.Egress{
		Account: e.Account, Epoch: lock.Epoch(), Gate: gate, Brake: alarm{gate, e}, Intents: lock,
		Calls: e.Ledger, Adapter: e.Adapter, Log: e.Log,
	}
	w.RegisterActivityWithOptions(e.Metrics.counted(acts.SubmitRefund), activity.RegisterOptions{Name: refund.ActivitySubmit})
	w.RegisterActivityWithOptions(e.Metrics.counted(acts.CheckRefund), activity.RegisterOptions{Name: refund.ActivityCheck})
	return w
}

// alarm is the gate's brake that tells people when the account is stopped until
// they act. A lost ownership isn't of that kind: it is acquired anew.
type alarm struct {
	*limiter.Gate
	egress *Egress
}

func (a alarm) Refuse(code string, cause error) {
	if code == refund.CodeStopped && a.egress.stopped.CompareAndSwap(nil, &stop{code, cause}) {
		a.egress.Log.Error("the egress stops sending for this account until someone acts: correct the cause, then restart this worker",
			telemetry.KeyAccount, a.egress.Account, "code", code, "error", cause)
	}
	a.Gate.Refuse(code, cause)
}

// events logs and counts what happens at the gate.
func (e *Egress) events(ctx context.Context) limiter.Events {
	attrs := func(c limiter.Call) []slog.Attr { return telemetry.Call(c.Key, e.Account) }
	return limiter.Events{
		Started: func(c limiter.Call, p limiter.Passage) {
			e.Metrics.started(c, p)
			telemetry.Event(ctx, e.Log, slog.LevelInfo, telemetry.EventCallStarted,
				append(attrs(c), slog.String("origin", string(c.Origin)), slog.Int64("started_mono_ns", int64(p.StartedMono)), slog.Int("in_flight", p.InFlight))...)
		},
		HiddenRetry: func(c limiter.Call) {
			e.Metrics.hidden.Inc()
			telemetry.Event(ctx, e.Log, slog.LevelError, telemetry.EventHiddenRetryBlocked, attrs(c)...)
		},
		Paused: func(until time.Time, why string) {
			telemetry.Event(ctx, e.Log, slog.LevelWarn, telemetry.EventGatePaused, e.account(), slog.Time("until", until), slog.String("why", why))
		},
		Breaker: func(from, to limiter.BreakerState) {
			telemetry.Event(ctx, e.Log, slog.LevelWarn, telemetry.EventBreakerTransition, e.account(),
				slog.String(telemetry.KeyFrom, string(from)), slog.String(telemetry.KeyTo, string(to)))
		},
		Resumed: func() {
			telemetry.Event(ctx, e.Log, slog.LevelInfo, telemetry.EventGateResumed, e.account())
		},
	}
}
