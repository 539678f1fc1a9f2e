package plan_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/plan"
)

func TestSolve(t *testing.T) {
	t.Parallel()
	q := func(backlog, inflow, rate, calls float64) plan.Question {
		return plan.Question{Backlog: backlog, Inflow: inflow, Rate: rate, CallsPerRefund: calls}
	}
	third := 10 / 3.0
	for name, tt := range map[string]struct {
		q    plan.Question
		want plan.Answer
	}{
		"one call each": {
			q(240, 2, 5, 1),
			plan.Answer{Capacity: 5, Bound: plan.BoundStarts, Load: 2, Drains: true, Drain: 80},
		},
		"two calls each": {
			q(240, 2, 5, 2),
			plan.Answer{Capacity: 5, Bound: plan.BoundStarts, Load: 4, Drains: true, Drain: 480},
		},
		"a promise that is too short": {
			plan.Question{Backlog: 600, Inflow: 3, Rate: 10, CallsPerRefund: 2, Within: 2 * time.Minute},
			plan.Answer{Capacity: 10, Bound: plan.BoundStarts, Load: 6, Drains: true, Drain: 300, Needed: 16},
		},
		"a promise that is just kept": {
			plan.Question{Backlog: 600, Inflow: 3, Rate: 16, CallsPerRefund: 2, Within: 2 * time.Minute},
			plan.Answer{Capacity: 16, Bound: plan.BoundStarts, Load: 6, Drains: true, Drain: 120, Needed: 16, Suffices: true},
		},
		"nothing comes in": {
			q(240, 0, 5, 1),
			plan.Answer{Capacity: 5, Bound: plan.BoundStarts, Drains: true, Drain: 48},
		},
		"nothing waits": {
			q(0, 2, 5, 1),
			plan.Answer{Capacity: 5, Bound: plan.BoundStarts, Load: 2, Drains: true},
		},
		"nothing waits, and as much goes out as comes in": {
			q(0, 5, 5, 1),
			plan.Answer{Capacity: 5, Bound: plan.BoundStarts, Load: 5, Drains: true},
		},
		"it stands still": {
			q(240, 2.5, 5, 2),
			plan.Answer{Capacity: 5, Bound: plan.BoundStarts, Load: 5, Drain: math.Inf(1)},
		},
		"it grows": {
			q(240, 3, 5, 2),
			plan.Answer{Capacity: 5, Bound: plan.BoundStarts, Load: 6, Drain: math.Inf(1), Growth: 0.5},
		},
		"ten places at 3 s a call": {
			plan.Question{Backlog: 240, Inflow: 2, Rate: 5, CallsPerRefund: 1, MaxInFlight: 10, Hold: 3 * time.Second},
			plan.Answer{Capacity: third, Bound: plan.BoundPlaces, Places: third, Load: 2, Drains: true, Drain: 240 / (third - 2)},
		},
		"places enough": {
			plan.Question{Backlog: 240, Inflow: 2, Rate: 5, CallsPerRefund: 1, MaxInFlight: 10, Hold: time.Second, Within: time.Minute},
			plan.Answer{Capacity: 5, Bound: plan.BoundStarts, Places: 10, Load: 2, Drains: true, Drain: 80, Needed: 6, NeededPlaces: 6},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, tt.q.Validate())
			require.Equal(t, tt.want, plan.Solve(tt.q))
		})
	}
}

// 3 x 0.1 is not 0.3 in a float64; that must not look like growth.
func TestDecimalsThatAreEvenStandStill(t *testing.T) {
	t.Parallel()
	a := plan.Solve(plan.Question{Backlog: 1, Inflow: 0.1, Rate: 0.3, CallsPerRefund: 3})
	require.False(t, a.Drains)
	require.Zero(t, a.Growth)
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for field, break_ := range map[string][]func(q *plan.Question){
		"Backlog": {
			func(q *plan.Question) { q.Backlog = -1 },
			func(q *plan.Question) { q.Backlog = math.NaN() },
			func(q *plan.Question) { q.Backlog = math.Inf(1) },
		},
		"Inflow": {
			func(q *plan.Question) { q.Inflow = -0.1 },
			func(q *plan.Question) { q.Inflow = math.NaN() },
			func(q *plan.Question) { q.Inflow = 1e9 },
		},
		"Rate": {
			func(q *plan.Question) { q.Rate = 0 },
			func(q *plan.Question) { q.Rate = -5 },
			func(q *plan.Question) { q.Rate = math.NaN() },
			func(q *plan.Question) { q.Rate = 1001 },
		},
		"CallsPerRefund": {
			func(q *plan.Question) { q.CallsPerRefund = 0.99 },
			func(q *plan.Question) { q.CallsPerRefund = math.NaN() },
			func(q *plan.Question) { q.CallsPerRefund = 1e6 },
		},
		"MaxInFlight": {func(q *plan.Question) { q.MaxInFlight = -1 }},
		"Hold":        {func(q *plan.Question) { q.Hold = -1 }},
		"Within":      {func(q *plan.Question) { q.Within = -1 }},
	} {
		for _, spoil := range break_ {
			q := plan.Question{Backlog: 1, Inflow: 1, Rate: 5, CallsPerRefund: 1}
			require.NoError(t, q.Validate())
			spoil(&q)
			var invalid *plan.InvalidError
			require.ErrorAs(t, q.Validate(), &invalid, "%+v", q)
			require.Equal(t, field, invalid.Field)
		}
	}
}

func drawQuestion(t *rapid.T) plan.Question {
	return plan.Question{
		Backlog:        float64(rapid.IntRange(0, 10_000).Draw(t, "backlog")),
		Inflow:         rapid.Float64Range(0, 20).Draw(t, "inflow"),
		Rate:           rapid.Float64Range(0.01, 100).Draw(t, "rate"),
		CallsPerRefund: rapid.Float64Range(1, 10).Draw(t, "calls"),
		MaxInFlight:    rapid.IntRange(0, 50).Draw(t, "in flight"),
		Hold:           time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "hold")),
	}
}

// More of what helps never makes it later, more of what hurts never earlier.
func TestPropertyMonotonous(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := drawQuestion(t)
		base := plan.Solve(q).Drain
		more := func(change func(q *plan.Question)) float64 {
			q := q
			change(&q)
			return plan.Solve(q).Drain
		}
		by := rapid.Float64Range(0, 10).Draw(t, "by")
		const slack = 1 + 1e-6
		require.LessOrEqual(t, more(func(q *plan.Question) { q.Rate += by }), base*slack)
		require.GreaterOrEqual(t, more(func(q *plan.Question) { q.Backlog += math.Ceil(by) })*slack, base)
		require.GreaterOrEqual(t, more(func(q *plan.Question) { q.Inflow += by })*slack, base)
		require.GreaterOrEqual(t, more(func(q *plan.Question) { q.CallsPerRefund += by })*slack, base)
		require.GreaterOrEqual(t, more(func(q *plan.Question) {
			if q.MaxInFlight > 0 {
				q.Hold += time.Duration(by * float64(time.Second))
			}
		})*slack, base)
	})
}

// The rate that a promise needs keeps exactly that promise.
func TestPropertyNeededRateKeepsThePromise(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := drawQuestion(t)
		q.Backlog++
		q.MaxInFlight = 0
		q.Within = time.Duration(rapid.IntRange(1, 3600).Draw(t, "seconds")) * time.Second
		q.Rate = plan.Solve(q).Needed
		a := plan.Solve(q)
		require.True(t, a.Drains)
		require.True(t, a.Suffices)
		require.InEpsilon(t, q.Within.Seconds(), a.Drain, 1e-3)
	})
}
