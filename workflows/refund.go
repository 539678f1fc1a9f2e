// Package workflows holds the Refund workflow: one per refund, from its
// acceptance to a final result or to the hands of people. What to do next is
// decided by Decide, a pure function of the case and the policy; the workflow
// waits, calls activities and remembers what they learnt.
//
// Workflow code is deterministic: no clock but workflow.Now, no randomness, no
// I/O. Every change must keep old histories replaying; see the replay test.
package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"refundgate/internal/telemetry"
	"refundgate/refund"
)

// Refund owns one refund. Its input is what the order service submitted; it
// returns when the case has a final result. A case in review stays open.
func Refund(ctx workflow.Context, r refund.Refund) (refund.Closing, error) {
	w, err := setup(ctx, r)
	if err != nil {
		return refund.Closing{}, err
	}
	return w.run()
}

// refundWorkflow is the state of one run.
type refundWorkflow struct {
	ctx    workflow.Context
	log    interface{ Info(string, ...any) }
	policy refund.Policy
	// c is the case as this run knows it: opened from the ledger, then kept
	// up to date with every call.
	c refund.Case
	// saved and savedReason are what the ledger holds.
	saved       refund.Status
	savedReason refund.ReviewReason
	// opened is set when the case has been read for the first time, and stale
	// when the ledger knows more than c: a notice or a decision has come.
	opened, stale bool
	// signals counts those that are being worked on, and told the equal ones
	// that came; refused says why the last one was not carried out.
	signals int
	told    map[string]int
	refused string
	// step is the last decision, as it is shown.
	step *Step
	// shown is what the search attributes say; setting them anew costs an
	// event in the history.
	shown shown
	// retryLogged is the sequence number of the last retry that was told of.
	retryLogged int
}

// setup opens the case from the ledger, which knows every call and decision of
// earlier runs, and registers the handlers.
func setup(ctx workflow.Context, r refund.Refund) (*refundWorkflow, error) {
	// Cancelling a workflow can't take back what a provider may have done, so
	// it must not lose the case either: the run goes on, and people settle it.
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	w := &refundWorkflow{ctx: ctx, log: workflow.GetLogger(ctx), told: map[string]int{}}
	w.c.Refund = r
	err := workflow.SetQueryHandlerWithOptions(ctx, refund.QueryCase,
		func() (refund.Case, error) { return w.c, nil },
		workflow.QueryHandlerOptions{Description: "The case: status, attempts, every call and what it meant"})
	if err != nil {
		return nil, fmt.Errorf("registering the query %q: %w", refund.QueryCase, err)
	}
	if err := w.listen(); err != nil {
		return nil, err
	}
	if err := w.open(); err != nil {
		return nil, err
	}
	w.opened = true
	return w, nil
}

// open reads the case from the ledger. The policy is that of the first time:
// a change of configuration doesn't change a case that is under way.
func (w *refundWorkflow) open() error {
	w.stale = false // before: what comes while the ledger is read is read anew
	var res refund.OpenResult
	ctx := workflow.WithActivityOptions(w.ctx, bookkeepingOptions("read the case from the ledger"))
	if err := workflow.ExecuteActivity(ctx, refund.ActivityOpen, refund.OpenInput{Refund: w.c.Refund, WorkflowID: workflow.GetInfo(ctx).WorkflowExecution.ID}).Get(ctx, &res); err != nil {
		// What can't become a case ends the workflow under the reason's type.
		var app *temporal.ApplicationError
		if errors.As(err, &app) {
			return temporal.NewNonRetryableApplicationError("opening the case: "+app.Message(), app.Type(), err)
		}
		return fmt.Errorf("opening the case: %w", err)
	}
	w.c, w.saved, w.savedReason = res.Case, res.Case.Status, res.Case.ReviewReason
	if !w.opened {
		w.policy = res.Policy
	}
	return nil
}

