package drill

import (
	"context"
	"math"
	"slices"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/plan"
	"refundgate/plan/simulation"
)

var backlog = scenario{
	name: "backlog", requirement: "F5", title: "A backlog drains as the plan says",
	story: `The sender is ended, refunds wait, and a new one starts with more coming in all the time. The backlog has
to be gone when the formula of refundgate plan says so, and its simulation: 240 waiting, 2/s in, 5/s and one call
each make 80 s.`,
	full: 105 * time.Second, short: 45 * time.Second,
	run: runBacklog, checks: checkBacklog,
}

// backlogInflow is how many refunds per second come while the backlog drains.
const backlogInflow = 2

func (s *stage) backlogSize() int { return s.size(240, 75) }

func runBacklog(ctx context.Context, s *stage) error {
	s.say("ending the sender")
	from := monotonic()
	if err := s.egress.stop(); err != nil {
		return err
	}
	if err := s.submit(ctx, "waiting", s.backlogSize()); err != nil {
		return err
	}
	if err := s.ownEgress(ctx); err != nil {
		return err
	}
	before := s.log.Starts()
	if err := s.until(ctx, "waiting for the first call", func() (bool, error) { return s.log.Starts() > before, nil }); err != nil {
		return err
	}
	s.window("no sender, backlog builds up", from, monotonic())
	s.say("the backlog drains, with more coming in")
	err := s.trickle(ctx, "new", backlogInflow, func() (bool, error) {
		return s.log.Starts()-before >= len(s.all), nil
	})
	if err != nil {
		return err
	}
	return s.settle(ctx)
}

// drained returns how long it took from the first start until one found nobody
// waiting behind it; +Inf if that never was.
func (s *stage) drained(r record.Record) float64 {
	var accepted []time.Time
	for _, c := range r.Cases {
		accepted = append(accepted, c.AcceptedAt)
	}
	slices.SortFunc(accepted, time.Time.Compare)
	for i, st := range r.Starts {
		at := s.origin.wall.Add(st.Mono - s.origin.mono)
		waiting, _ := slices.BinarySearchFunc(accepted, at, time.Time.Compare)
		if i+1 >= waiting {
			return (st.Mono - r.Starts[0].Mono + s.limits().Interval).Seconds()
		}
	}
	return math.Inf(1)
}

// planTolerance is how far the drill may be from the plan.
const planTolerance = 0.05

func checkBacklog(s *stage, r record.Record) []report.Check {
	drained := s.drained(r)
	rate := float64(time.Second) / float64(s.limits().Interval)
	formula := plan.Solve(plan.Question{Backlog: float64(s.backlogSize()), Inflow: backlogInflow, Rate: rate, CallsPerRefund: 1}).Drain

	once := report.NewCheck("one-call-each", "each refund took one call, as the plan was asked about")
	once.Require(len(r.Starts) == len(r.Cases), "%d calls for %d refunds", len(r.Starts), len(r.Cases))
	byFormula := report.NewCheck("as-planned", "the backlog drains within 5 % of the formula's time")
	byFormula.Require(near(drained, formula), "%.2f s instead of %.2f s", drained, formula)
	bySimulation := report.NewCheck("as-simulated", "the backlog drains within 5 % of the simulation's median time")
	simulated, err := simulation.Runs(context.Background(), simulation.Params{
		Backlog: s.backlogSize(), Inflow: backlogInflow, Arrivals: simulation.ArrivalsEven, CallsPerRefund: 1,
		Latency: latency(r), Gate: s.opts.Gate, Policy: s.opts.Policy, Seed: 1, Horizon: time.Hour,
	}, 20)
	bySimulation.Require(err == nil, "simulating: %v", err)
	bySimulation.Require(near(drained, simulated.P50), "%.2f s instead of %.2f s", drained, simulated.P50)
	s.figure("backlog drained in", drained, "s")
	s.figure("by the formula", formula, "s")
	s.figure("simulated, median", simulated.P50, "s")
	return []report.Check{
		once.Judged("%d calls for %d refunds", len(r.Starts), len(r.Cases)),
		byFormula.Judged("%.2f s, the formula says %.2f s: %+.1f %%", drained, formula, 100*(drained/formula-1)),
		bySimulation.Judged("%.2f s, simulated are %.2f s: %+.1f %%", drained, simulated.P50, 100*(drained/simulated.P50-1)),
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= planTolerance*b }

// latency is how long the calls took, for the simulation.
func latency(r record.Record) plan.Latency {
	var all []time.Duration
	for _, st := range r.Starts {
		if f, ok := r.Finish(st.Key); ok {
			all = append(all, max(f.Duration, time.Millisecond)) // it was rounded down
		}
	}
	if len(all) == 0 {
		return plan.Latency{P50: time.Millisecond, P99: time.Millisecond}
	}
	slices.Sort(all)
	return plan.Latency{P50: all[len(all)/2], P99: all[len(all)*99/100]}
}
