package starter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"refundgate/internal/devenv"
	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

var discard = slog.New(slog.DiscardHandler)

// waitStarted waits until the ledger knows that everything was started.
func waitStarted(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	require.Eventually(t, func() bool {
		left, err := l.Unstarted(t.Context(), 1)
		return err == nil && len(left) == 0
	}, 30*time.Second, 20*time.Millisecond)
}

// waitWorkflows returns the namespace's workflows once there are n or more.
func waitWorkflows(t *testing.T, c client.Client, n int) (found []*workflowpb.WorkflowExecutionInfo) {
	t.Helper()
	require.Eventually(t, func() bool {
		list, err := c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{})
		found = list.GetExecutions()
		return err == nil && len(found) >= n
	}, 30*time.Second, 20*time.Millisecond)
	return found
}

func testRefund(id string) refund.Refund {
	return refund.Refund{
		ID: id, Account: "main", OrderID: "o-1", PaymentID: "pay_1",
		Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "broken", RequestedBy: "mei",
	}
}

// TestRelayStarts: an operator sees an accepted refund at once, though no
// worker runs.
func TestRelayStarts(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	hostPort, namespace := testenv.Temporal(t)
	temporal := dial(t, hostPort, namespace)
	relay := NewRelay(l, temporal, discard)
	runRelay(t, relay)
	i := newIntake(t, l, relay.Wake)

	require.Equal(t, 202, i.post(body(nil)).status)
	waitStarted(t, l)

	shown, err := temporal.DescribeWorkflow(t.Context(), "refund-r-1", "")
	require.NoError(t, err)
	require.Equal(t, "Refund", shown.WorkflowType.Name)
	require.Equal(t, "refunds", shown.TaskQueueName)
	require.Equal(t, StartOptions(testRefund("r-1")).TypedSearchAttributes.GetUntypedValues(), shown.TypedSearchAttributes.GetUntypedValues())
	status, _ := shown.TypedSearchAttributes.GetKeyword(statusKey)
	require.Equal(t, "queued", status)
	summary, err := shown.GetStaticSummary()
	require.NoError(t, err)
	require.Equal(t, "Refund 12.50 TWD of payment pay_1, order o-1, account main", summary)

	history := temporal.GetWorkflowHistory(t.Context(), "refund-r-1", "", false, 0)
	started, err := history.Next()
	require.NoError(t, err)
	var input refund.Refund
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(started.GetWorkflowExecutionStartedEventAttributes().GetInput(), &input))
	want := testRefund("r-1")
	want.Reason = "broken on arrival"
	require.Equal(t, want, input)
}

// TestTemporalDown: the answer does not depend on Temporal. What was accepted
// while it was down starts when it is back, once.
func TestTemporalDown(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	server := testenv.OwnTemporal(t)
	temporal := dial(t, server.HostPort(), devenv.DefaultNamespace)
	require.NoError(t, server.Stop())
	logs := &testenv.Logs{}
	relay := NewRelay(l, temporal, telemetry.NewLogger(logs, telemetry.FormatJSON, slog.LevelInfo))
	runRelay(t, relay)
	i := newIntake(t, l, relay.Wake)

	for n := range 3 {
		begin := time.Now()
		require.Equal(t, 202, i.post(body(map[string]string{"refund_id": fmt.Sprintf(`"r-%d"`, n)})).status)
		require.Less(t, time.Since(begin), startTimeout/2, "the answer does not wait for Temporal")
	}
	require.Equal(t, 200, i.get("/readyz").status, "still ready to accept")
	require.Eventually(t, func() bool { return logs.String() != "" }, 20*time.Second, 20*time.Millisecond)
	left, err := l.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, left, 3)

	require.NoError(t, server.Start(t.Context()))
	waitStarted(t, l)
	require.Len(t, waitWorkflows(t, temporal, 3), 3)
}

// TestStartedBefore: a run that is there is neither doubled nor taken for the
// refund's own: its case marks it. One that has ended does not keep a refund
// from running that isn't marked as started: it failed without a case, or the
// refund was corrected since.
func TestStartedBefore(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	hostPort, namespace := testenv.Temporal(t)
	temporal := dial(t, hostPort, namespace)
	start := func(id string) client.WorkflowRun {
		_, _, err := l.Accept(t.Context(), ledger.Submission{Refund: testRefund(id), Deadline: testDeadline})
		require.NoError(t, err)
		run, err := temporal.ExecuteWorkflow(t.Context(), StartOptions(testRefund(id)), refund.WorkflowType, testRefund(id))
		require.NoError(t, err)
		return run
	}
	w := worker.New(temporal, refund.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(_ workflow.Context, r refund.Refund) error {
		if r.ID == "failed" {
			return errors.New("refused")
		}
		return nil
	}, workflow.RegisterOptions{Name: refund.WorkflowType})
	require.NoError(t, w.Start())
	require.NoError(t, start("completed").Get(t.Context(), nil))
	require.Error(t, start("failed").Get(t.Context(), nil))
	w.Stop()
	start("running")

	relay := NewRelay(l, temporal, discard)
	require.NoError(t, relay.pass(t.Context()))
	require.NoError(t, relay.pass(t.Context()), "which finds them started")
	left, err := l.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "running", left[0].ID)
	require.Eventually(t, func() bool {
		count, err := temporal.CountWorkflow(t.Context(), &workflowservice.CountWorkflowExecutionsRequest{})
		return err == nil && count.GetCount() == 5
	}, 30*time.Second, 20*time.Millisecond, "a second run of those that ended, and of no other")
}

