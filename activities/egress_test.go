package activities

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/provider"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// The row is in the ledger when the first byte leaves, and what was measured
// on the wire is in it afterwards.
func TestSubmit_IntentThenByteThenOutcome(t *testing.T) {
	t.Parallel()
	var r *rig
	var atFirstByte refund.Call
	var atFirstByteErr error
	in := refund.CallInput{}
	r = newRig(t, func(cfg *limiter.Config) {
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &firstWrite{Conn: c, before: func() {
				atFirstByte, atFirstByteErr = r.ledger.Call(context.Background(), in.Key)
			}}, err
		}
	})
	in = r.accept("r-1")

	res := r.result(in)

	require.NoError(t, atFirstByteErr, "no intent when the first byte left")
	require.False(t, atFirstByte.Done())
	require.Equal(t, r.lock.Epoch(), atFirstByte.Epoch)

	require.Equal(t, refund.OutcomeSucceeded, res.Call.Result.Outcome)
	require.False(t, res.Repeat)
	require.False(t, res.Unrecorded)
	wire := r.wire()
	require.Len(t, wire, 1)
	require.Equal(t, http.MethodPost, wire[0].Method)
	require.Equal(t, "refund-r-1", wire[0].Key)
	body, err := r.egress.Adapter.Encode(in.Refund)
	require.NoError(t, err)
	sum := sha256.Sum256(body)
	require.Equal(t, hex.EncodeToString(sum[:]), wire[0].BodySHA256)

	row := r.recorded(in.Key)
	require.Equal(t, refund.OutcomeSucceeded, row.Result.Outcome)
	require.Equal(t, http.StatusCreated, row.Result.HTTPStatus)
	require.NotEmpty(t, row.Result.ProviderRefundID)
	require.Equal(t, 1, row.InFlight)
	require.Equal(t, res.Call.StartedMono, row.StartedMono)
	require.LessOrEqual(t, row.StartedMono, wire[0].ArrivedMonoNS)
	require.WithinDuration(t, *res.Call.StartedAt, *row.StartedAt, time.Microsecond)
	require.False(t, row.StartedAt.Before(row.IntentAt), "sent before the intent")
	require.False(t, row.FinishedAt.Before(*row.StartedAt))

	require.Len(t, r.logs.Events(t, telemetry.EventCallFinished), 1)
	finished := r.logs.Events(t, telemetry.EventCallFinished)[0]
	require.Equal(t, "r-1", finished["refund_id"])
	require.Equal(t, account, finished["account"])
	require.Equal(t, "submit", finished["kind"])
	require.EqualValues(t, 1, finished["seq"])
	require.Equal(t, "r-1/g1/submit/1", finished["call_key"])
	require.Equal(t, "succeeded", finished["outcome"])
}

func TestCheck(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	res := r.result(check(in))
	require.Equal(t, refund.OutcomeNotFound, res.Call.Result.Outcome)

	id := r.result(in).Call.Result.ProviderRefundID
	byReference := check(in)
	byReference.Key.Seq = 2
	require.Equal(t, refund.OutcomeSucceeded, r.result(byReference).Call.Result.Outcome)
	byID := check(in)
	byID.Key.Seq, byID.ProviderRefundID = 3, id
	require.Equal(t, refund.OutcomeSucceeded, r.result(byID).Call.Result.Outcome)

	wire := r.wire()
	require.Len(t, wire, 4)
	require.Equal(t, "/v1/refunds?reference=r-1", wire[2].Path)
	require.Equal(t, "/v1/refunds/"+id, wire[3].Path)
	for _, i := range []int{0, 2, 3} {
		require.Equal(t, http.MethodGet, wire[i].Method)
		require.Empty(t, wire[i].Key)
	}
	c, err := r.ledger.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Len(t, c.Calls, 4)
	require.Equal(t, 1, c.Attempts, "checks are no attempts")
	require.Equal(t, 1, r.executions()["r-1"])
}

