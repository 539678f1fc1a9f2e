package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"refundgate/ledger"
	"refundgate/provider/standin"
	"refundgate/refund"
	"refundgate/starter"
)

// step is a point in the life of a call.
type step int

const (
	beforeIntent     step = iota + 1 // the statement that writes the intent is on its way to MySQL
	intentUnheard                    // the intent is committed, and the answer that says so on its way back
	afterIntent                      // the worker knows, and the provider has seen no byte of the request
	afterWrite                       // the provider has the request, which will have no effect there
	afterCommit                      // the provider has executed the request and not answered
	afterAnswer                      // the worker has the answer, and its record is on its way to MySQL
	afterRecord                      // the outcome is committed, and the answer that says so on its way back
	beforeCompletion                 // the worker knows, and Temporal has heard nothing
)

func (s step) String() string {
	return []string{
		"", "before intent", "intent committed, unheard", "after intent", "after write", "after provider commit",
		"after answer", "after record", "before completion",
	}[s]
}

// strike is what happens at a step.
type strike string

const (
	workerKilled strike = "killed"        // kill -9, and a new process takes over
	mysqlAway    strike = "MySQL away"    // connections break, long enough that nothing is recorded meanwhile
	mysqlSilent  strike = "MySQL silent"  // it doesn't answer, until the session with the egress lock is given up
	temporalAway strike = "Temporal away" // longer than the heartbeats may stay out: the call counts as lost
)

// cell is one place of the matrix: a call, a step of it, and what happens then.
type cell struct {
	call   refund.CallKind
	strike strike
	at     step

	t                      *testing.T
	s                      *system
	db, temporal, provider *proxy
	workflows              client.Client // past the proxy
	mu                     sync.Mutex
	worker                 *process      // armed: the first call of the kind is struck
	struck                 chan struct{} // closed when it happened

	outcome string // for the table
}

// fullMatrix is the variable that asks for the whole matrix, which takes
// minutes; without it the worker is killed, and no server goes away.
const fullMatrix = "REFUNDGATE_FULL_MATRIX"

// Whatever a call is interrupted by and at whichever step: the provider executes
// the refund once, the wire matches the ledger, and the case ends as succeeded.
// The provider forgets its keys at once, so a send too many would be a second
// execution.
func TestKillMatrix(t *testing.T) {
	t.Parallel()
	strikes, atATime := []strike{workerKilled}, 8
	if os.Getenv(fullMatrix) != "" {
		strikes, atATime = append(strikes, mysqlAway, mysqlSilent, temporalAway), 12
	}
	var columns [][]*cell
	for _, call := range []refund.CallKind{refund.KindSubmit, refund.KindCheck} {
		for _, how := range strikes {
			var column []*cell
			for at := beforeIntent; at <= beforeCompletion; at++ {
				column = append(column, &cell{call: call, strike: how, at: at, outcome: "not run"})
			}
			columns = append(columns, column)
		}
	}
	// They mostly wait, so more of them run at a time than there are processors.
	var running errgroup.Group
	running.SetLimit(atATime)
	for _, c := range slices.Concat(columns...) {
		running.Go(func() error {
			t.Run(strings.Join([]string{string(c.call), string(c.strike), c.at.String()}, "/"), c.run)
			return nil
		})
	}
	_ = running.Wait() // the subtests have told
	t.Logf("final status, requests/executions, time:\n%s", table(columns))
}

func table(columns [][]*cell) string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, column := range columns {
		fmt.Fprintf(tw, "\t%s, %s", column[0].call, column[0].strike)
	}
	for row, c := range columns[0] {
		fmt.Fprintf(tw, "\n%s", c.at)
		for _, column := range columns {
			fmt.Fprintf(tw, "\t%s", column[row].outcome)
		}
	}
	fmt.Fprintln(tw)
	_ = tw.Flush() // to memory
	return b.String()
}

// settings are short, so that a cell takes seconds; the heartbeat's time-out of
// ten is the workflow's.
const settings = `
policy:
  backoff: [{min: 100ms, max: 200ms}, {min: 100ms, max: 200ms}]
  checks: {initial: 500ms, factor: 1.5, cap: 2s, jitter: 0.2}
  not_sent: {initial: 200ms, cap: 1s}
defaults:
  connect_timeout: 500ms
  call_timeout: 1500ms
  contract: {not_found_after: 2s}
`

