package activities

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

func newBookkeeping(t *testing.T) (*Bookkeeping, *ledger.Ledger, *testenv.Logs) {
	t.Helper()
	dsn := testenv.MariaDB(t)
	require.NoError(t, ledger.Migrate(t.Context(), dsn))
	l, logs := openLedger(t, dsn), &testenv.Logs{}
	return &Bookkeeping{
		Cases: l, Calls: l, Policies: map[string]refund.Policy{account: refund.DefaultPolicy()},
		Log: telemetry.NewLogger(logs, telemetry.FormatJSON, slog.LevelDebug),
	}, l, logs
}

func (b *Bookkeeping) open(r refund.Refund) (refund.OpenResult, error) {
	return runActivity(newEnv(), b.OpenCase, refund.OpenInput{Refund: r})
}

func (b *Bookkeeping) save(in refund.SaveInput) (refund.SaveResult, error) {
	return runActivity(newEnv(), b.SaveCase, in)
}

func recordCall(b *Bookkeeping, call refund.Call) error {
	env := newEnv()
	env.RegisterActivity(b.RecordCall)
	_, err := env.ExecuteActivity(b.RecordCall, call)
	return err
}

// requireFinalError holds err to being one that Temporal doesn't retry.
func requireFinalError(t *testing.T, err error, errorType string) {
	t.Helper()
	var application *temporal.ApplicationError
	require.ErrorAs(t, err, &application)
	require.True(t, application.NonRetryable(), "it would be retried for ever")
	require.Equal(t, errorType, application.Type())
	require.NotContains(t, err.Error(), reason)
}

// A directly started workflow's refund is accepted like any other.
func TestOpenCase_NewThenExisting(t *testing.T) {
	t.Parallel()
	b, l, logs := newBookkeeping(t)

	res, err := b.open(newRefund("r-1"))
	require.NoError(t, err)
	require.Equal(t, refund.DefaultPolicy(), res.Policy)
	require.Equal(t, refund.StatusQueued, res.Case.Status)
	require.Equal(t, newRefund("r-1"), res.Case.Refund)
	require.Equal(t, 15*time.Minute, res.Case.DeadlineAt.Sub(res.Case.AcceptedAt))
	accepted := logs.Events(t, telemetry.EventRefundAccepted)
	require.Len(t, accepted, 1)
	require.Equal(t, "r-1", accepted[0]["refund_id"])
	require.Equal(t, account, accepted[0]["account"])
	left, err := l.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, left, "a relay would start a second workflow")

	// A later run finds what the earlier one did.
	in := refund.CallInput{Key: refund.CallKey{RefundID: "r-1", Generation: 1, Kind: refund.KindSubmit, Seq: 1}, Origin: refund.OriginFirst, Account: account}
	_, err = l.Abandon(t.Context(), newCall(in))
	require.NoError(t, err)
	again, err := b.open(newRefund("r-1"))
	require.NoError(t, err)
	require.Len(t, again.Case.Calls, 1)
	require.Equal(t, res.Case.DeadlineAt, again.Case.DeadlineAt, "the deadline hangs on the acceptance")
	require.Len(t, logs.Events(t, telemetry.EventRefundAccepted), 1)
	require.NotContains(t, logs.String(), reason)
}

func TestOpenCase_Refused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change    func(*refund.Refund)
		errorType string
		event     string
	}{
		"other content": {
			change:    func(r *refund.Refund) { r.ID, r.Amount.Value = "r-1", 1 },
			errorType: refund.ErrorTypeConflict,
			event:     telemetry.EventRefundConflict,
		},
		"invalid":         {change: func(r *refund.Refund) { r.Amount.Value = 0 }, errorType: refund.ErrorTypeInvalid},
		"unknown account": {change: func(r *refund.Refund) { r.Account = "nobody" }, errorType: refund.ErrorTypeInvalid},
		"more than is left of the payment": {
			change:    func(r *refund.Refund) { r.PaymentID, r.Amount.Value = "pay-r-1", 751 },
			errorType: refund.ErrorTypeInvalid,
		},
		"another payment amount": {
			change: func(r *refund.Refund) {
				r.PaymentID, r.PaymentAmount = "pay-r-1", &refund.Money{Value: 9000, Currency: "TWD"}
			},
			errorType: refund.ErrorTypeInvalid,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, l, logs := newBookkeeping(t)
			first := newRefund("r-1")
			first.PaymentAmount = &refund.Money{Value: 2000, Currency: "TWD"}
			_, err := b.open(first)
			require.NoError(t, err)
			bad := newRefund("r-2")
			tc.change(&bad)

			_, err = b.open(bad)

			requireFinalError(t, err, tc.errorType)
			page, err := l.List(t.Context(), ledger.Filter{})
			require.NoError(t, err)
			require.Len(t, page.Cases, 1, "nothing was accepted")
			require.Equal(t, first, page.Cases[0].Refund)
			if tc.event != "" {
				require.Len(t, logs.Events(t, tc.event), 1)
			}
		})
	}
}

