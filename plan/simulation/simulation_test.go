package simulation

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/limiter"
	"refundgate/plan"
	"refundgate/refund"
)

// healthy is a provider that answers everything, at the default budgets.
func healthy(backlog int, inflow, rate, calls float64) Params {
	return Params{
		Backlog: backlog, Inflow: inflow, Arrivals: ArrivalsEven, CallsPerRefund: calls,
		Latency: plan.Latency{P50: 200 * time.Millisecond, P99: time.Second},
		Gate:    limiter.Config{Interval: time.Duration(math.Ceil(float64(time.Second) / rate))},
		Policy:  refund.DefaultPolicy(), Seed: 1, Horizon: time.Hour,
	}
}

// constant is a latency without spread.
func constant(d time.Duration) plan.Latency { return plan.Latency{P50: d, P99: d} }

// question is what the formula is asked about the same situation.
func question(p Params) plan.Question {
	gate := p.Gate.WithDefaults()
	return plan.Question{
		Backlog: float64(p.Backlog), Inflow: p.Inflow, CallsPerRefund: p.CallsPerRefund,
		Rate:        1 / gate.Interval.Seconds(),
		MaxInFlight: gate.MaxInFlight, Hold: p.Latency.Hold(gate.CallTimeout, p.Lost),
	}
}

// Without failures the simulation comes to what the formula says, within 5 %.
func TestSimulationAgreesWithTheFormula(t *testing.T) {
	t.Parallel()
	long := func(p Params) Params { // nothing is handed to people
		p.Policy.Deadline, p.Horizon = 24*time.Hour, 24*time.Hour
		return p
	}
	slow := healthy(240, 2, 5, 1)
	slow.Latency = constant(2900 * time.Millisecond)
	poisson := long(healthy(2000, 1, 5, 1))
	poisson.Arrivals = ArrivalsPoisson
	for name, tt := range map[string]struct {
		p    Params
		want float64 // seconds, by the formula
	}{
		"the seed case":                   {healthy(240, 2, 5, 1), 80},
		"the seed case, two calls each":   {healthy(240, 2, 5, 2), 480},
		"600 waiting":                     {healthy(600, 3, 10, 2), 300},
		"600 waiting, at the needed rate": {healthy(600, 3, 16, 2), 120},
		"nothing comes in":                {healthy(240, 0, 5, 1), 48},
		"a call and a half each":          {long(healthy(1000, 1, 5, 1.5)), 1500 / 3.5},
		"three calls each":                {long(healthy(2000, 1, 5, 3)), 3000},
		"places bind":                     {slow, 240 / (10/2.9 - 2)},
		"arrivals at random":              {poisson, 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.InEpsilon(t, tt.want, plan.Solve(question(tt.p)).Drain, 1e-6)
			s, err := Runs(t.Context(), tt.p, 5)
			require.NoError(t, err)
			require.Equal(t, 5, s.Drained)
			require.InEpsilon(t, tt.want, s.P50, 0.05)
			require.LessOrEqual(t, s.P50, s.P95)
			require.InEpsilon(t, tt.p.CallsPerRefund, s.CallsPerRefund, 0.03)
			require.Zero(t, s.Review)
			require.Zero(t, s.BreakerOpened)
			require.Equal(t, name == "places bind", s.PlaceWaits > 0)
		})
	}
}

func TestSameSeedSameRun(t *testing.T) {
	t.Parallel()
	p := healthy(100, 2, 5, 1.5)
	p.Busy, p.Lost, p.Reject, p.Arrivals = 0.1, 0.05, 0.05, ArrivalsPoisson
	one, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	again, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, one, again)
	p.Seed++
	other, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	require.NotEqual(t, one, other)
}

// What can't drain is given up at the horizon, and people get what is too old.
func TestOverload(t *testing.T) {
	t.Parallel()
	p := healthy(100, 6, 5, 1)
	p.Horizon = 2 * time.Hour
	run, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	require.False(t, run.Drained)
	require.Equal(t, p.Horizon, run.After)
	require.Positive(t, run.Review)
	require.InDelta(t, p.Policy.Deadline, run.Oldest, float64(time.Second), "no case stays longer than its deadline")

	s, err := Runs(t.Context(), p, 2)
	require.NoError(t, err)
	require.Zero(t, s.Drained)
	require.True(t, math.IsInf(s.P50, 1))
	require.InDelta(t, 1, s.CallsPerRefund, 0.2, "who was never sent doesn't count")
	require.Equal(t, p.Horizon, s.GivenUp)
}

