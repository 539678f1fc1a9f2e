package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"golang.org/x/sync/errgroup"

	"refundgate/internal/devenv"
	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// longLoad is the variable that asks for the long forms of the load tests,
// which `make load` runs: minutes of overload, and many kills.
const longLoad = "REFUNDGATE_LONG_LOAD"

// longOr returns the first value in the long form, else the second.
func longOr[T any](long, short T) T {
	if os.Getenv(longLoad) != "" {
		return long
	}
	return short
}

// wide are limits of a client that no test reaches.
const wide = "requests_per_second: 1000000\n    burst: 1000000\n"

// widen takes the limits off the system's only client.
func (s *system) widen() {
	s.t.Helper()
	s.change("  - name: shop\n", "  - name: shop\n    "+wide)
}

// crowd is a number of connections to the intake, shared by any number of
// goroutines that submit.
func crowd(connections int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections},
		Timeout:   time.Minute,
	}
}

// reply is what the intake answered to a submission.
type reply struct {
	id         string
	status     int
	problem    string        // the name of its type; empty for an acceptance
	retryAfter time.Duration // 0: the header is missing
	caseURL    string
}

// ask submits a refund of the account demo with that token. An error says that
// there was no whole answer.
func (s *system) ask(ctx context.Context, client *http.Client, token, id string) (reply, error) {
	content, err := json.Marshal(newRefund(id, "demo"))
	if err != nil {
		return reply{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.intake+"/v1/refunds", bytes.NewReader(content))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	var body struct {
		Type    string `json:"type"`
		CaseURL string `json:"case_url"`
	}
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
		return reply{}, fmt.Errorf("reading the answer %d: %w", res.StatusCode, err)
	}
	r := reply{id: id, status: res.StatusCode, problem: strings.TrimPrefix(body.Type, "urn:refundgate:problem:"), caseURL: body.CaseURL}
	if header := res.Header.Get("Retry-After"); header != "" {
		seconds, err := strconv.Atoi(header)
		if err != nil {
			return reply{}, fmt.Errorf("Retry-After: %w", err)
		}
		r.retryAfter = time.Duration(seconds) * time.Second
	}
	return r, nil
}

// wave submits all the refunds at once and returns the answers, in the order of
// the ids. Each must be a whole answer.
func (s *system) wave(client *http.Client, token string, ids []string) []reply {
	s.t.Helper()
	replies, errs := make([]reply, len(ids)), make([]error, len(ids))
	start := make(chan struct{})
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			<-start
			replies[i], errs[i] = s.ask(s.t.Context(), client, token, id)
		})
	}
	close(start)
	all.Wait()
	for i, err := range errs {
		require.NoError(s.t, err, ids[i])
	}
	return replies
}

// numbered returns n ids.
func numbered(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%05d", prefix, i)
	}
	return ids
}

// startedWorkflows returns how many runs each refund has in Temporal.
func (s *system) startedWorkflows() map[string]int {
	s.t.Helper()
	c := s.dial()
	defer c.Close()
	runs := map[string]int{}
	for token := []byte(nil); ; {
		page, err := c.ListWorkflow(s.t.Context(), &workflowservice.ListWorkflowExecutionsRequest{
			Namespace: s.ns, PageSize: 1000, NextPageToken: token, Query: fmt.Sprintf("WorkflowType = %q", refund.WorkflowType),
		})
		require.NoError(s.t, err)
		for _, e := range page.GetExecutions() {
			runs[strings.TrimPrefix(e.GetExecution().GetWorkflowId(), refund.WorkflowID(""))]++
		}
		if token = page.GetNextPageToken(); len(token) == 0 {
			return runs
		}
	}
}

