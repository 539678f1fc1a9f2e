package limiter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/refund"
)

// bench is a breaker on a clock of its own, with the changes it made.
type bench struct {
	*breaker
	now     time.Duration
	changes []BreakerState
}

func newBench() *bench {
	b := &bench{}
	b.breaker = newBreaker(BreakerConfig{}, func(_, to BreakerState) { b.changes = append(b.changes, to) })
	return b
}

// pass lets a call out and reports its result at once.
func (b *bench) pass(verdicts ...Verdict) {
	for _, v := range verdicts {
		b.report(b.take(b.now), v, b.now)
	}
}

func (b *bench) after(d time.Duration) {
	b.now += d
	b.tick(b.now)
}

func (b *bench) trip() {
	for range 10 {
		b.pass(Failing)
	}
}

func TestBreakerOpensAtHalfOfTen(t *testing.T) {
	t.Parallel()
	b := newBench()
	for range 9 {
		b.pass(Failing)
	}
	require.Equal(t, BreakerClosed, b.state, "ten results are not in yet")
	b.pass(Failing)
	require.Equal(t, BreakerOpen, b.state)
	require.False(t, b.permits())

	b = newBench()
	b.pass(Healthy, Failing, Healthy, Failing, Healthy, Failing, Healthy, Failing, Healthy, Healthy)
	require.Equal(t, BreakerClosed, b.state, "four of ten")
	b.pass(Failing) // pushes out a healthy one: five of ten
	require.Equal(t, BreakerOpen, b.state)

	b = newBench()
	for range 100 {
		b.pass(Neutral, Healthy, CutShort, Healthy, Failing)
	}
	require.Equal(t, BreakerClosed, b.state, "a third of those that say something")
}

func TestBreakerHalfOpenTakesExactlyThree(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		probes []Verdict
		want   BreakerState
	}{
		{[]Verdict{Healthy, Healthy, Healthy}, BreakerClosed},
		{[]Verdict{Failing, Healthy, Healthy}, BreakerClosed},
		{[]Verdict{Healthy, Failing, Failing}, BreakerOpen},
		{[]Verdict{Failing, Failing, Failing}, BreakerOpen},
		// CASE 35: rejects are neutral, and whatever comes it leaves half-open.
		{[]Verdict{Neutral, Failing, Healthy}, BreakerOpen},
		{[]Verdict{Neutral, Failing, Failing}, BreakerOpen},
		{[]Verdict{Neutral, Neutral, Failing}, BreakerOpen},
		{[]Verdict{Neutral, Healthy, Healthy}, BreakerClosed},
		{[]Verdict{Neutral, Neutral, Neutral}, BreakerClosed},
		{[]Verdict{CutShort, Healthy, Healthy}, BreakerClosed},
		{[]Verdict{CutShort, CutShort, Healthy}, BreakerClosed},
		{[]Verdict{CutShort, CutShort, Neutral}, BreakerClosed},
		{[]Verdict{CutShort, Healthy, Failing}, BreakerOpen},
		{[]Verdict{CutShort, CutShort, Failing}, BreakerOpen},
		{[]Verdict{CutShort, Neutral, Failing}, BreakerOpen},
		// Nobody has heard of the provider.
		{[]Verdict{CutShort, CutShort, CutShort}, BreakerOpen},
	} {
		b := newBench()
		b.trip()
		b.after(30*time.Second - 1)
		require.Equal(t, BreakerOpen, b.state)
		b.after(1)
		require.Equal(t, BreakerHalfOpen, b.state, "by itself")
		var generations []uint64
		for range 3 {
			require.True(t, b.permits())
			generations = append(generations, b.take(b.now))
		}
		require.False(t, b.permits(), "a fourth probe")
		for i, v := range tt.probes {
			require.Equal(t, BreakerHalfOpen, b.state)
			b.report(generations[i], v, b.now)
		}
		require.Equal(t, tt.want, b.state, "%v", tt.probes)
		require.Equal(t, []BreakerState{BreakerOpen, BreakerHalfOpen, tt.want}, b.changes)
	}
}

