package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"refundgate/refund"
)

// Bounds of the calls that Latencies looks at: the latest MaxLatencies of a
// kind, if they started within LatencyWindow.
const (
	LatencyWindow = 24 * time.Hour
	MaxLatencies  = 1000
)

// Latency is how long an account's recent calls of one kind took, from the
// first byte of the request until the socket was closed. Connecting comes
// before that. The percentiles are exact: each is the duration of one of the
// calls, and at least that share took no longer.
type Latency struct {
	Kind  refund.CallKind
	Calls int
	// TimedOut is how many of the calls were ended by a time budget. They are
	// in the percentiles with what they had taken until then.
	TimedOut           int
	P50, P95, P99, Max time.Duration
	Since              time.Time // when the earliest of the calls started
}

// MarshalJSON gives durations in milliseconds.
func (l Latency) MarshalJSON() ([]byte, error) {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return json.Marshal(struct {
		Kind     refund.CallKind `json:"kind"`
		Calls    int             `json:"calls"`
		TimedOut int             `json:"timed_out"`
		P50      float64         `json:"p50_ms"`
		P95      float64         `json:"p95_ms"`
		P99      float64         `json:"p99_ms"`
		Max      float64         `json:"max_ms"`
		Since    time.Time       `json:"since"`
	}{l.Kind, l.Calls, l.TimedOut, ms(l.P50), ms(l.P95), ms(l.P99), ms(l.Max), l.Since})
}

// Latencies measures the account's recent calls, sends before checks. Kinds
// without such calls are left out.
func (l *Ledger) Latencies(ctx context.Context, account string) ([]Latency, error) {
	all := []Latency{}
	for _, kind := range []refund.CallKind{refund.KindSubmit, refund.KindCheck} {
		calls, err := queryAll(ctx, l.pool, scanTimedCall, `
			SELECT started_at, finished_at, budget IS NOT NULL FROM provider_calls
			WHERE account = ? AND kind = ? AND started_at >= ? AND finished_at IS NOT NULL
			ORDER BY started_at DESC LIMIT ?`, account, kind, l.now().Add(-LatencyWindow), MaxLatencies)
		if err != nil {
			return nil, fmt.Errorf("reading how long the calls of %s took: %w", account, err)
		}
		if len(calls) > 0 {
			all = append(all, latency(kind, calls))
		}
	}
	return all, nil
}

// timedCall is when a call was under way, and whether a budget ended it.
type timedCall struct {
	started, finished time.Time
	timedOut          bool
}

func scanTimedCall(row scanner) (c timedCall, err error) {
	err = row.Scan(&c.started, &c.finished, &c.timedOut)
	return c, err
}

// latency sums up the calls, the latest first; there is at least one.
func latency(kind refund.CallKind, calls []timedCall) Latency {
	sum := Latency{Kind: kind, Calls: len(calls), Since: calls[len(calls)-1].started}
	took := make([]time.Duration, len(calls))
	for i, c := range calls {
		took[i] = c.finished.Sub(c.started)
		if c.timedOut {
			sum.TimedOut++
		}
	}
	slices.Sort(took)
	// Nearest rank: the smallest duration that the share of calls didn't exceed.
	rank := func(share float64) time.Duration { return took[int(math.Ceil(share*float64(len(took))))-1] }
	sum.P50, sum.P95, sum.P99, sum.Max = rank(0.50), rank(0.95), rank(0.99), took[len(took)-1]
	return sum
}
