package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/refund"
)

var correctedAt = time.Date(2026, 3, 1, 13, 0, 0, 123456789, time.UTC)

// reject closes the case as definitely refused.
func reject(t *testing.T, l *Ledger, refundID string) {
	t.Helper()
	require.NoError(t, l.Save(t.Context(), Change{RefundID: refundID, Status: refund.StatusRejected}))
}

func tryCorrect(l *Ledger, refundID, id string, c refund.Correction) (refund.Case, error) {
	c.By, c.Reason = "ann", "wrong in the order"
	return l.Correct(context.Background(), refundID, id, c, time.Hour, correctedAt)
}

func correct(t *testing.T, l *Ledger, refundID, id string, c refund.Correction) refund.Case {
	t.Helper()
	corrected, err := tryCorrect(l, refundID, id, c)
	require.NoError(t, err)
	return corrected
}

func TestCorrect(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return now }})
	k := acquire(t, l)
	original := newRefund("r-1")
	accepted := accept(t, l, original)
	require.NoError(t, l.MarkStarted(t.Context(), "r-1"))
	mustAct(t, l, newAct("r-1", "a-1", refund.ActionAssign))
	learn(t, l, k, "r-1", 1, "re_1", refund.OutcomeRejected)
	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusRejected, ProviderRefundID: "re_1"}))
	before := theCase(t, l, "r-1")

	now = now.Add(time.Hour)
	c := correct(t, l, "r-1", "fix-1", refund.Correction{PaymentID: "pay-2", Amount: &refund.Money{Value: 1000, Currency: "TWD"}, RefundReason: "late"})

	want := original
	want.PaymentID, want.Amount.Value, want.Reason = "pay-2", 1000, "late"
	require.Equal(t, refund.Case{
		Refund: want, Fingerprint: want.Fingerprint(), Status: refund.StatusQueued, Version: before.Version + 1, Generation: 2,
		AcceptedAt: accepted.AcceptedAt, DeadlineAt: stored(now.Add(time.Hour)),
		Calls: before.Calls, Notices: before.Notices,
		Decisions: append(before.Decisions, refund.Decision{
			ID: "fix-1", Generation: 1, Action: refund.ActionCorrect, By: "ann", Reason: "wrong in the order", At: stored(correctedAt),
		}),
	}, c)
	events, err := l.Events(t.Context(), "r-1")
	require.NoError(t, err)
	require.Contains(t, events, refund.Event{
		At: stored(correctedAt), Actor: "ann", Action: "review.correct",
		Detail: "generation 2: payment pay-2 instead of pay-r-1, amount 10.00 TWD instead of 12.50 TWD, another reason: wrong in the order",
	})
	unstarted, err := l.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, []refund.Refund{want}, unstarted, "a new run begins with the corrected content")

	// Both contents are this refund's from now on, and no third is.
	for _, same := range []refund.Refund{original, want} {
		again, created, err := l.Accept(t.Context(), Submission{Refund: same, Deadline: time.Minute})
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, bare(c), again)
	}
	third := want
	third.Amount.Value = 1001
	_, _, err = l.Accept(t.Context(), Submission{Refund: third, Deadline: time.Minute})
	require.ErrorIs(t, err, ErrConflict)

	_, err = k.Intent(t.Context(), submit("r-1", 2))
	requireRefused(t, refund.CodeClosed, err)
	learn(t, l, k, "r-1", 2, "", refund.OutcomeUnknown)
	require.Equal(t, 1, attemptsOf(t, l, "r-1"), "with attempts of its own")
}

func TestCorrect_ThirdGeneration(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	original := newRefund("r-3")
	accept(t, l, original)
	for i, reason := range []string{"second", "third"} {
		reject(t, l, "r-3")
		c := correct(t, l, "r-3", fmt.Sprintf("fix-%d", i), refund.Correction{RefundReason: reason})
		require.Equal(t, i+2, c.Generation)
	}
	var fingerprints []string
	for _, reason := range []string{original.Reason, "second", "third"} {
		r := original
		r.Reason = reason
		_, created, err := l.Accept(t.Context(), Submission{Refund: r, Deadline: time.Minute})
		require.NoError(t, err, reason)
		require.False(t, created)
		fingerprints = append(fingerprints, r.Fingerprint())
	}
	rows, err := queryAll(t.Context(), l.pool, scanString, `SELECT fingerprint FROM refund_generations ORDER BY generation`)
	require.NoError(t, err)
	require.Equal(t, fingerprints, rows)
}

func TestCorrect_SameIDAgain(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	reject(t, l, "r-1")
	var repeats errgroup.Group
	for range 10 {
		repeats.Go(func() error {
			c, err := tryCorrect(l, "r-1", "fix-1", refund.Correction{RefundReason: "late"})
			if err == nil && c.Generation != 2 {
				err = fmt.Errorf("generation %d", c.Generation)
			}
			return err
		})
	}
	require.NoError(t, repeats.Wait())

	reject(t, l, "r-1")
	again := correct(t, l, "r-1", "fix-1", refund.Correction{RefundReason: "late"})
	require.Equal(t, refund.StatusRejected, again.Status, "the case as it is by now")
	require.Equal(t, 2, again.Generation)
	require.Equal(t, []string{"review.correct"}, trail(t, l, "r-1"))

	mustAct(t, l, newAct("r-1", "a-1", refund.ActionNote))
	_, err := tryCorrect(l, "r-1", "a-1", refund.Correction{RefundReason: "later"})
	requireActionRefused(t, "its id was used for another action", err)
}

