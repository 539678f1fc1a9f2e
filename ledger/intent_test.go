package ledger

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/refund"
)

func requireRefused(t *testing.T, code string, err error) {
	t.Helper()
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, code, refused.Code)
}

func TestIntent(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	in := submit("r-1", 1)

	body, err := k.Intent(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, in.Body, body)
	call := completed(t, l, in.Call.Key)
	want := in.Call
	want.Epoch = 1
	want.IntentAt = want.IntentAt.UTC().Truncate(time.Microsecond)
	require.Equal(t, want, call)
	require.False(t, call.Done())
	require.Equal(t, 1, attemptsOf(t, l, "r-1"))
	require.Equal(t, 1, queryValue[int](t, l, `SELECT outcome IS NULL AND started_at IS NULL AND started_mono_ns IS NULL FROM provider_calls`))

	body, err = k.Intent(t.Context(), check("r-1", 1))
	require.NoError(t, err)
	require.Nil(t, body, "a check has no stored body")
	require.Equal(t, 1, attemptsOf(t, l, "r-1"))
}

func TestCase12_BytesOfTheFirstSendWin(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	first := submit("r-1", 1)
	first.Body = []byte("{\"reason\":\"\xff\x00\U0001F4B8 it's\\\"}") // bytes, not text
	intend(t, k, first)

	later := submit("r-1", 2)
	later.Body = []byte(`{"serialised":"by a later version"}`)
	body, err := k.Intent(t.Context(), later)
	require.NoError(t, err)
	require.Equal(t, first.Body, body)
}

func TestIntent_DuplicateKey(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	intend(t, k, submit("r-1", 1))
	_, err := k.Intent(t.Context(), submit("r-1", 1))
	require.ErrorIs(t, err, ErrDuplicateCall)
	require.NoError(t, l.Complete(t.Context(), finished(submit("r-1", 1).Call, refund.OutcomeNotSent, refund.CodeStale)))
	_, err = k.Intent(t.Context(), submit("r-1", 1))
	require.ErrorIs(t, err, ErrDuplicateCall, "a key is used once, whatever came of it")
}

func TestCase38_ThreeAutomaticSendsAcrossRuns(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	intend(t, k, submit("r-1", 1))
	require.NoError(t, l.Complete(t.Context(), finished(submit("r-1", 1).Call, refund.OutcomeNotSent, refund.CodeConnect)))
	intend(t, k, submit("r-1", 2))
	require.NoError(t, l.Complete(t.Context(), finished(submit("r-1", 2).Call, refund.OutcomeBusy, "temporarily_unavailable")))
	intend(t, k, submit("r-1", 3)) // no outcome: may have been sent
	intend(t, k, submit("r-1", 4))
	for seq := 5; seq < 8; seq++ { // a reset workflow starts over, with keys of its own
		_, err := k.Intent(t.Context(), submit("r-1", seq))
		requireRefused(t, refund.CodeExhausted, err)
	}
	require.Equal(t, 3, attemptsOf(t, l, "r-1"))

	intend(t, k, check("r-1", 1))
	toReview(t, l, "r-1")
	mustAct(t, l, newAct("r-1", "order-1", refund.ActionResend))
	intend(t, k, byHand(submit("r-1", 8), "order-1"))
	require.Equal(t, 3, attemptsOf(t, l, "r-1"), "neither a check nor a person uses up an attempt")
}

func TestIntent_AttemptsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	var sent atomic.Int64
	var callers errgroup.Group
	for seq := 1; seq <= 20; seq++ {
		callers.Go(func() error {
			if _, err := k.Intent(t.Context(), submit("r-1", seq)); err == nil {
				sent.Add(1)
			}
			return nil
		})
	}
	require.NoError(t, callers.Wait())
	require.EqualValues(t, 3, sent.Load())
	require.Equal(t, 3, attemptsOf(t, l, "r-1"))
}

func TestIntent_Refuses(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	other := newRefund("r-2")
	other.Account = "other"
	accept(t, l, other)
	k := acquire(t, l)

	_, err := k.Intent(t.Context(), submit("nobody", 1))
	require.ErrorIs(t, err, ErrNotFound)

	_, err = k.Intent(t.Context(), submit("r-2", 1))
	requireRefused(t, refund.CodeNotOwner, err)

	noAttempts := submit("r-1", 1)
	noAttempts.MaxAttempts = 0
	_, err = k.Intent(t.Context(), noAttempts)
	requireRefused(t, refund.CodeExhausted, err)

	otherGeneration := submit("r-1", 1)
	otherGeneration.Call.Key.Generation = 2
	_, err = k.Intent(t.Context(), otherGeneration)
	requireRefused(t, refund.CodeClosed, err)

	for _, final := range []refund.Status{refund.StatusSucceeded, refund.StatusRejected, refund.StatusNotRefunded} {
		id := "r-" + string(final)
		accept(t, l, newRefund(id))
		require.NoError(t, l.Save(t.Context(), Change{RefundID: id, Status: final}))
		for _, in := range []Intent{submit(id, 1), check(id, 1)} {
			_, err = k.Intent(t.Context(), in)
			requireRefused(t, refund.CodeClosed, err)
		}
	}
	require.Equal(t, 0, queryValue[int](t, l, `SELECT COUNT(*) FROM provider_calls`))
	require.Equal(t, 0, queryValue[int](t, l, `SELECT COUNT(*) FROM refund_requests`))
}

