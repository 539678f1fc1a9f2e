// Package activities is what the Refund workflow does to the world: calls to
// the provider, on the account's egress queue, and the case's bookkeeping, on
// the queue that all orchestrators share.
//
// A call reports what became of it as a result, whatever that is. An error from
// a call's activity means that this execution can't tell, and that ResolveCall
// has to ask the ledger. An error from a bookkeeping activity means that the
// ledger could not be asked; Temporal repeats the activity until it can.
package activities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/refund"
)

// Cases is the part of the ledger that keeps cases.
type Cases interface {
	Case(ctx context.Context, refundID string) (refund.Case, error)
	Accept(ctx context.Context, s ledger.Submission) (refund.Case, bool, error)
	MarkStarted(ctx context.Context, refundID string) error
	Save(ctx context.Context, change ledger.Change) error
	Act(ctx context.Context, act ledger.Act) (refund.Case, error)
}

// CallRecords is the part of the ledger that keeps the outcomes of calls.
type CallRecords interface {
	Call(ctx context.Context, key refund.CallKey) (refund.Call, error)
	Complete(ctx context.Context, call refund.Call) error
	Abandon(ctx context.Context, call refund.Call) (refund.Call, error)
}

// Bookkeeping holds the activities that read and write the ledger.
type Bookkeeping struct {
	Cases Cases
	Calls CallRecords
	// Policies maps each configured account to its policy.
	Policies map[string]refund.Policy
	// Exponents maps accounts to the exponents of their providers. Defaults to
	// those of ISO 4217.
	Exponents map[string]refund.Exponents
	Log       *slog.Logger
}

// OpenCase returns the case of a refund with everything that earlier runs
// recorded, and the policy to decide by. A refund that the ledger doesn't know
// yet, because its workflow was started directly, is accepted here by the same
// rules as at the intake. What can't become a case is an error that isn't
// retried, and nothing was sent. A case is never given up: if this worker
// can't serve it, the error is one that Temporal retries until a worker can.
func (b *Bookkeeping) OpenCase(ctx context.Context, in refund.OpenInput) (refund.OpenResult, error) {
	r := in.Refund
	if err := r.Validate(); err != nil {
		return refund.OpenResult{}, temporal.NewNonRetryableApplicationError(err.Error(), refund.ErrorTypeInvalid, nil)
	}
	if want := refund.WorkflowID(r.ID); in.WorkflowID != "" && in.WorkflowID != want {
		// Two workflows of one refund would both drive it.
		return refund.OpenResult{}, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("the workflow of refund %s has to have the id %s", r.ID, want), refund.ErrorTypeInvalid, nil)
	}
	policy, ok := b.Policies[r.Account]
	if !ok {
		return refund.OpenResult{}, b.notConfigured(ctx, r)
	}
	about := []slog.Attr{slog.String(telemetry.KeyRefundID, r.ID), slog.String(telemetry.KeyAccount, r.Account), slog.String("door", "workflow")}
	_, created, err := b.Cases.Accept(ctx, ledger.Submission{
		Refund: r, Deadline: policy.Deadline, Admit: func() error { return b.Exponents[r.Account].Validate(r) },
	})
	var invalid *refund.InvalidError
	var exceeded *ledger.PaymentExceededError
	var mismatch *ledger.PaymentMismatchError
	switch {
	case errors.Is(err, ledger.ErrConflict):
		telemetry.Event(ctx, b.Log, slog.LevelWarn, telemetry.EventRefundConflict, about...)
		return refund.OpenResult{}, temporal.NewNonRetryableApplicationError(err.Error(), refund.ErrorTypeConflict, nil)
	case errors.As(err, &invalid), errors.As(err, &exceeded), errors.As(err, &mismatch):
		return refund.OpenResult{}, temporal.NewNonRetryableApplicationError(err.Error(), refund.ErrorTypeInvalid, nil)
	case err != nil:
		return refund.OpenResult{}, fmt.Errorf("opening the case: %w", err)
	}
	if created {
		telemetry.Event(ctx, b.Log, slog.LevelInfo, telemetry.EventRefundAccepted, about...)
	}
	// The refund has a workflow that owns it; no relay need start one.
	if err := b.Cases.MarkStarted(ctx, r.ID); err != nil {
		return refund.OpenResult{}, fmt.Errorf("opening the case: %w", err)
	}
	c, err := b.Cases.Case(ctx, r.ID)
	if err != nil {
		return refund.OpenResult{}, fmt.Errorf("opening the case: %w", err)
	}
	return refund.OpenResult{Case: c, Policy: policy}, nil
}

