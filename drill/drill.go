// Package drill proves on demand that the promises hold: it runs refundgate as
// real processes, makes a stand-in provider misbehave and processes stop and
// die, and holds three independent records against each other and against what
// was promised. See the package record for the checks and report for what is
// written about them.
package drill

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/refund"
)

// Options say what a drill does and where.
type Options struct {
	// Binary is the path of the refundgate that is drilled.
	Binary string
	// Dir keeps everything that the drill's servers and processes write.
	Dir string
	// Scenarios are the names of those to carry out; none means all.
	Scenarios []string
	// Short takes less work per scenario. The checks are the same.
	Short bool
	// Sabotage breaks a promise on purpose; the drill has to fail then.
	Sabotage Sabotage
	// Gate and Policy are what the account is configured with, and what the
	// drill holds it to.
	Gate   limiter.Config
	Policy refund.Policy
	// DSN and Temporal are the addresses of a database and of a Temporal
	// server; empty starts one of the drill's own. Namespace is Temporal's.
	DSN, Temporal, Namespace string
	// Version of the program, for the report.
	Version string
	// Progress is told what is being done, several times a second; nil is fine.
	Progress func(Progress)
}

// Progress is how far a drill is.
type Progress struct {
	Scenario        string
	Number, Of      int // of the scenario
	Doing           string
	Elapsed, Left   time.Duration // Left is an estimate
	Starts          int           // of the whole drill
	StartsPerSecond float64       // in the last seconds
}

// Scenarios lists what there is, in the order in which it is carried out.
func Scenarios() []Info {
	infos := make([]Info, len(scenarios))
	for i, s := range scenarios {
		infos[i] = Info{s.name, s.requirement, s.title}
	}
	return infos
}

// Info names a scenario.
type Info struct{ Name, Requirement, Title string }

