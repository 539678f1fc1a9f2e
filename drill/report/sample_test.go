package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// sample returns a report as a real drill leaves it: calls that keep the
// budget, windows that lie close together, and work that piles up and is
// settled. It is the same each time.
func sample() Report {
	g := &generator{random: rand.New(rand.NewPCG(1, 2))}
	g.report = Report{
		Passed: true,
		Began:  time.Date(2026, 3, 14, 9, 26, 53, 0, time.UTC),
		Environment: Environment{
			Cores: 2, System: "linux 6.1.0-31-amd64", Go: "go1.26.0", Refundgate: "7dc83f9",
			Database: "10.11.14-MariaDB", Temporal: "1.29.1",
		},
		Budget: Budget{
			IntervalMS: 200, MaxInFlight: 10, ConnectMS: 1000, CallMS: 3000,
			MaxAttempts: 3, MaxChecks: 8, DeadlineMS: 900_000, LateDeadlineMS: 20_000,
		},
	}
	g.scenario("fast", "G1", "Fast success", 60, 18, 0.15, nil)
	g.scenario("slow", "G1", "Every answer takes three seconds", 60, 30, 2.9, []Window{{"answers take 3 s", 2, 26}})
	g.scenario("drop", "G1", "Done, but the answer is lost", 40, 22, 0.3, []Window{
		{"the provider drops each answer after it has done the refund", 1, 6},
		{"recovery", 6, 7},
		{"drops again", 7.2, 8},
	})
	g.scenario("reject", "G1", "Definite rejects", 25, 9, 0.2, []Window{{"rejects", 0.5, 7}})
	g.scenario("paused-batch", "G2", "A batch falls due while the sender is paused", 50, 20, 0.2, []Window{{"paused", 3, 8}})
	g.scenario("mixed", "G3", "All four kinds through one gate", 80, 24, 0.4, nil)
	g.scenario("two-owners", "G4", "The old owner is stopped, and a new one started", 30, 34, 0.2, []Window{
		{"old owner stopped (SIGSTOP)", 4, 14}, {"both alive", 14, 15}, {"old owner ends", 15, 15.4}, {"new owner waits one call budget", 15.4, 19.9},
	})
	g.scenario("killed", "G5", "Killed between the send and the record", 20, 16, 0.3, []Window{{"no process", 3, 4.2}, {"new owner waits", 4.2, 8.7}})
	g.scenario("steady-inflow", "G7", "Steady inflow after recovery", 200, 60, 0.3, []Window{{"provider is down", 5, 15}})
	g.report.Ended = g.report.Began.Add(time.Duration(g.now * float64(time.Second)))
	return g.report
}

// failedSample returns a report in which the gap was broken on purpose, with
// checks that failed and a scenario that could not be carried out.
func failedSample() Report {
	r := sample()
	r.Passed, r.Short, r.Sabotage = false, true, "gap"
	s := &r.Scenarios[2]
	s.Passed = false
	for i := 12; i < 15; i++ {
		early := s.Starts[i].GapMS - 137.25
		s.Starts[i].GapMS -= early
		s.Starts[i].At -= early / 1000
		s.Starts[i].InFlight = 11
	}
	s.Checks[0].Passed, s.Checks[0].Measured = false, "3 of 39 gaps under 200 ms, the smallest 137.250 ms"
	s.Checks[1].Passed, s.Checks[1].Measured = false, "11 in flight"
	for i := 12; i < 15; i++ {
		s.Checks[0].Problems = append(s.Checks[0].Problems, fmt.Sprintf("%s/1/submit/1 left 137.250 ms after the call before it", s.Starts[i].RefundID))
	}
	s.Checks[1].Problems = []string{"drop-013/1/submit/1 was the eleventh"}
	r.Scenarios[7].Passed = false
	r.Scenarios[7].Checks = nil
	r.Scenarios[7].Problem = "waiting for the new owner: no process took the egress within 30s: context deadline exceeded"
	return r
}

// longSample returns an hour at the full rate.
func longSample() Report {
	g := &generator{random: rand.New(rand.NewPCG(3, 4))}
	g.report = sample()
	g.report.Scenarios = nil
	g.scenario("hour", "G7", "One hour at the full rate", 18_000, 3900, 1.5, []Window{{"provider is slow", 600, 1800}})
	g.report.Ended = g.report.Began.Add(3901 * time.Second)
	return g.report
}

// generator makes up scenarios one after the other.
type generator struct {
	random *rand.Rand
	report Report
	now    float64 // seconds since the drill began
}