func TestCorrect_TwoPeopleAtOnce(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, partOf("r-1", 60, 100))
	reject(t, l, "r-1")
	var won, refused atomic.Int64
	var people errgroup.Group
	for i := range 10 {
		people.Go(func() error {
			_, err := tryCorrect(l, "r-1", fmt.Sprintf("fix-%d", i), refund.Correction{Amount: &refund.Money{Value: int64(50 + i), Currency: "TWD"}})
			var e *ActionRefusedError
			if errors.As(err, &e) {
				refused.Add(1)
				return nil
			}
			won.Add(1)
			return err
		})
	}
	require.NoError(t, people.Wait())
	require.EqualValues(t, 1, won.Load())
	require.EqualValues(t, 9, refused.Load())
	require.Equal(t, 2, theCase(t, l, "r-1").Generation)
}

func TestCorrect_Refuses(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	late := refund.Correction{RefundReason: "late"}
	_, err := tryCorrect(l, "nobody", "fix-1", late)
	require.ErrorIs(t, err, ErrNotFound)
	for _, status := range refund.Statuses {
		if status == refund.StatusRejected {
			continue
		}
		id := "r-" + string(status)
		before := inStatus(t, l, id, status)
		_, err := tryCorrect(l, id, "fix-1", late)
		requireActionRefused(t, "it is "+inWords(status)+", not rejected", err)
		require.Equal(t, before, theCase(t, l, id))
	}

	before := inStatus(t, l, "r-1", refund.StatusRejected)
	stale := late
	stale.Version = before.Version - 1
	_, err = tryCorrect(l, "r-1", "fix-1", stale)
	requireActionRefused(t, "changed since", err)
	var invalid *refund.InvalidError
	for _, c := range []refund.Correction{{}, {PaymentID: "no id"}, {Amount: &refund.Money{Currency: "TWD"}}} {
		_, err = tryCorrect(l, "r-1", "fix-1", c)
		require.ErrorAs(t, err, &invalid)
	}
	_, err = tryCorrect(l, "r-1", "", late)
	require.ErrorAs(t, err, &invalid)
	_, err = l.Correct(t.Context(), "r-1", "fix-1", late, time.Minute, time.Time{})
	require.Error(t, err)
	require.Equal(t, before, theCase(t, l, "r-1"))
	require.Empty(t, trail(t, l, "r-1"))
	require.Equal(t, 0, queryValue[int](t, l, `SELECT COUNT(*) FROM refund_generations`))
	require.Equal(t, 0, queryValue[int](t, l, `SELECT COUNT(*) FROM payments WHERE payment_id = 'pay-2'`))

	late.Version = before.Version
	correct(t, l, "r-1", "fix-1", late)
}

// A correction reserves anew, and is weighed like any other refund.
func TestCase30_ACorrectionIsReservedAgain(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, partOf("r-1", 60, 100))
	reject(t, l, "r-1")
	accept(t, l, partOf("r-2", 50, 100)) // takes what was free again
	late := refund.Correction{RefundReason: "late"}
	_, err := tryCorrect(l, "r-1", "fix-1", late)
	var exceeded *PaymentExceededError
	require.ErrorAs(t, err, &exceeded)
	require.Equal(t, &PaymentExceededError{PaymentID: "pay-1", Limit: twd(100), Reserved: twd(50)}, exceeded)
	require.Equal(t, refund.StatusRejected, theCase(t, l, "r-1").Status)

	fifty := twd(50)
	correct(t, l, "r-1", "fix-1", refund.Correction{Amount: &fifty})
	require.ErrorAs(t, tryAccept(t, l, partOf("r-3", 1, 0)), &exceeded)
	require.Equal(t, twd(100), exceeded.Reserved, "once")

	reject(t, l, "r-1")
	other := twd(90)
	_, err = tryCorrect(l, "r-1", "fix-2", refund.Correction{PaymentAmount: &other})
	var mismatch *PaymentMismatchError
	require.ErrorAs(t, err, &mismatch)
	require.Equal(t, twd(100), mismatch.Known)

	// To another payment: reserved there and free here.
	correct(t, l, "r-1", "fix-3", refund.Correction{PaymentID: "pay-2", PaymentAmount: &other})
	accept(t, l, partOf("r-4", 50, 0))
	onTheOther := partOf("r-5", 41, 0)
	onTheOther.PaymentID = "pay-2"
	require.ErrorAs(t, tryAccept(t, l, onTheOther), &exceeded)
	require.Equal(t, twd(50), exceeded.Reserved)
}

func TestCase30_ACorrectionAndANewRefundAtOnce(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for i := range 20 {
		id := fmt.Sprintf("r-%d", i)
		part := func(id string) refund.Refund {
			r := partOf(id, 60, 100)
			r.PaymentID = fmt.Sprintf("pay-%d", i)
			return r
		}
		accept(t, l, part(id))
		reject(t, l, id)
		var won atomic.Int64
		var both errgroup.Group
		count := func(err error) error {
			var exceeded *PaymentExceededError
			if errors.As(err, &exceeded) {
				return nil
			}
			won.Add(1)
			return err
		}
		both.Go(func() error {
			_, err := tryCorrect(l, id, "fix-1", refund.Correction{RefundReason: "late"})
			return count(err)
		})
		both.Go(func() error {
			_, _, err := l.Accept(context.Background(), Submission{Refund: part(id + "-new"), Deadline: time.Minute})
			return count(err)
		})
		require.NoError(t, both.Wait())
		require.EqualValues(t, 1, won.Load())
	}
}
