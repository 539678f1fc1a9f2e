package starter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"refundgate/internal/telemetry"
	"refundgate/refund"
)

const (
	// relayBatch is how many refunds a relay reads at a time.
	relayBatch = 100
	// startTimeout bounds one start.
	startTimeout = 5 * time.Second
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
	rounds  *rounds
}

// NewRelay returns a relay. It does nothing until Run.
func NewRelay(backlog Backlog, starter WorkflowStarter, log *slog.Logger) *Relay {
	r := &Relay{backlog: backlog, starter: starter, log: log}
	r.rounds = newRounds("workflows can't be started", r.pass, log)
	return r
}

// Wake tells the relay that there is something to start. It never blocks.
func (r *Relay) Wake() { r.rounds.awake() }

// Run relays until ctx ends. It goes on through any outage of Temporal or the
// database.
func (r *Relay) Run(ctx context.Context) { r.rounds.run(ctx) }

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

// start starts one refund's workflow. A run that is there is left to OpenCase,
// which marks the refund once its case is open: the run may be one that
// somebody started directly, with other content, and that will fail.
//
// A run that has ended is no reason not to start one: a refund that isn't
// marked as started needs a run by definition. It is of a corrected generation,
// which follows on a run that completed, or its only run was a direct start
// with content that was refused. If another relay was quicker and its run has
// ended already, ours finds the case closed and ends too.
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

// StartOptions returns how a refund's workflow is started, by whomever. While a
// run is there the start fails with a
// *serviceerror.WorkflowExecutionAlreadyStarted, which is as good. Runs that
// have ended don't matter: the ledger knows whether there is anything left to
// do, and a run that finds nothing ends at once.
//
// The summary and the search attributes are there from the first moment, so
// that an operator sees the refund even while no worker runs; the workflow
// keeps them up to date.
func StartOptions(rf refund.Refund) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{
		ID:                                       refund.WorkflowID(rf.ID),
		TaskQueue:                                refund.TaskQueue,
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
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

// restartOptions returns how the workflow of a refund is started that may have
// had one before: only the workflow itself can say where the case stands.
func restartOptions(rf refund.Refund) client.StartWorkflowOptions {
	opts := StartOptions(rf)
	opts.TypedSearchAttributes = temporal.NewSearchAttributes(accountKey.ValueSet(rf.Account), orderKey.ValueSet(rf.OrderID))
	opts.WorkflowIDConflictPolicy = enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING
	return opts
}
