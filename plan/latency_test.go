package plan_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/plan"
)

func TestLatencyValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, plan.Latency{P50: time.Second, P99: time.Second}.Validate())
	require.ErrorContains(t, plan.Latency{P99: time.Second}.Validate(), "more than zero")
	require.ErrorContains(t, plan.Latency{P50: time.Second, P99: time.Millisecond}.Validate(), "less than the median")
}

// What is drawn has the percentiles that were asked for, and the mean that the
// formula works with.
func TestLatencyDrawsWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	l := plan.Latency{P50: 200 * time.Millisecond, P99: time.Second}
	const n, timeout = 200_000, 600 * time.Millisecond
	r := rand.New(rand.NewPCG(1, 2))
	drawn := make([]time.Duration, n)
	var held time.Duration
	for i := range drawn {
		drawn[i] = l.Draw(r)
		held += min(drawn[i], timeout)
	}
	slices.Sort(drawn)
	require.InEpsilon(t, l.P50, drawn[n/2], 0.02)
	require.InEpsilon(t, l.P99, drawn[n/100*99], 0.03)
	require.InEpsilon(t, held/n, l.Hold(timeout, 0), 0.01)
}

func TestHold(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	constant := plan.Latency{P50: time.Second, P99: time.Second}
	require.Equal(t, time.Second, constant.Hold(timeout, 0))
	require.Equal(t, 2*time.Second, constant.Hold(timeout, 0.5), "half of the calls hold their place until the time-out")
	require.Equal(t, timeout, plan.Latency{P50: time.Minute, P99: time.Minute}.Hold(timeout, 0), "all are given up")
	require.InEpsilon(t, timeout, plan.Latency{P50: time.Minute, P99: 2 * time.Minute}.Hold(timeout, 0), 1e-6)
}
