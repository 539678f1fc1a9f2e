package ledger

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// completed reads the call back.
func completed(t *testing.T, l *Ledger, key refund.CallKey) refund.Call {
	t.Helper()
	call, err := l.Call(t.Context(), key)
	require.NoError(t, err)
	return call
}

func attemptsOf(t *testing.T, l *Ledger, refundID string) int {
	t.Helper()
	c, err := l.Case(t.Context(), refundID)
	require.NoError(t, err)
	return c.Attempts
}

func TestComplete_KeepsEverything(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	in := submit("r-1", 1)
	intend(t, k, in)

	at := func(d time.Duration) *time.Time {
		when := in.Call.IntentAt.Add(d).UTC().Truncate(time.Microsecond)
		return &when
	}
	call := in.Call
	call.Epoch = k.Epoch()
	call.IntentAt = *at(0)
	call.StartedAt, call.StartedMono, call.InFlight, call.FinishedAt = at(time.Second), 1<<60+1, 10, at(2*time.Second)
	call.Result = refund.Result{
		Outcome: refund.OutcomeBusy, Code: "temporarily_unavailable", HTTPStatus: 503, Budget: refund.BudgetOverall,
		ProviderRefundID: "re_1", RetryAt: at(time.Hour), AccountWide: true, Ambiguous: true, NeverResend: true, Detail: "later \U0001F4B8",
	}
	require.NoError(t, l.Complete(t.Context(), call))
	require.Equal(t, call, completed(t, l, call.Key))

	c, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, []refund.Call{call}, c.Calls)
}

func TestComplete_FirstOutcomeStands(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	call := submit("r-1", 1).Call
	intend(t, k, submit("r-1", 1))
	require.NoError(t, l.Complete(t.Context(), finished(call, refund.OutcomeSucceeded, "")))
	before := completed(t, l, call.Key)
	for _, later := range []refund.Call{
		finished(call, refund.OutcomeRejected, "x"), finished(call, refund.OutcomeNotSent, refund.CodeStale), finished(call, refund.OutcomeUnknown, refund.CodeLost),
	} {
		require.NoError(t, l.Complete(t.Context(), later))
	}
	require.Equal(t, before, completed(t, l, call.Key))
}

func TestComplete_WhatHappenedReplacesLost(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	call := submit("r-1", 1).Call
	intend(t, k, submit("r-1", 1))
	lost, err := l.Abandon(t.Context(), call)
	require.NoError(t, err)
	require.Equal(t, refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeLost}, lost.Result)

	require.NoError(t, l.Complete(t.Context(), finished(call, refund.OutcomeUnknown, refund.CodeLost)))
	require.NoError(t, l.Complete(t.Context(), finished(call, refund.OutcomeSucceeded, "")))
	require.NoError(t, l.Complete(t.Context(), finished(call, refund.OutcomeUnknown, refund.CodeTimeout)))
	require.Equal(t, refund.OutcomeSucceeded, completed(t, l, call.Key).Result.Outcome)
}

func TestComplete_NotSentGivesTheAttemptBack(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	intend(t, k, submit("r-1", 1))
	require.Equal(t, 1, attemptsOf(t, l, "r-1"), "an intent alone counts")
	require.NoError(t, l.Complete(t.Context(), finished(submit("r-1", 1).Call, refund.OutcomeNotSent, refund.CodeConnect)))
	require.Equal(t, 0, attemptsOf(t, l, "r-1"))
}

func TestCase04_NotSentWithoutAnIntentUsesItsKeyUp(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	call := finished(submit("r-1", 1).Call, refund.OutcomeNotSent, refund.CodeCancelled)
	require.NoError(t, l.Complete(t.Context(), call))
	require.NoError(t, l.Complete(t.Context(), call))
	require.Equal(t, call.Result, completed(t, l, call.Key).Result)
	require.Equal(t, 0, attemptsOf(t, l, "r-1"))

	_, err := acquire(t, l).Intent(t.Context(), submit("r-1", 1))
	require.ErrorIs(t, err, ErrDuplicateCall)
}

func TestComplete_SentWithoutAnIntentIsRefused(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	require.ErrorIs(t, l.Complete(t.Context(), finished(submit("r-1", 1).Call, refund.OutcomeSucceeded, "")), ErrNotFound)
	require.ErrorIs(t, l.Complete(t.Context(), finished(submit("nobody", 1).Call, refund.OutcomeNotSent, "")), ErrNotFound)
	require.Error(t, l.Complete(t.Context(), submit("r-1", 1).Call), "no outcome")
}

// Nothing that a provider sends may keep an outcome from being recorded.
func TestComplete_HostileAnswer(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	intend(t, acquire(t, l), submit("r-1", 1))
	call := finished(submit("r-1", 1).Call, refund.OutcomeRejected, strings.Repeat("\xf0\x9f\x92", 100))
	call.Result.Detail = strings.Repeat("\U0001F4B8", 5000) + "\x00"
	call.Result.ProviderRefundID = strings.Repeat("x", 300)
	require.NoError(t, l.Complete(t.Context(), call))
	got := completed(t, l, call.Key).Result
	require.Equal(t, refund.OutcomeRejected, got.Outcome)
	require.Empty(t, got.ProviderRefundID, "half an id is none")

	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusRejected, ProviderRefundID: call.Result.ProviderRefundID}))
}

func TestAbandon_WithoutAnIntentStopsTheZombie(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)

	got, err := l.Abandon(t.Context(), submit("r-1", 1).Call)
	require.NoError(t, err)
	require.Equal(t, refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeAbandoned}, got.Result)
	require.Equal(t, got, completed(t, l, got.Key))

	_, err = k.Intent(t.Context(), submit("r-1", 1))
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, refund.CodeAbandoned, refused.Code)
	require.Equal(t, 0, attemptsOf(t, l, "r-1"))

	again, err := l.Abandon(t.Context(), submit("r-1", 1).Call)
	require.NoError(t, err)
	require.Equal(t, got, again)
}

func TestAbandon_AnOutcomeStands(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	intend(t, acquire(t, l), submit("r-1", 1))
	require.NoError(t, l.Complete(t.Context(), finished(submit("r-1", 1).Call, refund.OutcomeSucceeded, "")))
	got, err := l.Abandon(t.Context(), submit("r-1", 1).Call)
	require.NoError(t, err)
	require.Equal(t, refund.OutcomeSucceeded, got.Result.Outcome)

	_, err = l.Abandon(t.Context(), submit("nobody", 1).Call)
	require.ErrorIs(t, err, ErrNotFound)
}

// The zombie's intent and the abandonment race: exactly one of them has it.
func TestAbandon_RacesWithTheIntent(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	for seq := 1; seq <= 30; seq++ {
		in := submit("r-1", seq)
		in.MaxAttempts = 1000
		intended := make(chan error, 1)
		go func() {
			_, err := k.Intent(t.Context(), in)
			intended <- err
		}()
		got, err := l.Abandon(t.Context(), in.Call)
		require.NoError(t, err)
		if err := <-intended; err == nil {
			require.Equal(t, refund.CodeLost, got.Result.Code)
		} else {
			require.Equal(t, refund.CodeAbandoned, got.Result.Code)
		}
	}
}

func TestCall_NotFound(t *testing.T) {
	t.Parallel()
	_, err := newLedger(t).Call(t.Context(), submit("r-1", 1).Call.Key)
	require.ErrorIs(t, err, ErrNotFound)
}