// run decides and does until the case is closed.
func (w *refundWorkflow) run() (refund.Closing, error) {
	for {
		if w.stale {
			if err := w.open(); err != nil {
				return refund.Closing{}, err
			}
		}
		if workflow.GetInfo(w.ctx).GetContinueAsNewSuggested() {
			if err := w.drain(); err != nil {
				return refund.Closing{}, err
			}
			return refund.Closing{}, workflow.NewContinueAsNewError(w.ctx, refund.WorkflowType, w.c.Refund)
		}
		step := Decide(w.c, w.policy, workflow.Now(w.ctx))
		superseded, err := w.enter(step)
		if err != nil {
			return refund.Closing{}, err
		}
		if superseded {
			continue
		}
		switch step.Kind {
		case StepClose:
			if err := w.drain(); err != nil {
				return refund.Closing{}, err
			}
			if w.stale {
				continue // something came in the last moment
			}
			return refund.Closing{
				Status: w.c.Status, Attempts: w.c.Attempts,
				ProviderRefundID: w.c.ProviderRefundID, Detail: step.Why,
			}, nil
		case StepReview:
			if err := w.park(); err != nil {
				return refund.Closing{}, err
			}
		case StepSubmit, StepCheck:
			wait := w.untilDue(step)
			w.logRetry(step, wait)
			if wait > 0 {
				if err := w.sleep(wait, step); err != nil {
					return refund.Closing{}, err
				}
				continue // the deadline or news may have come meanwhile
			}
			if w.stale || !workflow.Now(w.ctx).Before(step.Until) {
				continue // recording the status took so long
			}
			if err := w.call(step); err != nil {
				return refund.Closing{}, err
			}
		}
	}
}

// untilDue returns how long the step has to wait, cut off by its end.
func (w *refundWorkflow) untilDue(step Step) time.Duration {
	at := step.At
	if step.Until.Before(at) {
		at = step.Until
	}
	return at.Sub(workflow.Now(w.ctx))
}

// logRetry tells, once, of a send that follows on an earlier one. The
// workflow's logger is silent during a replay.
func (w *refundWorkflow) logRetry(step Step, wait time.Duration) {
	seq := w.c.NextSeq(refund.KindSubmit)
	if step.Origin != refund.OriginRetry || w.retryLogged == seq {
		return
	}
	w.retryLogged = seq
	w.log.Info(telemetry.EventRetryScheduled, telemetry.KeyEvent, telemetry.EventRetryScheduled,
		telemetry.KeyRefundID, w.c.Refund.ID, telemetry.KeyAccount, w.c.Refund.Account,
		telemetry.KeyAttempt, w.c.Attempts+1, telemetry.KeyWaitMS, max(wait, 0).Milliseconds())
}

// sleep waits until the time has passed or there is news about the case.
func (w *refundWorkflow) sleep(d time.Duration, step Step) error {
	summary := fmt.Sprintf("before the next %s: %s", step.Kind, step.Why)
	_, err := workflow.AwaitWithOptions(w.ctx, workflow.AwaitOptions{
		Timeout: d, TimerOptions: workflow.TimerOptions{Summary: short(summary)},
	}, func() bool { return w.stale })
	if err != nil {
		return fmt.Errorf("waiting for the next %s: %w", step.Kind, err)
	}
	return nil
}

// rereadEvery is how often a case in review is read anew without being told. A
// reset can drop the updates and signals by which people decided: the ledger
// knows what they decided, and the run learns it at the latest then.
const rereadEvery = time.Hour

// park keeps the case open while people have it, until there is news or it is
// time to look.
func (w *refundWorkflow) park() error {
	news := func() bool { return w.stale }
	if workflow.GetVersion(w.ctx, "reread-in-review", workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		if err := workflow.Await(w.ctx, news); err != nil {
			return fmt.Errorf("waiting in review: %w", err)
		}
		return nil
	}
	_, err := workflow.AwaitWithOptions(w.ctx, workflow.AwaitOptions{
		Timeout: rereadEvery, TimerOptions: workflow.TimerOptions{Summary: "until the case is read anew"},
	}, news)
	if err != nil {
		return fmt.Errorf("waiting in review: %w", err)
	}
	w.stale = true
	return nil
}

// enter records where the case stands now, in the ledger first and then where
// operators look. It reports true if the ledger had a final result already;
// then the case is that one and has to be decided anew.
func (w *refundWorkflow) enter(step Step) (superseded bool, err error) {
	if step.Status != w.saved || step.Reason != w.savedReason {
		var res refund.SaveResult
		ctx := workflow.WithActivityOptions(w.ctx, bookkeepingOptions("record "+string(step.Status)))
		in := refund.SaveInput{
			RefundID: w.c.Refund.ID, Account: w.c.Refund.Account, Status: step.Status, ReviewReason: step.Reason,
			ProviderRefundID: w.c.ProviderRefundID, Detail: step.Why,
			Generation: w.c.Generation, Was: w.saved, Reopen: w.saved.Final(),
		}
		if err := workflow.ExecuteActivity(ctx, refund.ActivitySave, in).Get(ctx, &res); err != nil {
			return false, fmt.Errorf("recording the status %s: %w", step.Status, err)
		}
		if res.Superseded {
			return true, w.open()
		}
	}
	w.saved, w.savedReason = step.Status, step.Reason
	w.c.Status, w.c.ReviewReason = step.Status, step.Reason
	return false, w.show(step)
}