// The key of refund x.g2 reads like that of x's second generation.
func TestCase11_OneKeyOneRequest(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("x"))
	accept(t, l, newRefund("x.g2"))
	_, err := l.pool.ExecContext(t.Context(), `UPDATE refunds SET generation = 2 WHERE refund_id = 'x'`)
	require.NoError(t, err)
	k := acquire(t, l)
	intend(t, k, submit("x.g2", 1))

	second := submit("x", 1)
	second.Call.Key.Generation = 2
	second.IdempotencyKey = refund.IdempotencyKey("x", 2)
	_, err = k.Intent(t.Context(), second)
	require.ErrorIs(t, err, ErrKeyTaken)

	other := submit("x.g2", 2)
	other.IdempotencyKey = "minted-per-call"
	_, err = k.Intent(t.Context(), other)
	require.ErrorIs(t, err, ErrKeyTaken)
	require.NoError(t, k.Verify(t.Context()), "a defect of one refund does not cost the egress")
}

// Every generation has attempts, a key and a body of its own.
func TestIntent_NextGeneration(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	intend(t, k, submit("r-1", 1))
	_, err := l.pool.ExecContext(t.Context(), `UPDATE refunds SET generation = 2`)
	require.NoError(t, err)

	in := submit("r-1", 1)
	in.Call.Key.Generation = 2
	in.IdempotencyKey = refund.IdempotencyKey("r-1", 2)
	in.Body = []byte(`corrected`)
	body, err := k.Intent(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, in.Body, body)
	require.Equal(t, 1, attemptsOf(t, l, "r-1"))
}

// Twenty workers write intents while the owner's session is killed forty
// times. Each holds on to the lock that it knows until the lock is lost.
func TestCase05_AcknowledgedIsStoredAcrossFortyTakeovers(t *testing.T) {
	t.Parallel()
	const takeovers, workers, refunds = 40, 20, 400
	l := openLedger(t, migrated(t), Options{MaxConns: 8})
	for i := range refunds {
		accept(t, l, newRefund(fmt.Sprintf("r-%d", i)))
	}

	var current atomic.Pointer[EgressLock]
	current.Store(acquire(t, l))
	var mu sync.Mutex
	acknowledged := map[refund.CallKey]int64{} // to the epoch
	var next, lost atomic.Int64
	done := make(chan struct{})
	var running errgroup.Group
	for range workers {
		running.Go(func() error {
			k := current.Load()
			for {
				select {
				case <-done:
					return nil
				default:
				}
				// Six keys for each refund, so that most run out of attempts.
				n := next.Add(1)
				in := submit(fmt.Sprintf("r-%d", n%refunds), int(n/refunds%6)+1)
				_, err := k.Intent(t.Context(), in)
				if err != nil {
					time.Sleep(time.Millisecond) // leaves the processor to the takeover
					if fresh := current.Load(); fresh != k {
						k = fresh
						lost.Add(1)
					}
					continue
				}
				mu.Lock()
				acknowledged[in.Call.Key] = k.Epoch()
				mu.Unlock()
			}
		})
	}
	written := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged)
	}
	for range takeovers {
		// In the midst of it: each owner has written some.
		before := written()
		require.Eventually(t, func() bool { return written() >= before+2 }, 10*time.Second, time.Millisecond)
		killOwner(t, l)
		k := acquireSoon(t, l)
		require.Equal(t, current.Load().Epoch()+1, k.Epoch())
		current.Store(k)
	}
	close(done)
	require.NoError(t, running.Wait())
	t.Logf("%d intents acknowledged, %d changes of the lock seen by workers", len(acknowledged), lost.Load())

	calls, err := queryAll(t.Context(), l.pool, scanCall, `SELECT `+callColumns+` FROM provider_calls`)
	require.NoError(t, err)
	stored := map[refund.CallKey]int64{}
	sends := map[string]int{}
	for _, c := range calls {
		if c.MayHaveReached() {
			stored[c.Key] = c.Epoch
			sends[c.Key.RefundID]++
		}
	}
	require.Equal(t, acknowledged, stored)
	for id, n := range sends {
		require.LessOrEqual(t, n, 3, id)
		require.Equal(t, n, attemptsOf(t, l, id))
	}
	require.Greater(t, len(stored), takeovers)
}

