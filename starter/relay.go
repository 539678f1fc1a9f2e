package starter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"refundgate/internal/telemetry"
	"refundgate/refund"
)

const (
	// relayInterval is how often a relay looks for refunds that it was not
	// woken for: those of another process, or of a time when Temporal was down.
	relayInterval = time.Second
	// relayBatch is how many refunds a relay reads at a time.
	relayBatch = 100
	// startTimeout bounds one start.
	startTimeout = 5 * time.Second
	// While nothing can be started, passes are this far apart. The longest
	// wait is also what a recovery costs the refunds that waited.
	minRelayBackoff = time.Second
	maxRelayBackoff = 5 * time.Second
)

// Backlog is what was accepted and not started yet. See ledger.Ledger.
type Backlog interface {
	Unstarted(ctx context.Context, limit int) ([]refund.Refund, error)
	MarkStarted(ctx context.Context, refundID string) error
}

// WorkflowStarter starts workflows; a Temporal client.
type WorkflowStarter interface {
	ExecuteWorkflow(ctx context.Context, opts client.StartWorkflowOptions, workflow any, args ...any) (client.WorkflowRun, error)
}

// Relay starts the workflow of every refund that was accepted, whoever
// accepted it and whenever. A start is idempotent by its workflow id, so any
// number of relays may run; what one starts and cannot mark, OpenCase marks.
type Relay struct {
	backlog Backlog
	starter WorkflowStarter
	log     *slog.Logger
	wake    chan struct{}
}

// NewRelay returns a relay. It does nothing until Run.
func NewRelay(backlog Backlog, starter WorkflowStarter, log *slog.Logger) *Relay {
	return &Relay{backlog: backlog, starter: starter, log: log, wake: make(chan struct{}, 1)}
}

// Wake tells the relay that there is something to start. It never blocks.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // it is awake, or about to be
	}
}

// Run relays until ctx ends. It goes on through any outage of Temporal or the
// database.
func (r *Relay) Run(ctx context.Context) {
	for failures := 0; ; {
		if err := r.pass(ctx); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			r.log.WarnContext(ctx, "workflows can't be started; trying again", "failures", failures, "error", err)
		}
		if !r.rest(ctx, failures) {
			return
		}
	}
}

// rest waits until the next pass is due and tells whether there is one.
// During an outage a wake-up does not shorten the wait.
func (r *Relay) rest(ctx context.Context, failures int) bool {
	wait, wake := relayInterval, r.wake
	if failures > 0 {
		wait, wake = relayBackoff(failures), nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// relayBackoff doubles with every failed pass; jitter keeps several relays
// from knocking together.
func relayBackoff(failures int) time.Duration {
	wait := maxRelayBackoff
	if failures < 4 {
		wait = min(wait, minRelayBackoff<<(failures-1))
	}
	return wait - rand.N(wait/4)
}

// pass starts everything that is not started, the oldest first. It ends early
// when Temporal or the database is away. A refund that Temporal refuses does
// not hold up those behind it.
func (r *Relay) pass(ctx context.Context) error {
	for {
		batch, err := r.backlog.Unstarted(ctx, relayBatch)
		if err != nil {
			return fmt.Errorf("reading what is to be started: %w", err)
		}
		var refused []error
		progress := false
		for _, rf := range batch {
			marked, err := r.start(ctx, rf)
			progress = progress || marked
			var invalid *serviceerror.InvalidArgument
			switch {
			case errors.As(err, &invalid):
				refused = append(refused, err)
			case err != nil:
				return err
			}
		}
		if len(refused) > 0 {
			return errors.Join(refused...)
		}
		if len(batch) < relayBatch || !progress {
			return nil
		}
	}
}

// start starts one refund's workflow. A run that was there before is left to
// OpenCase, which marks the refund once its case is open: the run may be one
// that somebody started directly, with other content, and that will fail.
func (r *Relay) start(ctx context.Context, rf refund.Refund) (marked bool, err error) {
	startCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	_, err = r.starter.ExecuteWorkflow(startCtx, StartOptions(rf), refund.WorkflowType, rf)
	var there *serviceerror.WorkflowExecutionAlreadyStarted
	if errors.As(err, &there) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("starting the workflow of refund %s: %w", rf.ID, err)
	}
	if err := r.backlog.MarkStarted(ctx, rf.ID); err != nil {
		return false, fmt.Errorf("marking refund %s as started: %w", rf.ID, err)
	}
	r.log.DebugContext(ctx, "workflow started", telemetry.KeyRefundID, rf.ID, telemetry.KeyAccount, rf.Account)
	return true, nil
}

var (
	statusKey   = temporal.NewSearchAttributeKeyKeyword(refund.AttributeStatus)
	accountKey  = temporal.NewSearchAttributeKeyKeyword(refund.AttributeAccount)
	orderKey    = temporal.NewSearchAttributeKeyKeyword(refund.AttributeOrder)
	attemptsKey = temporal.NewSearchAttributeKeyInt64(refund.AttributeTries)
)

// StartOptions returns how a refund's workflow is started, by whomever. If it
// was started before, the start fails with a
// *serviceerror.WorkflowExecutionAlreadyStarted, which is as good. The
// summary and the search attributes are there from the first moment, so that
// an operator sees the refund even while no worker runs; the workflow keeps
// them up to date.
func StartOptions(rf refund.Refund) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{
		ID:                       refund.WorkflowID(rf.ID),
		TaskQueue:                refund.TaskQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		// A run that failed had no case: it was a direct start with content
		// that was refused, and must not keep an accepted refund from running.
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		StaticSummary:                            fmt.Sprintf("Refund %s of payment %s, order %s, account %s", rf.Amount, rf.PaymentID, rf.OrderID, rf.Account),
		TypedSearchAttributes: temporal.NewSearchAttributes(
			statusKey.ValueSet(string(refund.StatusQueued)),
			accountKey.ValueSet(rf.Account),
			orderKey.ValueSet(rf.OrderID),
			attemptsKey.ValueSet(0),
		),
	}
}