// call makes one call through the egress and learns from it.
func (w *refundWorkflow) call(step Step) error {
	kind := refund.KindSubmit
	if step.Kind == StepCheck {
		kind = refund.KindCheck
	}
	in := refund.CallInput{
		Key: refund.CallKey{
			RefundID: w.c.Refund.ID, Generation: w.c.Generation,
			Kind: kind, Seq: w.c.NextSeq(kind),
		},
		Origin: step.Origin, Account: w.c.Refund.Account, Refund: w.c.Refund,
		AcceptedAt: w.c.AcceptedAt, Deadline: step.Until,
		MaxAttempts: w.policy.MaxAttempts, ProviderRefundID: w.c.ProviderRefundID,
		Foreign: w.foreign(), DecisionID: step.DecisionID,
	}
	res, err := w.execute(in)
	if err != nil {
		return err
	}
	return w.learn(res)
}

// foreign returns the provider's ids of earlier generations: they are found
// under this case's reference too, and say nothing about this generation.
func (w *refundWorkflow) foreign() []string {
	var ids []string
	add := func(generation int, id string) {
		if generation < w.c.Generation && id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, call := range w.c.Calls {
		add(call.Key.Generation, call.Result.ProviderRefundID)
	}
	for _, n := range w.c.Notices {
		add(n.Generation, n.ProviderRefundID)
	}
	return ids
}

// execute runs the call's activity on the account's egress. Whatever happens
// to the activity itself, the ledger knows what happened to the call.
func (w *refundWorkflow) execute(in refund.CallInput) (refund.CallResult, error) {
	activity := refund.ActivitySubmit
	if in.Key.Kind == refund.KindCheck {
		activity = refund.ActivityCheck
	}
	var res refund.CallResult
	left := in.Deadline.Sub(workflow.Now(w.ctx))
	ctx := workflow.WithActivityOptions(w.ctx, egressOptions(in, left, w.policy.CallBudget))
	err := workflow.ExecuteActivity(ctx, activity, in).Get(ctx, &res)
	if err == nil {
		return res, nil
	}
	// The worker died, nobody took the task before the deadline, or the egress
	// could not ask the ledger whether the call had been made before.
	w.log.Info("the call's activity failed; asking the ledger", "call_key", in.Key.String(), "error", err)
	ctx = workflow.WithActivityOptions(w.ctx, bookkeepingOptions("find out what became of "+in.Key.String()))
	if err := workflow.ExecuteActivity(ctx, refund.ActivityResolve, in).Get(ctx, &res); err != nil {
		return res, fmt.Errorf("resolving the call %s: %w", in.Key, err)
	}
	return res, nil
}

// learn adds the call to the case.
func (w *refundWorkflow) learn(res refund.CallResult) error {
	call := res.Call
	if res.Unrecorded {
		ctx := workflow.WithActivityOptions(w.ctx, bookkeepingOptions("write the outcome of "+call.Key.String()))
		if err := workflow.ExecuteActivity(ctx, refund.ActivityRecord, call).Get(ctx, nil); err != nil {
			return fmt.Errorf("recording the call %s: %w", call.Key, err)
		}
	}
	switch call.Result.Code {
	case refund.CodeExhausted, refund.CodeClosed:
		// The ledger knows more than this run, which was reset or is one of
		// two. Its truth replaces ours.
		return w.open()
	}
	w.c.Calls = append(w.c.Calls, call)
	w.c.Attempts = max(w.c.Attempts, w.c.CountAttempts())
	if id := call.Result.ProviderRefundID; id != "" && w.c.ProviderRefundID == "" {
		w.c.ProviderRefundID = id
	}
	return nil
}

// short bounds a summary to what the server takes.
func short(s string) string {
	const limit = 200 // bytes; the server's limit is 400
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