// The reason is edited between two attempts: what was sent first is sent again.
func TestCase12_FirstBytesAreSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	r.plan(standin.Rule{Fault: standin.Fault{Kind: standin.Busy}, Times: 1})
	require.Equal(t, refund.OutcomeBusy, r.result(in).Call.Result.Outcome)

	in.Refund.Reason = "something else"
	require.Equal(t, refund.OutcomeSucceeded, r.result(retry(in, 2)).Call.Result.Outcome)

	wire := r.wire()
	require.Len(t, wire, 2)
	require.Equal(t, wire[0].BodySHA256, wire[1].BodySHA256)
	require.Equal(t, wire[0].Key, wire[1].Key)
	require.Equal(t, 1, r.executions()["r-1"])
}

// A key that was used is never sent again, whatever is known about it.
func TestRepeat_SendsNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		earlier func(t *testing.T, r *rig, in refund.CallInput)
		outcome refund.Outcome
		code    string
		sent    int // requests of the earlier execution
	}{
		"finished": {
			earlier: func(_ *testing.T, r *rig, in refund.CallInput) { r.result(in) },
			outcome: refund.OutcomeSucceeded,
			sent:    1,
		},
		"an intent and no outcome": {
			earlier: func(t *testing.T, r *rig, in refund.CallInput) {
				_, err := r.lock.Intent(t.Context(), intentOf(in))
				require.NoError(t, err)
			},
			outcome: refund.OutcomeUnknown,
			code:    refund.CodeLost,
		},
		"given up before an intent": {
			earlier: func(t *testing.T, r *rig, in refund.CallInput) {
				_, err := r.ledger.Abandon(t.Context(), newCall(in))
				require.NoError(t, err)
			},
			outcome: refund.OutcomeNotSent,
			code:    refund.CodeAbandoned,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			in := r.accept("r-1")
			tc.earlier(t, r, in)
			require.Empty(t, r.logs.Events(t, telemetry.EventDuplicateStopped))

			for range 2 {
				res := r.result(in)
				require.True(t, res.Repeat)
				require.False(t, res.Unrecorded)
				require.Equal(t, tc.outcome, res.Call.Result.Outcome)
				require.Equal(t, tc.code, res.Call.Result.Code)
				require.Equal(t, r.recorded(in.Key), res.Call)
			}

			require.Len(t, r.wire(), tc.sent)
			stopped := r.logs.Events(t, telemetry.EventDuplicateStopped)
			require.Len(t, stopped, 2)
			require.Equal(t, "r-1/g1/submit/1", stopped[0]["call_key"])
		})
	}
}

// Another process uses the key between this one's look-up and its intent.
func TestRepeat_FoundOnlyByTheIntent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meanwhile func(t *testing.T, r *rig, in refund.CallInput)
		outcome   refund.Outcome
		code      string
	}{
		"sent and answered": {
			meanwhile: func(t *testing.T, r *rig, in refund.CallInput) {
				_, err := r.lock.Intent(t.Context(), intentOf(in))
				require.NoError(t, err)
				require.NoError(t, r.ledger.Complete(t.Context(), finished(newCall(in), refund.Result{Outcome: refund.OutcomePending})))
			},
			outcome: refund.OutcomePending,
		},
		"sent, perhaps": {
			meanwhile: func(t *testing.T, r *rig, in refund.CallInput) {
				_, err := r.lock.Intent(t.Context(), intentOf(in))
				require.NoError(t, err)
			},
			outcome: refund.OutcomeUnknown,
			code:    refund.CodeLost,
		},
		"given up": {
			meanwhile: func(t *testing.T, r *rig, in refund.CallInput) {
				_, err := r.ledger.Abandon(t.Context(), newCall(in))
				require.NoError(t, err)
			},
			outcome: refund.OutcomeNotSent,
			code:    refund.CodeAbandoned,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			in := r.accept("r-1")
			var once sync.Once
			r.egress.Calls = lookUp{r.ledger, func() { once.Do(func() { tc.meanwhile(t, r, in) }) }}

			res := r.result(in)

			require.Equal(t, tc.outcome, res.Call.Result.Outcome)
			require.Equal(t, tc.code, res.Call.Result.Code)
			require.Empty(t, r.wire())
			require.Equal(t, tc.outcome, r.recorded(in.Key).Result.Outcome)
			notSent := r.logs.Events(t, telemetry.EventCallNotSent)
			require.Equal(t, tc.outcome == refund.OutcomeNotSent, len(notSent) == 1, "only what was not sent is logged as such")
		})
	}
}

