package starter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

var testAdmission = config.Admission{MaxBacklog: 10_000}

// TestAdmission_Decisions: the default budget (5/s, 10 in flight) and deadline
// (15 minutes, so that a refund may wait for ten).
func TestAdmission_Decisions(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	for name, tc := range map[string]struct {
		load    ledger.Load
		resumes time.Time
		limits  config.Admission
		why     string // empty: admitted
		after   time.Duration
	}{
		"nothing waits":             {},
		"one place left":            {load: ledger.Load{Open: 2999}},
		"ten minutes full":          {load: ledger.Load{Open: 3000}, why: "a refund would wait about 10m0s, and may wait 10m0s", after: 200 * time.Millisecond},
		"eleven minutes":            {load: ledger.Load{Open: 3300}, why: "a refund would wait about 11m0s, and may wait 10m0s", after: time.Minute + 200*time.Millisecond},
		"two calls a case":          {load: ledger.Load{Open: 1485, Calls: 280, Settled: 135}, why: "a refund would wait about 9m54s, and may wait 9m0s", after: 54*time.Second + 400*time.Millisecond, limits: config.Admission{MaxWait: 9 * time.Minute, MaxBacklog: 10_000}},
		"few cases say little":      {load: ledger.Load{Open: 1500, Calls: 4, Settled: 1}}, // 14/11 calls a case, not 4
		"an idle minute":            {load: ledger.Load{Open: 2999, Settled: 300}},         // settled by notices; never less than a call each
		"three seconds a call":      {load: ledger.Load{Open: 2100, CallTime: 3 * time.Second}, why: "a refund would wait about 10m30s, and may wait 10m0s", after: 30*time.Second + 300*time.Millisecond},
		"fast calls":                {load: ledger.Load{Open: 2999, CallTime: 100 * time.Millisecond}},
		"the breaker is open":       {load: ledger.Load{Open: 2900}, resumes: now.Add(30 * time.Second), why: "a refund would wait about 10m10s, and may wait 10m0s", after: 10*time.Second + 200*time.Millisecond},
		"the provider wants a rest": {resumes: now.Add(11 * time.Minute), why: "a refund would wait about 11m0s, and may wait 10m0s", after: time.Minute + 200*time.Millisecond},
		"the pause is over":         {load: ledger.Load{Open: 2999}, resumes: now.Add(-time.Minute)},
		"too many":                  {load: ledger.Load{Open: 109}, limits: config.Admission{MaxBacklog: 100}, why: "it has 109 open cases, and may have 100", after: 2 * time.Second},
		"an old one is first in line": {
			load: ledger.Load{Open: 50, OldestQueued: ago(11 * time.Minute), QueuedBefore: 5},
			why:  "its first in line has waited for 11m0s, and may wait 10m0s", after: time.Second,
		},
		"an old one behind an open breaker": {
			load: ledger.Load{Open: 50, OldestQueued: ago(11 * time.Minute), QueuedBefore: 5}, resumes: now.Add(20 * time.Second),
			why: "its first in line has waited for 11m0s, and may wait 10m0s", after: 21 * time.Second,
		},
		"an old one, but not too old": {load: ledger.Load{Open: 50, OldestQueued: ago(9 * time.Minute)}},
		"the longest wait is told": {
			load: ledger.Load{Open: 3300, OldestQueued: ago(11 * time.Minute), QueuedBefore: 600},
			why:  "its first in line has waited for 11m0s, and may wait 10m0s", after: 2 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.limits.MaxBacklog == 0 {
				tc.limits = testAdmission
			}
			a := NewAdmission(nil, tc.limits, []config.Account{testAccount("main")}, testDeadline, slog.New(slog.DiscardHandler))
			a.accounts[0].measured(tc.load, tc.resumes, 0)
			err := a.Place("main").take(now)
			if tc.why == "" {
				require.NoError(t, err)
				require.Equal(t, tc.load.Open+1, a.Estimates()["main"].Open, "what is admitted counts at once")
				return
			}
			var full *OverCapacityError
			require.ErrorAs(t, err, &full)
			require.Equal(t, "main", full.Account)
			require.Equal(t, tc.why, full.Why)
			require.InDelta(t, tc.after, full.RetryAfter, float64(10*time.Millisecond))
			require.Equal(t, tc.load.Open, a.Estimates()["main"].Open, "what is refused doesn't")
		})
	}
}

// TestAdmission_SubLimit: a limit on submissions alone bounds what is settled.
func TestAdmission_SubLimit(t *testing.T) {
	t.Parallel()
	acc := testAccount("main")
	acc.Endpoints.Submit.StartsPerSecond = 1
	a := NewAdmission(nil, testAdmission, []config.Account{acc}, testDeadline, slog.New(slog.DiscardHandler))
	require.InDelta(t, 1, a.Estimates()["main"].DrainPerSecond, 1e-9)
}