// choose returns the scenarios of these names in their order.
func choose(names []string) ([]scenario, error) {
	for _, name := range names {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name }) {
			var known []string
			for _, s := range scenarios {
				known = append(known, s.name)
			}
			return nil, fmt.Errorf("there is no scenario %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	if len(names) == 0 {
		return scenarios, nil
	}
	var chosen []scenario
	for _, s := range scenarios {
		if slices.Contains(names, s.name) {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

// startUp is what servers and the first owner's wait take.
const startUp = 15 * time.Second

// Validate returns nil or what is wrong with the options.
func (o Options) Validate() error {
	if _, err := choose(o.Scenarios); err != nil {
		return err
	}
	if o.Sabotage == "" {
		return nil
	}
	if !slices.Contains(Sabotages, o.Sabotage) {
		return fmt.Errorf("there is no sabotage %q; there are %s", o.Sabotage, joinSabotages())
	}
	if o.DSN != "" {
		return errors.New("a sabotage needs a database of the drill's own; leave mysql.dsn out")
	}
	return nil
}

// Estimate is about how long a drill with these options takes.
func (o Options) Estimate() time.Duration {
	chosen, err := choose(o.Scenarios)
	if err != nil {
		return 0
	}
	total := startUp
	for _, s := range chosen {
		total += s.estimate(o.Short)
	}
	return total
}

// Run carries out a drill. The error says why it could not be; that a promise
// was broken is in the report.
func Run(ctx context.Context, opts Options) (rep report.Report, err error) {
	chosen, err := choose(opts.Scenarios)
	if err != nil {
		return report.Report{}, err
	}
	if opts.Binary, err = filepath.Abs(opts.Binary); err != nil {
		return report.Report{}, err
	}
	d := &drill{
		system: &system{opts: opts, runName: "d" + time.Now().UTC().Format("0102150405")},
		origin: origin{wall: time.Now(), mono: monotonic()},
		chosen: chosen,
	}
	d.account = "drill"
	if opts.DSN != "" || opts.Temporal != "" {
		d.account = "drill-" + d.runName // others may have drilled there
	}
	d.log = record.NewLog(d.account)
	defer func() { err = errors.Join(err, d.close()) }()
	stop := d.watch(ctx)
	defer stop()
	d.say("starting the database, Temporal and the processes")
	if err := d.start(ctx); err != nil {
		return report.Report{}, err
	}
	rep = d.newReport(ctx)
	if err := d.breakFromTheStart(ctx); err != nil {
		return rep, err
	}
	if err := d.ownEgress(ctx); err != nil {
		return rep, err
	}
	for i, s := range chosen {
		d.number.Store(int32(i))
		d.begun.Store(int64(monotonic() - d.origin.mono))
		result := d.carryOut(ctx, s)
		rep.Scenarios = append(rep.Scenarios, result)
		if err := ctx.Err(); err != nil {
			return rep, context.Cause(ctx)
		}
		if result.Problem != "" {
			break // what comes after would start from nobody knows what
		}
	}
	rep.Ended = time.Now()
	rep.Passed = len(rep.Scenarios) == len(chosen) && !slices.ContainsFunc(rep.Scenarios, func(s report.Scenario) bool { return !s.Passed })
	return rep, nil
}

// drill is a run.
type drill struct {
	*system
	origin origin
	chosen []scenario
	before []string // ids of the scenarios that are over
	progress
}

// carryOut carries out one scenario and judges it.
func (d *drill) carryOut(ctx context.Context, s scenario) report.Scenario {
	st := &stage{
		system: d.system, scenario: s, origin: d.origin, began: monotonic(),
		groups: map[string][]string{}, before: slices.Clone(d.before), say: d.say,
	}
	out := report.Scenario{Name: s.name, Requirement: s.requirement, Title: s.title, Story: s.story, Began: d.origin.seconds(st.began)}
	err := s.run(ctx, st)
	if err == nil {
		err = d.breakAtTheEnd(ctx, st)
	}
	out.Ended = d.origin.seconds(monotonic())
	r, recordErr := st.since(context.WithoutCancel(ctx))
	if err = errors.Join(err, recordErr); err != nil {
		out.Problem = err.Error()
	}
	if recordErr == nil {
		out.Checks = record.Promises(r, d.limits())
		if err == nil {
			out.Checks = append(out.Checks, s.checks(st, r)...)
		}
		d.illustrate(&out, st, r)
	}
	out.Figures = append(out.Figures, st.figures...)
	out.Passed = out.Problem == "" && !slices.ContainsFunc(out.Checks, func(c report.Check) bool { return !c.Passed })
	d.before = append(d.before, st.all...)
	return out
}

// limits are what was promised, whatever the workers were told.
func (s *system) limits() record.Limits {
	gate, policy := s.opts.Gate, s.opts.Policy
	return record.Limits{
		Interval: gate.Interval, MaxInFlight: gate.MaxInFlight,
		ConnectTimeout: gate.ConnectTimeout, CallTimeout: gate.CallTimeout,
		MaxAttempts: policy.MaxAttempts, MaxChecks: policy.Checks.Max,
	}
}

// record reads everything that is known by now. The cases are those of the ids.
func (s *system) record(ctx context.Context, ids []string) (record.Record, error) {
	r, err := s.log.Record()
	if err != nil {
		return r, err
	}
	r.Accepted, r.Handed = slices.Clone(ids), map[string]time.Time{}
	for _, id := range ids {
		c, err := s.ledger.Case(ctx, id)
		if errors.Is(err, ledger.ErrNotFound) {
			continue // a check says so
		}
		if err != nil {
			return r, err
		}
		r.Cases = append(r.Cases, c)
		events, err := s.ledger.Events(ctx, id)
		if err != nil {
			return r, err
		}
		for _, e := range events {
			if _, known := r.Handed[id]; !known && e.Action == eventReview {
				r.Handed[id] = e.At
			}
		}
	}
	if r.Wire, err = s.provider.Record(ctx); err != nil {
		return r, fmt.Errorf("reading the stand-in's record: %w", err)
	}
	if r.Executions, err = s.provider.Executions(ctx); err != nil {
		return r, fmt.Errorf("reading the stand-in's refunds: %w", err)
	}
	return r, nil
}

// alive returns an error if a process has ended that nobody ended.
func (s *system) alive() error {
	for _, p := range s.running {
		select {
		case <-p.Done():
			if !p.ended {
				return fmt.Errorf("%s has ended by itself: %w", p.name, p.Err())
			}
		default:
		}
	}
	return nil
}