// Twenty executions of one key at once: one request, one answer for all.
func TestConcurrentExecutionsOfOneKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	r.faulty(standin.Fault{Kind: standin.Delay, DelayMS: 200})
	var wg sync.WaitGroup
	var firsts atomic.Int32
	for range 20 {
		wg.Go(func() {
			res, err := r.execute(in)
			if err != nil {
				t.Error(err)
				return
			}
			assert.Equal(t, refund.OutcomeSucceeded, res.Call.Result.Outcome)
			assert.False(t, res.Unrecorded)
			if !res.Repeat {
				firsts.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, firsts.Load())
	require.Len(t, r.wire(), 1)
	require.Equal(t, 1, r.executions()["r-1"])
	require.Len(t, r.logs.Events(t, telemetry.EventDuplicateStopped), 19)
}

// The ledger can't say whether the key was used. That is no proof of anything,
// so there is no result; asked again later, the ledger knows.
func TestLedgerAwayAtTheLookUp(t *testing.T) {
	t.Parallel()
	for name, used := range map[string]bool{"a fresh key": false, "a key that was sent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			in := r.accept("r-1")
			if used {
				r.result(in)
			}
			sent := len(r.wire())
			away, err := ledger.Open(t.Context(), r.dsn, ledger.Options{})
			require.NoError(t, err)
			require.NoError(t, away.Close())
			r.egress.Calls = away

			_, err = r.execute(in)

			require.ErrorContains(t, err, "asking whether r-1/g1/submit/1 was made before")
			require.Len(t, r.wire(), sent)
			res, err := runActivity(newEnv(), (&Bookkeeping{Calls: r.ledger}).ResolveCall, in)
			require.NoError(t, err)
			if used {
				require.Equal(t, refund.OutcomeSucceeded, res.Call.Result.Outcome)
			} else {
				require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
			}
		})
	}
}

// The ledger goes away between the discovery that the key was used and the
// question what became of it: "not sent" would be a lie.
func TestLedgerAwayWhenTheIntentFindsTheKeyUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	fleeting := openLedger(t, r.dsn)
	var once sync.Once
	r.egress.Calls = lookUp{fleeting, func() {
		once.Do(func() {
			_, err := r.lock.Intent(t.Context(), intentOf(in))
			assert.NoError(t, err)
			assert.NoError(t, fleeting.Close())
		})
	}}
	_, err := r.execute(in)
	require.ErrorContains(t, err, "was made before")
	require.Empty(t, r.wire())
}

