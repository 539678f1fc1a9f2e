package starter

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"refundgate/ledger"
	"refundgate/refund"
)

// Client submits refunds by starting their workflows, for order services that
// hold a Temporal client anyway. It is the same operation as POST /v1/refunds
// for the same id, by another door: there is no admission, since what Temporal
// has taken can't be refused any more, and no token.
type Client struct {
	// Temporal is a client of the namespace that refundgate runs in.
	Temporal client.Client
	// Exponents maps accounts to the exponents of their providers, so that
	// Submit can refuse what they can't be asked for; an orchestrator that finds
	// it fails the workflow. Defaults to those of ISO 4217.
	Exponents map[string]refund.Exponents
}

// Submit makes the refund durable, in Temporal; an orchestrator opens its case.
// The same refund again changes nothing and is no error, however its first
// submission came. After any other error than these two it is safe, and needed,
// to submit again:
//
//   - *refund.InvalidError names every bad field;
//   - ledger.ErrConflict: a workflow of this id runs with other content.
//
// What can only be seen in the ledger, such as a conflict with a case that is
// closed, or a payment that would be exceeded, ends the workflow with a failure
// that names it. See Wait.
func (c Client) Submit(ctx context.Context, r refund.Refund) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if err := c.Exponents[r.Account].Validate(r); err != nil {
		return err
	}
	_, err := c.Temporal.ExecuteWorkflow(ctx, StartOptions(r), refund.WorkflowType, r)
	var running *serviceerror.WorkflowExecutionAlreadyStarted
	switch {
	case errors.As(err, &running):
		return c.compare(ctx, r, running.RunId)
	case err != nil:
		return fmt.Errorf("submitting refund %s: %w", r.ID, err)
	}
	return nil
}

// compare tells whether the run is of the same refund, by what it was started
// with. No worker is needed for that.
func (c Client) compare(ctx context.Context, r refund.Refund, runID string) error {
	history := c.Temporal.GetWorkflowHistory(ctx, refund.WorkflowID(r.ID), runID, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	if !history.HasNext() {
		return fmt.Errorf("submitting refund %s: its workflow has no history", r.ID)
	}
	event, err := history.Next()
	if err != nil {
		return fmt.Errorf("submitting refund %s: reading what its workflow was started with: %w", r.ID, err)
	}
	var there refund.Refund
	input := event.GetWorkflowExecutionStartedEventAttributes().GetInput()
	if err := converter.GetDefaultDataConverter().FromPayloads(input, &there); err != nil || there.Fingerprint() != r.Fingerprint() {
		return fmt.Errorf("submitting refund %s: %w", r.ID, ledger.ErrConflict)
	}
	return nil
}

// Wait waits until the workflow of a submitted refund ends, which is when its
// case is closed, and returns how it ended. It fails if the workflow does: the
// refund was refused by the ledger.
func (c Client) Wait(ctx context.Context, refundID string) (refund.Closing, error) {
	var closed refund.Closing
	if err := c.Temporal.GetWorkflow(ctx, refund.WorkflowID(refundID), "").Get(ctx, &closed); err != nil {
		return refund.Closing{}, fmt.Errorf("waiting for refund %s: %w", refundID, err)
	}
	return closed, nil
}
