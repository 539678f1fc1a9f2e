package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"refundgate/internal/config"
	"refundgate/plan"
	"refundgate/plan/simulation"
)

// planFlags is what `refundgate plan` was asked.
type planFlags struct {
	backlog       int
	inflow        float64
	rate          float64
	calls         float64
	within        time.Duration
	account       string
	maxInFlight   int
	latency       plan.Latency
	simulate      bool
	runs          int
	seed          uint64
	arrivals      string
	busy          float64
	reject        float64
	lost          float64
	out           *output
	accountConfig config.Account
	policyConfig  config.Policy
}

// maxRuns bounds --runs; more tell nothing new.
const maxRuns = 1000

// simulatedLatency is the provider of a simulation that isn't told another one.
var simulatedLatency = plan.Latency{P50: 200 * time.Millisecond, P99: time.Second}

func newPlan(a *app) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "How long a backlog takes to drain, and what rate a promised time needs",
		Long: `Answers capacity questions with the formula, shown with its numbers:

  drain time  = backlog x calls / (rate - inflow x calls)
  rate needed = calls x (backlog / time + inflow)

Calls per refund counts attempts and checks together. The rate is the account's
starts per second; where --latency-p50 says how long a call takes, the places in
flight are counted too, and the lesser of the two decides.

--simulate plays it through as well, in virtual time: cases are decided by the
workflow's code and queue in the gate's, with its spacing, places, groups and
circuit breaker. A refund takes one send and --calls-per-refund less one checks;
what --busy, --lost and --reject do comes on top. The whole backlog was accepted
just now; what is older than the policy's deadline goes to people. Left out are
the time that MySQL and Temporal take, connecting, and a provider's Retry-After.

That a backlog never drains is an answer too: the exit status is 0.`,
		Example: `  refundgate plan --backlog 240 --inflow 2 --rate 5 --calls-per-refund 2
  refundgate plan --backlog 600 --inflow 3 --rate 10 --calls-per-refund 2 --within 2m
  refundgate plan --backlog 240 --inflow 2 --rate 5 --calls-per-refund 1 --latency-p50 3s --latency-p99 3s
  refundgate plan --backlog 240 --inflow 2 --account acme --calls-per-refund 1 --simulate --busy 0.05 --lost 0.02`,
		Args: cobra.NoArgs,
	}
	f.out = addOutput(cmd)
	flags := cmd.Flags()
	flags.IntVar(&f.backlog, "backlog", 0, "refunds that wait now (required)")
	flags.Float64Var(&f.inflow, "inflow", 0, "new refunds per second (required)")
	flags.Float64Var(&f.rate, "rate", 0, "calls that may start per second (required without --account)")
	flags.Float64Var(&f.calls, "calls-per-refund", 0, "calls that a refund takes on average (required)")
	flags.DurationVar(&f.within, "within", 0, "the promised time: says what rate it needs")
	flags.StringVar(&f.account, "account", "", "take rate, budgets and contract of this account in the configuration")
	flags.IntVar(&f.maxInFlight, "max-in-flight", 0, "calls that may be in flight (default the configuration's, 10)")
	flags.DurationVar(&f.latency.P50, "latency-p50", 0, "median time that a call takes (in a simulation 200ms)")
	flags.DurationVar(&f.latency.P99, "latency-p99", 0, "its 99th percentile (default five times the median)")
	flags.BoolVar(&f.simulate, "simulate", false, "play it through as well")
	flags.IntVar(&f.runs, "runs", 20, "simulated runs")
	flags.Uint64Var(&f.seed, "seed", 1, "of the first run; the same seeds give the same output")
	flags.StringVar(&f.arrivals, "arrivals", string(simulation.ArrivalsEven), "how new refunds come: even or poisson")
	flags.Float64Var(&f.busy, "busy", 0, "share of calls that the provider is too busy for, from 0 to 1")
	flags.Float64Var(&f.reject, "reject", 0, "share of sends that it refuses for good")
	flags.Float64Var(&f.lost, "lost", 0, "share of calls that it carries out and whose answer never comes")
	markRequired(cmd, "backlog", "inflow", "calls-per-refund")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.config()
		if err != nil {
			return err
		}
		if err := f.complete(cfg, cmd.Flags().Changed); err != nil {
			return usageError{err}
		}
		answer, err := f.answer(cmd.Context())
		if err != nil {
			return err
		}
		if *f.out == outputJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		return answer.print(cmd.OutOrStdout())
	}
	return cmd
}

