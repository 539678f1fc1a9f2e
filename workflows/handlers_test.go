package workflows_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"refundgate/refund"
	"refundgate/workflows"
)

var byMei = refund.ActionInput{By: "mei", Reason: "the customer called"}

func (w *world) update(run client.WorkflowRun, action refund.Action, in refund.ActionInput) (res refund.ActResult, err error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	h, err := w.client.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		WorkflowID: run.GetID(), UpdateName: string(action), Args: []any{in}, WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err != nil {
		return res, err
	}
	return res, h.Get(ctx, &res)
}

func (w *world) signal(run client.WorkflowRun, name string, arg any) {
	w.t.Helper()
	require.NoError(w.t, w.client.SignalWorkflow(w.t.Context(), run.GetID(), "", name, arg))
}

// notice adds a notice to the ledger's case.
func (w *world) notice(o refund.Outcome) {
	w.change(func(c *refund.Case) {
		c.Notices = append(c.Notices, refund.Notice{
			Source: refund.SourceNotification, Outcome: o, ProviderRefundID: "re_1", RefundID: c.Refund.ID,
			Generation: c.Generation, ReceivedAt: time.Now(), SaidAt: time.Now(),
		})
	})
}

func inReviewWorld(t *testing.T, answers ...func(refund.CallInput) (refund.CallResult, error)) (*world, client.WorkflowRun) {
	t.Helper()
	w := newWorld(t, append([]func(refund.CallInput) (refund.CallResult, error){outcome(unknown)}, answers...)...)
	w.policy.Checks.Max = 0
	run := w.start()
	require.Equal(t, refund.ReviewChecks, w.parked(run).ReviewReason)
	return w, run
}

func TestUpdates(t *testing.T) {
	t.Parallel()
	w, run := inReviewWorld(t, outcome(unknown), outcome(unknown))
	in := byMei
	in.Owner = "jun"
	res, err := w.update(run, refund.ActionAssign, in)
	require.NoError(t, err)
	require.Equal(t, refund.ActResult{Status: isReview, Version: 1}, res)
	_, err = w.update(run, refund.ActionNote, byMei)
	require.NoError(t, err)
	require.Eventually(t, func() bool { c := w.query(run); return c.Owner == "jun" && len(c.Decisions) == 2 }, 10*time.Second, 20*time.Millisecond)

	// Orders become calls, marked as a person's, each once.
	_, err = w.update(run, refund.ActionCheck, byMei)
	require.NoError(t, err)
	_, err = w.update(run, refund.ActionResend, byMei)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(w.query(run).Calls) == 3 }, 10*time.Second, 20*time.Millisecond)
	c := w.query(run)
	require.Equal(t, isReview, c.Status)
	require.Equal(t, 1, c.Attempts, "a person's send uses up no attempt")
	for i, want := range []struct {
		kind     refund.CallKind
		decision int
	}{{refund.KindCheck, 2}, {refund.KindSubmit, 3}} {
		call := w.inputs[i+1]
		require.Equal(t, want.kind, call.Key.Kind)
		require.Equal(t, refund.OriginManual, call.Origin)
		require.Equal(t, c.Decisions[want.decision].ID, call.DecisionID)
		require.Equal(t, c.Decisions[want.decision].At.Add(refund.ManualWindow).UTC(), call.Deadline.UTC())
	}

	in = byMei
	in.Status, in.Evidence = refund.StatusNotRefunded, "statement of May"
	_, err = w.update(run, refund.ActionSettle, in)
	require.NoError(t, err)
	closing, err := w.finish(run)
	require.NoError(t, err)
	require.Equal(t, refund.StatusNotRefunded, closing.Status)
	require.Equal(t, []refund.Status{isReview}, w.saves, "the settlement is the ledger's alone")
}

func TestUpdatesAreRefused(t *testing.T) {
	t.Parallel()
	refusal := func(err error) (message, kind string) {
		var app *temporal.ApplicationError
		require.ErrorAs(t, err, &app)
		return app.Message(), app.Type()
	}
	w := newWorld(t, outcome(pending))
	w.policy.Checks.Initial, w.policy.Checks.Cap = time.Minute, time.Minute
	run := w.start()
	w.reached(run, isPending)

	_, err := w.update(run, refund.ActionNote, refund.ActionInput{By: "mei"})
	message, kind := refusal(err)
	require.Equal(t, refund.ErrorTypeInvalid, kind)
	require.Equal(t, "invalid action: reason: is required", message)
	require.Empty(t, w.acts, "a validator's refusal leaves no trace")

	_, err = w.update(run, refund.ActionResend, byMei)
	message, kind = refusal(err)
	require.Equal(t, refund.ErrorTypeRefused, kind)
	require.Equal(t, "a resend is for cases in review; this one is pending", message)

	in := byMei
	in.Status, in.Evidence = isOK, "statement"
	_, err = w.update(run, refund.ActionSettle, in)
	message, kind = refusal(err)
	require.Equal(t, refund.ErrorTypeRefused, kind, "by the ledger")
	require.Equal(t, "the case is pending", message)
}

