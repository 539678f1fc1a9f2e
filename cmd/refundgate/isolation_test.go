package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// A8: one account's provider hangs, until its ten places are taken, and when
// they have been for a while its breaker opens. The other account, served by
// the same process, doesn't notice either.
func TestAccountsAreIsolated(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	sick, err := standin.New(standin.Options{})
	require.NoError(t, err)
	require.NoError(t, sick.Start("127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, sick.Close()) })
	require.NoError(t, standin.NewClient(sick.URL()).SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.Hang}}))
	// Hanging calls end after 3 s, ten at a time: the twentieth has about 8 s
	// after the first start.
	s.configure(map[string]string{"well": s.provider.URL(), "sick": sick.URL()}, "defaults: {breaker: {window: 20}}\n")
	s.start("serve").waitFor("intake:")
	const n = 50
	var well []string
	for i := range n {
		s.submit(fmt.Sprintf("sick-%02d", i), "sick")
		well = append(well, fmt.Sprintf("well-%02d", i))
		s.submit(well[i], "well")
	}
	// The egress finds all of it in its queues, so that nothing but the gates
	// sets the pace.
	s.start("worker", "--roles", "orchestrator")
	s.awaitBacklog("sick", n)
	s.awaitBacklog("well", n)
	worker := s.start("worker", "--roles", "egress")
	worker.waitFor("egress: owner, account ")

	for _, id := range well {
		c := s.settled(id, time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status)
		require.Equal(t, 1, c.Attempts)
	}
	require.Contains(t, worker.log(), `"event":"breaker.transition","account":"sick","from":"closed","to":"open"`, "the sick account isn't sick enough")
	calls := s.starts("well")
	require.Len(t, calls, n)
	span := time.Duration(calls[n-1].StartedMono - calls[0].StartedMono)
	require.LessOrEqual(t, span, n*200*time.Millisecond*13/10, "the sick account slows the other")
	s.requireMatched(well...)
	s.requireSpaced("well")
	record, err := standin.NewClient(sick.URL()).Record(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, record)
	for _, r := range record {
		require.LessOrEqual(t, r.InFlight, 11) // an answer given up is noticed there a moment later
	}
}

// awaitBacklog waits until n calls wait in the account's task queue.
func (s *system) awaitBacklog(account string, n int64) {
	s.t.Helper()
	temporal := s.dial()
	require.Eventually(s.t, func() bool {
		queue, err := temporal.WorkflowService().DescribeTaskQueue(s.t.Context(), &workflowservice.DescribeTaskQueueRequest{
			Namespace: s.ns, TaskQueue: &taskqueue.TaskQueue{Name: refund.EgressQueue(account)},
			TaskQueueType: enums.TASK_QUEUE_TYPE_ACTIVITY, ReportStats: true,
		})
		return err == nil && queue.GetStats().GetApproximateBacklogCount() >= n
	}, time.Minute, 100*time.Millisecond, "%d calls waiting for account %s", n, account)
}
