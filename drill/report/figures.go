package report

import (
	"math"
	"slices"
	"strconv"
)

// origins are the reasons for which a call is made, in the order in which they
// are shown.
var origins = []string{"first", "retry", "check", "manual"}

// other stands for an origin that isn't one of origins.
const other = "other"

// longest is the latest second that is drawn: no drill takes a day, and one
// absurd time would otherwise flatten everything else.
const longest = 24 * 60 * 60

// held says whether the drill passed and nothing in the report contradicts it:
// a report in which nothing was checked shows nothing.
func (r Report) held() bool {
	if !r.Passed || len(r.Scenarios) == 0 {
		return false
	}
	return !slices.ContainsFunc(r.Scenarios, func(s Scenario) bool { return !s.held() })
}

// held says whether the scenario passed and nothing in it contradicts it.
func (s Scenario) held() bool {
	return s.Passed && s.Problem == "" && len(s.failed()) == 0
}

// failed returns the checks that didn't hold.
func (s Scenario) failed() []Check {
	var failed []Check
	for _, c := range s.Checks {
		if !c.Passed {
			failed = append(failed, c)
		}
	}
	return failed
}

// failedChecks counts the checks that didn't hold.
func (r Report) failedChecks() int {
	n := 0
	for _, s := range r.Scenarios {
		n += len(s.failed())
	}
	return n
}

// gaps returns the times between consecutive starts in milliseconds. The first
// start has none: what was before it belongs to another scenario.
func (s Scenario) gaps() []float64 {
	var gaps []float64
	for i, start := range s.Starts {
		if i > 0 && finite(start.GapMS) {
			gaps = append(gaps, start.GapMS)
		}
	}
	return gaps
}

// gaps returns the gaps within all scenarios, none across two of them.
func (r Report) gaps() []float64 {
	var gaps []float64
	for _, s := range r.Scenarios {
		gaps = append(gaps, s.gaps()...)
	}
	return gaps
}

// mostInFlight is the highest number of calls in flight that a start saw, its
// own included.
func (s Scenario) mostInFlight() int {
	most := 0
	for _, start := range s.Starts {
		most = max(most, start.InFlight)
	}
	return most
}

// origin returns where the start is counted: one of origins, or other.
func (s Start) origin() string {
	if slices.Contains(origins, s.Origin) {
		return s.Origin
	}
	return other
}

// byOrigin counts the starts of each origin.
func (s Scenario) byOrigin() map[string]int {
	counts := map[string]int{}
	for _, start := range s.Starts {
		counts[start.origin()]++
	}
	return counts
}

// shownOrigins returns the origins to show: always the four, and other if there
// is one.
func (s Scenario) shownOrigins() []string {
	if s.byOrigin()[other] > 0 {
		return append(slices.Clone(origins), other)
	}
	return origins
}

// span returns the time that the report covers, in seconds since it began; to
// is above from.
func (r Report) span() (from, to float64) {
	to = 1
	if took := r.Ended.Sub(r.Began).Seconds(); drawable(took) {
		to = max(to, took)
	}
	for _, s := range r.Scenarios {
		_, end := s.span()
		to = max(to, end)
	}
	return 0, to
}

// span returns the time that the scenario covers, with everything in it; to is
// above from.
func (s Scenario) span() (from, to float64) {
	times := []float64{s.Began, s.Ended}
	for _, w := range s.Windows {
		times = append(times, w.From, w.To)
	}
	for _, start := range s.Starts {
		times = append(times, start.At)
	}
	times = append(times, s.Settled...)
	for _, a := range s.Oldest {
		times = append(times, a.At)
	}
	times = slices.DeleteFunc(times, func(t float64) bool { return !drawable(t) })
	if len(times) == 0 {
		return 0, 1
	}
	from, to = slices.Min(times), slices.Max(times)
	return from, max(to, from+1)
}

// perSecond counts instants in fixed bins of one second from 0 on: bin i holds
// i <= t < i+1. It has as many bins as it takes to reach to.
func perSecond(instants []float64, to float64) []int {
	bins := make([]int, int(math.Floor(min(to, longest)))+1)
	for _, t := range instants {
		if drawable(t) && int(t) < len(bins) {
			bins[int(t)]++
		}
	}
	return bins
}

// startTimes returns when the scenario's calls left.
func (s Scenario) startTimes() []float64 {
	times := make([]float64, len(s.Starts))
	for i, start := range s.Starts {
		times[i] = start.At
	}
	return times
}

// point is a place in a chart, in the chart's units.
type point struct{ x, y float64 }

// inFlightSteps returns how many calls were in flight, as corners of steps. It
// is known at each start only and held until the next one, yet no longer than
// hold seconds: by then each call has had its budget.
func (s Scenario) inFlightSteps(hold float64) []point {
	var steps []point
	level := func(at, n float64) {
		before := 0.0
		if len(steps) > 0 {
			before = steps[len(steps)-1].y
		}
		steps = append(steps, point{at, before}, point{at, n})
	}
	last := math.Inf(1)
	for _, start := range s.Starts {
		if !drawable(start.At) {
			continue
		}
		if hold > 0 && start.At-last > hold {
			level(last+hold, 0)
		}
		level(start.At, float64(start.InFlight))
		last = start.At
	}
	if len(steps) > 0 {
		_, end := s.span()
		if hold > 0 {
			end = min(end, last+hold)
		}
		level(end, 0)
	}
	return steps
}

// bin is one bar of the histogram: how many gaps are at least From and under To
// milliseconds.
type bin struct {
	From, To float64 // To is infinite in the last one
	Count    int
	Under    bool // shorter than allowed
}

// edges are the limits of the histogram's bins as multiples of the interval:
// fine where a gap would be too short or just right.
var edges = []float64{0.95, 1, 1.005, 1.025, 1.05, 1.125, 1.25, 1.5, 2.5, 5, 25}

// histogram sorts gaps into bins around the interval that they must keep.
func histogram(gaps []float64, interval float64) []bin {
	var bins []bin
	from := 0.0
	for _, edge := range edges {
		// Whole nanoseconds, so that 200 times 1.005 is 201.
		to := math.Round(edge*interval*1e6) / 1e6
		bins = append(bins, bin{From: from, To: to, Under: edge <= 1})
		from = to
	}
	bins = append(bins, bin{From: from, To: math.Inf(1)})
	for _, gap := range gaps {
		i := slices.IndexFunc(bins, func(b bin) bool { return gap < b.To })
		bins[i].Count++
	}
	return bins
}

// under counts the gaps that are shorter than the interval.
func under(gaps []float64, interval float64) int {
	n := 0
	for _, gap := range gaps {
		if gap < interval {
			n++
		}
	}
	return n
}

// gapText writes the smallest gap with microseconds, rounded down: 199.9999 ms
// must not look like 200.
func gapText(gaps []float64) string {
	if len(gaps) == 0 {
		return "–"
	}
	// The tiny addition keeps 200.004 from becoming 200.003 for the way in
	// which floating point stores it.
	us := math.Floor(slices.Min(gaps)*1000 + 1e-6)
	return strconv.FormatFloat(us/1000, 'f', 3, 64) + " ms"
}

// drawable says whether a time can be shown on the axis.
func drawable(t float64) bool { return t >= 0 && t <= longest }

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