// complete takes what the flags leave open from the configuration, and checks
// all of it; given tells whether a flag was typed. The error is meant for the
// one who typed them.
func (f *planFlags) complete(cfg config.Config, given func(flag string) bool) error {
	f.accountConfig, f.policyConfig = cfg.Defaults, cfg.Policy
	if f.account != "" {
		var err error
		if f.accountConfig, err = cfg.Account(f.account); err != nil {
			return err
		}
	}
	switch {
	case !given("rate") && f.account == "":
		return errors.New("--rate is required, unless --account says whose it is")
	case !given("rate"):
		f.rate = f.accountConfig.StartsPerSecond
	}
	switch {
	case !given("max-in-flight"):
		f.maxInFlight = f.accountConfig.MaxInFlight
	case f.maxInFlight < 1 || f.maxInFlight > 1000:
		return fmt.Errorf("--max-in-flight must be from 1 to 1000 calls; it is %d", f.maxInFlight)
	case !given("latency-p50") && !f.simulate:
		return errors.New("--max-in-flight goes with --latency-p50: how many calls the places carry depends on how long one takes")
	}
	if given("within") && f.within <= 0 {
		return fmt.Errorf("--within must be more than zero; it is %s", f.within)
	}
	if err := f.completeLatency(given); err != nil {
		return err
	}
	if err := f.completeSimulation(given); err != nil {
		return err
	}
	return flagNames(f.question().Validate())
}

func (f *planFlags) completeLatency(given func(string) bool) error {
	switch {
	case given("latency-p99") && !given("latency-p50"):
		return errors.New("--latency-p99 goes with --latency-p50")
	case !given("latency-p50"):
		if f.simulate {
			f.latency = simulatedLatency
		}
		return nil
	case !given("latency-p99"):
		f.latency.P99 = min(f.latency.P50, math.MaxInt64/5) * 5
	}
	if err := f.latency.Validate(); err != nil {
		return fmt.Errorf("--latency-p50 and --latency-p99: %w", err)
	}
	return nil
}

func (f *planFlags) completeSimulation(given func(string) bool) error {
	for _, name := range []string{"runs", "seed", "arrivals", "busy", "reject", "lost"} {
		if given(name) && !f.simulate {
			return fmt.Errorf("--%s goes with --simulate", name)
		}
	}
	if !f.simulate {
		return nil
	}
	for name, share := range map[string]float64{"busy": f.busy, "reject": f.reject, "lost": f.lost} {
		if !(share >= 0 && share <= 1) {
			return fmt.Errorf("--%s must be a share from 0 to 1; it is %v", name, share)
		}
	}
	switch arrivals := simulation.Arrivals(f.arrivals); {
	case f.busy+f.reject+f.lost > 1:
		return fmt.Errorf("--busy, --reject and --lost must be 1 together at most; they are %v", f.busy+f.reject+f.lost)
	case f.runs < 1 || f.runs > maxRuns:
		return fmt.Errorf("--runs must be from 1 to %d; it is %d", maxRuns, f.runs)
	case arrivals != simulation.ArrivalsEven && arrivals != simulation.ArrivalsPoisson:
		return fmt.Errorf("--arrivals are %s or %s, not %q", simulation.ArrivalsEven, simulation.ArrivalsPoisson, f.arrivals)
	case f.backlog > simulation.MaxBacklog:
		return fmt.Errorf("--simulate takes a --backlog of %d refunds at most; it is %d", simulation.MaxBacklog, f.backlog)
	}
	return nil
}

// flagNames puts the flags' names in the place of the fields'.
func flagNames(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	names := map[string]string{
		"Backlog": "--backlog", "Inflow": "--inflow", "Rate": "--rate", "CallsPerRefund": "--calls-per-refund",
	}
	var parts []error
	for _, err := range joined.Unwrap() {
		var invalid *plan.InvalidError
		if errors.As(err, &invalid) && names[invalid.Field] != "" {
			err = fmt.Errorf("%s %s", names[invalid.Field], invalid.Message)
		}
		parts = append(parts, err)
	}
	return errors.Join(parts...)
}