func TestBreakerIgnoresLateResults(t *testing.T) {
	t.Parallel()
	b := newBench()
	late := b.take(b.now)
	b.trip()
	b.report(late, Healthy, b.now)
	require.Equal(t, BreakerOpen, b.state)
	b.after(30 * time.Second)
	for range 3 {
		b.report(late, Healthy, b.now)
	}
	require.Equal(t, BreakerHalfOpen, b.state, "results of another state are no probes")
	b.giveBack(late)
	require.Zero(t, b.taken)
}

func TestCase35_BreakerCannotStickHalfOpen(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.trip()
	b.after(30 * time.Second)
	b.after(time.Hour)
	require.Equal(t, BreakerHalfOpen, b.state, "without a call there is nothing to find out")
	hangs := b.take(b.now)
	b.after(30 * time.Second)
	require.Equal(t, BreakerOpen, b.state, "the probe never came back")
	b.report(hangs, Healthy, b.now)
	require.Equal(t, BreakerOpen, b.state)

	b.after(30 * time.Second)
	g := b.take(b.now)
	b.giveBack(g) // it was not sent
	b.pass(Healthy, Healthy, Healthy)
	require.Equal(t, BreakerClosed, b.state)
}

// Against a model that keeps whole lists: never more than three probes in a
// half-open state, never a call out of an open one, and the same state.
func TestPropertyBreaker(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := newBench()
		var out []uint64 // generations of the calls under way
		var recent []bool
		probes := 0
		seen := len(b.changes)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				if b.permits() {
					require.NotEqual(t, BreakerOpen, b.state)
					if b.state == BreakerHalfOpen {
						probes++
					}
					out = append(out, b.take(b.now))
				}
			case 2, 3:
				if len(out) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(out)-1).Draw(t, "call")
				v := rapid.SampledFrom([]Verdict{Neutral, Healthy, Failing, CutShort}).Draw(t, "verdict")
				if b.state == BreakerClosed && out[i] == b.generation && (v == Healthy || v == Failing) {
					recent = append(recent, v == Failing)
				}
				b.report(out[i], v, b.now)
				out = append(out[:i], out[i+1:]...)
			case 4:
				b.after(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			}
			require.LessOrEqual(t, probes, 3)
			if len(b.changes) > seen {
				seen, probes = len(b.changes), 0
				if b.state == BreakerOpen && len(recent) > 0 {
					failing := 0
					for _, f := range recent[max(0, len(recent)-10):] {
						if f {
							failing++
						}
					}
					require.GreaterOrEqual(t, len(recent), 10)
					require.GreaterOrEqual(t, failing, 5)
				}
				recent = nil
			} else if n := len(recent); b.state == BreakerClosed && n >= 10 {
				failing := 0
				for _, f := range recent[n-10:] {
					if f {
						failing++
					}
				}
				require.Less(t, failing, 5, "it should have opened")
			}
		}
	})
}

func TestVerdictOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		result refund.Result
		want   Verdict
	}{
		{refund.Result{Outcome: refund.OutcomeSucceeded}, Healthy},
		{refund.Result{Outcome: refund.OutcomePending}, Healthy},
		{refund.Result{Outcome: refund.OutcomeNotFound}, Healthy},
		{refund.Result{Outcome: refund.OutcomeRejected, Code: "refund_window_closed"}, Neutral},
		{refund.Result{Outcome: refund.OutcomeRejected, Code: "unauthorized", AccountWide: true}, Neutral},
		{refund.Result{Outcome: refund.OutcomeUnknown, Code: "forbidden", AccountWide: true}, Neutral},
		{refund.Result{Outcome: refund.OutcomeUnknown, Code: "idempotency_mismatch", NeverResend: true}, Neutral},
		{refund.Result{Outcome: refund.OutcomeBusy, Code: "rate_limited", AccountWide: true}, Neutral},
		{refund.Result{Outcome: refund.OutcomeBusy, Code: "temporarily_unavailable"}, Failing},
		{refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout}, Failing},
		{refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: refund.BudgetConnect}, Failing},
		{refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: refund.BudgetOverall}, Failing},
		{refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: refund.BudgetDeadline}, CutShort},
		{refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeUnreadable}, Failing},
	} {
		require.Equal(t, tt.want, VerdictOf(tt.result), "%+v", tt.result)
	}
}
