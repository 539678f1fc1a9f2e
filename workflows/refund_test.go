package workflows_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/refund"
	"refundgate/workflows"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var saveHistories = flag.String("save-histories", "", "write the histories of the tests' workflows to this new set under testdata/history")

// historyDir holds, in sets, the histories that every later version has to
// replay, and in bad those that none may.
const historyDir = "testdata/history"

// world plays everything that a workflow calls, with scripted answers to the
// provider's calls. It keeps a case as the ledger would.
type world struct {
	t         *testing.T
	client    client.Client
	namespace string
	logs      *testenv.Logs
	policy    refund.Policy

	mu       sync.Mutex
	answers  []func(in refund.CallInput) (refund.CallResult, error)
	c        refund.Case
	saves    []refund.Status
	saved    []refund.SaveInput
	acts     []refund.ActInput
	inputs   []refund.CallInput
	recorded []refund.Call
	resolved []refund.CallInput
	refuse   error // of OpenCase
	// closedAs makes every save find that another run has closed the case.
	closedAs refund.Status
	// saving and acting, if set, are called by every save and every action
	// before they answer.
	saving, acting func()
}

// newWorld starts a worker on a namespace of its own. The policy's waits are
// milliseconds.
func newWorld(t *testing.T, answers ...func(refund.CallInput) (refund.CallResult, error)) *world {
	t.Helper()
	hostPort, namespace := testenv.Temporal(t)
	logs := &testenv.Logs{}
	c, err := client.Dial(client.Options{HostPort: hostPort, Namespace: namespace, Logger: log.NewStructuredLogger(slog.New(slog.NewJSONHandler(logs, nil)))})
	require.NoError(t, err)
	t.Cleanup(c.Close)

	p := policy
	p.Deadline = 5 * time.Minute
	p.Backoff = []refund.Range{{Min: 5 * time.Millisecond, Max: 10 * time.Millisecond}}
	p.Checks = refund.Checks{Max: 5, Initial: 5 * time.Millisecond, Factor: 2, Cap: 50 * time.Millisecond, Jitter: 0.5}
	p.NotSentInitial, p.NotSentMax = 5*time.Millisecond, 50*time.Millisecond
	p.Contract.NotFoundAfter = 20 * time.Millisecond
	w := &world{t: t, client: c, namespace: namespace, logs: logs, policy: p, answers: answers}

	orchestrator := worker.New(c, refund.TaskQueue, worker.Options{})
	orchestrator.RegisterWorkflowWithOptions(workflows.Refund, workflow.RegisterOptions{Name: refund.WorkflowType})
	egress := worker.New(c, refund.EgressQueue("demo"), worker.Options{DisableWorkflowWorker: true})
	for _, a := range []struct {
		w    worker.Worker
		name string
		f    any
	}{
		{orchestrator, refund.ActivityOpen, w.open},
		{orchestrator, refund.ActivitySave, w.save},
		{orchestrator, refund.ActivityRecord, w.record},
		{orchestrator, refund.ActivityResolve, w.resolve},
		{orchestrator, refund.ActivityAct, w.act},
		{egress, refund.ActivitySubmit, w.call},
		{egress, refund.ActivityCheck, w.call},
	} {
		a.w.RegisterActivityWithOptions(a.f, activity.RegisterOptions{Name: a.name})
	}
	require.NoError(t, orchestrator.Start())
	t.Cleanup(orchestrator.Stop)
	require.NoError(t, egress.Start())
	t.Cleanup(egress.Stop)
	return w
}

func (w *world) open(_ context.Context, in refund.OpenInput) (refund.OpenResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return refund.OpenResult{}, w.refuse
	}
	if w.c.Refund.ID == "" {
		now := time.Now()
		w.c = refund.Case{Refund: in.Refund, Status: refund.StatusQueued, Generation: 1, AcceptedAt: now, DeadlineAt: now.Add(w.policy.Deadline)}
	}
	return refund.OpenResult{Case: w.c, Policy: w.policy}, nil
}