// What provably wasn't sent leaves no trace and uses up no attempt.
func TestNotSent(t *testing.T) {
	t.Parallel()
	past := func(in *refund.CallInput) { in.Deadline = time.Now().Add(-time.Second) }
	for name, tc := range map[string]struct {
		gate   func(*limiter.Config)
		before func(t *testing.T, r *rig, in *refund.CallInput)
		code   string
		budget refund.Budget
		never  bool // resend
	}{
		"the account is stopped": {
			before: func(_ *testing.T, r *rig, _ *refund.CallInput) { r.gate.Refuse(refund.CodeStopped, errBroken) },
			code:   refund.CodeStopped,
		},
		"the egress stops": {
			before: func(t *testing.T, r *rig, _ *refund.CallInput) { require.NoError(t, r.gate.Close(t.Context())) },
			code:   refund.CodeShutdown,
		},
		"the provider refuses connections": {
			before: func(t *testing.T, r *rig, _ *refund.CallInput) { require.NoError(t, r.server.Close()) },
			code:   refund.CodeConnect,
		},
		"no connection within the budget": {
			gate: func(cfg *limiter.Config) {
				cfg.ConnectTimeout = 50 * time.Millisecond
				cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			},
			code:   refund.CodeConnect,
			budget: refund.BudgetConnect,
		},
		"the deadline has passed": {
			before: func(_ *testing.T, _ *rig, in *refund.CallInput) { past(in) },
			code:   refund.CodeDeadline,
			budget: refund.BudgetDeadline,
		},
		"the adapter can't express it": {
			before: func(_ *testing.T, r *rig, _ *refund.CallInput) {
				r.egress.Adapter = fakeAdapter{Adapter: r.egress.Adapter, encode: func(refund.Refund) ([]byte, error) { return nil, errBroken }}
			},
			code:  refund.CodeUnsupported,
			never: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tc.gate)
			in := r.accept("r-1")
			wire := r.wire
			if tc.before != nil {
				tc.before(t, r, &in)
			}

			res := r.result(in)

			require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
			require.Equal(t, tc.code, res.Call.Result.Code)
			require.Equal(t, tc.budget, res.Call.Result.Budget)
			require.Equal(t, tc.never, res.Call.Result.NeverResend)
			require.Nil(t, res.Call.StartedAt)
			require.False(t, res.Unrecorded)
			require.False(t, res.Repeat)
			_, err := r.ledger.Call(t.Context(), in.Key)
			require.ErrorIs(t, err, ledger.ErrNotFound)
			if tc.code != refund.CodeConnect { // there the stand-in may be gone
				require.Empty(t, wire())
			}

			notSent := r.logs.Events(t, telemetry.EventCallNotSent)
			require.Len(t, notSent, 1)
			require.Equal(t, tc.code, notSent[0]["code"])
			require.NotEmpty(t, notSent[0]["error"], "nobody could tell why")
			timeouts := r.logs.Events(t, telemetry.EventCallTimeout)
			if tc.budget == "" {
				require.Empty(t, timeouts)
			} else {
				require.Len(t, timeouts, 1)
				require.EqualValues(t, tc.budget, timeouts[0]["budget"])
			}
		})
	}
}

func TestNotSent_AttemptsUsedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	r.faulty(standin.Fault{Kind: standin.AcceptThenDrop})
	for seq := 1; seq <= 3; seq++ {
		require.Equal(t, refund.OutcomeUnknown, r.result(retry(in, seq)).Call.Result.Outcome)
	}
	res := r.result(retry(in, 4))
	require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
	require.Equal(t, refund.CodeExhausted, res.Call.Result.Code)
	require.Len(t, r.wire(), 3)
	require.Equal(t, 1, r.executions()["r-1"])

	manual := in
	manual.Key.Seq, manual.Origin = 4, refund.OriginManual
	require.Equal(t, refund.CodeClosed, r.result(manual).Call.Result.Code, "nobody has ordered it")

	ctx := t.Context()
	require.NoError(t, r.ledger.Save(ctx, ledger.Change{RefundID: "r-1", Status: refund.StatusReview, ReviewReason: refund.ReviewAttempts}))
	_, err := r.ledger.Act(ctx, ledger.Act{
		RefundID: "r-1", ID: "d-1", Action: refund.ActionResend, Input: refund.ActionInput{By: "mei", Reason: "they are back"}, At: time.Now(),
	})
	require.NoError(t, err)
	manual.DecisionID = "d-1"
	require.NotEqual(t, refund.OutcomeNotSent, r.result(manual).Call.Result.Outcome, "a person's resend isn't counted")
	manual.Key.Seq++
	require.Equal(t, refund.CodeClosed, r.result(manual).Call.Result.Code, "one order, one call")
	require.Len(t, r.wire(), 4)
	require.Equal(t, 1, r.executions()["r-1"])
}

func TestNotSent_CaseClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	require.NoError(t, r.ledger.Save(t.Context(), ledger.Change{RefundID: "r-1", Status: refund.StatusNotRefunded}))
	res := r.result(in)
	require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
	require.Equal(t, refund.CodeClosed, res.Call.Result.Code)
	r.requireUntouched(in.Key)
}

