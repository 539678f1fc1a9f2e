package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
)

//go:embed report.html.tmpl
var pageText string

var pageTemplate = template.Must(template.New(HTMLFile).Funcs(template.FuncMap{
	"verdict": verdict,
	"at":      at,
}).Parse(pageText))

// page is what the template shows.
type page struct {
	Passed      bool
	Summary     string
	When        string
	Sabotage    string
	Noticed     bool
	Facts       []fact
	Budget      []string
	Failures    []failure
	Scenarios   []section
	Whole       figure
	Gaps        figure
	SmallestGap string
	TooShort    int
	GapCount    int
	Interval    string
}

// fact is a line of the table about the run.
type fact struct{ Name, Value string }

// failure is something that broke, with the scenario to look at.
type failure struct {
	ID, Scenario string
	Problem      string // why the scenario could not be carried out
	Check        Check  // or the check that failed
}

// section is one scenario on the page.
type section struct {
	Scenario
	Number      int
	ID          string // of the section, for links
	Held        bool
	Took        string
	SmallestGap string
	TooShort    bool
	MostFlying  int
	TooMany     bool // in flight
	Kinds       string
	Numbers     []fact
	Chart       figure
}

// WriteHTML writes the report as one page that needs nothing else: no network,
// no script, no other file.
func (r Report) WriteHTML(w io.Writer) error {
	if err := pageTemplate.Execute(w, r.page()); err != nil {
		return fmt.Errorf("writing the report as HTML: %w", err)
	}
	return nil
}

func (r Report) page() page {
	gaps := r.gaps()
	p := page{
		Passed: r.held(), Summary: r.summary(), When: r.when(), Facts: r.facts(), Budget: r.Budget.words(), Failures: r.failures(),
		Whole: r.wholeDrill(), Gaps: r.gapChart(), SmallestGap: gapText(gaps), TooShort: under(gaps, r.Budget.IntervalMS),
		GapCount: len(gaps), Interval: milliseconds(r.Budget.IntervalMS),
	}
	p.Sabotage, p.Noticed = r.sabotage()
	for i := range r.Scenarios {
		p.Scenarios = append(p.Scenarios, r.section(i))
	}
	return p
}

func (r Report) section(index int) section {
	s := r.Scenarios[index]
	gaps := s.gaps()
	var numbers []fact
	for _, f := range s.Figures {
		numbers = append(numbers, fact{f.Name, f.text()})
	}
	return section{
		Scenario: s, Number: index + 1, ID: sectionID(index), Held: s.held(), Took: took(s.Ended - s.Began),
		SmallestGap: gapText(gaps), TooShort: under(gaps, r.Budget.IntervalMS) > 0, MostFlying: s.mostInFlight(),
		TooMany: s.mostInFlight() > r.Budget.MaxInFlight,
		Kinds:   s.kinds(), Numbers: numbers, Chart: r.chart(index),
	}
}

func sectionID(index int) string { return "scenario-" + strconv.Itoa(index+1) }

// summary says in one sentence what came of it.
func (r Report) summary() string {
	checks, failed, broken := 0, r.failedChecks(), 0
	for _, s := range r.Scenarios {
		checks += len(s.Checks)
		if !s.held() {
			broken++
		}
	}
	all := count(checks, "check") + " in " + count(len(r.Scenarios), "scenario")
	switch {
	case len(r.Scenarios) == 0:
		return "No scenario was run, so nothing is shown."
	case r.held():
		return all + ": every one held."
	case broken == 0:
		return all + " held, yet the drill as a whole did not pass."
	}
	return fmt.Sprintf("%s: %s failed; %d of %s did not pass.", all, count(failed, "check"), broken, count(len(r.Scenarios), "scenario"))
}

func (r Report) facts() []fact {
	e := r.Environment
	facts := []fact{
		{"Began", when(r.Began)},
		{"Took", took(r.Ended.Sub(r.Began).Seconds())},
		{"Form", r.form()},
		{"refundgate", e.Refundgate},
		{"Database", e.Database},
		{"Temporal", e.Temporal},
		{"Go", e.Go},
		{"Machine", strings.TrimPrefix(e.System+", "+count(e.Cores, "core"), ", ")},
	}
	for i := range facts {
		if facts[i].Value == "" {
			facts[i].Value = "–"
		}
	}
	return facts
}

// failures lists what broke, in the order of the scenarios.
func (r Report) failures() []failure {
	var failures []failure
	for i, s := range r.Scenarios {
		here := failure{ID: sectionID(i), Scenario: s.Name}
		failed := s.failed()
		switch {
		case s.Problem != "":
			here.Problem = s.Problem
			failures = append(failures, here)
		case !s.Passed && len(failed) == 0:
			here.Check = Check{Name: "verdict", Promise: "the scenario passes", Measured: "it did not, and no check says why"}
			failures = append(failures, here)
		}
		for _, c := range failed {
			failures = append(failures, failure{ID: here.ID, Scenario: s.Name, Check: c})
		}
	}
	return failures
}
