package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
)

// figure is a chart with what is needed to read it.
type figure struct {
	Chart   template.HTML
	Legend  []legend
	Windows []span
	Caption string
}

// legend explains one mark of a chart.
type legend struct {
	Swatch template.HTML
	Text   string
}

// swatch draws a sample of a mark in a box of 16 by 12.
func swatch(draw func(d *drawing)) template.HTML {
	d := &drawing{}
	draw(d)
	return template.HTML(`<svg class="swatch" viewBox="0 0 16 12" aria-hidden="true">` + d.elements.String() + `</svg>`)
}

func areaSwatch(class string) template.HTML {
	return swatch(func(d *drawing) { d.rect(class, 1, 1, 14, 10) })
}

func lineSwatch(class string) template.HTML {
	return swatch(func(d *drawing) { d.line(class, 0, 6, 16, 6) })
}

// windowLegend explains the shading, if there is any.
func windowLegend(windows []span) []legend {
	if len(windows) == 0 {
		return nil
	}
	return []legend{{areaSwatch("window"), "marked time; its label says what happened then"}}
}

// wholeDrill draws the calls that left and the cases that were settled on one
// time axis, with calls in flight and the oldest case's age below.
func (r Report) wholeDrill() figure {
	from, to := r.span()
	var windows, bands []span
	for i, s := range r.Scenarios {
		windows = append(windows, s.windows(i)...)
		bands = append(bands, span{strconv.Itoa(i + 1), s.Name, s.Began, s.Ended})
	}
	rates, starts, settled := r.ratePanel(to)
	chart := timeChart{
		id:    "drill",
		title: "Calls started and cases settled per second over the whole drill",
		desc: fmt.Sprintf("%s and %s settled in %s. At most %d calls started within one second.",
			count(starts.total, "call start"), count(settled.total, "case"), took(to), starts.most),
		from: from, to: to, bands: bands, windows: windows, keysOnly: true,
		panels: []panel{rates, r.inFlightPanel(r.Scenarios, 90), agePanel(r.Scenarios, 90)},
	}
	return figure{
		Chart: chart.both(),
		Legend: slices.Concat([]legend{
			{areaSwatch("starts"), "calls started per second"},
			{lineSwatch("settled"), "cases settled per second"},
			{lineSwatch("limit"), "limit"},
		}, windowLegend(windows)),
		Windows: windows,
		Caption: "Rates are counted in fixed bins of one second from the drill's beginning. " + r.inFlightCaption(),
	}
}

// inFlightCaption says how the calls in flight come to be drawn.
func (r Report) inFlightCaption() string {
	if r.Budget.CallMS <= 0 {
		return "Calls in flight are known at each start, and held until the next."
	}
	return fmt.Sprintf("Calls in flight are known at each start, and held until the next, yet no longer than a call's %s.",
		milliseconds(float64(r.Budget.CallMS)))
}

// windows returns the scenario's windows with keys such as 3b.
func (s Scenario) windows(index int) []span {
	var spans []span
	for i, w := range s.Windows {
		if drawable(w.From) && drawable(w.To) {
			spans = append(spans, span{strconv.Itoa(index+1) + letters(i), w.Label, w.From, w.To})
		}
	}
	return spans
}

// letters counts a to z, then aa, ab and so on.
func letters(i int) string {
	if i < 26 {
		return string(rune('a' + i))
	}
	return letters(i/26-1) + letters(i%26)
}

// perSecondTotals sums up what a rate line shows.
type perSecondTotals struct{ total, most int }

func totals(bins []int) perSecondTotals {
	var t perSecondTotals
	for _, n := range bins {
		t.total += n
		t.most = max(t.most, n)
	}
	return t
}

func (r Report) ratePanel(to float64) (rates panel, started, settled perSecondTotals) {
	var starts, ends []float64
	for _, s := range r.Scenarios {
		starts = append(starts, s.startTimes()...)
		ends = append(ends, s.Settled...)
	}
	startBins, endBins := perSecond(starts, to), perSecond(ends, to)
	started, settled = totals(startBins), totals(endBins)
	rates = panel{
		name: "per second", height: 170,
		draw: func(d *drawing, x, y scale) {
			d.path("starts", outline(stairs(startBins), x, y))
			d.path("settled", outline(stairs(endBins), x, y))
		},
	}
	if r.Budget.IntervalMS > 0 {
		rates.limit = 1000 / r.Budget.IntervalMS
		rates.says = "budget: " + number(rates.limit) + " starts/s"
	}
	rates.top = niceTop(max(float64(started.most), float64(settled.most), rates.limit)*1.1, tickCount(rates.height))
	return rates, started, settled
}

