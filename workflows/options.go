package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"refundgate/refund"
)

// HeartbeatTimeout is how long after its last sign of life a call's worker
// counts as gone. Calls heartbeat every two seconds.
const HeartbeatTimeout = 10 * time.Second

// bookkeepingOptions are for activities that only read and write the ledger:
// repeating them is harmless, so they are retried until the database answers.
func bookkeepingOptions(summary string) workflow.ActivityOptions {
	return workflow.ActivityOptions{
		TaskQueue:           refund.TaskQueue,
		StartToCloseTimeout: 15 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: 500 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 15 * time.Second,
		},
		Summary: short(summary),
	}
}

// egressOptions are for calls to the provider. Temporal never repeats one: a
// call has one attempt, and retry is the workflow's decision alone. The task
// waits in the queue until the case's deadline (left) and no longer; one that
// has been taken has its whole budget on top to end.
func egressOptions(in refund.CallInput, left, budget time.Duration) workflow.ActivityOptions {
	const margin = 15 * time.Second // for recording the outcome on a slow day
	total := left + budget + margin
	summary := fmt.Sprintf("%s %d (%s)", in.Key.Kind, in.Key.Seq, in.Origin)
	return workflow.ActivityOptions{
		TaskQueue:              refund.EgressQueue(in.Account),
		ScheduleToStartTimeout: left,
		ScheduleToCloseTimeout: total,
		StartToCloseTimeout:    total,
		HeartbeatTimeout:       HeartbeatTimeout,
		WaitForCancellation:    true,
		RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 1},
		Summary:                summary,
		// With fairness on, the server hands the two groups' tasks out in turn.
		Priority: temporal.Priority{FairnessKey: string(in.Origin.Group())},
	}
}