// TestAdmission_Accounts: each has its own, and an unknown one is none of its
// business.
func TestAdmission_Accounts(t *testing.T) {
	t.Parallel()
	a := NewAdmission(nil, testAdmission, []config.Account{testAccount("main"), testAccount("second")}, testDeadline, slog.New(slog.DiscardHandler))
	a.accounts[0].measured(ledger.Load{Open: 5000}, time.Time{}, 0)
	require.Error(t, a.Place("main").Take())
	require.NoError(t, a.Place("second").Take())
	require.NoError(t, a.Place("none").Take())
	require.NoError(t, (*Admission)(nil).Place("main").Take(), "none admits all")
}

// TestAdmission_Property: whatever arrives between two measurements, no more is
// admitted than there is room for; whoever is refused is told a time in the
// future, and each a later one than the last, until the turns begin anew after the longest wait.
func TestAdmission_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		acc := testAccount("main")
		acc.StartsPerSecond = rapid.Float64Range(0.1, 100).Draw(t, "starts per second")
		limits := config.Admission{MaxBacklog: rapid.IntRange(1, 200).Draw(t, "max backlog"), MaxWait: rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.IntRange(1, 800).Draw(t, "s")) * time.Second
		}).Draw(t, "max wait")}
		a := NewAdmission(nil, limits, []config.Account{acc}, testDeadline, slog.New(slog.DiscardHandler))
		open := rapid.IntRange(0, 300).Draw(t, "open")
		a.accounts[0].measured(ledger.Load{Open: open}, time.Time{}, 0)
		now := time.Now()
		admitted, first, last := 0, time.Duration(0), time.Duration(0)
		for range rapid.IntRange(1, 400).Draw(t, "arrivals") {
			err := a.Place("main").take(now)
			if err == nil {
				require.Zero(t, last, "nobody passes those who were refused")
				admitted++
				continue
			}
			var full *OverCapacityError
			require.ErrorAs(t, err, &full)
			require.Positive(t, full.RetryAfter)
			drained := full.RetryAfter.Seconds() * acc.StartsPerSecond
			require.GreaterOrEqual(t, drained, 0.99, "by then one more is settled at least")
			if first == 0 {
				first = full.RetryAfter
			}
			if full.RetryAfter != first {
				require.Greater(t, full.RetryAfter, last)
				require.Less(t, full.RetryAfter, first+limits.MaxWait)
			}
			last = full.RetryAfter
		}
		if admitted > 0 {
			require.LessOrEqual(t, open+admitted, limits.MaxBacklog)
			require.LessOrEqual(t, float64(open+admitted-1)/acc.StartsPerSecond, limits.MaxWait.Seconds())
		}
	})
}

// TestAdmission_Races: what is admitted while the load is being measured, and
// what is being stored meanwhile, is neither lost nor counted twice for good.
func TestAdmission_Races(t *testing.T) {
	t.Parallel()
	a := NewAdmission(nil, config.Admission{MaxBacklog: 4}, []config.Account{testAccount("main")}, testDeadline, slog.New(slog.DiscardHandler))
	o := a.accounts[0]
	open := func(want int) {
		t.Helper()
		require.Equal(t, want, a.Estimates()["main"].Open)
	}
	places := make([]*Place, 5)
	for i := range places {
		places[i] = a.Place("main")
	}
	require.NoError(t, places[0].Take())
	places[0].Leave()
	require.NoError(t, places[1].Take())
	require.NoError(t, places[2].Take())
	counted := o.begin()
	require.NoError(t, places[3].Take())
	places[2].Leave() // may or may not be counted by the measurement
	o.measured(ledger.Load{Open: 1}, time.Time{}, counted)
	open(4)
	require.Error(t, places[4].Take(), "two are still being stored")
	for _, p := range places {
		p.Leave()
		p.Leave() // once is enough, and who was refused has nothing to leave
	}
	open(4)
	o.measured(ledger.Load{Open: 3}, time.Time{}, o.begin())
	open(3) // one could not be stored
	require.NoError(t, places[4].Take())
	open(4)
}

// TestIntake_LeavesItsPlace: however a submission ends, it takes up room no
// longer than until the next measurement, and only once it is stored for good.
func TestIntake_LeavesItsPlace(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	a := NewAdmission(l, testAdmission, []config.Account{testAccount("main"), testAccount("second")}, testDeadline, i.api.log)
	i.api.opts.Admission = a
	_, content := numbered(1)
	require.Equal(t, 202, i.post(content).status)
	require.Equal(t, 200, i.post(content).status)
	require.Equal(t, 409, i.post(body(map[string]string{"refund_id": `"r-1"`, "amount": `{"value":1,"currency":"TWD"}`})).status)
	require.Equal(t, 1, a.Estimates()["main"].Open)
	require.NoError(t, a.measure(t.Context(), time.Now()))
	require.Equal(t, 1, a.Estimates()["main"].Open)
	require.Zero(t, a.accounts[0].storing)
}