// notConfigured is the error for an account that this worker doesn't know. An
// accepted refund waits for a worker that does (a configuration is being rolled
// out, or has lost an account); what isn't accepted yet is refused.
func (b *Bookkeeping) notConfigured(ctx context.Context, r refund.Refund) error {
	err := fmt.Errorf("account %q is not configured on this worker", r.Account)
	switch _, caseErr := b.Cases.Case(ctx, r.ID); {
	case errors.Is(caseErr, ledger.ErrNotFound):
		return temporal.NewNonRetryableApplicationError(err.Error(), refund.ErrorTypeInvalid, nil)
	case caseErr != nil:
		return fmt.Errorf("opening the case: %w", caseErr)
	}
	return err
}

// SaveCase records where a case stands.
func (b *Bookkeeping) SaveCase(ctx context.Context, in refund.SaveInput) (refund.SaveResult, error) {
	err := b.Cases.Save(ctx, ledger.Change{
		RefundID: in.RefundID, Status: in.Status, ReviewReason: in.ReviewReason, ProviderRefundID: in.ProviderRefundID,
		Generation: in.Generation, Was: in.Was, Reopen: in.Reopen,
		Event: &refund.Event{
			// The time of the first try, so that a repeat writes the same row.
			At: activity.GetInfo(ctx).ScheduledTime, Actor: "workflow",
			Action: "status." + string(in.Status), Detail: in.Detail,
		},
	})
	if errors.Is(err, ledger.ErrClosed) {
		return refund.SaveResult{Superseded: true}, nil
	}
	if err != nil {
		return refund.SaveResult{}, fmt.Errorf("saving the case: %w", err)
	}
	about := []slog.Attr{slog.String(telemetry.KeyRefundID, in.RefundID), slog.String(telemetry.KeyAccount, in.Account)}
	switch {
	case in.Status == refund.StatusReview:
		telemetry.Event(ctx, b.Log, slog.LevelWarn, telemetry.EventRefundReview, append(about, slog.String("reason", string(in.ReviewReason)))...)
	case in.Status.Final():
		telemetry.Event(ctx, b.Log, slog.LevelInfo, telemetry.EventRefundSettled, append(about, slog.String("status", string(in.Status)))...)
	}
	return refund.SaveResult{}, nil
}

// ActOnCase carries out what a person decided about a case, together with its
// line on the trail. What the case, as it is, doesn't allow is a result, not an
// error: the person has to hear of it.
func (b *Bookkeeping) ActOnCase(ctx context.Context, in refund.ActInput) (refund.ActResult, error) {
	c, err := b.Cases.Act(ctx, ledger.Act{
		RefundID: in.RefundID, Account: in.Account, ID: in.ID, Action: in.Action, Input: in.Input,
		// The time of the first try, so that a repeat writes the same row.
		At:      activity.GetInfo(ctx).ScheduledTime,
		Refused: in.Refused,
	})
	var refused *ledger.ActionRefusedError
	var invalid *refund.InvalidError
	switch {
	case errors.As(err, &refused):
		return refund.ActResult{Refused: refused.Why}, nil
	case errors.As(err, &invalid):
		return refund.ActResult{Refused: invalid.Error()}, nil
	case err != nil:
		return refund.ActResult{}, fmt.Errorf("recording the action: %w", err)
	}
	if in.Action == refund.ActionSettle && c.Status.Final() {
		telemetry.Event(ctx, b.Log, slog.LevelInfo, telemetry.EventRefundSettled, slog.String(telemetry.KeyRefundID, in.RefundID),
			slog.String(telemetry.KeyAccount, in.Account), slog.String("status", string(c.Status)), slog.String("by", "person"))
	}
	return refund.ActResult{Status: c.Status, Version: c.Version}, nil
}

// RecordCall writes an outcome that the egress could not write itself.
func (b *Bookkeeping) RecordCall(ctx context.Context, call refund.Call) error {
	if err := b.Calls.Complete(ctx, call); err != nil {
		return fmt.Errorf("recording the call: %w", err)
	}
	return nil
}

// ResolveCall finds out what became of a call whose activity ended without a
// result, and makes sure that it can't be sent any more if it wasn't.
func (b *Bookkeeping) ResolveCall(ctx context.Context, in refund.CallInput) (refund.CallResult, error) {
	call, err := b.Calls.Abandon(ctx, refund.Call{Key: in.Key, Origin: in.Origin, Account: in.Account, DecisionID: in.DecisionID})
	if err != nil {
		return refund.CallResult{}, fmt.Errorf("resolving the call: %w", err)
	}
	return refund.CallResult{Call: call, Repeat: true}, nil
}
