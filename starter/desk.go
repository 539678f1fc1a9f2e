package starter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"refundgate/ledger"
	"refundgate/refund"
)

// actTimeout is the default of Desk.Timeout.
const actTimeout = 10 * time.Second

// maxRuns bounds how many runs an action is offered to that end before they
// take it.
const maxRuns = 3

// updateOutlivedRun is the type of the error with which Temporal fails an
// accepted update whose run ends.
const updateOutlivedRun = "AcceptedUpdateCompletedWorkflow"

// DeskLedger is what the desk needs of the ledger. See ledger.Ledger.
type DeskLedger interface {
	Case(ctx context.Context, refundID string) (refund.Case, error)
	Act(ctx context.Context, a ledger.Act) (refund.Case, error)
	Correct(ctx context.Context, refundID, id string, c refund.Correction, deadline time.Duration, at time.Time) (refund.Case, error)
}

// Updater updates workflows; a Temporal client.
type Updater interface {
	NewWithStartWorkflowOperation(opts client.StartWorkflowOptions, workflow any, args ...any) client.WithStartWorkflowOperation
	UpdateWithStartWorkflow(ctx context.Context, opts client.UpdateWithStartWorkflowOptions) (client.WorkflowUpdateHandle, error)
}

// Desk carries out what people decide about cases, for the API and the command
// line alike. An open case belongs to its workflow, so the action goes there,
// as an update that starts the workflow if it isn't running; a closed one is
// the ledger's. Either way it ends in the same transaction of the ledger, under
// the id that the caller gave it: the same action under the same id again is
// not carried out twice.
type Desk struct {
	Ledger   DeskLedger
	Temporal Updater
	// Deadline is how long after its correction a case goes to review.
	Deadline time.Duration
	// Exponents maps accounts to the exponents of their providers. Defaults to
	// those of ISO 4217.
	Exponents map[string]refund.Exponents
	// Timeout bounds what an action waits for the case's workflow. People wait
	// for it; an orchestrator that runs needs a fraction of a second. Defaults
	// to 10s.
	Timeout time.Duration
	// Wake is called when a workflow is to be started; usually Relay.Wake.
	// Defaults to nothing: a relay finds it by itself within a second.
	Wake func()
}

// UncertainError says that the case's workflow did not answer: Temporal is away
// or no orchestrator runs. Nothing is recorded as far as the ledger could be
// asked, but the action may be on its way: only under the same id is it safe to
// try again.
type UncertainError struct {
	ID  string // of the action
	Err error
}

func (e *UncertainError) Error() string {
	return fmt.Sprintf("it is not certain whether action %s was recorded: %v", e.ID, e.Err)
}

func (e *UncertainError) Unwrap() error { return e.Err }

// Act carries out an action other than ActionCorrect, and returns the case
// after it. id names the action for good; see refund.ValidateID.
//
// Errors: *refund.InvalidError, ledger.ErrNotFound, *ledger.ActionRefusedError,
// *UncertainError; any other is the database's, and nothing was done then.
func (d *Desk) Act(ctx context.Context, refundID, id string, action refund.Action, in refund.ActionInput) (refund.Case, error) {
	if err := in.Validate(action); err != nil {
		return refund.Case{}, err
	}
	for try := 1; ; try++ {
		c, err := d.Ledger.Case(ctx, refundID)
		if err != nil {
			return refund.Case{}, err
		}
		if !c.Open() || decided(c, id) {
			// The ledger alone says what a closed case allows, and whether a
			// repeat is one.
			return d.record(ctx, c, id, action, in)
		}
		err = d.update(ctx, c.Refund, id, action, in)
		if errors.Is(err, errRunEnded) && try < maxRuns {
			continue // the case may be closed by now
		}
		return d.after(ctx, refundID, id, err)
	}
}

// Correct starts the next generation of a rejected refund and returns its case.
// The errors are those of Act and of ledger.Accept.
func (d *Desk) Correct(ctx context.Context, refundID, id string, correction refund.Correction) (refund.Case, error) {
	if correction.Amount != nil {
		c, err := d.Ledger.Case(ctx, refundID)
		if err != nil {
			return refund.Case{}, err
		}
		c.Refund.Amount = *correction.Amount
		if err := d.Exponents[c.Refund.Account].Validate(c.Refund); err != nil {
			return refund.Case{}, err
		}
	}
	c, err := d.Ledger.Correct(ctx, refundID, id, correction, d.Deadline, time.Now())
	if err != nil {
		return refund.Case{}, err
	}
	if d.Wake != nil {
		d.Wake()
	}
	return c, nil
}

func decided(c refund.Case, id string) bool {
	return slices.ContainsFunc(c.Decisions, func(d refund.Decision) bool { return d.ID == id })
}

// record has the ledger carry out the action directly.
func (d *Desk) record(ctx context.Context, c refund.Case, id string, action refund.Action, in refund.ActionInput) (refund.Case, error) {
	return d.Ledger.Act(ctx, ledger.Act{RefundID: c.Refund.ID, Account: c.Refund.Account, ID: id, Action: action, Input: in, At: time.Now()})
}

// errRunEnded says that the run that was to take the action ended first.
var errRunEnded = errors.New("the workflow's run ended before it took the action")

// update has the case's workflow carry out the action.
func (d *Desk) update(ctx context.Context, rf refund.Refund, id string, action refund.Action, in refund.ActionInput) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(d.Timeout, actTimeout))
	defer cancel()
	opts := restartOptions(rf)
	handle, err := d.Temporal.UpdateWithStartWorkflow(ctx, client.UpdateWithStartWorkflowOptions{
		StartWorkflowOperation: d.Temporal.NewWithStartWorkflowOperation(opts, refund.WorkflowType, rf),
		UpdateOptions: client.UpdateWorkflowOptions{
			UpdateID: id, WorkflowID: opts.ID, UpdateName: string(action), Args: []any{in},
			WaitForStage: client.WorkflowUpdateStageCompleted,
		},
	})
	if err == nil {
		err = handle.Get(ctx, nil)
	}
	var app *temporal.ApplicationError
	var gone *serviceerror.NotFound
	switch {
	case errors.As(err, &app) && (app.Type() == refund.ErrorTypeRefused || app.Type() == refund.ErrorTypeInvalid):
		return &ledger.ActionRefusedError{Why: app.Message()}
	case errors.As(err, &app) && app.Type() == updateOutlivedRun, errors.As(err, &gone):
		return fmt.Errorf("%w: %w", errRunEnded, err)
	}
	return err
}

// after returns the case after the action went to the workflow, which answered
// with err.
func (d *Desk) after(ctx context.Context, refundID, id string, err error) (refund.Case, error) {
	var refused *ledger.ActionRefusedError
	if errors.As(err, &refused) {
		return refund.Case{}, refused
	}
	c, readErr := d.Ledger.Case(ctx, refundID)
	switch {
	case readErr != nil:
		return refund.Case{}, &UncertainError{id, errors.Join(err, readErr)}
	case err != nil && !decided(c, id): // done, and only the answer lost, is done
		return refund.Case{}, &UncertainError{id, err}
	}
	return c, nil
}