func (w *world) save(_ context.Context, in refund.SaveInput) (refund.SaveResult, error) {
	if w.saving != nil {
		w.saving()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closedAs != "" {
		w.c.Status = w.closedAs
		return refund.SaveResult{Superseded: true}, nil
	}
	w.c.Status, w.c.ReviewReason = in.Status, in.ReviewReason
	w.saves = append(w.saves, in.Status)
	w.saved = append(w.saved, in)
	return refund.SaveResult{}, nil
}

// act does what the ledger does: once for each id, and only what the case
// allows.
func (w *world) act(_ context.Context, in refund.ActInput) (refund.ActResult, error) {
	if w.acting != nil {
		w.acting()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acts = append(w.acts, in)
	res := refund.ActResult{Status: w.c.Status, Version: w.c.Version}
	switch {
	case slices.ContainsFunc(w.c.Decisions, func(d refund.Decision) bool { return d.ID == in.ID }):
		return res, nil
	case !w.c.Open(), in.Action == refund.ActionSettle && w.c.Status != isReview:
		res.Refused = "the case is " + string(w.c.Status)
		return res, nil
	}
	w.c.Decisions = append(w.c.Decisions, refund.Decision{
		ID: in.ID, Generation: w.c.Generation, Action: in.Action, By: in.Input.By, Reason: in.Input.Reason,
		Owner: in.Input.Owner, Status: in.Input.Status, Evidence: in.Input.Evidence, At: time.Now(),
	})
	w.c.Version++
	switch in.Action {
	case refund.ActionAssign:
		w.c.Owner = in.Input.Owner
	case refund.ActionSettle:
		w.c.Status, w.c.ReviewReason = in.Input.Status, ""
	}
	return refund.ActResult{Status: w.c.Status, Version: w.c.Version}, nil
}

// change alters the case as others do that write to the ledger.
func (w *world) change(f func(c *refund.Case)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.c)
}

func (w *world) call(_ context.Context, in refund.CallInput) (refund.CallResult, error) {
	w.mu.Lock()
	w.inputs = append(w.inputs, in)
	if len(w.answers) == 0 {
		w.mu.Unlock()
		return refund.CallResult{}, errors.New("the script has no answer for " + in.Key.String())
	}
	answer := w.answers[0]
	w.answers = w.answers[1:]
	w.mu.Unlock()
	res, err := answer(in)
	if err == nil {
		w.mu.Lock()
		w.c.Calls = append(w.c.Calls, res.Call)
		w.c.Attempts = w.c.CountAttempts()
		w.mu.Unlock()
	}
	return res, err
}

func (w *world) record(_ context.Context, call refund.Call) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorded = append(w.recorded, call)
	return nil
}

func (w *world) resolve(_ context.Context, in refund.CallInput) (refund.CallResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resolved = append(w.resolved, in)
	if !slices.ContainsFunc(w.inputs, func(made refund.CallInput) bool { return made.Key == in.Key }) {
		return answered(in, refund.Result{Outcome: notSent, Code: refund.CodeAbandoned}), nil
	}
	return answered(in, refund.Result{Outcome: unknown, Code: refund.CodeLost}), nil
}

// answered is the result of a call that was sent.
func answered(in refund.CallInput, r refund.Result) refund.CallResult {
	start := time.Now()
	call := refund.Call{Key: in.Key, Origin: in.Origin, Account: in.Account, DecisionID: in.DecisionID, IntentAt: start, FinishedAt: &start, Result: r}
	if r.Outcome != notSent {
		call.StartedAt = &start
	}
	return refund.CallResult{Call: call}
}

func answer(r refund.Result) func(refund.CallInput) (refund.CallResult, error) {
	return func(in refund.CallInput) (refund.CallResult, error) { return answered(in, r), nil }
}

func outcome(o refund.Outcome) func(refund.CallInput) (refund.CallResult, error) {
	return answer(refund.Result{Outcome: o})
}

func newRefund() refund.Refund { return newStory().c.Refund }

func (w *world) start() client.WorkflowRun {
	w.t.Helper()
	r := newRefund()
	run, err := w.client.ExecuteWorkflow(w.t.Context(), client.StartWorkflowOptions{ID: refund.WorkflowID(r.ID), TaskQueue: refund.TaskQueue}, refund.WorkflowType, r)
	require.NoError(w.t, err)
	return run
}

