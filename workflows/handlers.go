package workflows

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"refundgate/refund"
)

// actions are what people can do to an open case, and what each does in words
// for those who look at a workflow's handlers.
var actions = []struct {
	action      refund.Action
	description string
}{
	{refund.ActionAssign, `Give the case to somebody: {"by","reason","owner"}; "nobody": true in place of the owner takes it from whoever has it`},
	{refund.ActionNote, `Add words to the case's trail: {"by","reason"}`},
	{refund.ActionCheck, `Ask the provider once more what became of the refund: {"by","reason"}`},
	{refund.ActionResend, `Send the refund once more, with the same key and bytes: {"by","reason"}; for cases in review`},
	{refund.ActionSettle, `End the case on evidence: {"by","reason","status":"succeeded" or "not_refunded","evidence"}; for cases in review`},
}

// listen registers what others may tell the workflow. Every action is an
// update, which answers, and a signal, for those whose tools have no updates.
func (w *refundWorkflow) listen() error {
	for _, a := range actions {
		err := workflow.SetUpdateHandlerWithOptions(w.ctx, string(a.action),
			func(ctx workflow.Context, in refund.ActionInput) (refund.ActResult, error) {
				return w.act(ctx, workflow.GetCurrentUpdateInfo(ctx).ID, a.action, in)
			},
			workflow.UpdateHandlerOptions{
				Validator:   func(ctx workflow.Context, in refund.ActionInput) error { return w.admit(ctx, a.action, in) },
				Description: a.description,
			})
		if err != nil {
			return fmt.Errorf("registering the update %q: %w", a.action, err)
		}
		signal := workflow.GetSignalChannelWithOptions(w.ctx, string(a.action), workflow.SignalChannelOptions{Description: a.description})
		workflow.GoNamed(w.ctx, string(a.action), func(ctx workflow.Context) {
			for {
				var in refund.ActionInput
				signal.Receive(ctx, &in)
				w.signalled(ctx, a.action, in)
			}
		})
	}
	notices := workflow.GetSignalChannelWithOptions(w.ctx, refund.SignalNotice, workflow.SignalChannelOptions{
		Description: "The ledger has a notice of the provider for this case: read it",
	})
	workflow.GoNamed(w.ctx, refund.SignalNotice, func(ctx workflow.Context) {
		for {
			notices.Receive(ctx, nil)
			w.stale = true
		}
	})
	return nil
}

// admit refuses an action that the case, as far as this run knows it, doesn't
// allow. The ledger has the last word.
func (w *refundWorkflow) admit(ctx workflow.Context, action refund.Action, in refund.ActionInput) error {
	if err := in.Validate(action); err != nil {
		return temporal.NewNonRetryableApplicationError(err.Error(), refund.ErrorTypeInvalid, nil)
	}
	if !w.opened || w.stale || action != refund.ActionResend {
		return nil
	}
	f := learn(w.c, w.policy)
	if why := f.resendRefusal(w.c, w.policy, workflow.Now(ctx)); why != "" {
		return temporal.NewNonRetryableApplicationError(why, refund.ErrorTypeRefused, nil)
	}
	return nil
}

// act has the ledger carry out an action, once for each id, and lets the run
// look at the case anew.
func (w *refundWorkflow) act(ctx workflow.Context, id string, action refund.Action, in refund.ActionInput) (refund.ActResult, error) {
	ctx, _ = workflow.NewDisconnectedContext(ctx) // as setup's
	if err := workflow.Await(ctx, func() bool { return w.opened }); err != nil {
		return refund.ActResult{}, fmt.Errorf("waiting for the case: %w", err)
	}
	// The case may have moved on since the update came, and a signal has no
	// validator. What is invalid stays so; a refusal has to be remembered.
	refused := ""
	if err := w.admit(ctx, action, in); err != nil {
		var app *temporal.ApplicationError
		if !errors.As(err, &app) || app.Type() != refund.ErrorTypeRefused {
			return refund.ActResult{}, err
		}
		refused = app.Message()
	}
	var res refund.ActResult
	ctx = workflow.WithActivityOptions(ctx, bookkeepingOptions(fmt.Sprintf("%s by %s", action, in.By)))
	act := refund.ActInput{RefundID: w.c.Refund.ID, Account: w.c.Refund.Account, ID: id, Action: action, Input: in, Refused: refused}
	if err := workflow.ExecuteActivity(ctx, refund.ActivityAct, act).Get(ctx, &res); err != nil {
		return refund.ActResult{}, fmt.Errorf("recording %s: %w", action, err)
	}
	w.stale = true
	if res.Refused != "" {
		return refund.ActResult{}, temporal.NewNonRetryableApplicationError(res.Refused, refund.ErrorTypeRefused, nil)
	}
	return res, nil
}

// signalled carries out an action that came as a signal. Nobody waits for an
// answer, so a refusal is shown with the case.
func (w *refundWorkflow) signalled(ctx workflow.Context, action refund.Action, in refund.ActionInput) {
	w.signals++
	defer func() { w.signals-- }()
	id := w.signalID(ctx, action, in)
	_, err := w.act(ctx, id, action, in)
	w.refused = ""
	if err != nil {
		w.refused = fmt.Sprintf("The signal %s was refused: %s", action, reasonOf(err))
		w.log.Info("a signal was refused", "refund_id", w.c.Refund.ID, "action", action, "error", err)
	}
	if w.step != nil { // a call may keep the run from showing it for long
		workflow.SetCurrentDetails(ctx, details(w.c, *w.step, w.refused))
	}
}

// signalID names a signal for good. A reset delivers the signals after the
// reset point once more, in their order, and the first run's id stays with the
// history: so the n-th equal signal of a history keeps its name, and its action
// is not carried out twice.
func (w *refundWorkflow) signalID(ctx workflow.Context, action refund.Action, in refund.ActionInput) string {
	content := fmt.Sprintf("%s %s %q %q %q %t %q %q %d", workflow.GetInfo(ctx).OriginalRunID, action,
		in.By, in.Reason, in.Owner, in.Nobody, in.Status, in.Evidence, in.Version)
	sum := sha256.Sum256([]byte(content))
	name := fmt.Sprintf("signal-%x", sum[:16])
	w.told[name]++
	return fmt.Sprintf("%s-%d", name, w.told[name])
}

// drain waits until what others have asked of the workflow has been done. What
// is left to do after that is told by w.stale.
func (w *refundWorkflow) drain() error {
	idle := func() bool { return workflow.AllHandlersFinished(w.ctx) && w.signals == 0 }
	for {
		if err := w.yield(); err != nil {
			return err
		}
		if idle() {
			return nil
		}
		if err := workflow.Await(w.ctx, idle); err != nil {
			return fmt.Errorf("waiting for the handlers: %w", err)
		}
	}
}

// yield lets every other coroutine run until it blocks: a signal that has been
// delivered may not have reached its handler yet. Coroutines run in the order
// in which they were made, so the new one runs last.
func (w *refundWorkflow) yield() error {
	done := false
	workflow.Go(w.ctx, func(workflow.Context) { done = true })
	if err := workflow.Await(w.ctx, func() bool { return done }); err != nil {
		return fmt.Errorf("yielding: %w", err)
	}
	return nil
}

// reasonOf is an error's message without what it was wrapped in.
func reasonOf(err error) string {
	var app *temporal.ApplicationError
	if errors.As(err, &app) {
		return app.Message()
	}
	return err.Error()
}