// Those whose tools have no updates signal. Equal signals are actions of their
// own; a refusal is shown with the case.
func TestSignals(t *testing.T) {
	t.Parallel()
	w, run := inReviewWorld(t)
	w.signal(run, "note", byMei)
	w.signal(run, "note", byMei)
	w.signal(run, "note", map[string]any{"by": "mei"})
	require.Eventually(t, func() bool { return len(w.query(run).Decisions) == 2 }, 10*time.Second, 20*time.Millisecond)
	c := w.query(run)
	require.NotEqual(t, c.Decisions[0].ID, c.Decisions[1].ID)
	require.Eventually(t, func() bool {
		return strings.Contains(metadata(t, w, run).GetCurrentDetails(), "The signal note was refused: invalid action: reason: is required")
	}, 10*time.Second, 20*time.Millisecond)

	w.signal(run, "note", "no object at all") // dropped by the SDK, harmless
	in := byMei
	in.Status, in.Evidence = isOK, "statement of May"
	w.signal(run, "settle", in)
	closing, err := w.finish(run)
	require.NoError(t, err)
	require.Equal(t, isOK, closing.Status)
}

func TestHandlersAreDescribed(t *testing.T) {
	t.Parallel()
	w, run := inReviewWorld(t)
	described := func(all []*sdkpb.WorkflowInteractionDefinition) map[string]bool {
		names := map[string]bool{}
		for _, d := range all {
			names[d.GetName()] = d.GetDescription() != ""
		}
		return names
	}
	def := metadata(t, w, run).GetDefinition()
	for _, name := range []string{"assign", "note", "check", "resend", "settle"} {
		require.True(t, described(def.GetUpdateDefinitions())[name], "update %s", name)
		require.True(t, described(def.GetSignalDefinitions())[name], "signal %s", name)
	}
	require.True(t, described(def.GetSignalDefinitions())["notice"])
}

// A notice ends a wait: for the next check, and in review.
func TestNoticesAreReadAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("while checking", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, outcome(unknown))
		w.policy.Deadline, w.policy.Checks.Initial, w.policy.Checks.Cap = time.Hour, time.Hour, time.Hour
		run := w.start()
		w.reached(run, isUnknown)
		w.notice(ok)
		w.signal(run, refund.SignalNotice, nil)
		closing, err := w.finish(run)
		require.NoError(t, err)
		require.Equal(t, isOK, closing.Status)
	})
	t.Run("in review", func(t *testing.T) {
		t.Parallel()
		w, run := inReviewWorld(t)
		w.notice(rejected)
		w.signal(run, refund.SignalNotice, nil)
		closing, err := w.finish(run)
		require.NoError(t, err)
		require.Equal(t, isReject, closing.Status)
	})
}

// A contradiction gives a case in review another reason, in the ledger too.
func TestReviewGetsAnotherReason(t *testing.T) {
	t.Parallel()
	w, run := inReviewWorld(t)
	w.notice(ok)
	w.notice(rejected)
	w.signal(run, refund.SignalNotice, nil)
	require.Eventually(t, func() bool { return w.query(run).ReviewReason == refund.ReviewLateFailure }, 10*time.Second, 20*time.Millisecond)
	last := w.saved[len(w.saved)-1]
	require.Equal(t, refund.ReviewLateFailure, last.ReviewReason)
	require.False(t, last.Reopen, "it was open")
}

// A change of configuration doesn't change the case that is under way: what
// was allowed when it began is.
func TestPolicyIsThatOfTheBeginning(t *testing.T) {
	t.Parallel()
	w, run := inReviewWorld(t, outcome(ok))
	w.change(func(*refund.Case) { w.policy.Contract.IdempotentResends = false })
	w.signal(run, "note", byMei) // has the case read anew
	require.Eventually(t, func() bool { return len(w.query(run).Decisions) == 1 }, 10*time.Second, 20*time.Millisecond)
	_, err := w.update(run, refund.ActionResend, byMei)
	require.NoError(t, err)
	closing, err := w.finish(run)
	require.NoError(t, err)
	require.Equal(t, isOK, closing.Status)
}

// The provider's refunds of earlier generations are named to the check, for it
// finds them under the same reference.
func TestEarlierGenerationsAreForeign(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(unknown), outcome(ok))
	s := newStory().sendResult(refund.Result{Outcome: rejected, ProviderRefundID: "re_1"}).noticeOf(refund.Notice{Outcome: rejected, ProviderRefundID: "re_0"})
	w.c = s.c
	w.c.Generation, w.c.Attempts, w.c.DeadlineAt = 2, 0, time.Now().Add(time.Minute)
	_, err := w.finish(w.start())
	require.NoError(t, err)
	require.Len(t, w.inputs, 2)
	require.Equal(t, 2, w.inputs[0].Key.Generation)
	require.Equal(t, []string{"re_1", "re_0"}, w.inputs[1].Foreign)
}