// A provider that takes nothing costs three sends a refund, and then people
// have them all.
func TestAlwaysBusy(t *testing.T) {
	t.Parallel()
	p := healthy(20, 0, 5, 1)
	p.Busy = 1
	p.Gate.Breaker.Window = 1_000_000 // keep it closed
	run, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	require.True(t, run.Drained)
	require.Equal(t, Run{
		Drained: true, After: run.After, Calls: 60, Review: 20, Called: 20, CalledCalls: 60, Oldest: run.Oldest,
	}, run)
}

// A lost answer costs a check and nothing else: the refund was carried out.
func TestLostAnswersAreAskedFor(t *testing.T) {
	t.Parallel()
	p := healthy(1, 0, 5, 1)
	p.Latency = constant(4 * time.Second) // longer than the call's time-out
	p.Policy.Checks.Max = 1
	run, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, 2, run.Calls)
	require.Equal(t, 1, run.Review, "the check's answer was too late as well")

	p.Latency, p.Lost, p.Backlog = constant(time.Second), 0.5, 400
	p.Policy.Checks.Max = 20
	p.Gate.Breaker.Window = 1_000_000
	run, err = Simulate(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, 400, run.Closed)
	// Half are done after the send; the others take two checks on average.
	require.InEpsilon(t, 2, float64(run.Calls)/400, 0.1)
}

// A provider that fails for good opens the breaker, as it does in production.
func TestBreakerOpens(t *testing.T) {
	t.Parallel()
	p := healthy(100, 1, 5, 1)
	p.Lost = 1
	run, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	require.Positive(t, run.BreakerOpened)
	require.Less(t, run.Calls, 400, "an open breaker lets three calls out in half a minute")
}

// Rejects close their refunds and say nothing about the provider's health.
func TestRejects(t *testing.T) {
	t.Parallel()
	p := healthy(30, 0, 5, 2)
	p.Reject = 1
	run, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, Run{Drained: true, After: run.After, Calls: 30, Closed: 30, Called: 30, CalledCalls: 30, Oldest: run.Oldest}, run)
}

// A backlog is gone when a start time passes unused, not before.
func TestDrainedAtTheFirstUnusedStart(t *testing.T) {
	t.Parallel()
	p := healthy(3, 0, 5, 1)
	p.Latency = constant(10 * time.Millisecond)
	run, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, 600*time.Millisecond, run.After)
	require.Equal(t, 410*time.Millisecond, run.Oldest)
}

// The deadline ends a call that is in flight.
func TestDeadlineInFlight(t *testing.T) {
	t.Parallel()
	p := healthy(1, 0, 5, 1)
	p.Latency, p.Policy.Deadline = constant(2*time.Second), time.Second
	run, err := Simulate(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, Run{Drained: true, After: time.Second, Calls: 1, Review: 1, Called: 1, CalledCalls: 1, Oldest: time.Second}, run)
}

// A backlog as old as the deadline: call after call is cut off by its own case's
// deadline, and that says nothing against the provider.
func TestDeadlinesDontOpenTheBreaker(t *testing.T) {
	t.Parallel()
	p := healthy(4500, 6, 5, 1)
	p.Latency = constant(2 * time.Second)
	r, err := newRun(p)
	require.NoError(t, err)
	cut := 0
	r.started = func(f *limiter.Flight) {
		if f.Call.AcceptedAt.Add(p.Policy.Deadline).Sub(wall(r.now)) < 2*time.Second {
			cut++
		}
	}
	run, err := r.play(t.Context())
	require.NoError(t, err)
	require.Greater(t, cut, 1000)
	require.Zero(t, run.BreakerOpened)
}

func TestSimulationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Runs(ctx, healthy(100, 2, 5, 1), 3)
	require.ErrorIs(t, err, context.Canceled)
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for says, spoil := range map[string]func(p *Params){
		"backlog":                  func(p *Params) { p.Backlog = MaxBacklog + 1 },
		"inflow":                   func(p *Params) { p.Inflow = math.NaN() },
		"arrivals":                 func(p *Params) { p.Arrivals = "odd" },
		"calls per refund":         func(p *Params) { p.CallsPerRefund = 0 },
		"latency":                  func(p *Params) { p.Latency.P99 = 1 },
		"together at most":         func(p *Params) { p.Busy, p.Lost = 0.6, 0.6 },
		"must be from 0":           func(p *Params) { p.Busy, p.Lost = -0.5, 0.6 },
		"horizon":                  func(p *Params) { p.Horizon = 0 },
		"budgets must be positive": func(p *Params) { p.Gate.Interval = -1 },
	} {
		p := healthy(1, 1, 5, 1)
		spoil(&p)
		_, err := Simulate(t.Context(), p)
		require.ErrorContains(t, err, says)
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var twenty []float64
	for i := 20; i > 0; i-- {
		twenty = append(twenty, float64(i))
	}
	require.InDelta(t, 10, percentile(twenty, 50), 0)
	require.InDelta(t, 19, percentile(twenty, 95), 0)
	require.InDelta(t, 7, percentile([]float64{7}, 95), 0)
	require.Zero(t, percentile(nil, 50))
}