// finish waits for the workflow's end and replays its history.
func (w *world) finish(run client.WorkflowRun) (closing refund.Closing, err error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	err = run.Get(ctx, &closing)
	w.replay(run)
	return closing, err
}

// parked waits until the workflow says that it is in review.
func (w *world) parked(run client.WorkflowRun) refund.Case {
	w.t.Helper()
	return w.reached(run, isReview)
}

// reached waits until the workflow says that the case has the status, and
// replays its history.
func (w *world) reached(run client.WorkflowRun, status refund.Status) (c refund.Case) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		c = w.query(run)
		return c.Status == status
	}, time.Minute, 20*time.Millisecond)
	w.replay(run)
	return c
}

func (w *world) query(run client.WorkflowRun) (c refund.Case) {
	w.t.Helper()
	v, err := w.client.QueryWorkflow(w.t.Context(), run.GetID(), run.GetRunID(), refund.QueryCase)
	require.NoError(w.t, err)
	require.NoError(w.t, v.Get(&c))
	return c
}

// replay fetches the run's history, replays it, and keeps it if told to.
func (w *world) replay(run client.WorkflowRun) {
	w.t.Helper()
	history := w.history(run)
	require.NoError(w.t, newReplayer().ReplayWorkflowHistory(nil, history))
	if *saveHistories != "" {
		b, err := protojson.MarshalOptions{Multiline: true}.Marshal(history)
		require.NoError(w.t, err)
		name := strings.NewReplacer("/", "-", " ", "-").Replace(strings.TrimPrefix(w.t.Name(), "Test"))
		set := filepath.Join(historyDir, *saveHistories)
		require.NoError(w.t, os.MkdirAll(set, 0o755))
		require.NoError(w.t, os.WriteFile(filepath.Join(set, strings.ToLower(name)+".json"), b, 0o644))
	}
}

func (w *world) history(run client.WorkflowRun) *historypb.History {
	w.t.Helper()
	history := &historypb.History{}
	for it := w.client.GetWorkflowHistory(w.t.Context(), run.GetID(), run.GetRunID(), false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
		event, err := it.Next()
		require.NoError(w.t, err)
		history.Events = append(history.Events, event)
	}
	return history
}

func newReplayer() worker.WorkflowReplayer {
	r := worker.NewWorkflowReplayer()
	r.RegisterWorkflowWithOptions(workflows.Refund, workflow.RegisterOptions{Name: refund.WorkflowType})
	return r
}

func TestRefund(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		answers  []func(refund.CallInput) (refund.CallResult, error)
		want     refund.Status
		attempts int
		saves    []refund.Status
	}{
		{"success", []func(refund.CallInput) (refund.CallResult, error){outcome(ok)}, isOK, 1, []refund.Status{isOK}},
		{"rejected", []func(refund.CallInput) (refund.CallResult, error){outcome(rejected)}, isReject, 1, []refund.Status{isReject}},
		{"busy", []func(refund.CallInput) (refund.CallResult, error){outcome(busy), outcome(busy), outcome(ok)}, isOK, 3, []refund.Status{isRetry, isOK}},
		{"unknown", []func(refund.CallInput) (refund.CallResult, error){outcome(unknown), outcome(unknown), outcome(ok)}, isOK, 1, []refund.Status{isUnknown, isOK}},
		{"pending", []func(refund.CallInput) (refund.CallResult, error){outcome(pending), outcome(pending), outcome(ok)}, isOK, 1, []refund.Status{isPending, isOK}},
		{"not sent", []func(refund.CallInput) (refund.CallResult, error){outcome(notSent), outcome(notSent), outcome(ok)}, isOK, 1, []refund.Status{isOK}},
		{"absent", []func(refund.CallInput) (refund.CallResult, error){outcome(unknown), outcome(notFound), outcome(notFound), outcome(notFound), outcome(notFound), outcome(ok)}, isOK, -1, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tt.answers...)
			closing, err := w.finish(w.start())
			require.NoError(t, err)
			require.Equal(t, tt.want, closing.Status)
			if tt.attempts >= 0 {
				require.Equal(t, tt.attempts, closing.Attempts)
				require.Equal(t, tt.saves, w.saves)
			}
			require.Empty(t, w.resolved)
			require.Empty(t, w.recorded)
			seqs := map[refund.CallKey]bool{}
			for _, in := range w.inputs {
				require.False(t, seqs[in.Key], "a key was used twice: %s", in.Key)
				seqs[in.Key] = true
				require.Equal(t, newRefund(), in.Refund)
			}
		})
	}
}

