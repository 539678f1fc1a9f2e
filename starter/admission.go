package starter

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/limiter"
)

const (
	// measureEvery is how often the load is measured. What is admitted in
	// between is counted, so that a burst doesn't slip through.
	measureEvery = time.Second
	// forecastEvery is how often the deadlines are held against the drain.
	forecastEvery = 15 * time.Second
	// forecastAgain is how often a backlog that stays late is told of.
	forecastAgain = 5 * time.Minute
	// priorCases is how many cases of one call each are imagined beside those
	// that were measured: a few cases alone say little about the next.
	priorCases = 10
)

// Loads measures what waits. See ledger.Ledger.
type Loads interface {
	Load(ctx context.Context, account string, before time.Time) (ledger.Load, error)
	Dues(ctx context.Context, account string, from time.Time) ([]ledger.Due, error)
	EgressOwners(ctx context.Context) ([]ledger.Owner, error)
}

// OverCapacityError says that a refund can't be promised now. Nothing was
// stored.
type OverCapacityError struct {
	Account string
	Why     string // for people
	// RetryAfter is when there should be room: the time in which the measured
	// drain makes it, behind everybody who was told to come back before.
	RetryAfter time.Duration
}

func (e *OverCapacityError) Error() string {
	return fmt.Sprintf("account %s takes no more refunds for now: %s", e.Account, e.Why)
}

// Estimate is how an account's backlog is being worked off.
type Estimate struct {
	// Open counts the cases that are neither closed nor with people.
	Open int
	// SettledPerSecond is what was closed within the last minute.
	SettledPerSecond float64
	// CallsPerSecond is what the egress can start: its budget, or less where
	// the calls take so long that those in flight are the limit.
	CallsPerSecond float64
	// CallsPerCase is what a settled case took within the last minute, retries
	// and checks included.
	CallsPerCase float64
	// DrainPerSecond is how many cases the two make it settle. Under a backlog
	// it is what is settled.
	DrainPerSecond float64
	// Wait is what a refund that is accepted now has before it.
	Wait time.Duration
	// Late counts the open cases that won't be settled by their deadlines at
	// that drain, and NeededPerSecond is the drain with which all would be.
	Late            int
	NeededPerSecond float64
}

// Admission decides whether a refund that isn't promised yet may be. It keeps
// the time that a new refund waits under a limit, by what the account's egress
// can do and what was measured of it: cases settled, calls per case, calls in
// flight, a breaker that is open or a pause that the provider asked for. It
// never touches what was accepted; where that won't be done in time, it says so.
type Admission struct {
	loads      Loads
	log        *slog.Logger
	maxBacklog int
	maxWait    time.Duration
	accounts   []*admittance
}

// NewAdmission returns the admission of the accounts; deadline is that of their
// cases. Until Run has measured something, it goes by the accounts' budgets.
func NewAdmission(loads Loads, limits config.Admission, accounts []config.Account, deadline time.Duration, log *slog.Logger) *Admission {
	a := &Admission{loads: loads, log: log, maxBacklog: limits.MaxBacklog, maxWait: limits.WaitLimit(deadline)}
	for _, acc := range accounts {
		one := &admittance{account: acc}
		one.measured(ledger.Load{}, time.Time{}, 0)
		a.accounts = append(a.accounts, one)
	}
	return a
}

// Place returns a refund's place in the account's line, which is not taken yet.
// A nil Admission has places for all.
func (a *Admission) Place(account string) *Place {
	p := &Place{}
	if a == nil {
		return p
	}
	i := slices.IndexFunc(a.accounts, func(one *admittance) bool { return one.account.Name == account })
	if i >= 0 { // whoever asks knows the accounts
		p.line, p.maxBacklog, p.maxWait = a.accounts[i], a.maxBacklog, a.maxWait
	}
	return p
}

// Place is one refund's place in the line of its account. It is taken before
// the refund is stored and left when that has ended, however it did: until then
// no measurement counts the refund for sure. It is for one goroutine.
type Place struct {
	line       *admittance // nil: there is no limit
	maxBacklog int
	maxWait    time.Duration
	taken      bool
}

// Take returns an *OverCapacityError if the account can't take a refund now. If
// it can, the refund counts as accepted.
func (p *Place) Take() error { return p.take(time.Now()) }

func (p *Place) take(now time.Time) error {
	if p.line == nil {
		return nil
	}
	err := p.line.admit(now, p.maxBacklog, p.maxWait)
	p.taken = err == nil
	return err
}

// Leave says that the refund is stored by now, or never will be. It does nothing
// if no place was taken.
func (p *Place) Leave() {
	if p.taken {
		p.taken = false
		p.line.stored()
	}
}