// CASE 29: what the provider can't be asked for is refused where a workflow was
// started directly too. An accepted case goes on whatever the configuration says
// by now.
func TestCase29_OpenCaseRefusesExcessPrecision(t *testing.T) {
	t.Parallel()
	b, l, _ := newBookkeeping(t)
	_, err := b.open(newRefund("r-1"))
	require.NoError(t, err)
	b.Exponents = map[string]refund.Exponents{account: {"TWD": 0}}

	_, err = b.open(newRefund("r-2"))
	requireFinalError(t, err, refund.ErrorTypeInvalid)
	require.ErrorContains(t, err, "invalid refund: amount.value: must be a multiple of 100: the account's provider takes nothing smaller than 1.00 TWD")
	_, err = l.Case(t.Context(), "r-2")
	require.ErrorIs(t, err, ledger.ErrNotFound)
	whole := newRefund("r-3")
	whole.Amount.Value = 1300
	_, err = b.open(whole)
	require.NoError(t, err)
	_, err = b.open(newRefund("r-1"))
	require.NoError(t, err)
}

// An accepted refund is not given up because this worker's configuration
// lacks its account.
func TestOpenCase_AcceptedRefundOfAnUnconfiguredAccountWaits(t *testing.T) {
	t.Parallel()
	b, _, _ := newBookkeeping(t)
	_, err := b.open(newRefund("r-1"))
	require.NoError(t, err)
	policy := b.Policies[account]
	delete(b.Policies, account)

	_, err = b.open(newRefund("r-1"))
	require.ErrorContains(t, err, "not configured on this worker")
	var application *temporal.ApplicationError
	require.ErrorAs(t, err, &application)
	require.False(t, application.NonRetryable(), "the case would be lost")

	b.Policies[account] = policy
	_, err = b.open(newRefund("r-1"))
	require.NoError(t, err)
}

func TestOpenCase_LedgerAway(t *testing.T) {
	t.Parallel()
	b, l, _ := newBookkeeping(t)
	require.NoError(t, l.Close())
	other := newRefund("r-2")
	other.Account = "nobody"
	for _, r := range []refund.Refund{newRefund("r-1"), other} {
		_, err := b.open(r)
		var application *temporal.ApplicationError
		require.ErrorAs(t, err, &application)
		require.False(t, application.NonRetryable())
	}
}

func TestSaveCase(t *testing.T) {
	t.Parallel()
	b, l, logs := newBookkeeping(t)
	_, err := b.open(newRefund("r-1"))
	require.NoError(t, err)

	_, err = b.save(refund.SaveInput{RefundID: "r-1", Status: refund.StatusReview, ReviewReason: refund.ReviewChecks, Detail: "all checks are used"})
	require.NoError(t, err)
	review := logs.Events(t, telemetry.EventRefundReview)
	require.Len(t, review, 1)
	require.Equal(t, "r-1", review[0]["refund_id"])
	require.EqualValues(t, refund.ReviewChecks, review[0]["reason"])

	res, err := b.save(refund.SaveInput{RefundID: "r-1", Status: refund.StatusSucceeded, ProviderRefundID: "re_1", Detail: "found"})
	require.NoError(t, err)
	require.False(t, res.Superseded)
	settled := logs.Events(t, telemetry.EventRefundSettled)
	require.Len(t, settled, 1)
	require.EqualValues(t, refund.StatusSucceeded, settled[0]["status"])

	// A final status stands against a later one.
	res, err = b.save(refund.SaveInput{RefundID: "r-1", Status: refund.StatusRejected, Detail: "late"})
	require.NoError(t, err)
	require.True(t, res.Superseded)
	require.Len(t, logs.Events(t, telemetry.EventRefundSettled), 1)

	c, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, refund.StatusSucceeded, c.Status)
	require.Equal(t, "re_1", c.ProviderRefundID)
	require.Equal(t, []string{ledger.ActionAccepted, "status.review", "status.succeeded"}, actions(t, l, "r-1"))
}