// stairs turns bins of one second into the corners of steps from and to zero.
func stairs(bins []int) []point {
	corners := []point{{0, 0}}
	for i, n := range bins {
		if i > 0 && bins[i-1] == n {
			corners = corners[:len(corners)-1] // the step goes on
		} else {
			corners = append(corners, point{float64(i), float64(n)})
		}
		corners = append(corners, point{float64(i + 1), float64(n)})
	}
	return append(corners, point{float64(len(bins)), 0})
}

func (r Report) inFlightPanel(scenarios []Scenario, height float64) panel {
	most := 0
	for _, s := range scenarios {
		most = max(most, s.mostInFlight())
	}
	p := panel{name: "calls in flight", height: height, limit: float64(r.Budget.MaxInFlight)}
	p.says = fmt.Sprintf("limit: %d", r.Budget.MaxInFlight)
	p.top = niceTop(max(float64(most), p.limit)*1.1, tickCount(height))
	p.draw = func(d *drawing, x, y scale) {
		for _, s := range scenarios {
			d.path("in-flight", outline(s.inFlightSteps(float64(r.Budget.CallMS)/1000), x, y))
		}
	}
	return p
}

// agePanel shows the age of the oldest open case.
func agePanel(scenarios []Scenario, height float64) panel {
	highest := 0.0
	for _, s := range scenarios {
		for _, a := range s.Oldest {
			if finite(a.Seconds) {
				highest = max(highest, a.Seconds)
			}
		}
	}
	return panel{
		name: "age of the oldest open case, in seconds", height: height, top: niceTop(highest, tickCount(height)),
		draw: func(d *drawing, x, y scale) {
			for _, s := range scenarios {
				d.path("age", outline(agePoints(s.Oldest), x, y))
			}
		},
	}
}

func agePoints(ages []Age) []point {
	var points []point
	for _, a := range ages {
		if drawable(a.At) {
			points = append(points, point{a.At, a.Seconds})
		}
	}
	return points
}

// chart draws one scenario: each start in the lane of its origin, calls in
// flight and the oldest case's age.
func (r Report) chart(index int) figure {
	s := r.Scenarios[index]
	from, to := s.span()
	windows := s.windows(index)
	chart := timeChart{
		id:    fmt.Sprintf("s%d", index+1),
		title: "Calls of the scenario " + s.Name,
		desc: fmt.Sprintf("%s (%s), at most %d in flight, smallest gap %s.",
			count(len(s.Starts), "call start"), s.kinds(), s.mostInFlight(), gapText(s.gaps())),
		from: from, to: to, windows: windows,
		panels: []panel{r.lanes(s), r.inFlightPanel([]Scenario{s}, 70), agePanel([]Scenario{s}, 70)},
	}
	return figure{
		Chart:   chart.both(),
		Legend:  slices.Concat(r.laneLegend(s), windowLegend(windows)),
		Windows: windows,
	}
}

// marks draw a start of each origin, from its middle on, in relative commands.
var marks = map[string]string{
	"first":  "m-1.2-5h2.4v10h-2.4z",        // bar
	"retry":  "m0-5l4.5 9h-9z",              // triangle
	"check":  "m-3.5-3.5h7v7h-7z",           // square
	"manual": "m0-5.5l5 5.5l-5 5.5l-5-5.5z", // diamond
	other:    "m-4-1h8v2h-8z",
}

const mostRings = 100 // a chart full of them says no more

// lanes shows each start as a mark, and a ring around one that came too early.
func (r Report) lanes(s Scenario) panel {
	origins := s.shownOrigins()
	n := len(origins)
	return panel{
		name: "calls started, by origin", height: float64(n) * 22, top: float64(n), lanes: origins,
		draw: func(d *drawing, x, y scale) {
			for i, origin := range origins {
				d.path("mark "+origin, laneMarks(s.Starts, origin, x, y.at(laneMiddle(i, n))))
			}
			for _, i := range r.tooEarly(s) {
				lane := slices.Index(origins, s.Starts[i].origin())
				d.add(`<circle class="early" cx="%s" cy="%s" r="9"/>`, px(x.at(s.Starts[i].At)), px(y.at(laneMiddle(lane, n))))
			}
		},
	}
}