// Estimates returns the latest estimate of each account.
func (a *Admission) Estimates() map[string]Estimate {
	all := map[string]Estimate{}
	if a == nil {
		return all
	}
	for _, one := range a.accounts {
		all[one.account.Name] = one.current(time.Now())
	}
	return all
}

// gather shows the estimates as metrics.
func (a *Admission) gather() ([]*dto.MetricFamily, error) {
	r := prometheus.NewRegistry()
	gauge := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{telemetry.LabelAccount})
		r.MustRegister(g)
		return g
	}
	drain := gauge(telemetry.MetricDrain, "Cases per second that the egress can settle, by its budget and what was measured within the last minute.")
	calls := gauge(telemetry.MetricCallsPerCase, "Calls that a settled case took within the last minute, retries and checks included.")
	wait := gauge(telemetry.MetricExpectedWait, "What a refund that is accepted now has to wait for those before it.")
	late := gauge(telemetry.MetricBacklogLate, "Open cases that won't be settled by their deadlines at that drain.")
	for account, e := range a.Estimates() {
		drain.WithLabelValues(account).Set(e.DrainPerSecond)
		calls.WithLabelValues(account).Set(e.CallsPerCase)
		wait.WithLabelValues(account).Set(e.Wait.Seconds())
		late.WithLabelValues(account).Set(float64(e.Late))
	}
	return r.Gather()
}