// question is what the formula is asked.
func (f *planFlags) question() plan.Question {
	q := plan.Question{
		Backlog: float64(f.backlog), Inflow: f.inflow, Rate: f.rate, CallsPerRefund: f.calls, Within: f.within,
	}
	if f.latency.P50 > 0 {
		q.MaxInFlight, q.Hold = f.maxInFlight, f.latency.Hold(f.accountConfig.CallTimeout, f.lost)
	}
	return q
}

// horizon is how long is simulated: three times what the formula says, from an
// hour to a day.
func horizon(a plan.Answer) time.Duration {
	const least, most = time.Hour, 24 * time.Hour
	if !a.Drains {
		return least
	}
	return time.Duration(min(max(3*a.Drain, least.Seconds()), most.Seconds()) * float64(time.Second))
}

// params is what is simulated.
func (f *planFlags) params(a plan.Answer) simulation.Params {
	acc := f.accountConfig
	acc.StartsPerSecond, acc.MaxInFlight = f.rate, f.maxInFlight
	for _, e := range []*config.Endpoint{&acc.Endpoints.Submit, &acc.Endpoints.Check} { // stay under the account's
		e.StartsPerSecond, e.MaxInFlight = min(e.StartsPerSecond, f.rate), min(e.MaxInFlight, f.maxInFlight)
	}
	return simulation.Params{
		Backlog: f.backlog, Inflow: f.inflow, Arrivals: simulation.Arrivals(f.arrivals), CallsPerRefund: f.calls,
		Latency: f.latency, Busy: f.busy, Reject: f.reject, Lost: f.lost,
		Gate:   budgets(acc),
		Policy: policies(config.Config{Policy: f.policyConfig, Accounts: []config.Account{acc}})[acc.Name],
		Seed:   f.seed, Horizon: horizon(a),
	}
}

// planAnswer is what `refundgate plan` prints.
type planAnswer struct {
	Backlog        int     `json:"backlog"`
	Inflow         float64 `json:"inflow_per_second"`
	Rate           float64 `json:"starts_per_second"`
	CallsPerRefund float64 `json:"calls_per_refund"`
	// PlacesPerSecond is how many calls the places in flight carry; absent if
	// no latency was given.
	PlacesPerSecond float64    `json:"places_carry_per_second,omitempty"`
	Capacity        float64    `json:"calls_per_second"` // that go out
	Bound           plan.Bound `json:"bound_by"`         // starts or places
	Drains          bool       `json:"drains"`
	// DrainSeconds is the formula's answer; absent if it never drains.
	DrainSeconds *float64 `json:"drain_seconds,omitempty"`
	// GrowthPerSecond is by how much the backlog grows, in refunds.
	GrowthPerSecond float64 `json:"grows_per_second,omitempty"`
	// LoadPerSecond is how many calls the new refunds take: a backlog drains
	// only with more than that.
	LoadPerSecond float64         `json:"needs_more_than_per_second"`
	Within        *planWithin     `json:"within,omitempty"`
	Simulation    *planSimulation `json:"simulation,omitempty"`

	question plan.Question
	flags    *planFlags
}

// planWithin is the answer about a promised time.
type planWithin struct {
	Seconds float64 `json:"seconds"`
	Needed  float64 `json:"needed_per_second"`
	// Places is how many calls are in flight then; absent if no latency was
	// given.
	Places   int  `json:"needed_in_flight,omitempty"`
	Suffices bool `json:"suffices"`
}

// planSimulation is what the simulated runs came to.
type planSimulation struct {
	Runs    int    `json:"runs"`
	Seed    uint64 `json:"seed"`
	Drained int    `json:"drained_runs"`
	// P50Seconds and P95Seconds are over the runs; absent where that many did
	// not drain.
	P50Seconds *float64 `json:"drain_p50_seconds,omitempty"`
	P95Seconds *float64 `json:"drain_p95_seconds,omitempty"`
	// Ratio is the simulated median over the formula's answer; absent if there
	// is not both.
	Ratio          *float64 `json:"p50_to_formula,omitempty"`
	CallsPerRefund float64  `json:"calls_per_refund"`
	// FormulaSeconds is the formula's answer for as many calls as it took;
	// absent if it never drains.
	FormulaSeconds *float64 `json:"formula_seconds_at_these_calls,omitempty"`
	// The next three are per run, on average.
	PlaceWaits    float64 `json:"starts_that_waited_for_a_place"`
	BreakerOpened float64 `json:"breaker_opened"`
	Review        float64 `json:"went_to_review"`
	OldestSeconds float64 `json:"oldest_open_seconds"`
	// GivenUpSeconds is when runs that did not drain were given up.
	GivenUpSeconds float64 `json:"given_up_after_seconds,omitempty"`

	latency plan.Latency
}

