package starter

import (
	"context"
	"log/slog"
	"time"

	"refundgate/internal/telemetry"
	"refundgate/ledger"
)

const (
	// digestInterval is how often it is said while nothing is added.
	digestInterval = 5 * time.Minute
	// digestLook is how often it is looked whether something was. However many
	// cases come to people at once, they hear of them no more often.
	digestLook = 10 * time.Second
)

// Waiting sums up what waits for people. See ledger.Ledger.
type Waiting interface {
	ReviewDigest(ctx context.Context) (ledger.Digest, error)
}

// Digest tells people, through the log, what waits for them: at its start, when
// it has become more, and every five minutes as long as something does. A case
// that goes to review has an event of its own, by which thousands of alarms
// would come of thousands of deadlines in the same second; this one sums them
// up. Every process that runs one says it; alarms should match on the event and
// not count it.
type Digest struct {
	Waiting Waiting
	Log     *slog.Logger

	seen   ledger.Digest // at the last look
	said   int           // cases in review when it was said last; 0 if none have been since
	saidAt time.Time
}

// Run tells until ctx ends.
func (d *Digest) Run(ctx context.Context) {
	ticker := time.NewTicker(digestLook)
	defer ticker.Stop()
	for {
		if err := d.look(ctx); err != nil && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "what waits for people can't be read", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look says what waits if it is time to.
func (d *Digest) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	w, err := d.Waiting.ReviewDigest(ctx)
	if err != nil {
		return err
	}
	// One that leaves a reason while another comes to it shows at the reminder.
	more := w.Parked > d.seen.Parked || rose(w.ByReason, d.seen.ByReason) || rose(w.ByAccount, d.seen.ByAccount)
	d.seen = w
	switch {
	case w.InReview == 0 && w.Parked == 0:
		d.said = 0
	case more || time.Since(d.saidAt) >= digestInterval:
		d.say(ctx, w)
	}
	return nil
}

// rose tells whether any of the counts is higher than it was.
func rose[K comparable](counts, before map[K]int) bool {
	for k, n := range counts {
		if n > before[k] {
			return true
		}
	}
	return false
}

func (d *Digest) say(ctx context.Context, w ledger.Digest) {
	about := []slog.Attr{
		slog.Int("in_review", w.InReview),
		slog.Int("change", w.InReview-d.said), // since it was said last
		slog.Any("by_reason", w.ByReason),
		slog.Any("by_account", w.ByAccount),
		slog.Int("unassigned", w.Unassigned),
		slog.Int("parked_notices", w.Parked),
	}
	if w.OldestAcceptedAt != nil {
		about = append(about, slog.Int64("oldest_age_seconds", int64(time.Since(*w.OldestAcceptedAt).Seconds())))
	}
	telemetry.Event(ctx, d.Log, slog.LevelWarn, telemetry.EventReviewDigest, about...)
	d.said, d.saidAt = w.InReview, time.Now()
}
