package activities

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/refund"
)

func TestSentResult(t *testing.T) {
	t.Parallel()
	noOutcome := refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeUnreadable, Detail: "the adapter gave no outcome"}
	timedOut := refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: refund.BudgetOverall}
	for name, tc := range map[string]struct {
		answer refund.Result
		ended  refund.Budget
		want   refund.Result
	}{
		"no outcome":                 {refund.Result{Code: "x", AccountWide: true}, "", noOutcome},
		"not sent, against the wire": {refund.Result{Outcome: refund.OutcomeNotSent, AccountWide: true}, "", noOutcome},
		"unknown": {
			refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeDisconnected},
			"",
			refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeDisconnected},
		},
		"a budget ended it":                   {refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeDisconnected}, refund.BudgetOverall, timedOut},
		"a budget ended it without an answer": {refund.Result{}, refund.BudgetOverall, refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: refund.BudgetOverall, Detail: noOutcome.Detail}},
		"a definite answer stands against a budget": {
			refund.Result{Outcome: refund.OutcomeRejected, Code: "unauthorized", AccountWide: true},
			refund.BudgetOverall,
			refund.Result{Outcome: refund.OutcomeRejected, Code: "unauthorized", AccountWide: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, sentResult(tc.answer, tc.ended))
		})
	}
	for _, o := range refund.Outcomes {
		if o != refund.OutcomeNotSent {
			answer := refund.Result{Outcome: o, Code: "code", HTTPStatus: 200, ProviderRefundID: "re_1", Ambiguous: true, NeverResend: true, Detail: "words"}
			require.Equal(t, answer, sentResult(answer, ""), "the adapter's reading stands")
		}
	}
}

func TestWithinDeadline(t *testing.T) {
	t.Parallel()
	deadline := time.Date(2025, 1, 1, 12, 0, 0, 0, time.UTC)
	before, after := deadline.Add(-time.Nanosecond), deadline.Add(time.Nanosecond)
	require.Nil(t, withinDeadline(refund.Result{}, deadline).RetryAt)
	require.Equal(t, &before, withinDeadline(refund.Result{RetryAt: &before}, deadline).RetryAt)
	late := refund.Result{RetryAt: &after}
	require.Equal(t, &deadline, withinDeadline(late, deadline).RetryAt)
	require.Equal(t, deadline.Add(time.Nanosecond), *late.RetryAt, "the account's time is left as it was")
}

func TestNotSentResult(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		want refund.Result
	}{
		"the gate's reason": {
			&limiter.NotSentError{Code: refund.CodeConnect, Budget: refund.BudgetConnect},
			refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeConnect, Budget: refund.BudgetConnect},
		},
		"wrapped": {
			fmt.Errorf("doing: %w", &limiter.NotSentError{Code: refund.CodeShutdown}),
			refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeShutdown},
		},
		"the key belongs to another request": {
			&limiter.NotSentError{Code: refund.CodeKeyTaken},
			refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeKeyTaken, NeverResend: true},
		},
		"anything else": {errBroken, refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeStorage}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, notSentResult(tc.err))
		})
	}
}

func TestIntentFailure(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		code string
	}{
		{&ledger.RefusedError{Code: refund.CodeExhausted}, refund.CodeExhausted},
		{&ledger.RefusedError{Code: refund.CodeClosed}, refund.CodeClosed},
		{&ledger.RefusedError{Code: refund.CodeAbandoned}, refund.CodeAbandoned},
		{&ledger.RefusedError{Code: refund.CodeNotOwner}, refund.CodeNotOwner},
		{ledger.ErrLockLost, refund.CodeNotOwner},
		{ledger.ErrKeyTaken, refund.CodeKeyTaken},
		{ledger.ErrDuplicateCall, refund.CodeStorage}, // answered by what is recorded
		{ledger.ErrNotFound, refund.CodeStorage},
		{errBroken, refund.CodeStorage},
	} {
		err := intentFailure(fmt.Errorf("recording the intent: %w", tc.err))
		require.Equal(t, tc.code, err.Code, tc.err)
		require.ErrorIs(t, err, tc.err, "the cause is kept")
	}
}
