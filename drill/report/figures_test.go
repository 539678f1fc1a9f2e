package report

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGapsStayWithinAScenario(t *testing.T) {
	t.Parallel()
	r := Report{Scenarios: []Scenario{
		{Starts: []Start{{GapMS: 0}, {GapMS: 200}, {GapMS: 201.5}}},
		// The gap to the scenario before it, however long or short.
		{Starts: []Start{{GapMS: 7}, {GapMS: 300}, {GapMS: math.NaN()}}},
		{},
	}}
	require.Equal(t, []float64{200, 201.5, 300}, r.gaps())
}

func TestHistogram(t *testing.T) {
	t.Parallel()
	gaps := []float64{0, 150, 190, 199.999, 200, 200.9999, 201, 204.9, 205, 210, 225, 249, 250, 300, 499, 500, 1000, 5000, 80_000}
	var counts []int
	var labels []string
	for _, b := range histogram(gaps, 200) {
		counts = append(counts, b.Count)
		labels = append(labels, b.label())
	}
	require.Equal(t, []string{
		"under 190 ms", "190 – 200 ms", "200 – 201 ms", "201 – 205 ms", "205 – 210 ms", "210 – 225 ms",
		"225 – 250 ms", "250 – 300 ms", "300 – 500 ms", "500 – 1000 ms", "1000 – 5000 ms", "5000 ms or more",
	}, labels)
	require.Equal(t, []int{2, 2, 2, 2, 1, 1, 2, 1, 2, 1, 1, 2}, counts)
	require.Equal(t, 4, under(gaps, 200))
}

func TestSmallestGapIsRoundedDown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		gap  float64
		want string
	}{
		{200, "200.000 ms"},
		{200.004, "200.004 ms"},
		{199.9999, "199.999 ms"},
		{200.0002, "200.000 ms"},
		{0, "0.000 ms"},
	} {
		require.Equal(t, tt.want, gapText([]float64{300, tt.gap, 400}))
	}
	require.Equal(t, "–", gapText(nil))
}

func TestPerSecond(t *testing.T) {
	t.Parallel()
	instants := []float64{0, 0.2, 0.999, 1, 2.5, 3, -1, 99, math.NaN(), math.Inf(1)}
	require.Equal(t, []int{3, 1, 1, 1}, perSecond(instants, 3))
	require.Equal(t, []int{0}, perSecond(nil, 0.5))
}

func TestInFlightSteps(t *testing.T) {
	t.Parallel()
	s := Scenario{Ended: 20, Starts: []Start{
		{At: 1, InFlight: 1}, {At: 2, InFlight: 2}, {At: math.NaN(), InFlight: 9}, {At: 10, InFlight: 1},
	}}
	require.Equal(t, []point{
		{1, 0},
		{1, 1},
		{2, 1},
		{2, 2},
		{5, 2},
		{5, 0}, // 3 s after a start its call is over
		{10, 0},
		{10, 1},
		{13, 1},
		{13, 0},
	}, s.inFlightSteps(3))
	require.Equal(t, []point{
		{1, 0}, {1, 1}, {2, 1}, {2, 2}, {10, 2}, {10, 1}, {20, 1}, {20, 0},
	}, s.inFlightSteps(0), "without a budget it holds to the end")
	require.Empty(t, Scenario{Ended: 5}.inFlightSteps(3))
}

func TestStairs(t *testing.T) {
	t.Parallel()
	require.Equal(t, []point{{0, 0}, {0, 5}, {2, 5}, {2, 1}, {3, 1}, {3, 0}}, stairs([]int{5, 5, 1}))
}

func TestCountsByOrigin(t *testing.T) {
	t.Parallel()
	s := Scenario{Starts: []Start{
		{Origin: "first", InFlight: 2}, {Origin: "first"}, {Origin: "retry", InFlight: 4}, {Origin: "check"}, {Origin: "manual"},
	}}
	require.Equal(t, "2 first, 1 retry, 1 check, 1 manual", s.kinds())
	require.Equal(t, 4, s.mostInFlight())
	s.Starts = append(s.Starts, Start{Origin: "bypass"})
	require.Equal(t, "2 first, 1 retry, 1 check, 1 manual, 1 other", s.kinds(), "no call is left out")
}

// A report passes only if the drill says so and nothing in it says otherwise.
func TestHeld(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		spoil func(*Report)
		want  bool
	}{
		{"as it is", func(*Report) {}, true},
		{"the drill says no", func(r *Report) { r.Passed = false }, false},
		{"nothing was run", func(r *Report) { r.Scenarios = nil }, false},
		{"a scenario failed", func(r *Report) { r.Scenarios[0].Passed = false }, false},
		{"a check failed", func(r *Report) { r.Scenarios[0].Checks[0].Passed = false }, false},
		{"a scenario has a problem", func(r *Report) { r.Scenarios[0].Problem = "no database" }, false},
	} {
		r := sample()
		tt.spoil(&r)
		require.Equal(t, tt.want, r.held(), tt.name)
	}
}

func TestSabotage(t *testing.T) {
	t.Parallel()
	check := func(passed bool) []Scenario {
		return []Scenario{{Passed: passed, Checks: []Check{{Passed: passed}}}}
	}
	for _, tt := range []struct {
		name   string
		report Report
		says   string
		ok     bool
	}{
		{"none", Report{Passed: true, Scenarios: check(true)}, "", true},
		{"noticed", Report{Sabotage: "gap", Scenarios: check(false)}, "It noticed: 1 check failed", true},
		{"not noticed", Report{Sabotage: "gap", Passed: true, Scenarios: check(true)}, "It did not notice", false},
		{"failed for another reason", Report{Sabotage: "gap", Scenarios: []Scenario{{Problem: "no database"}}}, "doesn't show that it noticed", false},
	} {
		sentence, ok := tt.report.sabotage()
		require.Equal(t, tt.ok, ok, tt.name)
		require.Contains(t, sentence, tt.says, tt.name)
		require.Equal(t, tt.says == "", sentence == "", tt.name)
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		"at most 5 starts/s, at least 200 ms apart", "at most 10 calls in flight", "1 s to connect, 3 s for the whole call",
		"at most 3 automatic attempts and 8 checks per refund",
		"15 min from acceptance to manual review (20 s for the refunds that are to run out of time)",
	}, sample().Budget.words())
	for seconds, want := range map[float64]string{4.24: "4.2 s", 60: "1 min", 200.4: "3 min 20 s", 3600: "60 min", -1: "–", math.NaN(): "–"} {
		require.Equal(t, want, took(seconds))
	}
	for value, want := range map[float64]string{0: "0", math.Copysign(0, -1): "0", 12: "12", 0.1 + 0.2: "0.3", 1234.5678: "1234.568", math.Inf(1): "–"} {
		require.Equal(t, want, number(value))
	}
}
