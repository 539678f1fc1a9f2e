// Package worker wires the two roles of the long-running process. An
// orchestrator runs workflows and bookkeeping; any number of them may run. An
// egress makes the calls of one provider account; exactly one process does so
// at any time, and every other one stands by.
package worker

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"refundgate/activities"
	"refundgate/ledger"
	"refundgate/refund"
	"refundgate/workflows"
)

// Orchestrator runs Refund workflows and their bookkeeping.
type Orchestrator struct {
	Temporal client.Client
	Ledger   *ledger.Ledger
	// Policies maps each configured account to its policy.
	Policies map[string]refund.Policy
	// Exponents maps accounts to the exponents of their providers. Defaults to
	// those of ISO 4217.
	Exponents map[string]refund.Exponents
	Log       *slog.Logger
}

// Run works until ctx ends, then finishes what it has begun. If Temporal can't
// be reached at first, it waits.
func (o *Orchestrator) Run(ctx context.Context) error {
	if !awaitTemporal(ctx, o.Temporal, o.Log) {
		return nil // told to stop before there was anything to do
	}
	fatal := make(chan error, 1)
	w := worker.New(o.Temporal, refund.TaskQueue, worker.Options{
		WorkerStopTimeout: 10 * time.Second,
		OnFatalError:      func(err error) { fatal <- err },
	})
	w.RegisterWorkflowWithOptions(workflows.Refund, workflow.RegisterOptions{Name: refund.WorkflowType})
	book := &activities.Bookkeeping{Cases: o.Ledger, Calls: o.Ledger, Policies: o.Policies, Exponents: o.Exponents, Log: o.Log}
	for name, f := range map[string]any{
		refund.ActivityOpen:    book.OpenCase,
		refund.ActivitySave:    book.SaveCase,
		refund.ActivityAct:     book.ActOnCase,
		refund.ActivityRecord:  book.RecordCall,
		refund.ActivityResolve: book.ResolveCall,
	} {
		w.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name})
	}
	if err := w.Start(); err != nil {
		return fmt.Errorf("starting the orchestrator: %w", err)
	}
	defer w.Stop()
	o.Log.InfoContext(ctx, "orchestrator: running", "task_queue", refund.TaskQueue)
	select {
	case <-ctx.Done():
		return nil
	case err := <-fatal:
		return fmt.Errorf("the orchestrator stopped: %w", err)
	}
}
