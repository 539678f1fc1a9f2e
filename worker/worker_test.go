package worker

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/provider"
	"refundgate/provider/reference"
	"refundgate/provider/standin"
	"refundgate/refund"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const account = "acme"

// patience is how long a test waits for what must happen, on a busy machine.
const patience = 60 * time.Second

// budgets are short, but not so short that a busy machine breaks them.
func budgets() limiter.Config {
	return limiter.Config{
		Interval: 20 * time.Millisecond, ConnectTimeout: 300 * time.Millisecond, CallTimeout: 700 * time.Millisecond,
		IntentMaxAge: 500 * time.Millisecond,
	}
}

func policy() refund.Policy {
	p := refund.DefaultPolicy()
	p.NotSentInitial, p.NotSentMax = 50*time.Millisecond, 200*time.Millisecond
	p.Backoff = []refund.Range{{Min: 10 * time.Millisecond, Max: 20 * time.Millisecond}}
	p.Checks.Initial, p.Checks.Cap = 100*time.Millisecond, 500*time.Millisecond
	p.CallBudget = 5 * time.Second
	return p
}

// rig is everything around the workers: Temporal, MariaDB, a provider over
// TCP.
type rig struct {
	t        *testing.T
	dsn      string
	db       *sql.DB        // one session of the test's own
	ledger   *ledger.Ledger // the test's own
	temporal client.Client
	adapter  provider.Adapter
	provider *standin.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, testenv.MariaDB(t))
}

func newRigOn(t *testing.T, dsn string) *rig {
	t.Helper()
	require.NoError(t, ledger.Migrate(t.Context(), dsn))
	r := &rig{t: t, dsn: dsn, db: oneSession(t, dsn)}
	r.ledger = r.openLedger()
	hostPort, namespace := testenv.Temporal(t)
	r.temporal = dial(t, hostPort, namespace)

	server, err := standin.New(standin.Options{})
	require.NoError(t, err)
	require.NoError(t, server.Start("127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	r.provider = standin.NewClient(server.URL())
	r.adapter, err = reference.New(reference.Config{BaseURL: server.URL(), APIKey: func() string { return "test" }})
	require.NoError(t, err)
	return r
}

func dial(t *testing.T, hostPort, namespace string) client.Client {
	t.Helper()
	c, err := client.NewLazyClient(client.Options{
		HostPort: hostPort, Namespace: namespace, Logger: telemetry.TemporalLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func (r *rig) openLedger() *ledger.Ledger {
	r.t.Helper()
	l, err := ledger.Open(r.t.Context(), r.dsn, ledger.Options{})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, l.Close()) })
	return l
}

// process is a role that runs as it would in a process of its own, with its
// own connections to the database.
type process struct {
	t      *testing.T
	logs   testenv.Logs
	cancel context.CancelFunc
	done   chan struct{}
	err    error

	mu     sync.Mutex
	states []string // of ownership, as they were announced
}

// launch runs the role until the test ends or stop is called.
func launch(t *testing.T, p *process, run func(context.Context) error) *process {
	t.Helper()
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	p.t, p.done = t, make(chan struct{})
	go func() {
		defer close(p.done)
		p.err = run(ctx)
	}()
	t.Cleanup(func() {
		p.cancel()
		<-p.done
	})
	return p
}

// stop ends the process in order.
func (p *process) stop() {
	p.t.Helper()
	p.cancel()
	p.wait()
	require.NoError(p.t, p.err)
}

// wait returns when the process has ended.
func (p *process) wait() {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		require.FailNow(p.t, "the process doesn't end")
	}
}

func (p *process) announce(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states = append(p.states, state)
}

func (p *process) announced() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.states)
}

// await returns when the states announced so far are these.
func (p *process) await(states ...string) {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) { require.Equal(c, states, p.announced()) }, patience, 5*time.Millisecond)
}

func (p *process) logger() *slog.Logger {
	return telemetry.NewLogger(&p.logs, telemetry.FormatJSON, slog.LevelDebug)
}

func (r *rig) orchestrate() *process {
	r.t.Helper()
	p := &process{}
	o := &Orchestrator{Temporal: r.temporal, Ledger: r.openLedger(), Policies: map[string]refund.Policy{account: policy()}, Log: p.logger()}
	return launch(r.t, p, o.Run)
}

