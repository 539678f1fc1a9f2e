package devenv

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"refundgate/refund"
)

func startTemporal(t *testing.T, opts TemporalOptions) *Temporal {
	t.Helper()
	server, err := StartTemporal(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Kill()) })
	return server
}

func dial(t *testing.T, server *Temporal, namespace string) client.Client {
	t.Helper()
	c, err := client.DialContext(t.Context(), client.Options{HostPort: server.HostPort(), Namespace: namespace, Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// startWaiting starts a workflow that no worker takes, with a value for every
// search attribute.
func startWaiting(t *testing.T, c client.Client, id string) {
	t.Helper()
	_, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID:        id,
		TaskQueue: refund.TaskQueue,
		TypedSearchAttributes: temporal.NewSearchAttributes(
			temporal.NewSearchAttributeKeyKeyword(refund.AttributeStatus).ValueSet("queued"),
			temporal.NewSearchAttributeKeyKeyword(refund.AttributeAccount).ValueSet("main"),
			temporal.NewSearchAttributeKeyKeyword(refund.AttributeReview).ValueSet("none"),
			temporal.NewSearchAttributeKeyKeyword(refund.AttributeOwner).ValueSet("alice"),
			temporal.NewSearchAttributeKeyKeyword(refund.AttributeOrder).ValueSet("o-1"),
			temporal.NewSearchAttributeKeyInt64(refund.AttributeTries).ValueSet(0),
			temporal.NewSearchAttributeKeyTime(refund.AttributeDue).ValueSet(time.Now()),
		),
	}, refund.WorkflowType)
	require.NoError(t, err)
}

func TestTemporalKeepsItsStateInTheFile(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	opts := TemporalOptions{DBFile: filepath.Join(t.TempDir(), "state", "temporal.db"), Headless: true}
	server := startTemporal(t, opts)
	require.Empty(t, server.UIURL())
	startWaiting(t, dial(t, server, DefaultNamespace), "before")

	_, err := StartTemporal(ctx, opts)
	require.ErrorIs(t, err, ErrInUse)

	hostPort := server.HostPort()
	for _, end := range []func() error{server.Kill, server.Stop} {
		require.NoError(t, end())
		_, err := net.Dial("tcp", hostPort)
		require.Error(t, err, "a stopped server answers")
		require.NoError(t, server.Start(ctx))
		require.Equal(t, hostPort, server.HostPort())
		_, err = dial(t, server, DefaultNamespace).DescribeWorkflow(ctx, "before", "")
		require.NoError(t, err)
	}
}

func TestTemporalNamespacesAndSearchAttributes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := startTemporal(t, TemporalOptions{})
	for range 2 {
		require.NoError(t, server.CreateNamespace(ctx, "mine"))
	}
	for _, namespace := range []string{DefaultNamespace, "mine"} {
		c := dial(t, server, namespace)
		startWaiting(t, c, "at-once")
		found, err := c.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
		require.NoError(t, err)
		for name, kind := range map[string]enums.IndexedValueType{
			"RefundStatus":       enums.INDEXED_VALUE_TYPE_KEYWORD,
			"RefundAccount":      enums.INDEXED_VALUE_TYPE_KEYWORD,
			"RefundReviewReason": enums.INDEXED_VALUE_TYPE_KEYWORD,
			"RefundOwner":        enums.INDEXED_VALUE_TYPE_KEYWORD,
			"RefundOrderId":      enums.INDEXED_VALUE_TYPE_KEYWORD,
			"RefundAttempts":     enums.INDEXED_VALUE_TYPE_INT,
			"RefundDeadline":     enums.INDEXED_VALUE_TYPE_DATETIME,
		} {
			require.Equal(t, kind, found.GetCustomAttributes()[name], name)
		}
	}

	resp, err := http.Get(server.UIURL())
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

// The two groups of an egress queue alternate on the server already: that
// needs fairness on and a single partition.
func TestTemporalServesFairnessKeysInTurn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := startTemporal(t, TemporalOptions{Headless: true})
	c := dial(t, server, DefaultNamespace)

	const each = 10
	keys := []string{string(refund.GroupFirst), string(refund.GroupFollowUp)}
	orchestrator := worker.New(c, refund.TaskQueue, worker.Options{})
	orchestrator.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		var running []workflow.Future
		for _, key := range keys {
			for range each {
				ctx := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
					TaskQueue:           refund.EgressQueue("main"),
					StartToCloseTimeout: time.Minute,
					Priority:            temporal.Priority{FairnessKey: key},
				})
				running = append(running, workflow.ExecuteActivity(ctx, "call", key))
			}
		}
		for _, f := range running {
			if err := f.Get(ctx, nil); err != nil {
				return err
			}
		}
		return nil
	}, workflow.RegisterOptions{Name: "backlog"})
	require.NoError(t, orchestrator.Start())
	defer orchestrator.Stop()
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: refund.TaskQueue}, "backlog")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		d, err := c.DescribeWorkflow(ctx, run.GetID(), "")
		return err == nil && len(d.RawResponse.GetPendingActivities()) == 2*each
	}, 10*time.Second, 20*time.Millisecond)

	var mu sync.Mutex
	var order []string
	egress := worker.New(c, refund.EgressQueue("main"), worker.Options{
		MaxConcurrentActivityExecutionSize: 1,
		MaxConcurrentActivityTaskPollers:   1,
		DisableWorkflowWorker:              true,
	})
	egress.RegisterActivityWithOptions(func(_ context.Context, key string) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, key)
		return nil
	}, activity.RegisterOptions{Name: "call"})
	require.NoError(t, egress.Start())
	defer egress.Stop()
	require.NoError(t, run.Get(ctx, nil))

	require.Len(t, order, 2*each)
	firsts := 0
	for _, key := range order[:each] {
		if key == keys[0] {
			firsts++
		}
	}
	require.InDelta(t, each/2, firsts, 1, "the first half of the backlog was not shared: %v", order)
}

func TestTemporalThatCanNotStart(t *testing.T) {
	t.Parallel()
	_, err := StartTemporal(t.Context(), TemporalOptions{Binary: "/bin/false", Headless: true})
	require.ErrorContains(t, err, "it ended before it was ready")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	_, err = StartTemporal(t.Context(), TemporalOptions{Port: taken, Headless: true})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, strconv.Itoa(taken))
}