// scenario adds one of n calls that take about the given seconds each. Windows
// are relative to its beginning; nothing starts in those that stop the sender.
func (g *generator) scenario(name, requirement, title string, n int, length, call float64, windows []Window) {
	began := g.now
	s := Scenario{
		Name: name, Requirement: requirement, Title: title, Passed: true, Began: began, Ended: began + length,
		Story: "A batch of refunds is submitted and the provider behaves as the windows say. Each refund has to be settled once, within the budget, and whatever is left unknown has to be checked before anything is sent again.",
	}
	for _, w := range windows {
		s.Windows = append(s.Windows, Window{w.Label, began + w.From, began + w.To})
	}
	g.calls(&s, n, call)
	s.Oldest = g.ages(s)
	s.Checks = sampleChecks(s)
	s.Figures = []Figure{{"wire requests", float64(len(s.Starts)), ""}, {"calls per refund", 1.25, ""}, {"p95 of a call", call * 1100, "ms"}, {"drain time", length - 2.25, "s"}}
	g.report.Scenarios = append(g.report.Scenarios, s)
	g.now = s.Ended + 0.8
}

func (g *generator) calls(s *Scenario, n int, call float64) {
	var ends []float64 // of the calls in flight
	next := s.Began + 0.3
	for i := range n {
		at := max(next, g.resume(s, next))
		if len(ends) >= g.report.Budget.MaxInFlight {
			at = max(at, ends[len(ends)-g.report.Budget.MaxInFlight])
		}
		if at > s.Ended-0.2 {
			break
		}
		flying := 1
		for _, end := range ends[max(0, len(ends)-10):] {
			if end > at {
				flying++
			}
		}
		end := at + min(3, call*(0.9+0.2*g.random.Float64()))
		ends = append(ends, end)
		start := Start{
			At: at, RefundID: fmt.Sprintf("%s-%03d", s.Name, i+1), Kind: "submit", Origin: g.origin(s.Name, i),
			InFlight: flying, Process: "owner-1", Outcome: "succeeded",
		}
		if start.Origin == "check" {
			start.Kind = "check"
		}
		if i > 0 {
			start.GapMS = (at - s.Starts[i-1].At) * 1000
		}
		s.Starts = append(s.Starts, start)
		if end < s.Ended {
			s.Settled = append(s.Settled, end)
		}
		// A gap is a few microseconds too long, now and then much more.
		next = at + 0.200004 + 0.0008*g.random.Float64() + 0.05*math.Pow(g.random.Float64(), 12)
	}
}

// resume returns when the sender goes on if it can't send at t.
func (g *generator) resume(s *Scenario, t float64) float64 {
	for _, w := range s.Windows {
		switch w.Label {
		case "paused", "old owner stopped (SIGSTOP)", "both alive", "old owner ends", "new owner waits one call budget", "no process", "new owner waits", "provider is down":
			if t >= w.From && t < w.To {
				t = w.To
			}
		}
	}
	return t
}

func (g *generator) origin(name string, i int) string {
	switch {
	case name == "mixed":
		return origins[i%4]
	case name == "drop" && i >= 15, name == "killed" && i > 12:
		return "check"
	case name == "slow" && i%3 == 2:
		return "retry"
	}
	return "first"
}

// ages lets the oldest case grow old until the calls catch up.
func (g *generator) ages(s Scenario) []Age {
	var ages []Age
	done := 0
	for t := s.Began; t <= s.Ended; t += 0.25 {
		for done < len(s.Settled) && s.Settled[done] <= t {
			done++
		}
		left := len(s.Starts) - done
		age := 0.0
		if left > 0 {
			age = (t - s.Began) * float64(left) / float64(len(s.Starts))
		}
		ages = append(ages, Age{t, age, left})
	}
	return ages
}

func sampleChecks(s Scenario) []Check {
	return []Check{
		{Name: "gap", Promise: "two consecutive starts are at least 200 ms apart", Measured: "smallest gap " + gapText(s.gaps()), Passed: true},
		{Name: "in-flight", Promise: "at most 10 calls are in flight", Measured: fmt.Sprintf("at most %d", s.mostInFlight()), Passed: true},
		{Name: "match", Promise: "each call that left is matched by one that the provider received", Measured: fmt.Sprintf("%d sent, %d received", len(s.Starts), len(s.Starts)), Passed: true},
		{Name: "settled", Promise: "each refund ends in a final state or in review", Measured: fmt.Sprintf("%d of %d", len(s.Settled), len(s.Settled)), Passed: true},
	}
}
