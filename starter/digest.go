package starter

import (
	"context"
	"log/slog"
	"time"

	"refundgate/internal/telemetry"
	"refundgate/ledger"
)

// digestInterval is how often it is said.
const digestInterval = 5 * time.Minute

// Waiting sums up what waits for people. See ledger.Ledger.
type Waiting interface {
	ReviewDigest(ctx context.Context) (ledger.Digest, error)
}

// Digest reminds people, through the log, of what waits for them: at its start
// and then every five minutes, as long as something does. Every process that
// runs one says it; alarms should match on the event and not count it.
type Digest struct {
	Waiting Waiting
	Log     *slog.Logger
}

// Run reminds until ctx ends.
func (d *Digest) Run(ctx context.Context) {
	d.every(ctx, digestInterval)
}

func (d *Digest) every(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := d.remind(ctx); err != nil && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "what waits for people can't be read", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (d *Digest) remind(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	w, err := d.Waiting.ReviewDigest(ctx)
	if err != nil || (w.InReview == 0 && w.Parked == 0) {
		return err
	}
	about := []slog.Attr{
		slog.Int("in_review", w.InReview),
		slog.Any("by_reason", w.ByReason),
		slog.Any("by_account", w.ByAccount),
		slog.Int("unassigned", w.Unassigned),
		slog.Int("parked_notices", w.Parked),
	}
	if w.OldestAcceptedAt != nil {
		about = append(about, slog.Int64("oldest_age_seconds", int64(time.Since(*w.OldestAcceptedAt).Seconds())))
	}
	telemetry.Event(ctx, d.Log, slog.LevelWarn, telemetry.EventReviewDigest, about...)
	return nil
}
