package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// temporalServer is a dev server with every setting as it comes: unlike
// refundgate's own (internal/devenv) with the default number of partitions.
type temporalServer struct {
	*testsuite.DevServer
	client client.Client
	queues atomic.Int64 // numbers the task queues: each round has its own
}

// startTemporal starts the server with the CLI at path.
func startTemporal(ctx context.Context, path string) (*temporalServer, error) {
	server, err := testsuite.StartDevServer(ctx, testsuite.DevServerOptions{
		ExistingPath:  path,
		ClientOptions: &client.Options{Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler))},
		LogLevel:      "error",
		Stdout:        io.Discard,
		// What the user's own CLI is set up for is none of this server's business.
		ExtraArgs: []string{"--disable-config-file", "--disable-config-env"},
	})
	if err != nil {
		return nil, fmt.Errorf("starting Temporal: %w", err)
	}
	return &temporalServer{DevServer: server, client: server.Client()}, nil
}

// version returns the server's own version.
func (s *temporalServer) version(ctx context.Context) (string, error) {
	info, err := s.client.WorkflowService().GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	if err != nil {
		return "", fmt.Errorf("asking Temporal for its version: %w", err)
	}
	return info.ServerVersion, nil
}

// findTemporal returns the CLI on PATH, or the one that `make tools` built.
func findTemporal() string {
	if path, err := exec.LookPath("temporal"); err == nil {
		return path
	}
	return filepath.Join(moduleRoot, ".bin", "temporal")
}

func (s *temporalServer) throughTaskQueue(ctx context.Context, r *round) error {
	return s.run(ctx, r, worker.Options{TaskQueueActivitiesPerSecond: 1 / r.Interval.Seconds()})
}

func (s *temporalServer) throughWorker(ctx context.Context, r *round) error {
	return s.run(ctx, r, worker.Options{WorkerActivitiesPerSecond: 1 / r.Interval.Seconds()})
}

const callActivity = "call"

// run has a workflow schedule the calls as activities and, once all of them
// are waiting in the task queue, starts the worker that makes them.
func (s *temporalServer) run(ctx context.Context, r *round, opts worker.Options) error {
	queue := fmt.Sprintf("bench-%d", s.queues.Add(1))

	scheduling := worker.New(s.client, queue+"-workflow", worker.Options{})
	scheduling.RegisterWorkflow(callAll)
	if err := scheduling.Start(); err != nil {
		return fmt.Errorf("starting the workflow worker: %w", err)
	}
	defer scheduling.Stop()
	all, err := s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: queue, TaskQueue: queue + "-workflow"}, callAll, queue, r.Calls)
	if err != nil {
		return fmt.Errorf("starting the workflow: %w", err)
	}
	if err := s.waitForBacklog(ctx, queue, r.Calls); err != nil {
		return err
	}

	opts.DisableWorkflowWorker = true
	opts.MaxConcurrentActivityExecutionSize = maxInFlight
	calling := worker.New(s.client, queue, opts)
	httpClient := r.client()
	calling.RegisterActivityWithOptions(func(ctx context.Context) error {
		return r.post(ctx, httpClient.Do)
	}, activity.RegisterOptions{Name: callActivity})
	if err := calling.Start(); err != nil {
		return fmt.Errorf("starting the activity worker: %w", err)
	}
	defer calling.Stop()
	return all.Get(ctx, nil)
}

// callAll is the workflow: all calls at once.
func callAll(ctx workflow.Context, queue string, calls int) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           queue,
		StartToCloseTimeout: time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{MaximumAttempts: 1},
	})
	futures := make([]workflow.Future, calls)
	for i := range futures {
		futures[i] = workflow.ExecuteActivity(ctx, callActivity)
	}
	for _, f := range futures {
		if err := f.Get(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// backlogLimit bounds the wait for the backlog; the server counts it anew
// every few seconds.
const backlogLimit = 30 * time.Second

// waitForBacklog returns when that many activities wait in the queue, over all
// its partitions.
func (s *temporalServer) waitForBacklog(ctx context.Context, queue string, calls int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, backlogLimit, errors.New("it took too long"))
	defer cancel()
	for {
		described, err := s.client.DescribeTaskQueueEnhanced(ctx, client.DescribeTaskQueueEnhancedOptions{
			TaskQueue:      queue,
			TaskQueueTypes: []client.TaskQueueType{client.TaskQueueTypeActivity},
			ReportStats:    true,
		})
		if err != nil {
			return fmt.Errorf("waiting for the backlog of %s: %w", queue, err)
		}
		var waiting int64
		for _, version := range described.VersionsInfo { //nolint:staticcheck // the count over all partitions is nowhere else in the client
			if stats := version.TypesInfo[client.TaskQueueTypeActivity].Stats; stats != nil {
				waiting += stats.ApproximateBacklogCount
			}
		}
		if waiting >= int64(calls) {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for the backlog of %s, %d of %d there: %w", queue, waiting, calls, context.Cause(ctx))
		}
	}
}