// answer works it all out.
func (f *planFlags) answer(ctx context.Context) (planAnswer, error) {
	q := f.question()
	a := plan.Solve(q)
	res := planAnswer{
		Backlog: f.backlog, Inflow: f.inflow, Rate: f.rate, CallsPerRefund: f.calls,
		PlacesPerSecond: a.Places, Capacity: a.Capacity, Bound: a.Bound,
		Drains: a.Drains, DrainSeconds: finite(a.Drain), GrowthPerSecond: a.Growth, LoadPerSecond: a.Load,
		question: q, flags: f,
	}
	if f.within > 0 {
		res.Within = &planWithin{Seconds: f.within.Seconds(), Needed: a.Needed, Places: a.NeededPlaces, Suffices: a.Suffices}
	}
	if !f.simulate {
		return res, nil
	}
	sum, err := simulation.Runs(ctx, f.params(a), f.runs)
	if err != nil {
		return res, err
	}
	s := planSimulation{
		Runs: sum.Runs, Seed: f.seed, Drained: sum.Drained, P50Seconds: finite(sum.P50), P95Seconds: finite(sum.P95),
		CallsPerRefund: sum.CallsPerRefund, PlaceWaits: sum.PlaceWaits, BreakerOpened: sum.BreakerOpened,
		Review: sum.Review, OldestSeconds: sum.Oldest.Seconds(), GivenUpSeconds: sum.GivenUp.Seconds(),
		latency: f.latency,
	}
	if a.Drain > 0 {
		s.Ratio = finite(sum.P50 / a.Drain)
	}
	if q.CallsPerRefund = sum.CallsPerRefund; q.CallsPerRefund >= 1 {
		s.FormulaSeconds = finite(plan.Solve(q).Drain)
	}
	res.Simulation = &s
	return res, nil
}

// finite returns nil for what isn't a number of seconds.
func finite(x float64) *float64 {
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return nil
	}
	return &x
}

func (p planAnswer) print(w io.Writer) error {
	fmt.Fprintf(w, "%d refunds wait, %s/s come in; each takes %s, and %s/s may start.\n",
		p.Backlog, num(p.Inflow), calls(p.CallsPerRefund), calls(p.Rate))
	if p.PlacesPerSecond > 0 {
		than := "more than"
		if p.Bound == plan.BoundPlaces {
			than = "fewer than"
		}
		fmt.Fprintf(w, "%d places in flight at %s a call carry %s calls/s, %s may start: the %s bind.\n",
			p.question.MaxInFlight, p.question.Hold.Round(time.Millisecond), num(p.PlacesPerSecond), than, p.Bound)
	}
	fmt.Fprintf(w, "\ndrain time  = backlog x calls / (rate - inflow x calls)\n            = %d x %s / (%s - %s x %s)",
		p.Backlog, num(p.CallsPerRefund), num(p.Capacity), num(p.Inflow), num(p.CallsPerRefund))
	if p.Drains {
		fmt.Fprintf(w, " = %s\n", seconds(*p.DrainSeconds))
	} else {
		fmt.Fprintf(w, ": %s\n", p.neverDrains())
	}
	p.printWithin(w)
	return p.printSimulation(w)
}

// neverDrains says by how much it doesn't.
func (p planAnswer) neverDrains() string {
	why := "it never drains: as much comes in as goes out"
	if p.GrowthPerSecond > 0 {
		why = fmt.Sprintf("it never drains: the backlog grows by %s refunds/s", num(p.GrowthPerSecond))
	}
	return fmt.Sprintf("%s;\n            at %s each it needs more than %s/s", why, calls(p.CallsPerRefund), calls(p.LoadPerSecond))
}