// TestAdmission_Forecast: which of the deadlines the drain doesn't meet.
func TestAdmission_Forecast(t *testing.T) {
	t.Parallel()
	now := time.Now()
	in := func(d time.Duration, cases int) ledger.Due { return ledger.Due{Until: now.Add(d), Cases: cases} }
	for name, tc := range map[string]struct {
		dues    []ledger.Due
		resumes time.Time
		late    int
		needed  float64
	}{
		"nothing":           {},
		"all of it fits":    {dues: []ledger.Due{in(time.Minute, 100), in(2*time.Minute, 500)}, needed: 5},
		"the end doesn't":   {dues: []ledger.Due{in(time.Minute, 100), in(2*time.Minute, 620)}, late: 120, needed: 6},
		"the first don't":   {dues: []ledger.Due{in(10*time.Second, 80), in(20*time.Minute, 1)}, late: 30, needed: 8},
		"overdue":           {dues: []ledger.Due{in(0, 7), in(time.Minute, 300)}, needed: 5},
		"the breaker opens": {dues: []ledger.Due{in(time.Minute, 300)}, resumes: now.Add(30 * time.Second), late: 150, needed: 10},
		"not before then":   {dues: []ledger.Due{in(time.Minute, 300)}, resumes: now.Add(time.Hour), late: 300},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &admittance{account: testAccount("main")}
			o.measured(ledger.Load{}, tc.resumes, 0)
			e, tell := o.forecast(tc.dues, now)
			require.Equal(t, tc.late, e.Late)
			require.InDelta(t, tc.needed, e.NeededPerSecond, 1e-6)
			require.Equal(t, tc.late > 0, tell)
		})
	}
}

// fixedLoads is a load that tests set.
type fixedLoads struct {
	sync.Mutex
	load ledger.Load
	dues []ledger.Due
	err  error
}

func (f *fixedLoads) Load(context.Context, string, time.Time) (ledger.Load, error) {
	f.Lock()
	defer f.Unlock()
	return f.load, f.err
}

func (f *fixedLoads) Dues(context.Context, string, time.Time) ([]ledger.Due, error) {
	f.Lock()
	defer f.Unlock()
	return f.dues, f.err
}

func (f *fixedLoads) EgressOwners(context.Context) ([]ledger.Owner, error) {
	f.Lock()
	defer f.Unlock()
	return nil, f.err
}

// set changes the load.
func (f *fixedLoads) set(dues []ledger.Due, err error) {
	f.Lock()
	defer f.Unlock()
	f.dues, f.err = dues, err
}

// TestAdmission_Alarm: a backlog that is late is told of once, again after five
// minutes, and when it is on time again; a database that is away changes
// nothing of what is known.
func TestAdmission_Alarm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		loads := &fixedLoads{load: ledger.Load{Open: 400}, dues: []ledger.Due{{Until: start.Add(time.Minute), Cases: 400}}}
		logs := &testenv.Logs{}
		a := NewAdmission(loads, testAdmission, []config.Account{testAccount("main")}, testDeadline, telemetry.NewLogger(logs, telemetry.FormatJSON, slog.LevelInfo))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }

		wait(100 * time.Millisecond)
		late := logs.Events(t, telemetry.EventBacklogLate)
		require.Len(t, late, 1)
		delete(late[0], "time")
		require.Equal(t, map[string]any{
			"level": "ERROR", "msg": "backlog.late", "event": "backlog.late", "account": "main", "late": 100.0, "open": 400.0,
			"drain_per_second": 5.0, "needed_per_second": 6.667, "settled_per_second": 0.0, "calls_per_case": 1.0,
		}, late[0])
		require.Equal(t, 100, a.Estimates()["main"].Late)

		more := []ledger.Due{{Until: start.Add(time.Hour), Cases: 20_000}}
		loads.set(more, nil)
		wait(4 * time.Minute)
		require.Len(t, logs.Events(t, telemetry.EventBacklogLate), 1)
		wait(2 * time.Minute)
		require.Len(t, logs.Events(t, telemetry.EventBacklogLate), 2)

		loads.set(more, errors.New("away"))
		wait(10 * time.Second)
		require.Contains(t, logs.String(), "admission goes by what was measured last")
		require.Equal(t, 400, a.Estimates()["main"].Open)

		loads.set(nil, nil)
		wait(20 * time.Second)
		require.Len(t, logs.Events(t, telemetry.EventBacklogOnTime), 1)
		wait(time.Minute)
		require.Len(t, logs.Events(t, telemetry.EventBacklogOnTime), 1, "once")
		stop()
		<-done
	})
}