// "r-1" in its second generation and a refund called "r-1.g2" would share a key.
func TestNotSent_KeyOfAnotherRefund(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	require.Equal(t, refund.OutcomeSucceeded, r.result(r.accept("r-1.g2")).Call.Result.Outcome)
	in := r.accept("r-1")
	_, err := r.db.ExecContext(t.Context(), `UPDATE refunds SET generation = 2 WHERE refund_id = 'r-1'`)
	require.NoError(t, err)
	in.Key.Generation = 2

	res := r.result(in)

	require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
	require.Equal(t, refund.CodeKeyTaken, res.Call.Result.Code)
	require.True(t, res.Call.Result.NeverResend)
	require.Len(t, r.wire(), 1)
	require.Zero(t, r.executions()["r-1"])
}

// The session with the egress lock dies: nothing goes out any more, not even
// when the next call asks.
func TestNotSent_LockLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in, next := r.accept("r-1"), r.accept("r-2")
	r.killLock()

	res := r.result(in)
	require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
	require.Equal(t, refund.CodeNotOwner, res.Call.Result.Code)
	require.Equal(t, refund.CodeNotOwner, r.gate.Status().Refusing)
	require.Equal(t, refund.CodeNotOwner, r.result(next).Call.Result.Code)
	r.requireUntouched(in.Key)
	r.requireUntouched(next.Key)
}