// savesThenFails is a ledger whose answer to the first Save is lost.
type savesThenFails struct {
	Cases
	tries int
}

func (s *savesThenFails) Save(ctx context.Context, change ledger.Change) error {
	err := s.Cases.Save(ctx, change)
	if s.tries++; s.tries == 1 {
		return errBroken
	}
	return err
}

// Temporal repeats the activity after its first try was carried out unnoticed:
// the trail has one line.
func TestSaveCase_RetryLeavesOneEvent(t *testing.T) {
	t.Parallel()
	b, l, _ := newBookkeeping(t)
	_, err := b.open(newRefund("r-1"))
	require.NoError(t, err)
	cases := &savesThenFails{Cases: l}
	b.Cases = cases

	hostPort, namespace := testenv.Temporal(t)
	c, err := client.NewLazyClient(client.Options{
		HostPort: hostPort, Namespace: namespace, Logger: telemetry.TemporalLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	defer c.Close()
	w := worker.New(c, refund.TaskQueue, worker.Options{})
	w.RegisterActivityWithOptions(b.SaveCase, activity.RegisterOptions{Name: refund.ActivitySave})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
			StartToCloseTimeout: time.Minute,
			RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 10 * time.Millisecond},
		})
		in := refund.SaveInput{RefundID: "r-1", Status: refund.StatusUnknown, Detail: "checking"}
		return workflow.ExecuteActivity(ctx, refund.ActivitySave, in).Get(ctx, nil)
	}, workflow.RegisterOptions{Name: "save"})
	require.NoError(t, w.Start())
	defer w.Stop()
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: refund.TaskQueue}, "save")
	require.NoError(t, err)
	require.NoError(t, run.Get(t.Context(), nil))

	require.Equal(t, 2, cases.tries)
	require.Equal(t, []string{ledger.ActionAccepted, "status.unknown"}, actions(t, l, "r-1"))
}

func actions(t *testing.T, l *ledger.Ledger, refundID string) []string {
	t.Helper()
	events, err := l.Events(t.Context(), refundID)
	require.NoError(t, err)
	var all []string
	for _, e := range events {
		all = append(all, e.Action)
	}
	return all
}

// A late outcome replaces "lost", and nothing else.
func TestRecordCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b := &Bookkeeping{Calls: r.ledger}
	in := r.accept("r-1")
	_, err := r.lock.Intent(t.Context(), intentOf(in))
	require.NoError(t, err)
	resolve := func() refund.CallResult {
		res, err := runActivity(newEnv(), b.ResolveCall, in)
		require.NoError(t, err)
		require.True(t, res.Repeat)
		return res
	}
	require.Equal(t, refund.CodeLost, resolve().Call.Result.Code)

	require.NoError(t, recordCall(b, finished(newCall(in), refund.Result{Outcome: refund.OutcomeSucceeded})))
	require.NoError(t, recordCall(b, finished(newCall(in), refund.Result{Outcome: refund.OutcomeRejected})))
	require.Equal(t, refund.OutcomeSucceeded, resolve().Call.Result.Outcome)
	require.Empty(t, r.wire())
}

// A call whose worker is gone before it wrote an intent can't be sent later.
func TestResolveCall_StopsALateWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	res, err := runActivity(newEnv(), (&Bookkeeping{Calls: r.ledger}).ResolveCall, in)
	require.NoError(t, err)
	require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
	require.Equal(t, refund.CodeAbandoned, res.Call.Result.Code)

	_, err = r.lock.Intent(t.Context(), intentOf(in))
	var refused *ledger.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, refund.CodeAbandoned, refused.Code)
}