// A person's send goes out in review, once for each order, in its generation.
func TestIntent_SendByHand(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	k := acquire(t, l)
	accept(t, l, newRefund("r-1"))
	mustAct(t, l, newAct("r-1", "check-1", refund.ActionCheck))
	mustAct(t, l, newAct("r-1", "note-1", refund.ActionNote))
	refused := func(in Intent) {
		t.Helper()
		_, err := k.Intent(t.Context(), in)
		requireRefused(t, refund.CodeClosed, err)
	}
	toReview(t, l, "r-1")
	resend := newAct("r-1", "resend-1", refund.ActionResend)
	mustAct(t, l, resend)
	refused(byHand(submit("r-1", 1), ""))
	refused(byHand(submit("r-1", 1), "unheard-of"))
	refused(byHand(submit("r-1", 1), "check-1"))
	refused(byHand(submit("r-1", 1), "note-1"))
	refused(byHand(check("r-1", 1), "resend-1"))

	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusUnknown}))
	refused(byHand(submit("r-1", 1), "resend-1")) // no longer in review
	toReview(t, l, "r-1")

	// What was not sent carries nothing out.
	require.NoError(t, l.Complete(t.Context(), finished(byHand(submit("r-1", 1), "resend-1").Call, refund.OutcomeNotSent, refund.CodeCancelled)))
	_, err := l.Abandon(t.Context(), byHand(submit("r-1", 2), "resend-1").Call)
	require.NoError(t, err)
	intend(t, k, byHand(submit("r-1", 3), "resend-1"))
	refused(byHand(submit("r-1", 4), "resend-1")) // may have been sent
	require.NoError(t, l.Complete(t.Context(), finished(byHand(submit("r-1", 3), "resend-1").Call, refund.OutcomeNotSent, refund.CodeConnect)))
	intend(t, k, byHand(submit("r-1", 4), "resend-1"))
	require.NoError(t, l.Complete(t.Context(), finished(byHand(submit("r-1", 4), "resend-1").Call, refund.OutcomeBusy, "")))
	refused(byHand(submit("r-1", 5), "resend-1")) // was sent: the order is carried out
	require.Equal(t, 0, attemptsOf(t, l, "r-1"))

	mustAct(t, l, newAct("r-1", "resend-2", refund.ActionResend))
	intend(t, k, byHand(submit("r-1", 5), "resend-2"))
	for _, call := range theCase(t, l, "r-1").Calls {
		want := "resend-1"
		if call.Key.Seq == 5 {
			want = "resend-2"
		}
		require.Equal(t, want, call.DecisionID, call.Key)
	}

	mustAct(t, l, newAct("r-1", "resend-3", refund.ActionResend))
	reject(t, l, "r-1")
	correct(t, l, "r-1", "fix-1", refund.Correction{RefundReason: "late"})
	toReview(t, l, "r-1")
	next := byHand(submit("r-1", 1), "resend-3")
	next.Call.Key.Generation = 2
	refused(next) // an order of the generation before
}

func TestIntent_CheckByHand(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	k := acquire(t, l)
	accept(t, l, newRefund("r-1"))
	mustAct(t, l, newAct("r-1", "check-1", refund.ActionCheck))
	intend(t, k, byHand(check("r-1", 1), "check-1")) // also outside review
	_, err := k.Intent(t.Context(), byHand(check("r-1", 2), "check-1"))
	requireRefused(t, refund.CodeClosed, err)
	_, err = k.Intent(t.Context(), byHand(check("r-1", 2), "unheard-of"))
	requireRefused(t, refund.CodeClosed, err)
	intend(t, k, check("r-1", 2))
	require.Equal(t, "check-1", completed(t, l, check("r-1", 1).Call.Key).DecisionID)
	require.Empty(t, completed(t, l, check("r-1", 2).Call.Key).DecisionID)
}

// Replays of a workflow find different keys for one order.
func TestCase38_OneCallForAnOrderAcrossRuns(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	k := acquire(t, l)
	accept(t, l, newRefund("r-1"))
	toReview(t, l, "r-1")
	mustAct(t, l, newAct("r-1", "resend-1", refund.ActionResend))
	var sent atomic.Int64
	var runs errgroup.Group
	for seq := 1; seq <= 20; seq++ {
		runs.Go(func() error {
			if _, err := k.Intent(t.Context(), byHand(submit("r-1", seq), "resend-1")); err == nil {
				sent.Add(1)
			}
			return nil
		})
	}
	require.NoError(t, runs.Wait())
	require.EqualValues(t, 1, sent.Load())
}

// CASE 38: a run that was reset to before the review would go on sending.
func TestIntent_PeopleHaveTheCase(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	intend(t, k, submit("r-1", 1))
	toReview(t, l, "r-1")
	for _, in := range []Intent{submit("r-1", 2), check("r-1", 1)} {
		_, err := k.Intent(t.Context(), in)
		var refused *RefusedError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, refund.CodeClosed, refused.Code)
	}
}