// requireStarted holds what was answered for, MySQL and Temporal to each other:
// each of the ids is in all three, and nothing else is in any. It returns how
// many runs each has had.
func (s *system) requireStarted(ids map[string]bool, within time.Duration) map[string]int {
	s.t.Helper()
	s.requireAccepted(ids)
	require.Eventually(s.t, func() bool { return s.number(`SELECT COUNT(*) FROM refunds WHERE workflow_started_at IS NULL`) == 0 },
		within, 100*time.Millisecond, "not started in time")
	var runs map[string]int
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(500 * time.Millisecond) { // it lists a run a moment after its start
		if runs = s.startedWorkflows(); len(runs) >= len(ids) || time.Now().After(deadline) {
			break
		}
	}
	started := map[string]bool{}
	for id := range runs {
		started[id] = true
	}
	require.Empty(s.t, missing(ids, started), "accepted and not started")
	require.Empty(s.t, missing(started, ids), "started and not accepted")
	return runs
}

// requireAccepted: the ids are those of all cases in MySQL, each was accepted
// once, and no table knows another one.
func (s *system) requireAccepted(ids map[string]bool) {
	s.t.Helper()
	stored := s.accepted()
	require.Empty(s.t, missing(ids, stored), "answered for and not in MySQL")
	require.Empty(s.t, missing(stored, ids), "in MySQL and not answered for")
	require.Equal(s.t, len(ids), s.number(`SELECT COUNT(*) FROM refunds`))
	require.Equal(s.t, len(ids), s.number(`SELECT COUNT(*) FROM case_events WHERE action = ?`, ledger.ActionAccepted))
	require.Equal(s.t, len(ids), s.number(`SELECT COUNT(*) FROM payments`))
	rows, err := s.db.QueryContext(s.t.Context(), `
		SELECT table_name FROM information_schema.columns WHERE table_schema = DATABASE() AND column_name = 'refund_id'`)
	require.NoError(s.t, err)
	defer rows.Close()
	tables := 0
	for rows.Next() {
		var table string
		require.NoError(s.t, rows.Scan(&table))
		tables++
		require.Zero(s.t, s.number("SELECT COUNT(*) FROM `"+table+"` WHERE refund_id NOT IN (SELECT refund_id FROM refunds)"), "%s knows refunds that were not accepted", table)
	}
	require.NoError(s.t, rows.Err())
	require.Greater(s.t, tables, 4)
}

// missing returns what is in a and not in b, some of it.
func missing(a, b map[string]bool) (ids []string) {
	for id := range a {
		if !b[id] && len(ids) < 20 {
			ids = append(ids, id)
		}
	}
	return ids
}

// number asks the database for one.
func (s *system) number(query string, args ...any) (n int) {
	s.t.Helper()
	require.NoError(s.t, s.db.QueryRowContext(s.t.Context(), query, args...).Scan(&n))
	return n
}

// memory returns what the process has in memory and the most that it ever had,
// in MiB.
func (p *process) memory() (now, peak int) {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(p.t, err)
	for line := range strings.Lines(string(status)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			now = kib / 1024
		}
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			peak = kib / 1024
		}
	}
	require.Positive(p.t, now)
	require.Positive(p.t, peak)
	return now, peak
}

// goroutines returns how many serve has.
func (s *system) goroutines() int {
	s.t.Helper()
	return int(scrape(s.t, s.intake+"/metrics")["go_goroutines"].GetMetric()[0].GetGauge().GetValue())
}

// grown is the most that a process may have in memory which had so much before,
// in MiB: the garbage collector keeps a little more or less.
func grown(before int) int { return before + before/5 + 20 }