func TestDeadlineParksTheCase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(unknown))
	w.policy.Deadline = 300 * time.Millisecond
	w.policy.Checks.Initial, w.policy.Checks.Cap = time.Minute, time.Minute
	run := w.start()
	c := w.parked(run)
	require.Equal(t, refund.ReviewDeadlineUnknown, c.ReviewReason)
	require.Equal(t, []refund.Status{isUnknown, isReview}, w.saves)

	// Cancelling the workflow must not lose the case.
	require.NoError(t, w.client.CancelWorkflow(t.Context(), run.GetID(), run.GetRunID()))
	require.Equal(t, isReview, w.query(run).Status) // by a worker that has seen the cancellation
	desc, err := w.client.DescribeWorkflow(t.Context(), run.GetID(), run.GetRunID())
	require.NoError(t, err)
	require.Equal(t, enums.WORKFLOW_EXECUTION_STATUS_RUNNING, desc.Status)
}

// Cancelling the workflow takes nothing back that was sent: its answer is
// waited for, and it counts.
func TestCancellationDuringACall(t *testing.T) {
	t.Parallel()
	sent, answerNow := make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(in refund.CallInput) (refund.CallResult, error) {
		close(sent)
		<-answerNow
		return answered(in, refund.Result{Outcome: ok}), nil
	})
	run := w.start()
	<-sent
	require.NoError(t, w.client.CancelWorkflow(t.Context(), run.GetID(), run.GetRunID()))
	require.Equal(t, isQueued, w.query(run).Status)
	close(answerNow)
	closing, err := w.finish(run)
	require.NoError(t, err)
	require.Equal(t, isOK, closing.Status)
	require.Equal(t, []refund.Status{isOK}, w.saves)
	require.Empty(t, w.resolved)
}

// The deadline comes while the ledger can't be written: no call is begun after
// it.
func TestDeadlineWhileTheLedgerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(busy), outcome(ok))
	w.policy.Deadline = 2 * time.Second
	w.saving = func() { time.Sleep(time.Until(w.c.DeadlineAt)) }
	c := w.parked(w.start())
	require.Equal(t, refund.ReviewDeadlineBusy, c.ReviewReason)
	require.Len(t, w.inputs, 1)
}

// A Retry-After beyond the deadline keeps nobody waiting beyond it.
func TestDeadlineBeforeTheRetryAfter(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(time.Hour)
	w := newWorld(t, answer(refund.Result{Outcome: busy, RetryAt: &later}))
	w.policy.Deadline = 2 * time.Second
	c := w.parked(w.start())
	require.Equal(t, refund.ReviewDeadlineBusy, c.ReviewReason)
	require.Len(t, w.inputs, 1)
}

// Nobody serves the egress queue: at the deadline the case goes to people, and
// the ledger is asked first, so that the task can't be carried out later.
func TestDeadlineInTheQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.policy.Deadline = 500 * time.Millisecond
	w.c = refund.Case{
		Refund: newRefund(), Status: isQueued, Generation: 1,
		AcceptedAt: time.Now(), DeadlineAt: time.Now().Add(w.policy.Deadline),
	}
	w.c.Refund.Account = "nobody"
	c := w.parked(w.start())
	require.Len(t, w.resolved, 1)
	require.Empty(t, w.inputs)
	require.Equal(t, refund.ReviewDeadlineUnsent, c.ReviewReason)
}

func TestUnrecordedOutcomeIsRecordedLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(in refund.CallInput) (refund.CallResult, error) {
		res := answered(in, refund.Result{Outcome: ok, ProviderRefundID: "re_1"})
		res.Unrecorded = true
		return res, nil
	})
	closing, err := w.finish(w.start())
	require.NoError(t, err)
	require.Equal(t, "re_1", closing.ProviderRefundID)
	require.Len(t, w.recorded, 1)
	require.Equal(t, ok, w.recorded[0].Result.Outcome)
}

// The call's activity fails, as it does when its worker dies: it is not run
// again, the ledger is asked, and what may have been sent is checked.
func TestLostActivityIsResolved(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(refund.CallInput) (refund.CallResult, error){
		"error": func(refund.CallInput) (refund.CallResult, error) { return refund.CallResult{}, errors.New("lost") },
		"panic": func(refund.CallInput) (refund.CallResult, error) { panic("lost") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fail, outcome(ok))
			closing, err := w.finish(w.start())
			require.NoError(t, err)
			require.Equal(t, isOK, closing.Status)
			require.Equal(t, 1, closing.Attempts)
			require.Len(t, w.resolved, 1)
			require.Len(t, w.inputs, 2)
			require.Equal(t, refund.KindSubmit, w.inputs[0].Key.Kind)
			require.Equal(t, refund.KindCheck, w.inputs[1].Key.Kind)
		})
	}
}

// The ledger knows more than this run: its truth replaces the run's.
func TestExhaustedInTheLedgerIsRead(t *testing.T) {
	t.Parallel()
	var w *world
	w = newWorld(t, outcome(busy), func(in refund.CallInput) (refund.CallResult, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.c.Calls = nil
		for n := range 3 {
			w.c.Calls = append(w.c.Calls, refund.Call{
				Key:    refund.CallKey{RefundID: in.Key.RefundID, Generation: 1, Kind: refund.KindSubmit, Seq: n + 1},
				Origin: refund.OriginRetry, IntentAt: time.Now(), Result: refund.Result{Outcome: busy},
			})
		}
		return answered(in, refund.Result{Outcome: notSent, Code: refund.CodeExhausted}), nil
	})
	c := w.parked(w.start())
	require.Equal(t, refund.ReviewAttempts, c.ReviewReason)
	require.Len(t, w.inputs, 2)
}

// CASE 39, F3: a second start after the end, or a run beside one that closed
// the case, ends with the recorded result and calls nobody.
func TestSecondRunSendsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(ok))
	_, err := w.finish(w.start())
	require.NoError(t, err)
	closing, err := w.finish(w.start())
	require.NoError(t, err)
	require.Equal(t, isOK, closing.Status)
	require.Len(t, w.inputs, 1)
}

// CASE 38: a reset runs everything after the reset point again, but the ledger
// knows what was done. No call is made twice, and no attempt comes back.
func TestCase38_ResetRepeatsNoCall(t *testing.T) {
	t.Parallel()
	type answers = []func(refund.CallInput) (refund.CallResult, error)
	for name, tt := range map[string]struct {
		answers answers
		ledger  refund.Status // what it says when the run is reset
		want    refund.Status
	}{
		"in review":                      {answers{outcome(busy), outcome(busy), outcome(busy)}, isReview, isReview},
		"before the review was recorded": {answers{outcome(busy), outcome(busy), outcome(busy)}, isRetry, isReview},
		"before the result was recorded": {answers{outcome(busy), outcome(ok)}, isRetry, isOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tt.answers...)
			run := w.start()
			for range 2 {
				w.reached(run, tt.want)
				w.mu.Lock()
				w.c.Status = tt.ledger
				w.mu.Unlock()
				run = w.reset(run)
			}
			c := w.reached(run, tt.want)
			require.Len(t, w.inputs, len(tt.answers))
			require.Equal(t, len(tt.answers), c.Attempts)
		})
	}
}