// watch holds what happens in a run to the promises of gate and policy.
type watch struct {
	t       *rapid.T
	r       *run
	waiting map[refund.CallKey]waitingCall
	last    limiter.Call
	lastAt  time.Duration
	starts  int
	sends   map[string]int // by refund id
	// forgone: since the last start a call has left, which may have been its
	// group's turn.
	forgone bool
}

type waitingCall struct {
	limiter.Call
	since time.Duration
}

// lead is how long before its slot the gate may have chosen a call: who comes
// later has to wait for the next one.
const lead = 100 * time.Millisecond

// started is called too often for require, which is slow even when all is well.
func (w *watch) started(f *limiter.Flight) {
	t, now := w.t, w.r.now
	delete(w.waiting, f.Call.Key)
	if w.starts > 0 && now-w.lastAt < w.r.p.Gate.Interval {
		t.Fatalf("two starts are only %s apart", now-w.lastAt)
	}
	if f.InFlight > w.r.p.Gate.MaxInFlight {
		t.Fatalf("%d are in flight", f.InFlight)
	}
	for _, other := range w.waiting {
		switch {
		case other.since > now-lead:
		case other.Group == f.Call.Group && other.AcceptedAt.Before(f.Call.AcceptedAt):
			t.Fatalf("%s went before %s, which was accepted earlier", f.Call.Key, other.Key)
		case other.Group != f.Call.Group && w.starts > 0 && w.last.Group == f.Call.Group && !w.forgone:
			t.Fatalf("%s went although it was the turn of %s", f.Call.Key, other.Key)
		}
	}
	if f.Call.Key.Kind == refund.KindSubmit {
		if w.sends[f.Call.Key.RefundID]++; w.sends[f.Call.Key.RefundID] > 3 {
			t.Fatalf("%s was sent more than three times", f.Call.Key.RefundID)
		}
	}
	w.last, w.lastAt, w.forgone = f.Call, now, false
	w.starts++
}

// Whatever the provider does: starts are spaced, places are bounded, nobody is
// sent more than three times, the groups take turns, and inside a group the
// earliest accepted goes first.
func TestPropertyRunKeepsTheRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := healthy(rapid.IntRange(1, 120).Draw(t, "backlog"), rapid.Float64Range(0, 4).Draw(t, "inflow"), 5, rapid.Float64Range(1, 4).Draw(t, "calls"))
		p.Seed = rapid.Uint64().Draw(t, "seed")
		p.Arrivals = rapid.SampledFrom([]Arrivals{ArrivalsEven, ArrivalsPoisson}).Draw(t, "arrivals")
		p.Latency.P50 = time.Duration(rapid.IntRange(1, 3000).Draw(t, "p50")) * time.Millisecond
		p.Latency.P99 = p.Latency.P50 * time.Duration(rapid.IntRange(1, 10).Draw(t, "spread"))
		p.Busy = rapid.Float64Range(0, 0.5).Draw(t, "busy")
		p.Lost = rapid.Float64Range(0, 0.3).Draw(t, "lost")
		p.Reject = rapid.Float64Range(0, 0.2).Draw(t, "reject")
		p.Gate.MaxInFlight = rapid.IntRange(1, 10).Draw(t, "places")
		// A half-open breaker prefers checks; the order is that of a closed one.
		p.Gate.Breaker.Window = 1_000_000
		p.Horizon = 4 * time.Minute
		p.Policy.Deadline = 3 * time.Minute
		r, err := newRun(p)
		require.NoError(t, err)
		w := &watch{t: t, r: r, waiting: map[refund.CallKey]waitingCall{}, sends: map[string]int{}}
		r.entered = func(c limiter.Call) { w.waiting[c.Key] = waitingCall{c, r.now} }
		r.left = func(c limiter.Call) {
			delete(w.waiting, c.Key)
			w.forgone = true
		}
		r.started = w.started
		res, err := r.play(context.Background())
		require.NoError(t, err)
		require.Equal(t, w.starts, res.Calls)
		require.LessOrEqual(t, res.Oldest, p.Policy.Deadline)
		require.Equal(t, len(w.waiting), r.gate.Waiting())
		require.Equal(t, r.accepted, res.Closed+res.Review+len(r.open), "nobody is lost")
	})
}