// CASE 36: 5,000 refunds at once, over 400 connections, and far more than the
// account may have open. What is accepted is in MySQL and started, up to the
// limit exactly; everybody else is told when to come back, and is in no table.
// The same 5,000 again and again cost no more memory.
func TestCase36_FiveThousandAtOnce(t *testing.T) {
	const n, connections = 5000, 400
	backlog := longOr(2000, 1000)
	// Measured: 67 MiB, and 430 with the race detector.
	memory := 150
	if testenv.Race {
		memory = 800
	}
	s := newSystem(t)
	s.widen()
	const narrowToken, burst, perSecond = "token-of-a-narrow-client", 100, 0.5
	sum := sha256.Sum256([]byte(narrowToken))
	s.change("accounts:\n", fmt.Sprintf("  - name: narrow\n    token_sha256: %q\n    scopes: [\"refunds:write\"]\n    requests_per_second: %v\n    burst: %d\nadmission: {max_backlog: %d}\naccounts:\n",
		hex.EncodeToString(sum[:]), perSecond, burst, backlog))
	serve := s.start("serve")
	serve.waitFor("intake:")
	quiet := s.goroutines()
	client := crowd(connections)

	// One client's own limit comes before the account's, and tells when the
	// next request counts.
	accepted := map[string]bool{}
	begun := time.Now()
	narrow := s.wave(client, narrowToken, numbered("narrow", n/5))
	took := time.Since(begun)
	longest := time.Duration(0)
	for _, r := range narrow {
		if r.status == http.StatusAccepted {
			accepted[r.id] = true
			continue
		}
		require.Equal(t, http.StatusTooManyRequests, r.status, r)
		require.Equal(t, "too-many-requests", r.problem)
		require.Positive(t, r.retryAfter)
		require.LessOrEqual(t, r.retryAfter, 2*time.Second, "one request in two seconds counts")
		longest = max(longest, r.retryAfter)
	}
	require.GreaterOrEqual(t, len(accepted), burst)
	require.LessOrEqual(t, len(accepted), burst+1+int(took.Seconds()*perSecond))
	s.requireAccepted(accepted)
	time.Sleep(longest)
	r, err := s.ask(t.Context(), client, narrowToken, "narrow-again")
	require.NoError(t, err)
	require.Equal(t, http.StatusAccepted, r.status, "who comes back when told is let in")
	accepted[r.id] = true

	ids := numbered("r", n)
	var rss []int
	for w := range longOr(8, 3) {
		begun := time.Now()
		known, came, refused := len(accepted), 0, 0
		times := map[time.Duration]bool{}
		for _, r := range s.wave(client, testToken, ids) {
			switch r.status {
			case http.StatusAccepted:
				require.False(t, accepted[r.id], "%s was accepted before", r.id)
				accepted[r.id] = true
				came++
			case http.StatusOK:
				require.True(t, accepted[r.id], "%s was not accepted before", r.id)
			default:
				require.Equal(t, http.StatusServiceUnavailable, r.status, r)
				require.Equal(t, "over-capacity", r.problem, r)
				require.False(t, accepted[r.id], "%s was accepted before", r.id)
				require.Equal(t, "/v1/refunds/"+r.id, r.caseURL)
				require.Positive(t, r.retryAfter)
				// The longest wait of the default deadline, and its turns.
				require.LessOrEqual(t, r.retryAfter, 21*time.Minute)
				times[r.retryAfter] = true
				refused++
			}
		}
		require.LessOrEqual(t, len(accepted), backlog)
		require.GreaterOrEqual(t, len(accepted), backlog-connections, "those that were being stored may have counted twice for a second")
		require.Equal(t, n, refused+len(accepted)-burstOf(accepted), "each got an answer that says what it is")
		require.Greater(t, len(times), 100, "they don't all come back at once")
		s.requireAccepted(accepted)
		now, peak := serve.memory()
		t.Logf("wave %d: %v, %d accepted, %d known, %d refused; %d MiB, at most %d", w+1, time.Since(begun).Round(time.Millisecond), came, known, refused, now, peak)
		require.LessOrEqual(t, peak, memory)
		rss = append(rss, now)
	}
	require.Len(t, accepted, backlog)
	require.LessOrEqual(t, rss[len(rss)-1], grown(rss[1]), "the same load again takes more memory: %v MiB", rss)

	for id, runs := range s.requireStarted(accepted, 2*time.Minute) {
		require.Equal(t, 1, runs, "%s was started more than once", id)
	}
	client.CloseIdleConnections()
	// Its connections to MySQL and Temporal stay open.
	require.Eventually(t, func() bool { return s.goroutines() <= quiet+connections/10 }, 30*time.Second, 200*time.Millisecond,
		"before there were %d goroutines, now there are %d", quiet, s.goroutines())
}