// CASE 19, C10: a fact that contradicts a closed case opens a review, as a new
// run that reads the case from the ledger.
func TestCase19_LateFailureReopens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(ok))
	_, err := w.finish(w.start())
	require.NoError(t, err)
	w.notice(rejected)
	run := w.start()
	c := w.parked(run)
	require.Equal(t, refund.ReviewLateFailure, c.ReviewReason)
	last := w.saved[len(w.saved)-1]
	require.True(t, last.Reopen)
	require.Equal(t, isOK, last.Was)

	in := byMei
	in.Status, in.Evidence = refund.StatusNotRefunded, "the provider's word"
	_, err = w.update(run, refund.ActionSettle, in)
	require.NoError(t, err)
	closing, err := w.finish(run)
	require.NoError(t, err)
	require.Equal(t, refund.StatusNotRefunded, closing.Status)
}

// CASE 41: a notice, and a person's word, in the instant in which the workflow
// completes.
func TestCase41_NewsInTheLastMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(ok))
	var run client.WorkflowRun
	started := make(chan struct{})
	w.saving = func() {
		<-started
		w.saving = nil // the review isn't the last moment
		w.notice(rejected)
		w.signal(run, refund.SignalNotice, nil)
		w.signal(run, "note", byMei)
	}
	run = w.start()
	close(started)
	c := w.parked(run)
	require.Equal(t, refund.ReviewLateFailure, c.ReviewReason)
	require.Len(t, w.acts, 1, "the note was carried out, or refused, but not lost")
}

// What a person says in that instant is carried out before the workflow ends.
func TestCase41_HandlersFinishBeforeTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(ok))
	var run client.WorkflowRun
	started, acting := make(chan struct{}), make(chan struct{})
	var acted atomic.Bool
	w.saving = func() {
		<-started
		w.signal(run, "note", byMei)
		<-acting
	}
	w.acting = func() {
		close(acting)
		time.Sleep(500 * time.Millisecond)
		acted.Store(true)
	}
	run = w.start()
	close(started)
	_, err := w.finish(run)
	require.NoError(t, err)
	require.True(t, acted.Load(), "the workflow ended before it")
}

// A history that grows long goes on in a new run, which reads everything from
// the ledger.
func TestContinueAsNew(t *testing.T) {
	t.Parallel()
	var s testsuite.WorkflowTestSuite
	env := s.NewTestWorkflowEnvironment()
	env.SetContinueAsNewSuggested(true)
	env.RegisterActivityWithOptions(func(_ context.Context, in refund.OpenInput) (refund.OpenResult, error) {
		return refund.OpenResult{Case: newStory().send(unknown).inReview(refund.ReviewChecks).c, Policy: policy}, nil
	}, activity.RegisterOptions{Name: refund.ActivityOpen})
	env.RegisterWorkflowWithOptions(workflows.Refund, workflow.RegisterOptions{Name: refund.WorkflowType})
	env.ExecuteWorkflow(refund.WorkflowType, newRefund())
	require.True(t, env.IsWorkflowCompleted())
	var next *workflow.ContinueAsNewError
	require.ErrorAs(t, env.GetWorkflowError(), &next)
	require.Equal(t, refund.WorkflowType, next.WorkflowType.Name)
}

// A reset may have dropped what people decided: a case in review is read anew
// from time to time, without being told.
func TestReviewIsReadAnew(t *testing.T) {
	t.Parallel()
	var s testsuite.WorkflowTestSuite
	env := s.NewTestWorkflowEnvironment() // its time flies
	reads := 0
	env.RegisterActivityWithOptions(func(_ context.Context, in refund.OpenInput) (refund.OpenResult, error) {
		reads++
		c := newStory().send(unknown).inReview(refund.ReviewChecks)
		if reads == 3 {
			c.settle(refund.StatusNotRefunded)
		}
		return refund.OpenResult{Case: c.c, Policy: policy}, nil
	}, activity.RegisterOptions{Name: refund.ActivityOpen})
	env.RegisterWorkflowWithOptions(workflows.Refund, workflow.RegisterOptions{Name: refund.WorkflowType})
	env.ExecuteWorkflow(refund.WorkflowType, newRefund())
	require.True(t, env.IsWorkflowCompleted())
	var closing refund.Closing
	require.NoError(t, env.GetWorkflowResult(&closing))
	require.Equal(t, refund.StatusNotRefunded, closing.Status)
	require.Equal(t, 3, reads)
}

// Cancelling the workflow keeps its handlers alive: people still settle it.
func TestActionsAfterACancellation(t *testing.T) {
	t.Parallel()
	w, run := inReviewWorld(t)
	require.NoError(t, w.client.CancelWorkflow(t.Context(), run.GetID(), run.GetRunID()))
	w.signal(run, "note", byMei)
	in := byMei
	in.Status, in.Evidence = isOK, "statement"
	_, err := w.update(run, refund.ActionSettle, in)
	require.NoError(t, err)
	closing, err := w.finish(run)
	require.NoError(t, err)
	require.Equal(t, isOK, closing.Status)
	require.Len(t, w.acts, 2)
}