// egress launches an egress; change, which may be nil, sets other budgets.
func (r *rig) egress(holder string, change func(*Egress)) *process {
	r.t.Helper()
	p := &process{}
	e := &Egress{
		Account: account, Holder: holder, Temporal: r.temporal, Ledger: r.openLedger(), Adapter: r.adapter,
		Gate: budgets(), Announce: p.announce, Log: p.logger(),
	}
	if change != nil {
		change(e)
	}
	return launch(r.t, p, e.Run)
}

// submit starts the workflows of n refunds, whose ids begin with prefix.
func (r *rig) submit(prefix string, n int) (ids []string) {
	r.t.Helper()
	for i := range n {
		id := fmt.Sprintf("%s-%d", prefix, i+1)
		rf := refund.Refund{
			ID: id, Account: account, OrderID: "o", PaymentID: "p-" + id,
			Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "damaged", RequestedBy: "shop",
		}
		_, err := r.temporal.ExecuteWorkflow(r.t.Context(), client.StartWorkflowOptions{ID: refund.WorkflowID(id), TaskQueue: refund.TaskQueue}, refund.WorkflowType, rf)
		require.NoError(r.t, err)
		ids = append(ids, id)
	}
	return ids
}

// settled waits until the refunds' workflows have ended as succeeded, and
// holds each to one execution by the provider. It returns the cases' calls.
func (r *rig) settled(ids []string) (calls []refund.Call) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for _, id := range ids {
		var closing refund.Closing
		require.NoError(r.t, r.temporal.GetWorkflow(ctx, refund.WorkflowID(id), "").Get(ctx, &closing), id)
		require.Equal(r.t, refund.StatusSucceeded, closing.Status, id)
	}
	executions, err := r.provider.Executions(ctx)
	require.NoError(r.t, err)
	for _, id := range ids {
		require.Equal(r.t, 1, executions[id], id)
		c, err := r.ledger.Case(ctx, id)
		require.NoError(r.t, err)
		calls = append(calls, c.Calls...)
	}
	return calls
}

// sent keeps the calls of which a byte left.
func sent(calls []refund.Call) []refund.Call {
	return slices.DeleteFunc(slices.Clone(calls), func(c refund.Call) bool { return c.StartedAt == nil })
}

// inEpoch keeps the calls of one ownership, in the order of their starts.
func inEpoch(calls []refund.Call, epoch int64) []refund.Call {
	calls = slices.DeleteFunc(sent(calls), func(c refund.Call) bool { return c.Epoch != epoch })
	slices.SortFunc(calls, func(a, b refund.Call) int { return a.StartedAt.Compare(*b.StartedAt) })
	return calls
}

func (r *rig) wire() []standin.Request {
	r.t.Helper()
	requests, err := r.provider.Record(r.t.Context())
	require.NoError(r.t, err)
	return requests
}

func (r *rig) waitWire(n int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	_, err := r.provider.WaitRecord(ctx, n)
	require.NoError(r.t, err)
}

func (r *rig) plan(rules ...standin.Rule) {
	r.t.Helper()
	require.NoError(r.t, r.provider.SetPlan(r.t.Context(), rules...))
}

func (r *rig) owner() ledger.Owner {
	r.t.Helper()
	o, err := r.ledger.EgressOwner(r.t.Context(), account)
	require.NoError(r.t, err)
	return o
}

// oneSession returns a handle that never has more than one session, so that
// the test doesn't mistake its own for another's.
func oneSession(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() }) // fails if its server is gone
	return db
}

// sessions lists the other sessions on the rig's database.
func (r *rig) sessions() []int64 {
	r.t.Helper()
	rows, err := r.db.QueryContext(r.t.Context(), `SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()`)
	require.NoError(r.t, err)
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		require.NoError(r.t, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(r.t, rows.Err())
	return ids
}

// own launches an egress that becomes the owner, and returns how to end the
// session that holds its lock, as a fail-over would.
func (r *rig) own(holder string, change func(*Egress)) (p *process, kill func() time.Time) {
	r.t.Helper()
	before := r.sessions()
	// While a new owner waits, it opens no session but that one, and one for
	// its pool.
	var pool []int64
	p = r.egress(holder, func(e *Egress) {
		if change != nil {
			change(e)
		}
		pool = r.sessions()
	})
	p.await("owner")
	held := slices.DeleteFunc(r.sessions(), func(id int64) bool { return slices.Contains(before, id) || slices.Contains(pool, id) })
	require.Len(r.t, held, 1)
	return p, func() time.Time {
		_, err := r.db.ExecContext(r.t.Context(), fmt.Sprintf("KILL CONNECTION %d", held[0]))
		require.NoError(r.t, err)
		return time.Now()
	}
}