// burstOf counts the ids of the narrow client.
func burstOf(ids map[string]bool) (n int) {
	for id := range ids {
		if strings.HasPrefix(id, "narrow") {
			n++
		}
	}
	return n
}

// overload is a system whose egress does five calls a second, and a new refund
// of which may wait for six.
const overload = `
policy: {deadline: 30s}
admission: {max_wait: 6s}
defaults: {connect_timeout: 300ms, call_timeout: 1s}
`

// A steady overload, eight times of what the egress can do. What is accepted is
// bounded by what it may have to wait, and done within that; the rest is refused
// and told when to come back; nothing grows. When the overload ends, those who
// were refused come back when they were told, and are let in.
func TestSteadyOverload(t *testing.T) {
	t.Parallel()
	const perSecond, starts, maxWait, deadline = 40, 5, 6 * time.Second, 30 * time.Second
	duration := longOr(5*time.Minute, 20*time.Second)
	s := newSystem(t)
	s.widen()
	s.append(overload)
	serve, worker := s.start("serve"), s.start("worker")
	serve.waitFor("intake:")
	worker.waitFor("egress: owner")

	client := crowd(200)
	o := &overloading{system: s, client: client, accepted: map[string]bool{}}
	begun := time.Now()
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	var warm [2]int // of serve and the worker
	patient := map[int]int{}
	mostOpen, longest, oldest := 0, 0.0, 0.0
	for n := 0; time.Since(begun) < duration; {
		select {
		case <-tick.C:
			o.submit(fmt.Sprintf("o-%06d", n))
			n++
		case <-second.C:
			page := scrape(t, s.intake+"/metrics")
			mostOpen = max(mostOpen, s.number(`SELECT COUNT(*) FROM refunds WHERE closed_at IS NULL`))
			longest = max(longest, gauge(page[telemetry.MetricExpectedWait]))
			oldest = max(oldest, gauge(page[telemetry.MetricOldestOpenAge]))
			if warm[0] == 0 && time.Since(begun) > duration/3 {
				first := o.firstRefused(20)
				o.running.Go(func() { patient = o.comeBack(first, begun.Add(duration)) })
				warm[0], _ = serve.memory()
				warm[1], _ = worker.memory()
			}
		}
	}
	o.running.Wait()
	require.NoError(t, o.err)
	now, _ := serve.memory()
	workerNow, _ := worker.memory()
	t.Logf("%v: %d submitted, %d accepted, %d refused; at most %d open, to wait for %.1f s, %.1f s old; serve %d, then %d MiB, worker %d, then %d",
		duration, len(o.accepted)+len(o.refused), len(o.accepted), len(o.refused), mostOpen, longest, oldest, warm[0], now, warm[1], workerNow)

	// The egress is used as far as it goes, and no more is promised than it does.
	could := int((duration + maxWait).Seconds()) * starts
	require.Greater(t, len(o.accepted), could/2)
	require.LessOrEqual(t, len(o.accepted), could+starts)
	require.Greater(t, len(o.refused), len(o.accepted), "that was no overload")
	room := int(maxWait.Seconds()) * starts
	require.GreaterOrEqual(t, mostOpen, room/2, "that was no overload")
	require.LessOrEqual(t, mostOpen, room+room/5)
	require.LessOrEqual(t, longest, 1.2*maxWait.Seconds(), "what the last one accepted has to wait")
	require.Less(t, oldest, 2*maxWait.Seconds())
	require.LessOrEqual(t, now, grown(warm[0]), "MiB of serve")
	require.LessOrEqual(t, workerNow, grown(warm[1]), "MiB of the worker")
	for _, r := range o.refused {
		require.Equal(t, http.StatusServiceUnavailable, r.status, r)
		require.Equal(t, "over-capacity", r.problem, r)
		require.Equal(t, "/v1/refunds/"+r.id, r.caseURL)
		require.Positive(t, r.retryAfter)
		require.LessOrEqual(t, r.retryAfter, 3*maxWait, "until there is room, and the turns behind it")
	}

	// Who comes back as told has the chances of everybody who comes then.
	t.Logf("during the overload, let in after so many returns: %v", patient)
	require.Less(t, patient[0], 20, "nobody who came back was let in")

	// Retry-After is honest: room is there for those who come when they were told.
	// One second's arrivals were told to come within the same few, so not all
	// are let in at once.
	late := o.refused[len(o.refused)-perSecond:]
	tries := o.comeBack(late, time.Now().Add(time.Minute))
	require.NoError(t, o.err)
	t.Logf("after the overload, let in after so many returns: %v", tries)
	require.Zero(t, tries[0])
	returns := 0
	for n, clients := range tries {
		returns += n * clients
	}
	require.LessOrEqual(t, returns, 3*len(late), "returns of %d clients", len(late))

	// All that was accepted was done in time, none by people.
	runs := s.requireStarted(o.accepted, time.Minute)
	require.Len(t, runs, len(o.accepted))
	require.Eventually(t, func() bool { return s.number(`SELECT COUNT(*) FROM refunds WHERE closed_at IS NULL`) == 0 },
		time.Minute, 200*time.Millisecond, "all are settled")
	require.Equal(t, len(o.accepted), s.number(`SELECT COUNT(*) FROM refunds WHERE status = ?`, refund.StatusSucceeded))
	require.Zero(t, s.number(`SELECT COUNT(*) FROM case_events WHERE action = 'status.review'`))
	took := time.Duration(s.number(`SELECT MAX(TIMESTAMPDIFF(MICROSECOND, accepted_at, closed_at)) FROM refunds`)) * time.Microsecond
	t.Logf("the slowest took %v", took)
	require.Less(t, took, min(deadline, 2*maxWait))
	s.requireMatched(slices.Collect(maps.Keys(o.accepted))...)
}

