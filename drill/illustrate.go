package drill

import (
	"cmp"
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/refund"
)

// illustrate fills in what the report shows of a scenario beside its checks.
func (d *drill) illustrate(out *report.Scenario, st *stage, r record.Record) {
	results := map[refund.CallKey]refund.Result{}
	for _, call := range r.Calls() {
		results[call.Key] = call.Result
	}
	smallest := 0.0
	for i, s := range r.Starts {
		result := results[s.Key]
		start := report.Start{
			At: d.origin.seconds(s.Mono), RefundID: s.Key.RefundID, Kind: string(s.Key.Kind), Origin: string(s.Origin),
			InFlight: s.InFlight, Process: s.Process, Outcome: string(result.Outcome), Code: result.Code,
		}
		if i > 0 {
			start.GapMS = float64(s.Mono-r.Starts[i-1].Mono) / float64(time.Millisecond)
			if smallest == 0 || start.GapMS < smallest {
				smallest = start.GapMS
			}
		}
		out.Starts = append(out.Starts, start)
	}
	for _, c := range r.Cases {
		if at, ok := r.Off(c); ok {
			out.Settled = append(out.Settled, d.origin.wallSeconds(at))
		}
	}
	slices.Sort(out.Settled)
	out.Oldest = st.ages(r)
	for _, w := range append(st.spans, st.breakerSpans()...) {
		out.Windows = append(out.Windows, report.Window{Label: w.label, From: d.origin.seconds(w.from), To: d.origin.seconds(w.to)})
	}
	out.Figures = []report.Figure{
		{Name: "refunds", Value: float64(len(r.Cases))},
		{Name: "calls", Value: float64(len(r.Starts))},
		{Name: "requests at the provider", Value: float64(len(r.Wire))},
		{Name: "smallest gap", Value: smallest, Unit: "ms"},
	}
	if len(r.Finishes) > 0 {
		took := latency(r)
		out.Figures = append(out.Figures,
			report.Figure{Name: "median call", Value: took.P50.Seconds() * 1000, Unit: "ms"},
			report.Figure{Name: "99th percentile call", Value: took.P99.Seconds() * 1000, Unit: "ms"})
	}
}

// ageStep is the distance of the points at which the oldest case's age is
// computed.
const ageStep = 500 * time.Millisecond

// ages returns how old the oldest open case was over the scenario, from when
// each was accepted and when it was closed or handed to people.
func (s *stage) ages(r record.Record) []report.Age {
	end := s.origin.wall.Add(monotonic() - s.origin.mono)
	var ages []report.Age
	for at := s.origin.wall.Add(s.began - s.origin.mono); at.Before(end); at = at.Add(ageStep) {
		age := report.Age{At: s.origin.wallSeconds(at)}
		for _, c := range r.Cases {
			if off, ok := r.Off(c); c.AcceptedAt.After(at) || (ok && off.Before(at)) {
				continue
			}
			age.Open++
			age.Seconds = max(age.Seconds, at.Sub(c.AcceptedAt).Seconds())
		}
		ages = append(ages, age)
	}
	return ages
}

// breakerSpans are when the circuit breaker was not closed during the scenario.
func (s *stage) breakerSpans() []span {
	mono := func(at time.Time) time.Duration { return s.origin.mono + at.Sub(s.origin.wall) }
	var spans []span
	var open *span
	for _, t := range s.log.Breaker() {
		at := mono(t.At)
		switch {
		case at < s.began:
		case t.To == "closed" && open != nil:
			open.to = at
			spans = append(spans, *open)
			open = nil
		case t.To != "closed" && open == nil:
			open = &span{label: "breaker open", from: at}
		}
	}
	if open != nil {
		open.to = monotonic()
		spans = append(spans, *open)
	}
	return spans
}

// newReport begins the report with what is known beforehand.
func (d *drill) newReport(ctx context.Context) report.Report {
	gate, policy := d.opts.Gate, d.opts.Policy
	milliseconds := func(t time.Duration) float64 { return float64(t) / float64(time.Millisecond) }
	return report.Report{
		Began: d.origin.wall.UTC(), Short: d.opts.Short, Sabotage: string(d.opts.Sabotage),
		Environment: d.environment(ctx),
		Budget: report.Budget{
			IntervalMS: milliseconds(gate.Interval), MaxInFlight: gate.MaxInFlight,
			ConnectMS: gate.ConnectTimeout.Milliseconds(), CallMS: gate.CallTimeout.Milliseconds(),
			MaxAttempts: policy.MaxAttempts, MaxChecks: policy.Checks.Max,
			DeadlineMS: policy.Deadline.Milliseconds(), LateDeadlineMS: lateDeadline.Milliseconds(),
		},
	}
}

// environment says what the drill runs on. What can't be found out is left out.
func (d *drill) environment(ctx context.Context) report.Environment {
	env := report.Environment{Cores: runtime.NumCPU(), System: runtime.GOOS, Go: runtime.Version(), Refundgate: cmp.Or(d.opts.Version, commit())}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		env.System += " " + strings.TrimSpace(string(release))
	}
	env.Database = d.databaseVersion(ctx)
	env.Temporal = d.temporalVersion(ctx)
	return env
}

// commit is the version control's name for what this program was built from.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return ""
}