func (p planAnswer) printWithin(w io.Writer) {
	if p.Within == nil {
		return
	}
	verdict := fmt.Sprintf("the %s that go out are enough", num(p.Capacity))
	if !p.Within.Suffices {
		verdict = fmt.Sprintf("the %s that go out are not enough", num(p.Capacity))
	}
	fmt.Fprintf(w, "\nrate needed = calls x (backlog / time + inflow)\n            = %s x (%d / %s + %s) = %s calls/s; %s\n",
		num(p.CallsPerRefund), p.Backlog, num(p.Within.Seconds), num(p.Inflow), num(p.Within.Needed), verdict)
	if p.Within.Places > 0 {
		fmt.Fprintf(w, "            and %d places in flight\n", p.Within.Places)
	}
}

func (p planAnswer) printSimulation(w io.Writer) error {
	s := p.Simulation
	if s == nil {
		return nil
	}
	fmt.Fprintf(w, "\nSimulated %d times, seeds from %d, %s arrivals; a call takes %s (median) to %s (p99), at most %s.\n",
		s.Runs, s.Seed, p.flags.arrivals, s.latency.P50, s.latency.P99, p.flags.accountConfig.CallTimeout)
	if p.flags.busy+p.flags.reject+p.flags.lost > 0 {
		fmt.Fprintf(w, "Busy %s, rejected %s, lost %s of the calls.\n", percent(p.flags.busy), percent(p.flags.reject), percent(p.flags.lost))
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "\nRESULT\tSIMULATED\tFORMULA\tRATIO\n")
	for _, line := range []struct {
		name string
		got  *float64
	}{{"drain time, median run", s.P50Seconds}, {"drain time, 95 % of runs", s.P95Seconds}} {
		got, formula, ratio := "none", "never", "-"
		if line.got != nil {
			got = seconds(*line.got)
		}
		if p.Drains {
			formula = seconds(*p.DrainSeconds)
		}
		if line.got != nil && p.Drains && *p.DrainSeconds > 0 {
			ratio = fmt.Sprintf("%.2f", *line.got / *p.DrainSeconds)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", line.name, got, formula, ratio)
	}
	fmt.Fprintf(tw, "calls per refund\t%s\t%s\t%.2f\n", num(s.CallsPerRefund), num(p.CallsPerRefund), s.CallsPerRefund/p.CallsPerRefund)
	fmt.Fprintf(tw, "starts that waited for a place\t%s a run\n", num(s.PlaceWaits))
	fmt.Fprintf(tw, "openings of the breaker\t%s a run\n", num(s.BreakerOpened))
	fmt.Fprintf(tw, "refunds handed to people\t%s a run\n", num(s.Review))
	fmt.Fprintf(tw, "oldest open refund\t%s\n", seconds(s.OldestSeconds))
	if err := tw.Flush(); err != nil {
		return err
	}
	if s.Drained < s.Runs {
		fmt.Fprintf(w, "\n%d of %d runs did not drain and were given up after %s.\n", s.Runs-s.Drained, s.Runs, seconds(s.GivenUpSeconds))
	}
	if math.Abs(s.CallsPerRefund/p.CallsPerRefund-1) > 0.01 {
		at := "it never drains"
		if s.FormulaSeconds != nil {
			at = "the formula says " + seconds(*s.FormulaSeconds)
		}
		fmt.Fprintf(w, "\nAt the %s calls that a refund took, %s.\n", num(s.CallsPerRefund), at)
	}
	if s.Review > 0 {
		fmt.Fprintf(w, "\nWhat has no result after %s goes to people; the formula knows nothing of that.\n", p.flags.policyConfig.Deadline)
	}
	return nil
}

// num is a number for people: two decimals at most, more only for what is
// smaller than that.
func num(x float64) string {
	if math.Abs(x) < 0.1 {
		return strconv.FormatFloat(x, 'g', 2, 64)
	}
	s := strconv.FormatFloat(x, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// calls is how many calls, for people.
func calls(n float64) string {
	if n == 1 {
		return "1 call"
	}
	return num(n) + " calls"
}

func percent(share float64) string { return num(share*100) + " %" }

// seconds is a time for people: "80 s", "480 s (8m0s)".
func seconds(s float64) string {
	if s < 120 {
		return num(math.Round(s*10)/10) + " s"
	}
	text := num(math.Round(s)) + " s"
	if s > math.MaxInt64/float64(time.Second) {
		return text
	}
	return fmt.Sprintf("%s (%s)", text, time.Duration(math.Round(s))*time.Second)
}