// overloading is a load that doesn't wait for its answers.
type overloading struct {
	*system
	client  *http.Client
	running sync.WaitGroup

	mu       sync.Mutex
	accepted map[string]bool
	refused  []reply // in the order of the answers
	err      error   // the first
}

// submit submits a refund and notes the answer when it comes.
func (o *overloading) submit(id string) {
	o.running.Go(func() {
		r, err := o.ask(o.t.Context(), o.client, testToken, id)
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case err != nil:
			o.err = cmp.Or(o.err, err)
		case r.status == http.StatusAccepted:
			o.accepted[id] = true
		default:
			o.refused = append(o.refused, r)
		}
	})
}

// comeBack has those who were refused come back whenever they were told to,
// until they are let in or the time is over. It returns how many were let in
// after how many returns; 0 stands for those who were not.
func (o *overloading) comeBack(refused []reply, end time.Time) map[int]int {
	tries := map[int]int{}
	var coming sync.WaitGroup
	for _, r := range refused {
		coming.Go(func() {
			n, err := 0, error(nil)
			for err == nil && r.status != http.StatusAccepted && time.Now().Add(r.retryAfter).Before(end) {
				time.Sleep(r.retryAfter)
				n++
				r, err = o.ask(o.t.Context(), o.client, testToken, r.id)
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.err = cmp.Or(o.err, err)
			if r.status != http.StatusAccepted {
				n = 0
			} else {
				o.accepted[r.id] = true
			}
			tries[n]++
		})
	}
	coming.Wait()
	return tries
}

// firstRefused returns the first of them, if there are as many.
func (o *overloading) firstRefused(n int) []reply {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.refused[:min(n, len(o.refused))])
}

// gauge returns the value of a metric that is there once.
func gauge(f *dto.MetricFamily) float64 {
	if len(f.GetMetric()) == 0 {
		return 0
	}
	return f.GetMetric()[0].GetGauge().GetValue()
}

// append adds sections to the configuration file.
func (s *system) append(sections string) {
	s.t.Helper()
	b, err := os.ReadFile(s.config)
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(s.config, append(b, sections...), 0o600))
}