func (b *Bookkeeping) act(in refund.ActInput) (refund.ActResult, error) {
	return runActivity(newEnv(), b.ActOnCase, in)
}

// What people decide is recorded once, with its line on the trail; what the
// case doesn't allow is an answer, not an error that Temporal would repeat.
func TestActOnCase(t *testing.T) {
	t.Parallel()
	b, l, logs := newBookkeeping(t)
	_, err := b.open(newRefund("r-1"))
	require.NoError(t, err)
	in := refund.ActInput{
		RefundID: "r-1", Account: account, ID: "d-1", Action: refund.ActionSettle,
		Input: refund.ActionInput{By: "mei", Reason: "the bank says so", Status: refund.StatusSucceeded, Evidence: "statement of May"},
	}
	res, err := b.act(in)
	require.NoError(t, err)
	require.Equal(t, "it is queued, not in review", res.Refused)

	_, err = b.save(refund.SaveInput{RefundID: "r-1", Account: account, Status: refund.StatusReview, ReviewReason: refund.ReviewChecks, Detail: "why"})
	require.NoError(t, err)
	res, err = b.act(in)
	require.NoError(t, err)
	require.Equal(t, "it is queued, not in review", res.Refused, "its person was told so")
	in.ID = "d-1b"
	for range 2 { // a repeat of the activity
		res, err = b.act(in)
		require.NoError(t, err)
		require.Empty(t, res.Refused)
		require.Equal(t, refund.StatusSucceeded, res.Status)
	}
	c, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, c.Version, res.Version)
	require.Len(t, c.Decisions, 1)
	settled := logs.Events(t, telemetry.EventRefundSettled)
	require.NotEmpty(t, settled)
	require.Equal(t, "succeeded", settled[0]["status"])

	in.ID, in.Action, in.Input, in.Refused = "d-3", refund.ActionNote, refund.ActionInput{By: "mei", Reason: "why"}, "the workflow says no"
	for range 2 {
		res, err = b.act(in)
		require.NoError(t, err)
		require.Equal(t, "the workflow says no", res.Refused)
		in.Refused = "" // it would allow it by now
	}
	in.ID, in.Action, in.Input = "d-2", refund.ActionNote, refund.ActionInput{By: "mei"}
	res, err = b.act(in)
	require.NoError(t, err)
	require.Equal(t, "invalid action: reason: is required", res.Refused)
}

// C10: a closed case goes back to people only as the one that it was closed as.
func TestSaveCase_Reopens(t *testing.T) {
	t.Parallel()
	b, l, _ := newBookkeeping(t)
	_, err := b.open(newRefund("r-1"))
	require.NoError(t, err)
	_, err = b.save(refund.SaveInput{RefundID: "r-1", Account: account, Status: refund.StatusSucceeded, Detail: "why"})
	require.NoError(t, err)
	reopen := refund.SaveInput{
		RefundID: "r-1", Account: account, Status: refund.StatusReview, ReviewReason: refund.ReviewLateFailure, Detail: "it failed",
		Reopen: true, Was: refund.StatusRejected,
	}
	res, err := b.save(reopen)
	require.NoError(t, err)
	require.True(t, res.Superseded)
	reopen.Was = refund.StatusSucceeded
	res, err = b.save(reopen)
	require.NoError(t, err)
	require.False(t, res.Superseded)
	c, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, refund.StatusReview, c.Status)
	require.Nil(t, c.ClosedAt)
}

// A workflow that was started under another id would drive the refund beside
// its own.
func TestOpenCase_WorkflowOfAnotherID(t *testing.T) {
	t.Parallel()
	b, l, _ := newBookkeeping(t)
	open := func(workflowID string) error {
		_, err := runActivity(newEnv(), b.OpenCase, refund.OpenInput{Refund: newRefund("r-1"), WorkflowID: workflowID})
		return err
	}
	err := open("refund-r-2")
	requireFinalError(t, err, refund.ErrorTypeInvalid)
	require.ErrorContains(t, err, "has to have the id refund-r-1")
	_, err = l.Case(t.Context(), "r-1")
	require.ErrorIs(t, err, ledger.ErrNotFound)
	require.NoError(t, open("refund-r-1"))
}