// Somebody holds the refund's row for longer than the intent waits: this call
// isn't sent, and the egress goes on.
func TestNotSent_IntentFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in, next := r.accept("r-1"), r.accept("r-2")
	tx, err := r.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var id string
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT refund_id FROM refunds WHERE refund_id = 'r-1' FOR UPDATE`).Scan(&id))

	res := r.result(in)
	require.NoError(t, tx.Rollback())

	require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
	require.Equal(t, refund.CodeStorage, res.Call.Result.Code)
	r.requireUntouched(in.Key)
	require.Equal(t, refund.OutcomeSucceeded, r.result(next).Call.Result.Outcome)
	require.Equal(t, refund.OutcomeSucceeded, r.result(in).Call.Result.Outcome, "the key is free still")
}

// unheardIntents commits its intents and doesn't hear of it, and can't ask.
type unheardIntents struct{ Intents }

func (u unheardIntents) Intent(ctx context.Context, in ledger.Intent) ([]byte, error) {
	_, err := u.Intents.Intent(ctx, in)
	return nil, errors.Join(err, ledger.ErrMayBeRecorded)
}

// The intent may be recorded and nobody could ask: that the call was not sent
// is written down, or an attempt would be lost.
func TestCase42_UnheardIntentIsSettled(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.egress.Intents = unheardIntents{r.lock}
	in := r.accept("r-1")
	res := r.result(in)
	require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
	require.False(t, res.Unrecorded)
	c, err := r.ledger.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Zero(t, c.Attempts)
	require.Len(t, c.Calls, 1)
	require.Equal(t, refund.OutcomeNotSent, c.Calls[0].Result.Outcome)
	require.Empty(t, r.wire())
}

// Cancelled while it waits for the gate.
func TestCase04_CancelledInTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	r.gate.Pause(time.Now().Add(time.Hour), "test")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(100*time.Millisecond, cancel)

	res, err := r.executeUnder(ctx, in)

	require.NoError(t, err)
	require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
	require.Equal(t, refund.CodeCancelled, res.Call.Result.Code)
	r.requireUntouched(in.Key)
}

// Cancelled with a request on the wire: the answer is waited for and recorded.
func TestCancelledInFlight(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	r.faulty(standin.Fault{Kind: standin.Delay, DelayMS: 500})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = r.provider.WaitRecord(ctx, 1)
		cancel()
	}()

	res, err := r.executeUnder(ctx, in)

	require.NoError(t, err)
	require.Error(t, ctx.Err())
	require.Equal(t, refund.OutcomeSucceeded, res.Call.Result.Outcome)
	require.False(t, res.Unrecorded)
	require.Equal(t, refund.OutcomeSucceeded, r.recorded(in.Key).Result.Outcome)
}

// The two groups take turns, and within a group the earliest accepted goes
// first, whoever came to the gate first.
func TestOrderAtTheGate(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var waits []func() (refund.CallResult, error)
	r.gate.Pause(time.Now().Add(time.Second), "test")
	accepted := time.Now()
	for i, id := range []string{"f-2", "f-1", "c-2", "c-1"} {
		in := r.accept(id)
		if id[0] == 'c' {
			in = check(in)
		}
		in.AcceptedAt = accepted.Add(-time.Duration(i) * time.Minute)
		waits = append(waits, r.start(in))
		require.Eventually(t, func() bool {
			s := r.gate.Status()
			return s.WaitingFirst+s.WaitingFollowUp == i+1
		}, 10*time.Second, time.Millisecond)
	}
	for _, wait := range waits {
		_, err := wait()
		require.NoError(t, err)
	}
	var order []string
	for _, request := range r.wire() {
		order = append(order, request.Reference)
	}
	require.Equal(t, []string{"f-1", "c-1", "f-2", "c-2"}, order)
}

// An intent was written and yet no byte left: the row says so.
func TestNotSent_AfterTheIntent(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := r.accept("r-1")
	r.egress.Adapter = fakeAdapter{Adapter: r.egress.Adapter, submit: func(context.Context, http.RoundTripper, provider.Submission) refund.Result {
		return refund.Result{Outcome: refund.OutcomeUnknown}
	}}

	res := r.result(in)

	require.Equal(t, refund.OutcomeNotSent, res.Call.Result.Outcome)
	require.Equal(t, refund.CodeNoRequest, res.Call.Result.Code)
	require.False(t, res.Unrecorded)
	require.Equal(t, refund.OutcomeNotSent, r.recorded(in.Key).Result.Outcome)
	c, err := r.ledger.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Zero(t, c.Attempts)
	require.Empty(t, r.wire())
}

// The database dies while the provider works. The answer still counts, and is
// written when the database is back.
func TestDatabaseAwayWhenTheAnswerComes(t *testing.T) {
	t.Parallel()
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refunds"))
	r := newRigOn(t, db.DSN("refunds"), nil)
	in := r.accept("r-1")
	r.faulty(standin.Fault{Kind: standin.Delay, DelayMS: 1500})

	wait := r.start(in)
	r.waitWire(1)
	require.NoError(t, db.Kill())
	res, err := wait()

	require.NoError(t, err)
	require.True(t, res.Unrecorded)
	require.Equal(t, refund.OutcomeSucceeded, res.Call.Result.Outcome)
	require.NotNil(t, res.Call.StartedAt)

	require.NoError(t, db.Start(t.Context()))
	require.False(t, r.recorded(in.Key).Done())
	book := &Bookkeeping{Calls: r.ledger}
	for range 2 { // an activity may run twice
		require.NoError(t, recordCall(book, res.Call))
	}
	row := r.recorded(in.Key)
	require.Equal(t, refund.OutcomeSucceeded, row.Result.Outcome)
	require.Equal(t, res.Call.StartedMono, row.StartedMono)
	require.Equal(t, 1, row.InFlight)
	require.Len(t, r.wire(), 1)
}

// A provider's word about the whole account slows or stops the account.
func TestCase33_QuotaPausesTheGate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retryAfter string
		pause      time.Duration
		check      bool
	}{
		"until Retry-After":           {retryAfter: "2", pause: 2 * time.Second},
		"for a second without one":    {pause: time.Second},
		"for a second on a junk one":  {retryAfter: "soon", pause: time.Second},
		"when a check is told so too": {retryAfter: "2", pause: 2 * time.Second, check: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var paused atomic.Int32
			r := newRig(t, func(cfg *limiter.Config) {
				cfg.Events.Paused = func(_ time.Time, why string) {
					assert.Equal(t, "rate_limited", why)
					paused.Add(1)
				}
			})
			in, next := r.accept("r-1"), r.accept("r-2")
			if tc.check {
				in = check(in)
			}
			r.plan(standin.Rule{Fault: standin.Fault{Kind: standin.RateLimit, RetryAfter: tc.retryAfter}, Times: 1})

			first := r.result(in).Call
			require.Equal(t, refund.OutcomeBusy, first.Result.Outcome)
			second := r.result(next).Call

			require.Equal(t, refund.OutcomeSucceeded, second.Result.Outcome)
			require.EqualValues(t, 1, paused.Load())
			// Counted from when the answer was read, which is after the start.
			require.GreaterOrEqual(t, second.StartedAt.Sub(*first.StartedAt), tc.pause)
			if first.Result.RetryAt != nil {
				require.False(t, second.StartedAt.Before(*first.Result.RetryAt))
			}
		})
	}
}

// The case waits no longer than its own deadline, the account as long as the
// provider said.
func TestReact_RetryAfterBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		fault  standin.Kind
		pauses bool
	}{
		{standin.RateLimit, true},
		{standin.Busy, false}, // about this case alone
	} {
		t.Run(string(tc.fault), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			in := r.accept("r-1")
			in.Deadline = time.Now().Add(time.Minute)
			r.faulty(standin.Fault{Kind: tc.fault, RetryAfter: "600"})

			res := r.result(in)

			require.Equal(t, refund.OutcomeBusy, res.Call.Result.Outcome)
			require.NotNil(t, res.Call.Result.RetryAt)
			require.WithinDuration(t, in.Deadline, *res.Call.Result.RetryAt, 0)
			if !tc.pauses {
				require.Zero(t, r.gate.Status().PausedUntil)
				return
			}
			require.WithinDuration(t, res.Call.StartedAt.Add(10*time.Minute), r.gate.Status().PausedUntil, 20*time.Second)
		})
	}
}

func TestReact_RefusedCredentialsStopTheAccount(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status  int
		kind    refund.CallKind
		outcome refund.Outcome
	}{
		"401 on a submit": {401, refund.KindSubmit, refund.OutcomeRejected},
		"403 on a submit": {403, refund.KindSubmit, refund.OutcomeRejected},
		"401 on a check":  {401, refund.KindCheck, refund.OutcomeUnknown},
		"403 on a check":  {403, refund.KindCheck, refund.OutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			in, next := r.accept("r-1"), r.accept("r-2")
			if tc.kind == refund.KindCheck {
				in = check(in)
			}
			r.plan(standin.Rule{Fault: standin.Fault{Kind: standin.Deny, Status: tc.status}, Times: 1})

			res := r.result(in)
			require.Equal(t, tc.outcome, res.Call.Result.Outcome)
			require.True(t, res.Call.Result.AccountWide)
			require.Equal(t, refund.CodeStopped, r.gate.Status().Refusing)

			after := r.result(next)
			require.Equal(t, refund.OutcomeNotSent, after.Call.Result.Outcome)
			require.Equal(t, refund.CodeStopped, after.Call.Result.Code)
			require.Len(t, r.wire(), 1)
		})
	}
}

// A budget that runs out after the first byte leaves the call unknown. The
// provider is judged by the budgets that it was given, and not by what was left
// of a case's own time.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	for _, budget := range []refund.Budget{refund.BudgetOverall, refund.BudgetDeadline} {
		t.Run(string(budget), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(cfg *limiter.Config) {
				cfg.Breaker.Window = 1
				if budget == refund.BudgetOverall {
					cfg.CallTimeout = 300 * time.Millisecond
				}
			})
			in := r.accept("r-1")
			r.faulty(standin.Fault{Kind: standin.Hang, Execute: true})
			if budget == refund.BudgetDeadline {
				in.Deadline = time.Now().Add(time.Second)
			}

			res := r.result(in)

			require.Equal(t, refund.OutcomeUnknown, res.Call.Result.Outcome)
			require.Equal(t, refund.CodeTimeout, res.Call.Result.Code)
			require.Equal(t, budget, res.Call.Result.Budget)
			row := r.recorded(in.Key)
			require.Equal(t, refund.OutcomeUnknown, row.Result.Outcome)
			require.Equal(t, budget, row.Result.Budget)
			timeouts := r.logs.Events(t, telemetry.EventCallTimeout)
			require.Len(t, timeouts, 1)
			require.EqualValues(t, budget, timeouts[0]["budget"])
			require.Equal(t, 1, r.executions()["r-1"], "it was done all the same")
			require.Zero(t, r.gate.Status().InFlight)
			breaker := map[refund.Budget]limiter.BreakerState{refund.BudgetOverall: limiter.BreakerOpen, refund.BudgetDeadline: limiter.BreakerClosed}
			require.Equal(t, breaker[budget], r.gate.Status().Breaker)
		})
	}
}

// The adapter panics with a request on the wire: the activity fails, whoever
// waits for the same key fails with it, the place in flight is free again, and
// the ledger says "unknown" to those who ask.
func TestAdapterPanics(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(cfg *limiter.Config) { cfg.MaxInFlight = 1 })
	in, next := r.accept("r-1"), r.accept("r-2")
	good, release := r.egress.Adapter, make(chan struct{})
	r.egress.Adapter = fakeAdapter{Adapter: good, submit: func(ctx context.Context, rt http.RoundTripper, s provider.Submission) refund.Result {
		res := good.Submit(ctx, rt, s)
		if s.Refund.ID == "r-1" {
			<-release
			panic("a defect")
		}
		return res
	}}

	wait := r.start(in)
	r.waitWire(1)
	waitAgain := r.start(in)
	time.Sleep(100 * time.Millisecond) // so that the second one waits
	close(release)
	_, err := wait()
	require.ErrorContains(t, err, "a defect")
	_, err = waitAgain()
	require.ErrorContains(t, err, "panicked")

	require.Zero(t, r.gate.Status().InFlight)
	require.Equal(t, refund.OutcomeSucceeded, r.result(next).Call.Result.Outcome, "the only place is free")
	res, err := runActivity(newEnv(), (&Bookkeeping{Calls: r.ledger}).ResolveCall, in)
	require.NoError(t, err)
	require.Equal(t, refund.OutcomeUnknown, res.Call.Result.Outcome)
	require.Equal(t, refund.CodeLost, res.Call.Result.Code)
	require.Len(t, r.wire(), 2)
}

// No line holds free text, a body, the provider's secret or an idempotency key.
func TestLogsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(cfg *limiter.Config) { cfg.CallTimeout = 500 * time.Millisecond })
	for _, tc := range []struct {
		id    string
		fault standin.Fault
	}{
		{"r-1", standin.Fault{Kind: standin.Delay, DelayMS: 1}},
		{"r-2", standin.Fault{Kind: standin.Hang}},
		{"r-3", standin.Fault{Kind: standin.Garbage, Body: reason}},
		{"r-4", standin.Fault{Kind: standin.Reject, Code: "invalid_request"}},
		{"r-5", standin.Fault{Kind: standin.Deny, Status: 401}},
	} {
		r.faulty(tc.fault)
		r.result(r.accept(tc.id))
	}
	r.result(r.accept("r-6")) // not sent: the account is stopped
	logs := r.logs.String()
	require.Contains(t, logs, "r-6/g1/submit/1", "the log was not looked at")
	for _, secret := range []string{reason, "Mrs Lin", apiKey, "pay-r-1", "refund-r-1", "1250"} {
		require.NotContains(t, logs, secret)
	}
}

// intentOf is the intent that the egress writes for the input.
func intentOf(in refund.CallInput) ledger.Intent {
	return ledger.Intent{
		Call: newCall(in), IdempotencyKey: refund.IdempotencyKey(in.Key.RefundID, in.Key.Generation),
		Body: []byte(`{}`), MaxAttempts: in.MaxAttempts,
	}
}

// fakeAdapter is an adapter with some of its methods replaced.
type fakeAdapter struct {
	provider.Adapter
	encode func(refund.Refund) ([]byte, error)
	submit func(context.Context, http.RoundTripper, provider.Submission) refund.Result
}

func (a fakeAdapter) Encode(r refund.Refund) ([]byte, error) {
	if a.encode != nil {
		return a.encode(r)
	}
	return a.Adapter.Encode(r)
}

func (a fakeAdapter) Submit(ctx context.Context, rt http.RoundTripper, s provider.Submission) refund.Result {
	if a.submit != nil {
		return a.submit(ctx, rt, s)
	}
	return a.Adapter.Submit(ctx, rt, s)
}