// TestRelayStartsTheCorrectedGeneration: a case that was rejected and corrected
// runs again, though its first run completed.
func TestRelayStartsTheCorrectedGeneration(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	hostPort, namespace := testenv.Temporal(t)
	temporal := dial(t, hostPort, namespace)
	inputs := make(chan refund.Refund, 10)
	runWorkflow(t, temporal, func(_ workflow.Context, r refund.Refund) error {
		inputs <- r
		return nil
	})
	relay := NewRelay(l, temporal, discard)
	_, _, err := l.Accept(t.Context(), ledger.Submission{Refund: testRefund("r-1"), Deadline: testDeadline})
	require.NoError(t, err)
	require.NoError(t, relay.pass(t.Context()))
	require.Equal(t, "pay_1", (<-inputs).PaymentID)
	require.NoError(t, temporal.GetWorkflow(t.Context(), "refund-r-1", "").Get(t.Context(), nil))
	require.NoError(t, l.Save(t.Context(), ledger.Change{RefundID: "r-1", Status: refund.StatusRejected}))

	desk := &Desk{Ledger: l, Temporal: temporal, Deadline: testDeadline, Wake: relay.Wake}
	_, err = desk.Correct(t.Context(), "r-1", "c-1", refund.Correction{By: "mei", Reason: "wrong payment", PaymentID: "pay_2"})
	require.NoError(t, err)
	runRelay(t, relay)
	waitStarted(t, l)
	require.Equal(t, "pay_2", (<-inputs).PaymentID)
	require.Len(t, waitWorkflows(t, temporal, 2), 2)
}

// starterFunc is a WorkflowStarter that fails as Temporal can.
type starterFunc func(ctx context.Context, id string) error

func (f starterFunc) ExecuteWorkflow(ctx context.Context, opts client.StartWorkflowOptions, _ any, _ ...any) (client.WorkflowRun, error) {
	return nil, f(ctx, opts.ID)
}

// TestRefusedStartHoldsNobodyUp: a refund that Temporal refuses stays in the
// backlog, and those accepted after it start.
func TestRefusedStartHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	for _, id := range []string{"refused", "good"} {
		_, _, err := l.Accept(t.Context(), ledger.Submission{Refund: testRefund(id), Deadline: testDeadline})
		require.NoError(t, err)
	}
	relay := NewRelay(l, starterFunc(func(_ context.Context, id string) error {
		if id == "refund-refused" {
			return serviceerror.NewInvalidArgument("too large")
		}
		return nil
	}), discard)

	require.ErrorContains(t, relay.pass(t.Context()), "starting the workflow of refund refused: too large")
	left, err := l.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "refused", left[0].ID)
}

// TestRelayReadsOnUntilNothingIsLeft: more than a batch is started in one go,
// the oldest first.
func TestRelayReadsOnUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	var want []string
	for n := range relayBatch + 5 {
		rf := testRefund(fmt.Sprintf("r-%03d", n))
		_, _, err := l.Accept(t.Context(), ledger.Submission{Refund: rf, Deadline: testDeadline})
		require.NoError(t, err)
		want = append(want, refund.WorkflowID(rf.ID))
	}
	var got []string
	relay := NewRelay(l, starterFunc(func(_ context.Context, id string) error {
		got = append(got, id)
		return nil
	}), discard)
	require.NoError(t, relay.pass(t.Context()))
	require.Equal(t, want, got)
}

// TestOutageIsLeftAlone: while Temporal is away, wake-ups don't turn into
// calls; the first after the wait does all that is due.
func TestOutageIsLeftAlone(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	_, _, err := l.Accept(t.Context(), ledger.Submission{Refund: testRefund("r-1"), Deadline: testDeadline})
	require.NoError(t, err)
	var mu sync.Mutex
	var calls []time.Time
	relay := NewRelay(l, starterFunc(func(context.Context, string) error {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, time.Now())
		if len(calls) == 1 {
			return serviceerror.NewUnavailable("down")
		}
		return nil
	}), discard)
	runRelay(t, relay)
	require.Eventually(t, func() bool {
		relay.Wake()
		mu.Lock()
		defer mu.Unlock()
		return len(calls) == 2
	}, 10*time.Second, time.Millisecond)
	require.GreaterOrEqual(t, calls[1].Sub(calls[0]), minRoundBackoff*3/4)
}

// TestRelayStopsInTheMiddleOfAStart: a stop does not wait for Temporal.
func TestRelayStopsInTheMiddleOfAStart(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	_, _, err := l.Accept(t.Context(), ledger.Submission{Refund: testRefund("r-1"), Deadline: testDeadline})
	require.NoError(t, err)
	started := make(chan struct{})
	relay := NewRelay(l, starterFunc(func(ctx context.Context, _ string) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	}), discard)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		relay.Run(ctx)
		close(done)
	}()
	<-started
	stop()
	select {
	case <-done:
	case <-time.After(startTimeout / 2):
		t.Fatal("the relay did not stop")
	}
}