// hardy is an account whose egress does a hundred calls a second, so that what
// was accepted is done soon.
const hardy = `
admission: {max_backlog: 100000}
defaults: {starts_per_second: 100, max_in_flight: 50, waiting_room: 100, connect_timeout: 500ms, call_timeout: 1500ms, breaker: {window: 1000}}
policy: {checks: {initial: 500ms, cap: 2s}, not_sent: {initial: 200ms, cap: 1s}}
`

// kill -9 of `serve` at random moments while clients submit and order services
// write rows, and in between of MySQL and of Temporal: whatever a client was
// answered for and whatever row was committed is in MySQL once, was started, and
// is carried out once. A client that got no answer sends the same again.
func TestServeIsKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	rounds := int(environment(t, "ROUNDS", longOr[uint64](25, 4)))
	seed := environment(t, "SEED", rand.Uint64())
	t.Logf("ROUNDS=%d SEED=%d", rounds, seed)
	rnd := rand.New(rand.NewPCG(seed, seed))
	upTo := func(d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

	db, temporal := testenv.OwnMariaDB(t), testenv.OwnTemporal(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refundgate"))
	s := newSystemOn(t, db.DSN("refundgate"), temporal.HostPort(), devenv.DefaultNamespace)
	s.widen()
	s.append(hardy)
	s.start("worker").waitFor("egress: owner")
	serve := s.start("serve")
	serve.waitFor("intake:")

	const clients, writers = 4, 1
	var busy atomic.Bool // shortly before each kill and until then they submit
	stop := make(chan struct{})
	submitters := make([]*submitter, clients+writers)
	var running sync.WaitGroup
	for i := range submitters {
		submitters[i] = &submitter{system: s, name: fmt.Sprintf("k%d", i), row: i >= clients, busy: &busy}
		running.Go(func() { submitters[i].run(stop) })
	}
	ids := map[string]bool{}
	for round := range rounds {
		// The inbox is looked at once a second; the kill is to come while rows are
		// taken from it.
		const rows = 15
		for row := range rows {
			id := fmt.Sprintf("row%d-%d", round, row)
			require.NoError(t, s.put(newRefund(id, "demo")))
			ids[id] = true
		}
		require.Eventually(t, func() bool { return s.number(`SELECT COUNT(*) FROM refund_inbox`) < rows }, time.Minute, 2*time.Millisecond)
		busy.Store(true)
		time.Sleep(20*time.Millisecond + upTo(100*time.Millisecond))
		switch round % 4 {
		case 1: // serve dies while MySQL is away
			require.NoError(t, db.Kill())
			busy.Store(false)
			time.Sleep(upTo(time.Second))
			serve.kill()
			require.NoError(t, db.Start(t.Context()))
		case 3: // serve dies while Temporal is away, and the next one does without
			require.NoError(t, temporal.Kill())
			time.Sleep(upTo(200 * time.Millisecond))
			serve.kill()
		default:
			serve.kill()
		}
		busy.Store(false)
		serve = s.start("serve")
		serve.waitFor("intake:")
		if round%4 == 3 {
			time.Sleep(upTo(time.Second))
			require.NoError(t, temporal.Start(t.Context()))
		}
	}
	close(stop)
	running.Wait()

	answered, cut, repeated := len(ids), 0, 0
	for _, sub := range submitters {
		require.NoError(t, sub.err)
		for _, id := range sub.done {
			ids[id] = true
		}
		answered, cut, repeated = answered+len(sub.done), cut+sub.cut, repeated+sub.repeated
	}
	require.Len(t, ids, answered)
	t.Logf("%d accepted; %d requests were cut off, of which %d were accepted all the same", answered, cut, repeated)
	require.Greater(t, answered, 20*rounds)
	require.Positive(t, cut, "no kill met a request")
	require.Eventually(t, func() bool {
		load, err := s.ledger.InboxLoad(t.Context())
		require.NoError(t, err)
		return load == ledger.InboxLoad{}
	}, time.Minute, 100*time.Millisecond, "the inbox is worked off, and nothing was set aside")
	s.requireStarted(ids, 2*time.Minute)
	require.Eventually(t, func() bool { return s.number(`SELECT COUNT(*) FROM refunds WHERE closed_at IS NULL`) == 0 },
		longOr(10*time.Minute, 3*time.Minute), 500*time.Millisecond, "all are settled")
	require.Equal(t, len(ids), s.number(`SELECT COUNT(*) FROM refunds WHERE status = ?`, refund.StatusSucceeded))
	executions, err := s.control.Executions(t.Context())
	require.NoError(t, err)
	require.Len(t, executions, len(ids))
	for id, n := range executions {
		require.Equal(t, 1, n, id)
		require.True(t, ids[id], "%s was executed and not answered for", id)
	}
	s.requireMatched(slices.Collect(maps.Keys(ids))...)
}

// submitter hands in one refund after the other, through the API or as rows of
// the inbox, and each one until it is answered for.
type submitter struct {
	*system
	name string
	row  bool         // it writes rows
	busy *atomic.Bool // it submits while that is so

	done     []string // answered for, or committed
	cut      int      // requests on connections that broke
	repeated int      // refunds that turned out to be accepted although there was no answer
	err      error    // what must not happen
}

// run submits whenever it is to be busy, until stop is closed, and each one until
// it is done.
func (sub *submitter) run(stop <-chan struct{}) {
	client := crowd(1)
	client.Timeout = 5 * time.Second
	defer client.CloseIdleConnections()
	for n := 0; sub.err == nil; n++ {
		for wait := true; wait; wait = !sub.busy.Load() {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
			}
		}
		id := fmt.Sprintf("%s-%05d", sub.name, n)
		for sub.err == nil && !sub.submit(client, id) {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// submit tries once and tells whether it worked.
func (sub *submitter) submit(client *http.Client, id string) bool {
	if sub.row {
		// A row whose commit had no answer may be there all the same: the second
		// one is the same refund again.
		if sub.put(newRefund(id, "demo")) != nil {
			return false
		}
		sub.done = append(sub.done, id)
		return true
	}
	r, err := sub.ask(sub.t.Context(), client, testToken, id)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
	case err != nil:
		sub.cut++
	case r.status == http.StatusOK, r.status == http.StatusAccepted:
		if r.status == http.StatusOK {
			sub.repeated++
		}
		sub.done = append(sub.done, id)
		return true
	case r.status != http.StatusServiceUnavailable || r.problem != "unavailable" || r.retryAfter <= 0:
		sub.err = fmt.Errorf("%s: unexpected answer: %+v", id, r)
	}
	return false
}

// CASE 36: two thousand cases are due in the same second, and nothing could be
// sent. All of them get to people, whose attention is called a few times and not
// two thousand times; nothing is lost and nothing grows without end.
func TestCase36_TwoThousandDeadlinesInOneSecond(t *testing.T) {
	n, deadline := longOr(2000, 200), longOr(time.Minute, 12*time.Second)
	// Measured for a case that is open: 0.1 MiB, and 0.9 with the race detector.
	// The SDK keeps up to 10,000 workflows at hand.
	perCase := 0.25
	if testenv.Race {
		perCase = 2
	}
	s := newSystem(t)
	at := time.Now()
	l, err := ledger.Open(t.Context(), s.dsn, ledger.Options{Now: func() time.Time { return at }})
	require.NoError(t, err)
	defer l.Close()
	ids := map[string]bool{}
	var accepting errgroup.Group
	accepting.SetLimit(16)
	for _, id := range numbered("d", n) {
		ids[id] = true
		accepting.Go(func() error {
			_, _, err := l.Accept(t.Context(), ledger.Submission{Refund: newRefund(id, "demo"), Client: "shop", Deadline: deadline})
			return err
		})
	}
	require.NoError(t, accepting.Wait())
	require.Equal(t, 1, s.number(`SELECT COUNT(DISTINCT deadline_at) FROM refunds`))
	// One is with people already, who have heard of it.
	require.NoError(t, l.Save(t.Context(), ledger.Change{RefundID: "d-00000", Status: refund.StatusReview, ReviewReason: refund.ReviewDeadlineUnsent}))

	serve := s.start("serve")
	serve.waitFor("intake:")
	orchestrator := s.start("worker", "--roles", "orchestrator")
	require.Eventually(t, func() bool { return strings.Contains(orchestrator.log(), "orchestrator: running") }, 30*time.Second, 20*time.Millisecond)
	before, _ := orchestrator.memory()
	runs := s.requireStarted(ids, longOr(3*time.Minute, time.Minute))
	t.Logf("all were started after %v", time.Since(at).Round(time.Millisecond))
	inReview := func() int { return s.number(`SELECT COUNT(*) FROM refunds WHERE status = ?`, refund.StatusReview) }
	require.Eventually(t, func() bool { return inReview() == n }, longOr(10*time.Minute, 2*time.Minute), 200*time.Millisecond, "not all are with people")
	storm := time.Since(at) - deadline
	digests := func() []map[string]any { return s.events(serve, telemetry.EventReviewDigest) }
	require.Eventually(t, func() bool {
		all := digests()
		return len(all) > 0 && int(all[len(all)-1]["in_review"].(float64)) == n
	}, time.Minute, 200*time.Millisecond, "people weren't told of all of them")

	// The digests add up to all, and there is one in ten seconds at most.
	all := digests()
	told := 0
	for _, d := range all {
		told += int(d["change"].(float64))
	}
	require.Equal(t, n, told, all)
	require.Equal(t, map[string]any{string(refund.ReviewDeadlineUnsent): float64(n)}, all[len(all)-1]["by_reason"])
	require.LessOrEqual(t, len(all), 3+int(storm/(10*time.Second)), all)
	// Nothing else calls for people: the backlog that is late did, beforehand.
	for _, p := range []*process{serve, orchestrator} {
		for line := range strings.Lines(p.log()) {
			require.True(t, !strings.Contains(line, `"level":"ERROR"`) || strings.Contains(line, telemetry.EventBacklogLate), line)
		}
	}
	late := s.events(serve, telemetry.EventBacklogLate)
	require.LessOrEqual(t, len(late), 2, late)

	require.EqualValues(t, 1, all[0]["in_review"])
	require.Len(t, s.events(orchestrator, telemetry.EventRefundReview), n-1, "a line for each case, for the record")
	require.Equal(t, n-1, s.number(`SELECT COUNT(*) FROM case_events WHERE action = 'status.review'`))
	require.Equal(t, n, s.number(`SELECT COUNT(*) FROM refunds WHERE status = ? AND attempts = 0 AND closed_at IS NULL`, refund.StatusReview))
	require.Zero(t, s.number(`SELECT COUNT(*) FROM provider_calls WHERE started_at IS NOT NULL OR outcome IS NULL OR outcome <> ?`, refund.OutcomeNotSent))
	wire, err := s.control.Record(t.Context())
	require.NoError(t, err)
	require.Empty(t, wire)
	require.Equal(t, runs, s.startedWorkflows(), "each is open, in the run that it was in")

	settled, _ := orchestrator.memory()
	time.Sleep(longOr(30*time.Second, 2*time.Second))
	now, peak := orchestrator.memory()
	// A minute after the deadline serve tells those workflows that have done nothing.
	told = strings.Count(serve.log(), "past its deadline and nothing happens")
	t.Logf("all were with people %v after the deadline, %d workflows were told of it, %d digests; the orchestrator had %d MiB before, %d after, then %d, at most %d",
		storm.Round(time.Millisecond), told, len(all), before, settled, now, peak)
	require.LessOrEqual(t, now, grown(settled), "MiB while nothing happens")
	require.LessOrEqual(t, float64(peak-before), perCase*float64(n)+50)
}

// events returns the log lines of a process that carry the event.
func (s *system) events(p *process, name string) (found []map[string]any) {
	s.t.Helper()
	for line := range strings.Lines(p.log()) {
		if !strings.Contains(line, name) {
			continue
		}
		var attrs map[string]any
		require.NoError(s.t, json.Unmarshal([]byte(line), &attrs), line)
		if attrs["event"] == name {
			found = append(found, attrs)
		}
	}
	return found
}