// reset sets the run back to its first task and returns the new run.
func (w *world) reset(run client.WorkflowRun) client.WorkflowRun {
	w.t.Helper()
	const firstTaskCompleted = 4 // started, scheduled, started, completed
	res, err := w.client.ResetWorkflowExecution(w.t.Context(), &workflowservice.ResetWorkflowExecutionRequest{
		Namespace:                 w.namespace,
		WorkflowExecution:         &commonpb.WorkflowExecution{WorkflowId: run.GetID(), RunId: run.GetRunID()},
		Reason:                    "test",
		RequestId:                 run.GetRunID(),
		WorkflowTaskFinishEventId: firstTaskCompleted,
	})
	require.NoError(w.t, err)
	return w.client.GetWorkflow(w.t.Context(), run.GetID(), res.GetRunId())
}

func TestSupersededSave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(unknown))
	w.closedAs = refund.StatusNotRefunded
	closing, err := w.finish(w.start())
	require.NoError(t, err)
	require.Equal(t, refund.StatusNotRefunded, closing.Status)
	require.Len(t, w.inputs, 1)
}

func TestRefusedInputFailsTheWorkflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.refuse = temporal.NewNonRetryableApplicationError("the refund id was accepted with other content", refund.ErrorTypeConflict, nil)
	_, err := w.finish(w.start())
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.Equal(t, refund.ErrorTypeConflict, app.Type())
	require.Empty(t, w.inputs)
}

// CASE 31: an amount that is no integer of minor units is refused, not rounded,
// however the workflow was started.
func TestCase31_UnreadableAmountFailsTheWorkflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := map[string]any{"refund_id": "r-1", "account": "demo", "amount": map[string]any{"value": 12.5, "currency": "TWD"}}
	run, err := w.client.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: refund.WorkflowID("r-1"), TaskQueue: refund.TaskQueue}, refund.WorkflowType, in)
	require.NoError(t, err)
	require.ErrorContains(t, run.Get(t.Context(), nil), "must be an integer in minor units")
	require.Empty(t, w.c.Refund.ID, "a case was opened")
}

// Temporal repeats no call to the provider, hands the groups out in turn and
// keeps no call in the queue past the deadline. Bookkeeping is repeated until it
// works.
func TestActivityOptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(busy), outcome(unknown), outcome(ok))
	run := w.start()
	_, err := w.finish(run)
	require.NoError(t, err)

	var groups []string
	for _, event := range w.history(run).GetEvents() {
		a := event.GetActivityTaskScheduledEventAttributes()
		if a == nil {
			continue
		}
		require.NotNil(t, event.GetUserMetadata().GetSummary(), a.GetActivityType())
		switch a.GetActivityType().GetName() {
		case refund.ActivitySubmit, refund.ActivityCheck:
			groups = append(groups, a.GetPriority().GetFairnessKey())
			require.EqualValues(t, 1, a.GetRetryPolicy().GetMaximumAttempts())
			require.Equal(t, "refund-egress.demo", a.GetTaskQueue().GetName())
			require.Equal(t, workflows.HeartbeatTimeout, a.GetHeartbeatTimeout().AsDuration())
			left := a.GetScheduleToStartTimeout().AsDuration()
			require.WithinDuration(t, w.c.DeadlineAt, event.GetEventTime().AsTime().Add(left), 2*time.Second)
			require.Greater(t, a.GetStartToCloseTimeout().AsDuration(), left+w.policy.CallBudget)
			require.Greater(t, a.GetScheduleToCloseTimeout().AsDuration(), left+w.policy.CallBudget)
		default:
			require.Zero(t, a.GetRetryPolicy().GetMaximumAttempts(), "no limit")
			require.Equal(t, "refunds", a.GetTaskQueue().GetName())
		}
	}
	require.Equal(t, []string{"first", "follow-up", "follow-up"}, groups)
}

// D4: each retry is told of, once.
func TestRetriesAreLogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(busy), outcome(busy), outcome(ok))
	_, err := w.finish(w.start())
	require.NoError(t, err)
	retries := w.logs.Events(t, telemetry.EventRetryScheduled)
	require.Len(t, retries, 2)
	for i, e := range retries {
		require.Equal(t, "r-1", e[telemetry.KeyRefundID])
		require.Equal(t, "demo", e[telemetry.KeyAccount])
		require.InDelta(t, i+2, e[telemetry.KeyAttempt], 0)
		require.InDelta(t, 5, e[telemetry.KeyWaitMS], 5)
	}
}