// TestAdmission_Resumes reads the gate as its owner reports it.
func TestAdmission_Resumes(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	gate := func(format string, times ...any) []byte { return fmt.Appendf(nil, format, times...) }
	later := at.Add(time.Minute)
	for want, owner := range map[time.Time]ledger.Owner{
		{}:                     {Account: "main", Held: true, Gate: gate(`{}`)},
		at:                     {Account: "main", Held: true, Gate: gate(`{"paused_until":%q}`, at.Format(time.RFC3339Nano))},
		later:                  {Account: "main", Held: true, Gate: gate(`{"paused_until":%q,"open_until":%q}`, at.Format(time.RFC3339Nano), later.Format(time.RFC3339Nano))},
		later.Add(time.Second): {Account: "main", Held: true, Gate: gate(`{"open_until":%q}`, later.Add(time.Second).Format(time.RFC3339Nano))},
	} {
		require.True(t, want.Equal(resumes([]ledger.Owner{{Account: "other", Held: true, Gate: gate(`{"open_until":"2030-01-01T00:00:00Z"}`)}, owner}, "main")), "%s", owner.Gate)
	}
	released := ledger.Owner{Account: "main", Gate: gate(`{"open_until":"2030-01-01T00:00:00Z"}`)}
	require.Zero(t, resumes([]ledger.Owner{released}, "main"), "what an owner of the past has reported says nothing")
	require.Zero(t, resumes([]ledger.Owner{{Account: "main", Held: true, Gate: gate(`{`)}}, "main"))
}

// TestIntake_OverCapacity: by HTTP and with what the database counts, a burst
// is admitted up to the limit exactly; the rest is told when to come back, and
// may. What was accepted before is a repeat as ever.
func TestIntake_OverCapacity(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	accounts := []config.Account{testAccount("main"), testAccount("second")}
	i.api.opts.Admission = NewAdmission(l, config.Admission{MaxBacklog: 20}, accounts, testDeadline, i.api.log)
	submit := func(n int) answer {
		_, content := numbered(n)
		return i.post(content)
	}

	var accepted atomic.Int64
	var mu sync.Mutex
	var refused []answer
	var running sync.WaitGroup
	for n := range 50 {
		running.Go(func() {
			if a := submit(n); a.status == http.StatusAccepted {
				accepted.Add(1)
			} else {
				mu.Lock()
				defer mu.Unlock()
				refused = append(refused, a)
			}
		})
	}
	running.Wait()
	require.EqualValues(t, 20, accepted.Load())
	require.Len(t, refused, 30)
	seconds := map[int]int{}
	for _, a := range refused {
		p := a.problem(t, 503, "over-capacity")
		require.Contains(t, p.Detail, "it has 20 open cases, and may have 20")
		require.Regexp(t, `^/v1/refunds/r-\d+$`, p.CaseURL)
		after, err := strconv.Atoi(a.header.Get("Retry-After"))
		require.NoError(t, err)
		seconds[after]++
		require.Equal(t, 404, i.get(p.CaseURL).status, "nothing was stored")
	}
	require.LessOrEqual(t, len(seconds), 7, "30 turns at 5/s")
	for after, clients := range seconds {
		require.LessOrEqual(t, clients, 5, "those told to come back in %d s", after)
	}
	require.Len(t, i.events("intake.refused"), 30)
	require.InDelta(t, 30, samples(i.page()[telemetry.MetricIntakeRequests])["result=over-capacity"], 0)
	require.InDelta(t, 4, samples(i.page()[telemetry.MetricExpectedWait])["account=main"], 0, "20 at 5/s")

	require.Equal(t, 202, i.post(body(map[string]string{"refund_id": `"other"`, "account": `"second"`})).status, "another account has room")
	open, err := l.List(t.Context(), ledger.Filter{Account: "main", Limit: 1})
	require.NoError(t, err)
	known := open.Cases[0].Refund
	again := i.post(body(map[string]string{"refund_id": strconv.Quote(known.ID), "payment_id": strconv.Quote(known.PaymentID)}))
	require.Equal(t, 200, again.status, "what is promised isn't asked for again")

	// The database counts the same, and a case that is closed makes room.
	admission := i.api.opts.Admission
	require.NoError(t, admission.measure(t.Context(), time.Now()))
	require.Equal(t, 20, admission.Estimates()["main"].Open)
	submit(100).problem(t, 503, "over-capacity")
	closeCase(t, l, known.ID)
	require.NoError(t, admission.measure(t.Context(), time.Now()))
	require.Equal(t, 202, submit(100).status)
	submit(101).problem(t, 503, "over-capacity")
}

// closeCase settles a case as its workflow would.
func closeCase(t *testing.T, l *ledger.Ledger, id string) {
	t.Helper()
	require.NoError(t, l.Save(t.Context(), ledger.Change{RefundID: id, Status: refund.StatusNotRefunded}))
}
