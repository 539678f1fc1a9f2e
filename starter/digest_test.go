package starter

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// waitingFunc is what waits for people, made up.
type waitingFunc func() (ledger.Digest, error)

func (f waitingFunc) ReviewDigest(context.Context) (ledger.Digest, error) { return f() }

// People are told at the start, when there is more, and every five minutes, as
// long as there is something to tell of; an outage of the database is not the
// end of it.
func TestDigestReminds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logs := &testenv.Logs{}
		oldest := time.Now().Add(-time.Hour)
		in := func(reasons map[refund.ReviewReason]int, parked int) ledger.Digest {
			d := ledger.Digest{ByReason: reasons, ByAccount: map[string]int{}, Unassigned: 2, OldestAcceptedAt: &oldest, Parked: parked}
			for _, n := range reasons {
				d.InReview += n
				d.ByAccount["main"] += n
			}
			return d
		}
		type reasons = map[refund.ReviewReason]int
		type answered struct {
			waiting ledger.Digest
			err     error
		}
		var answer atomic.Value
		answer.Store(answered{in(reasons{refund.ReviewDeadlineUnknown: 3}, 1), nil})
		digest := &Digest{
			Waiting: waitingFunc(func() (ledger.Digest, error) {
				a := answer.Load().(answered)
				return a.waiting, a.err
			}),
			Log: telemetry.NewLogger(logs, telemetry.FormatJSON, slog.LevelInfo),
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			digest.Run(ctx)
			close(done)
		}()
		synctest.Wait()
		told := 0
		next := func(after time.Duration, want int) map[string]any {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			events := logs.Events(t, "review.digest")
			require.Len(t, events, told+want)
			told += want
			return events[len(events)-1]
		}
		first := next(0, 1)
		delete(first, "time")
		require.Equal(t, map[string]any{
			"level": "WARN", "msg": "review.digest", "event": "review.digest", "in_review": 3.0, "change": 3.0, "unassigned": 2.0, "parked_notices": 1.0,
			"by_reason": map[string]any{"deadline_unknown": 3.0}, "by_account": map[string]any{"main": 3.0}, "oldest_age_seconds": 3600.0,
		}, first)
		next(digestInterval-time.Second, 0)
		require.EqualValues(t, 0, next(time.Second, 1)["change"], "a reminder")

		// Thousands within some seconds are told of as one.
		answer.Store(answered{in(reasons{refund.ReviewDeadlineUnknown: 3, refund.ReviewDeadlineUnsent: 2000}, 1), nil})
		burst := next(digestLook, 1)
		require.EqualValues(t, 2003, burst["in_review"])
		require.EqualValues(t, 2000, burst["change"])
		next(digestInterval-time.Second, 0)
		next(time.Second, 1)

		answer.Store(answered{in(reasons{refund.ReviewDeadlineUnknown: 1}, 1), nil})
		next(digestLook, 0)
		answer.Store(answered{in(reasons{refund.ReviewDeadlineUnknown: 2}, 1), nil})
		require.EqualValues(t, -2001, next(digestLook, 1)["change"], "more again, though fewer than were told of")
		answer.Store(answered{in(reasons{refund.ReviewChecks: 1, refund.ReviewDeadlineUnknown: 1}, 1), nil})
		require.EqualValues(t, 0, next(digestLook, 1)["change"], "another one for another reason")
		answer.Store(answered{in(reasons{refund.ReviewChecks: 1, refund.ReviewDeadlineUnknown: 1}, 2), nil})
		require.EqualValues(t, 2, next(digestLook, 1)["parked_notices"])

		answer.Store(answered{ledger.Digest{}, errors.New("no database")})
		next(digestInterval, 0)
		require.Contains(t, logs.String(), "no database")
		answer.Store(answered{in(reasons{refund.ReviewDeadlineUnknown: 2}, 1), nil})
		next(digestLook, 1)

		answer.Store(answered{ledger.Digest{}, nil})
		next(2*digestInterval, 0)
		answer.Store(answered{ledger.Digest{Parked: 4}, nil})
		last := next(digestLook, 1)
		require.EqualValues(t, 0, last["change"], "of none there were")
		require.EqualValues(t, 4, last["parked_notices"])
		require.NotContains(t, last, "oldest_age_seconds")
		stop()
		<-done
	})
}