func laneMarks(starts []Start, origin string, x scale, y float64) string {
	var commands strings.Builder
	for _, start := range starts {
		if start.origin() == origin && drawable(start.At) {
			commands.WriteString("M" + px(x.at(start.At)) + " " + px(y) + marks[origin])
		}
	}
	return commands.String()
}

// tooEarly returns which starts came too soon after the one before, the first
// of them.
func (r Report) tooEarly(s Scenario) []int {
	var early []int
	for i, start := range s.Starts {
		if i > 0 && start.GapMS < r.Budget.IntervalMS && drawable(start.At) && len(early) < mostRings {
			early = append(early, i)
		}
	}
	return early
}

func (r Report) laneLegend(s Scenario) []legend {
	var entries []legend
	for _, origin := range s.shownOrigins() {
		entries = append(entries, legend{
			swatch(func(d *drawing) { d.path("mark "+origin, "M8 6"+marks[origin]) }),
			fmt.Sprintf("%s (%d)", origin, s.byOrigin()[origin]),
		})
	}
	if len(r.tooEarly(s)) > 0 {
		entries = append(entries, legend{
			swatch(func(d *drawing) { d.add(`<circle class="early" cx="8" cy="6" r="5"/>`) }),
			"sent too early",
		})
	}
	return entries
}

// gapChart draws how long the gaps between starts were; it is empty if there
// were none.
func (r Report) gapChart() figure {
	gaps := r.gaps()
	if len(gaps) == 0 || r.Budget.IntervalMS <= 0 || !finite(r.Budget.IntervalMS) {
		return figure{}
	}
	bins := histogram(gaps, r.Budget.IntervalMS)
	return figure{
		Chart: renderBins("wide", wide, bins) + renderBins("narrow", narrow, bins),
		Legend: []legend{
			{lineSwatch("limit"), "shortest gap allowed, " + milliseconds(r.Budget.IntervalMS)},
			{areaSwatch("bar"), "gaps that are long enough"},
			{areaSwatch("bar too-short"), "gaps that are too short"},
		},
		Caption: "Gaps between consecutive starts within a scenario; each bar holds those from its left figure up to, but not including, its right one. The bars' limits are not evenly spaced.",
	}
}

// renderBins draws horizontal bars, since their labels are wider than bars
// side by side would be on a phone.
func renderBins(class string, width float64, bins []bin) template.HTML {
	const left, row, top = 124.0, 22.0, 6.0
	d := &drawing{width: width, height: top + row*float64(len(bins)) + 4}
	most := 0
	for _, b := range bins {
		most = max(most, b.Count)
	}
	x := scale{0, float64(max(most, 1)), left, width - 60}
	var said []string
	for i, b := range bins {
		y := top + row*float64(i)
		d.text("label", "end", left-8, y+15, b.label())
		d.rect(b.class(), left, y+3, visible(x, b.Count), row-6)
		d.text("label "+b.class(), "start", left+visible(x, b.Count)+5, y+15, strconv.Itoa(b.Count))
		said = append(said, fmt.Sprintf("%s: %d", b.label(), b.Count))
		if !b.Under && i > 0 && bins[i-1].Under {
			d.line("limit", 4, y, width-4, y)
		}
	}
	d.line("axis", left, top, left, d.height-4)
	return d.picture(class, "gaps-"+class, "How many gaps between starts were how long", strings.Join(said, "; "))
}

// visible is a bar's length; one that holds anything can be seen.
func visible(x scale, n int) float64 {
	length := x.at(float64(n)) - x.low
	if n > 0 {
		length = max(length, 2)
	}
	return length
}

func (b bin) class() string {
	if b.Under && b.Count > 0 {
		return "bar too-short"
	}
	return "bar"
}

// label writes the bin's limits.
func (b bin) label() string {
	switch {
	case math.IsInf(b.To, 1):
		return number(b.From) + " ms or more"
	case b.From == 0:
		return "under " + number(b.To) + " ms"
	}
	return number(b.From) + " – " + number(b.To) + " ms"
}