// What operators see: search attributes, the query, the current details.
func TestCaseIsReadable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outcome(busy), outcome(busy), answer(refund.Result{Outcome: busy, Code: "a|b"}))
	run := w.start()
	c := w.parked(run)
	require.Equal(t, 3, c.Attempts)
	require.Len(t, c.Calls, 3)

	desc, err := w.client.DescribeWorkflow(t.Context(), run.GetID(), run.GetRunID())
	require.NoError(t, err)
	got := map[string]any{}
	for name, payload := range desc.RawResponse.GetWorkflowExecutionInfo().GetSearchAttributes().GetIndexedFields() {
		var v any
		require.NoError(t, converter.GetDefaultDataConverter().FromPayload(payload, &v))
		got[name] = v
	}
	require.Equal(t, "review", got[refund.AttributeStatus])
	require.Equal(t, "demo", got[refund.AttributeAccount])
	require.Equal(t, "o-1", got[refund.AttributeOrder])
	require.Equal(t, "attempts_exhausted", got[refund.AttributeReview])
	require.InDelta(t, 3, got[refund.AttributeTries], 0)
	require.Contains(t, fmt.Sprint(got[refund.AttributeDue]), "T")

	meta := metadata(t, w, run)
	for _, want := range []string{"**review (attempts_exhausted)**: all 3 attempts are used", "12.50 TWD of payment pay-1", "| submit 3 | retry |", `busy (a\|b)`} {
		require.Contains(t, meta.GetCurrentDetails(), want)
	}
	require.True(t, slices.ContainsFunc(meta.GetDefinition().GetQueryDefinitions(), func(d *sdkpb.WorkflowInteractionDefinition) bool {
		return d.GetName() == refund.QueryCase && d.GetDescription() != ""
	}))
}

// metadata is what the Web UI asks a workflow for.
func metadata(t *testing.T, w *world, run client.WorkflowRun) *sdkpb.WorkflowMetadata {
	t.Helper()
	v, err := w.client.QueryWorkflow(t.Context(), run.GetID(), run.GetRunID(), "__temporal_workflow_metadata")
	require.NoError(t, err)
	var meta sdkpb.WorkflowMetadata
	require.NoError(t, v.Get(&meta))
	return &meta
}

// CASE 40: histories of earlier versions replay.
func TestCase40_SavedHistoriesReplay(t *testing.T) {
	t.Parallel()
	files := savedHistories(t)
	require.GreaterOrEqual(t, len(files), 60, "where are the histories?")
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, newReplayer().ReplayWorkflowHistoryFromJSONFile(nil, file))
		})
	}
}

func savedHistories(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(historyDir, "*", "*.json"))
	require.NoError(t, err)
	return slices.DeleteFunc(files, func(f string) bool { return filepath.Base(filepath.Dir(f)) == "bad" })
}

// Each saved history with one call swapped for the other kind must fail, or
// the test above proves nothing.
func TestCase40_AlteredHistoriesFail(t *testing.T) {
	t.Parallel()
	swap := map[string]string{refund.ActivitySubmit: refund.ActivityCheck, refund.ActivityCheck: refund.ActivitySubmit}
	altered := 0
	for _, file := range savedHistories(t) {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		var history historypb.History
		require.NoError(t, protojson.Unmarshal(b, &history))
		calls := slices.DeleteFunc(slices.Clone(history.Events), func(e *historypb.HistoryEvent) bool {
			return swap[e.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName()] == ""
		})
		if len(calls) == 0 {
			continue
		}
		altered++
		last := calls[len(calls)-1].GetActivityTaskScheduledEventAttributes().GetActivityType()
		last.Name = swap[last.Name]
		require.ErrorContains(t, newReplayer().ReplayWorkflowHistory(nil, &history), "nondeterministic", file)
	}
	require.GreaterOrEqual(t, altered, 40)
}

// The same for histories that were altered by hand in other ways.
func TestCase40_BadHistoriesFail(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(historyDir, "bad", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, newReplayer().ReplayWorkflowHistoryFromJSONFile(nil, file), "nondeterministic")
		})
	}
}
