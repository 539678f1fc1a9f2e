package ledger

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/refund"
)

func twd(v int64) refund.Money { return refund.Money{Value: v, Currency: "TWD"} }

// partOf is a refund of one payment; total 0 leaves its amount out.
func partOf(id string, amount, total int64) refund.Refund {
	r := newRefund(id)
	r.PaymentID = "pay-1"
	r.Amount = twd(amount)
	if total != 0 {
		m := twd(total)
		r.PaymentAmount = &m
	}
	return r
}

func tryAccept(t *testing.T, l *Ledger, r refund.Refund) error {
	t.Helper()
	_, _, err := l.Accept(t.Context(), Submission{Refund: r, Deadline: time.Minute})
	return err
}

func TestCase30_TwoRefundsOfSixtyOnAPaymentOfHundred(t *testing.T) {
	t.Parallel()
	for name, total := range map[string]int64{"stated by each": 100, "known before": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger(t)
			accept(t, l, partOf("r-1", 30, 100))
			require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusRejected}))
			var accepted, exceeded atomic.Int64
			var callers errgroup.Group
			for i := range 20 {
				callers.Go(func() error {
					_, _, err := l.Accept(t.Context(), Submission{Refund: partOf(fmt.Sprintf("r-60-%d", i), 60, total), Deadline: time.Minute})
					var e *PaymentExceededError
					if errors.As(err, &e) {
						exceeded.Add(1)
						return nil
					}
					accepted.Add(1)
					return err
				})
			}
			require.NoError(t, callers.Wait())
			require.EqualValues(t, 1, accepted.Load())
			require.EqualValues(t, 19, exceeded.Load())
			require.Equal(t, 60, queryValue[int](t, l, `SELECT SUM(amount) FROM refunds WHERE status <> 'rejected'`))
		})
	}
}

func TestCase30_UnknownStaysReserved(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, partOf("r-1", 60, 100))
	for _, status := range []refund.Status{refund.StatusRetrying, refund.StatusUnknown, refund.StatusPending, refund.StatusSucceeded} {
		require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: status}))
		err := tryAccept(t, l, partOf("r-2", 60, 0))
		require.Equal(t, &PaymentExceededError{PaymentID: "pay-1", Limit: twd(100), Reserved: twd(60)}, errors.Unwrap(err), status)
	}
	accept(t, l, partOf("r-3", 40, 100)) // to the last cent
	require.Error(t, tryAccept(t, l, partOf("r-4", 1, 100)))
}

func TestAccept_RejectedAmountIsFreeAgain(t *testing.T) {
	t.Parallel()
	for _, status := range []refund.Status{refund.StatusRejected, refund.StatusNotRefunded} {
		l := newLedger(t)
		accept(t, l, partOf("r-1", 60, 100))
		require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: status}))
		accept(t, l, partOf("r-2", 60, 100))
	}
}

func TestAccept_PaymentAmountIsLearntFromAnySubmission(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, partOf("r-1", 60, 0))
	accept(t, l, partOf("r-2", 60, 0)) // nobody knows better yet

	var exceeded *PaymentExceededError
	require.ErrorAs(t, tryAccept(t, l, partOf("r-3", 10, 120)), &exceeded)
	require.Equal(t, twd(120), exceeded.Reserved)

	// A refused submission leaves nothing behind, not even what it knew.
	accept(t, l, partOf("r-4", 30, 150))
	require.ErrorAs(t, tryAccept(t, l, partOf("r-5", 1, 0)), &exceeded)
	require.Equal(t, twd(150), exceeded.Limit)
}

func TestAccept_FirstKnownPaymentAmountStands(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, partOf("r-1", 10, 100))

	err := tryAccept(t, l, partOf("r-2", 10, 1000))
	require.Equal(t, &PaymentMismatchError{PaymentID: "pay-1", Known: twd(100), Stated: twd(1000)}, errors.Unwrap(err))

	other := partOf("r-3", 10, 0)
	other.Amount.Currency = "JPY"
	err = tryAccept(t, l, other)
	require.Equal(t, &PaymentMismatchError{PaymentID: "pay-1", Known: twd(100), Stated: other.Amount}, errors.Unwrap(err))
}

func TestAccept_ReservedInAnotherCurrencyCannotBeSummedUp(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	yen := partOf("r-1", 10, 0)
	yen.Amount.Currency = "JPY"
	accept(t, l, yen)
	var mismatch *PaymentMismatchError
	require.ErrorAs(t, tryAccept(t, l, partOf("r-2", 10, 100)), &mismatch)
	require.Equal(t, yen.Amount, mismatch.Stated)

	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusRejected}))
	accept(t, l, partOf("r-2", 10, 100))
}

// The same payment id at another account is another payment.
func TestAccept_PaymentsBelongToAnAccount(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, partOf("r-1", 60, 100))
	other := partOf("r-2", 60, 90)
	other.Account = "other"
	accept(t, l, other)
}

func TestCase15_EqualPartialRefundsAreTwoRefunds(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, partOf("r-1", 50, 100))
	accept(t, l, partOf("r-2", 50, 100))
	k := acquire(t, l)
	intend(t, k, submit("r-1", 1))
	intend(t, k, submit("r-2", 1))
	require.Equal(t, 2, queryValue[int](t, l, `SELECT COUNT(DISTINCT idempotency_key) FROM refund_requests`))
}