func (c *cell) run(t *testing.T) {
	begin := time.Now()
	c.outcome = "FAILED" // until the end
	c.setUp(t)
	id := fmt.Sprintf("matrix-%d", c.at)
	c.plan(id)

	first := c.s.start("worker")
	c.arm(first)
	first.waitFor("egress: owner")
	rf := newRefund(id, "demo")
	run, err := c.workflows.ExecuteWorkflow(t.Context(), starter.StartOptions(rf), refund.WorkflowType, rf)
	require.NoError(t, err)
	c.awaitStep(id)
	last := c.repair(first)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var closing refund.Closing
	if err := run.Get(ctx, &closing); err != nil {
		found, _ := c.s.ledger.Case(t.Context(), id)
		require.NoError(t, err, "the workflow does not end: %s %v", found.Status, describeCalls(found))
	}
	requests := c.judge(id, closing)
	require.NoError(t, last.stop())
	c.outcome = fmt.Sprintf("%s %d/1 %2.0f s", closing.Status, requests, time.Since(begin).Seconds())
}

// setUp prepares a system whose workers reach every server through a proxy.
func (c *cell) setUp(t *testing.T) {
	c.t, c.s, c.struck = t, newSystem(t), make(chan struct{})
	forgetful, err := standin.New(standin.Options{KeyLifetime: time.Nanosecond})
	require.NoError(t, err)
	require.NoError(t, forgetful.Start("127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, forgetful.Close()) })
	c.s.provider, c.s.control = forgetful, standin.NewClient(forgetful.URL())
	c.workflows = c.s.dial()

	dsn, err := mysql.ParseDSN(c.s.dsn)
	require.NoError(t, err)
	c.db = newProxy(t, dsn.Net, dsn.Addr, func() (up, down copier) {
		w := &ledgerWatch{reached: c.reached}
		return w.up, w.down
	})
	c.temporal = newProxy(t, "tcp", c.s.temporal, nil)
	c.provider = newProxy(t, "tcp", strings.TrimPrefix(forgetful.URL(), "http://"), nil)
	dsn.Net, dsn.Addr = "tcp", c.db.addr
	c.s.dsn, c.s.temporal = dsn.FormatDSN(), c.temporal.addr
	c.s.configure(map[string]string{"demo": "http://" + c.provider.addr})
	config, err := os.ReadFile(c.s.config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(c.s.config, append(config, settings...), 0o600))
}

// plan has the provider leave a send open where a check is to be struck, and
// say nothing where the strike comes while it has the request.
func (c *cell) plan(id string) {
	once := func(method string, f standin.Fault) standin.Rule {
		return standin.Rule{Match: standin.Match{Method: method, Reference: id}, Fault: f, Times: 1}
	}
	var rules []standin.Rule
	if c.call == refund.KindCheck {
		rules = append(rules, once(http.MethodPost, standin.Fault{Kind: standin.AcceptThenDrop}))
	}
	switch c.at {
	case afterWrite:
		rules = append(rules, once(method(c.call), standin.Fault{Kind: standin.Hang}))
	case afterCommit:
		rules = append(rules, once(method(c.call), standin.Fault{Kind: standin.Hang, Execute: true}))
	}
	require.NoError(c.t, c.s.control.SetPlan(c.t.Context(), rules...))
}

func method(kind refund.CallKind) string {
	if kind == refund.KindCheck {
		return http.MethodGet
	}
	return http.MethodPost
}

func (c *cell) arm(worker *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.worker = worker
}

// reached is told about every step that is seen on the way to the database.
// What goes on is held up meanwhile.
func (c *cell) reached(kind refund.CallKind, at step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.worker == nil || kind != c.call {
		return
	}
	switch {
	case at == c.at:
		c.hit()
	case at == c.at-1 && (c.at == afterIntent || c.at == beforeCompletion):
		// In a moment the worker knows that it may go on. What it does then
		// comes too late.
		switch c.strike {
		case workerKilled:
			c.provider.set(lineSilent)
			c.temporal.set(lineSilent)
		case temporalAway:
			c.temporal.set(lineAway)
		}
	}
}

// hit does what the cell is about, once. The caller holds c.mu.
func (c *cell) hit() {
	switch c.strike {
	case workerKilled:
		c.worker.kill()
		c.provider.set(lineOpen)
		c.temporal.set(lineOpen)
	case mysqlAway:
		c.db.set(lineAway)
	case mysqlSilent:
		c.db.set(lineSilent)
	case temporalAway:
		c.temporal.set(lineAway)
	}
	c.worker = nil
	close(c.struck)
}

// awaitStep returns when the strike has happened.
func (c *cell) awaitStep(id string) {
	c.t.Helper()
	if c.at == afterWrite || c.at == afterCommit {
		require.Eventually(c.t, func() bool {
			record, err := c.s.control.Record(c.t.Context())
			return err == nil && slices.ContainsFunc(record, func(r standin.Request) bool {
				executed := r.Executed || c.at == afterWrite || c.call == refund.KindCheck
				return r.Reference == id && r.Method == method(c.call) && executed
			})
		}, time.Minute, 5*time.Millisecond, "the provider was not asked")
		c.mu.Lock()
		c.hit()
		c.mu.Unlock()
	}
	select {
	case <-c.struck:
	case <-time.After(time.Minute):
		require.Fail(c.t, "the call did not come to the step")
	}
}

// repair puts right what the strike has broken, some time later, and returns
// the worker that runs then.
func (c *cell) repair(worker *process) *process {
	switch c.strike {
	case workerKilled:
		return c.s.start("worker")
	case mysqlAway:
		time.Sleep(5 * time.Second)
		c.db.set(lineOpen)
	case mysqlSilent:
		time.Sleep(20 * time.Second)
		c.db.set(lineOpen)
	case temporalAway:
		time.Sleep(12 * time.Second)
		c.temporal.set(lineOpen)
	}
	return worker
}

// judge holds what has become of the refund to what it should be, and returns
// how many requests there were.
func (c *cell) judge(id string, closing refund.Closing) (requests int) {
	t := c.t
	found, err := c.s.ledger.Case(t.Context(), id)
	require.NoError(t, err)
	calls := describeCalls(found)
	require.Equal(t, refund.StatusSucceeded, closing.Status, calls)
	require.Equal(t, refund.StatusSucceeded, found.Status, calls)
	executions, err := c.s.control.Executions(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int{id: 1}, executions, "executions by the provider: %v", calls)

	wantSends, wantAttempts := c.want()
	require.Equal(t, wantAttempts, found.CountAttempts(), calls)
	require.Equal(t, wantAttempts, found.Attempts, calls)
	require.Equal(t, wantAttempts, closing.Attempts, calls)
	wire := c.wire(id)
	sends := slices.DeleteFunc(slices.Clone(wire), func(method string) bool { return method != http.MethodPost })
	require.Len(t, sends, wantSends, calls)

	// Each request is a call of the ledger and the other way round, in order.
	var started []string
	for _, call := range found.Calls {
		require.True(t, call.Done(), "%s has no outcome: %v", call.Key, calls)
		lostOnTheWire := call.Result.Code == refund.CodeLost && c.at >= afterWrite
		if call.StartedAt != nil || lostOnTheWire {
			started = append(started, method(call.Key.Kind))
		}
	}
	require.Equal(t, wire, started, "the wire and the ledger: %v", calls)
	c.judgeTrail(id)
	return len(wire)
}

// wire returns the methods of the requests, all sends of which carry the same
// key and bytes.
func (c *cell) wire(id string) (methods []string) {
	record, err := c.s.control.Record(c.t.Context())
	require.NoError(c.t, err)
	body := ""
	for _, r := range record {
		require.Equal(c.t, id, r.Reference)
		methods = append(methods, r.Method)
		if r.Method == http.MethodPost {
			require.Equal(c.t, "refund-"+id, r.Key)
			require.Contains(c.t, []string{"", r.BodySHA256}, body, "the bytes of each attempt")
			body = r.BodySHA256
		}
	}
	return methods
}

// judgeTrail: the case was accepted first and settled last, once.
func (c *cell) judgeTrail(id string) {
	events, err := c.s.ledger.Events(c.t.Context(), id)
	require.NoError(c.t, err)
	var trail []string
	for _, e := range events {
		trail = append(trail, e.Action)
	}
	settled := "status." + string(refund.StatusSucceeded)
	require.Equal(c.t, 0, slices.Index(trail, ledger.ActionAccepted), trail)
	require.Equal(c.t, len(trail)-1, slices.Index(trail, settled), trail)
}

// want returns how often the refund is sent and how many attempts are used. A
// second send follows only where the provider has no trace of the first; an
// intent of which nothing more is known counts as an attempt.
func (c *cell) want() (sends, attempts int) {
	if c.call != refund.KindSubmit {
		return 1, 1
	}
	switch {
	case c.at == afterWrite:
		return 2, 2
	case c.strike == workerKilled && (c.at == intentUnheard || c.at == afterIntent):
		return 1, 2
	}
	return 1, 1
}
