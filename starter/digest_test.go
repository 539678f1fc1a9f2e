package starter

import (
	"context"
	"errors"
	"log/slog"
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

// People are reminded at the start and every five minutes, as long as there is
// something to remind of; an outage of the database is not the end of it.
func TestDigestReminds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logs := &testenv.Logs{}
		oldest := time.Now().Add(-time.Hour)
		round := 0
		digest := &Digest{
			Waiting: waitingFunc(func() (ledger.Digest, error) {
				round++
				switch round {
				case 1:
					return ledger.Digest{
						InReview: 3, Unassigned: 2, OldestAcceptedAt: &oldest, Parked: 1,
						ByReason:  map[refund.ReviewReason]int{refund.ReviewDeadlineUnknown: 3},
						ByAccount: map[string]int{"main": 3},
					}, nil
				case 2:
					return ledger.Digest{}, errors.New("no database")
				case 3:
					return ledger.Digest{}, nil
				}
				return ledger.Digest{Parked: 4}, nil
			}),
			Log: telemetry.NewLogger(logs, telemetry.FormatJSON, slog.LevelInfo),
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			digest.Run(ctx)
			close(done)
		}()
		time.Sleep(3*digestInterval + time.Second)
		stop()
		<-done
		require.Equal(t, 4, round)

		events := logs.Events(t, "review.digest")
		require.Len(t, events, 2, "not of nothing")
		delete(events[0], "time")
		require.Equal(t, map[string]any{
			"level": "WARN", "msg": "review.digest", "event": "review.digest", "in_review": 3.0, "unassigned": 2.0, "parked_notices": 1.0,
			"by_reason": map[string]any{"deadline_unknown": 3.0}, "by_account": map[string]any{"main": 3.0}, "oldest_age_seconds": 3600.0,
		}, events[0])
		require.EqualValues(t, 4, events[1]["parked_notices"])
		require.NotContains(t, events[1], "oldest_age_seconds")
		require.Contains(t, logs.String(), "no database")
	})
}