// Run measures, and tells when a backlog can't be done in time, until ctx ends.
func (a *Admission) Run(ctx context.Context) {
	ticker := time.NewTicker(measureEvery)
	defer ticker.Stop()
	for forecast := (time.Time{}); ; {
		now := time.Now()
		err := a.measure(ctx, now)
		if err == nil && now.Sub(forecast) >= forecastEvery {
			forecast = now
			err = a.forecast(ctx, now)
		}
		if err != nil && ctx.Err() == nil {
			a.log.WarnContext(ctx, "the load can't be measured; admission goes by what was measured last", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// measure takes every account's load.
func (a *Admission) measure(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	owners, err := a.loads.EgressOwners(ctx)
	if err != nil {
		return err
	}
	for _, one := range a.accounts {
		before := one.begin()
		load, err := a.loads.Load(ctx, one.account.Name, now.Add(-a.maxWait))
		if err != nil {
			return err
		}
		one.measured(load, resumes(owners, one.account.Name), before)
	}
	return nil
}

// resumes returns until when the account's gate starts nothing, as its owner
// has reported; the zero time if it does.
func resumes(owners []ledger.Owner, account string) time.Time {
	i := slices.IndexFunc(owners, func(o ledger.Owner) bool { return o.Account == account && o.Held })
	if i < 0 {
		return time.Time{}
	}
	var gate limiter.Status
	// What can't be read says nothing.
	if json.Unmarshal(owners[i].Gate, &gate) != nil {
		return time.Time{}
	}
	if gate.OpenUntil.After(gate.PausedUntil) {
		return gate.OpenUntil
	}
	return gate.PausedUntil
}

// forecast holds the deadlines of what is open against the drain, and tells of
// an account that won't keep them.
func (a *Admission) forecast(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	for _, one := range a.accounts {
		dues, err := a.loads.Dues(ctx, one.account.Name, now)
		if err != nil {
			return err
		}
		if e, tell := one.forecast(dues, now); tell {
			a.tell(ctx, one.account.Name, e)
		}
	}
	return nil
}

func (a *Admission) tell(ctx context.Context, account string, e Estimate) {
	level, event := slog.LevelError, telemetry.EventBacklogLate
	if e.Late == 0 {
		level, event = slog.LevelInfo, telemetry.EventBacklogOnTime
	}
	round := func(perSecond float64) float64 { return math.Round(perSecond*1000) / 1000 }
	telemetry.Event(ctx, a.log, level, event,
		slog.String(telemetry.KeyAccount, account),
		slog.Int("late", e.Late),
		slog.Int("open", e.Open),
		slog.Float64("drain_per_second", round(e.DrainPerSecond)),
		slog.Float64("needed_per_second", round(e.NeededPerSecond)),
		slog.Float64("settled_per_second", round(e.SettledPerSecond)),
		slog.Float64("calls_per_case", round(e.CallsPerCase)))
}

// admittance is the admission of one account.
type admittance struct {
	account config.Account

	mu       sync.Mutex
	estimate Estimate
	load     ledger.Load
	resumes  time.Time // until when no call starts
	storing  int       // admitted, and maybe not in the database yet: no measurement counts them for sure
	admitted int       // the others since the measurement began, so that it may not count them
	turn     time.Time // when the last who was refused was told to come back
	told     time.Time // when somebody was last told that the backlog is late
}

// begin is called before a measurement begins and returns how many refunds were
// admitted and stored until then: those it will have counted.
func (o *admittance) begin() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.admitted
}

// measured takes over a measurement that has counted so many of the admitted.
func (o *admittance) measured(load ledger.Load, resumes time.Time, counted int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	acc := o.account
	e := Estimate{
		Open:             load.Open,
		SettledPerSecond: float64(load.Settled) / ledger.LoadWindow.Seconds(),
		CallsPerSecond:   acc.StartsPerSecond,
		CallsPerCase:     float64(load.Calls+priorCases) / float64(load.Settled+priorCases),
		Late:             o.estimate.Late,
		NeededPerSecond:  o.estimate.NeededPerSecond,
	}
	if load.CallTime > 0 {
		e.CallsPerSecond = min(e.CallsPerSecond, float64(acc.MaxInFlight)/load.CallTime.Seconds())
	}
	e.CallsPerCase = max(1, e.CallsPerCase) // what was sent before the window counts too
	e.DrainPerSecond = e.CallsPerSecond / e.CallsPerCase
	if submits := acc.Endpoints.Submit.StartsPerSecond; submits > 0 {
		e.DrainPerSecond = min(e.DrainPerSecond, submits)
	}
	o.estimate, o.load, o.resumes = e, load, resumes
	o.admitted -= counted
}

// current is the estimate with what was admitted since.
func (o *admittance) current(now time.Time) Estimate {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now(now)
}

func (o *admittance) now(now time.Time) Estimate {
	e := o.estimate
	e.Open += o.admitted + o.storing
	e.Wait = max(0, o.resumes.Sub(now)) + drainTime(float64(e.Open), e.DrainPerSecond)
	return e
}

// stored is called when one that was admitted is in the database, or won't ever
// be. Which of the two may not be known, so it counts until the next measurement.
func (o *admittance) stored() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.storing--
	o.admitted++
}

// drainTime is how long the drain takes for so many cases.
func drainTime(cases, perSecond float64) time.Duration {
	return time.Duration(cases / perSecond * float64(time.Second))
}

// admit counts one more refund, which is being stored then, or says why not and
// when to come back.
func (o *admittance) admit(now time.Time, maxBacklog int, maxWait time.Duration) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.now(now)
	var why string
	var after time.Duration // until there is room
	exceeded := func(room time.Duration, format string, args ...any) {
		if room > after {
			why, after = fmt.Sprintf(format, args...), room
		}
	}
	if e.Open >= maxBacklog {
		exceeded(drainTime(float64(e.Open-maxBacklog+1), e.DrainPerSecond), "it has %d open cases, and may have %d", e.Open, maxBacklog)
	}
	if e.Wait >= maxWait {
		exceeded(e.Wait-maxWait+drainTime(1, e.DrainPerSecond), "a refund would wait about %s, and may wait %s", e.Wait.Round(time.Second), maxWait)
	}
	if at := o.load.OldestQueued; at != nil && now.Sub(*at) >= maxWait {
		exceeded(max(0, o.resumes.Sub(now))+drainTime(float64(max(1, o.load.QueuedBefore)), e.DrainPerSecond),
			"its first in line has waited for %s, and may wait %s", now.Sub(*at).Round(time.Second), maxWait)
	}
	if after == 0 {
		o.storing++
		return nil
	}
	// Everybody who is refused gets a turn of their own, as the drain makes
	// room, instead of all coming back at once. The turns end with the wait.
	at := now.Add(after)
	if o.turn.After(at) && o.turn.Before(at.Add(maxWait)) {
		at = o.turn
	}
	o.turn = at.Add(drainTime(1, e.DrainPerSecond))
	return &OverCapacityError{Account: o.account.Name, Why: why, RetryAfter: at.Sub(now)}
}

// forecast estimates how many of the dues, the earliest first, are not met, and
// tells whether that is to be said now.
func (o *admittance) forecast(dues []ledger.Due, now time.Time) (e Estimate, tell bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	begins := max(0, o.resumes.Sub(now))
	late, needed, due := 0, 0.0, 0
	for _, d := range dues {
		if !d.Until.After(now) {
			continue // overdue: its workflow is handing it to people
		}
		due += d.Cases
		// The end of the step, so that nothing is called late that may not be.
		working := max(0, d.Until.Sub(now)-begins).Seconds()
		done := int(o.estimate.DrainPerSecond * working)
		late += min(d.Cases, max(0, due-done))
		if working > 0 {
			needed = max(needed, float64(due)/working)
		}
	}
	was := o.estimate.Late
	o.estimate.Late, o.estimate.NeededPerSecond = late, needed
	switch {
	case late > 0 && now.Sub(o.told) >= forecastAgain:
		o.told, tell = now, true
	case late == 0 && was > 0:
		o.told, tell = time.Time{}, true
	}
	return o.now(now), tell
}
