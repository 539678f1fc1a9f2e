package report

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachStartIsMarkedInItsLane(t *testing.T) {
	t.Parallel()
	starts := []Start{{At: 1, Origin: "first"}, {At: 2, Origin: "check"}, {At: 4, Origin: "first"}, {At: math.NaN(), Origin: "first"}}
	x := scale{0, 10, 100, 200}
	require.Equal(t, "M110 7"+marks["first"]+"M140 7"+marks["first"], laneMarks(starts, "first", x, 7))
	require.Equal(t, "M120 8"+marks["check"], laneMarks(starts, "check", x, 8))
	require.Empty(t, laneMarks(starts, "manual", x, 9))
}

func TestStartsThatCameTooEarly(t *testing.T) {
	t.Parallel()
	r := Report{Budget: Budget{IntervalMS: 200}}
	s := Scenario{Starts: []Start{{GapMS: 0}, {GapMS: 200}, {GapMS: 199.999}, {GapMS: 0}}}
	require.Equal(t, []int{2, 3}, r.tooEarly(s), "the first start has none before it")
	s.Starts = make([]Start, 500)
	require.Len(t, r.tooEarly(s), mostRings)
}

// A window without a place on the axis is left out, and the others keep the
// keys that they would have had.
func TestWindowsWithoutAPlace(t *testing.T) {
	t.Parallel()
	s := Scenario{Windows: []Window{{"one", 1, 2}, {"two", math.NaN(), 3}, {"three", 3, math.Inf(1)}, {"four", 3, 4}}}
	require.Equal(t, []span{{"5a", "one", 1, 2}, {"5d", "four", 3, 4}}, s.windows(4))
}

func TestBarsOfGaps(t *testing.T) {
	t.Parallel()
	render := func(gaps ...float64) string {
		return string(renderBins("wide", wide, histogram(gaps, 200)))
	}
	require.Contains(t, render(150, 200), `rect class="bar too-short"`)
	require.NotContains(t, render(200, 300), "too-short", "a count of zero is no alarm")

	many := slices.Repeat([]float64{200}, 10_000)
	full, least := wide-60-124, 2.0
	svg := render(append(many, 400)...)
	require.Contains(t, svg, `width="`+px(full)+`"`)
	require.Equal(t, 1, strings.Count(svg, `width="`+px(least)+`"`), "a single gap can be seen beside ten thousand")
	require.Equal(t, 1, strings.Count(svg, `class="limit"`))
	require.Contains(t, svg, "200 – 201 ms: 10000")
}

func TestNothingToChart(t *testing.T) {
	t.Parallel()
	one := []Scenario{{Starts: []Start{{At: 1}}}}
	two := []Scenario{{Starts: []Start{{At: 1}, {At: 2, GapMS: 1000}}}}
	require.Empty(t, Report{Scenarios: one, Budget: Budget{IntervalMS: 200}}.gapChart())
	require.Empty(t, Report{Scenarios: two}.gapChart(), "without an interval no gap is short or long")
	require.NotEmpty(t, Report{Scenarios: two, Budget: Budget{IntervalMS: 200}}.gapChart())
}

// The rates say what was started and settled, whole scenarios together.
func TestWholeDrillIsDescribed(t *testing.T) {
	t.Parallel()
	r := Report{
		Budget: Budget{IntervalMS: 200, MaxInFlight: 10},
		Scenarios: []Scenario{
			{Name: "a", Ended: 5, Starts: []Start{{At: 1.1}, {At: 1.3}, {At: 1.9}}, Settled: []float64{2}},
			{Name: "b", Began: 5, Ended: 9, Starts: []Start{{At: 6}}, Settled: []float64{7, 8.5}},
		},
	}
	require.Contains(t, string(r.wholeDrill().Chart),
		"4 call starts and 3 cases settled in 9.0 s. At most 3 calls started within one second.")
}
