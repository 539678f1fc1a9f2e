package activities

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/provider/reference"
	"refundgate/provider/standin"
	"refundgate/refund"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	account = "acme"
	// What no log line may hold.
	apiKey = "sk_live_hunter2"
	reason = "broken on arrival, says Mrs Lin"
)

// rig is an egress on real parts: a stand-in provider over TCP, the gate, the
// ledger on MariaDB. Only the adapter may be a fake.
type rig struct {
	t        *testing.T
	dsn      string
	db       *sql.DB // one session of the test's own
	ledger   *ledger.Ledger
	lock     *ledger.EgressLock
	session  int64 // of the database, that holds the lock
	provider *standin.Client
	server   *standin.Server
	gate     *limiter.Gate
	egress   *Egress
	logs     *testenv.Logs
}

// newRig opens everything on a fresh database. The gate's budgets are short
// where they can't decide a test; change, which may be nil, sets others.
func newRig(t *testing.T, change func(*limiter.Config)) *rig {
	t.Helper()
	return newRigOn(t, testenv.MariaDB(t), change)
}

func newRigOn(t *testing.T, dsn string, change func(*limiter.Config)) *rig {
	t.Helper()
	require.NoError(t, ledger.Migrate(t.Context(), dsn))
	r := &rig{t: t, dsn: dsn, db: oneSession(t, dsn), ledger: openLedger(t, dsn), logs: &testenv.Logs{}}

	var err error
	r.server, err = standin.New(standin.Options{APIKey: apiKey})
	require.NoError(t, err)
	require.NoError(t, r.server.Start("127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, r.server.Close()) })
	r.provider = standin.NewClient(r.server.URL())
	adapter, err := reference.New(reference.Config{BaseURL: r.server.URL(), APIKey: func() string { return apiKey }})
	require.NoError(t, err)

	cfg := limiter.Config{
		Target: adapter.Target(), Interval: 20 * time.Millisecond,
		ConnectTimeout: 5 * time.Second, CallTimeout: 10 * time.Second, IntentMaxAge: 10 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	r.gate, err = limiter.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, r.gate.Close(ctx), "a call has kept its place")
	})

	before := r.sessions()
	r.lock, err = r.ledger.AcquireEgress(t.Context(), account, "test")
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.lock.Release(context.Background()) }) // lost in some tests
	held := slices.DeleteFunc(r.sessions(), func(id int64) bool { return slices.Contains(before, id) })
	require.Len(t, held, 1)
	r.session = held[0]

	r.egress = &Egress{
		Account: account, Gate: r.gate, Brake: r.gate, Intents: r.lock, Calls: r.ledger, Adapter: adapter,
		Log: telemetry.NewLogger(r.logs, telemetry.FormatJSON, slog.LevelDebug),
	}
	return r
}

func openLedger(t *testing.T, dsn string) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), dsn, ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
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

// killLock ends the session that holds the egress lock, as a fail-over would.
func (r *rig) killLock() {
	r.t.Helper()
	_, err := r.db.ExecContext(r.t.Context(), fmt.Sprintf("KILL CONNECTION %d", r.session))
	require.NoError(r.t, err)
}

func newRefund(id string) refund.Refund {
	return refund.Refund{
		ID: id, Account: account, OrderID: "order-" + id, PaymentID: "pay-" + id,
		Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: reason, RequestedBy: "shop",
	}
}

// accept opens a refund's case and returns the input of its first send.
func (r *rig) accept(id string) refund.CallInput {
	r.t.Helper()
	c, created, err := r.ledger.Accept(r.t.Context(), ledger.Submission{Refund: newRefund(id), Deadline: 15 * time.Minute})
	require.NoError(r.t, err)
	require.True(r.t, created)
	return refund.CallInput{
		Key:    refund.CallKey{RefundID: id, Generation: 1, Kind: refund.KindSubmit, Seq: 1},
		Origin: refund.OriginFirst, Account: account, Refund: c.Refund,
		AcceptedAt: c.AcceptedAt, Deadline: c.DeadlineAt, MaxAttempts: 3,
	}
}

// retry is the seq-th send after in.
func retry(in refund.CallInput, seq int) refund.CallInput {
	in.Key.Seq, in.Origin = seq, refund.OriginRetry
	return in
}

// check is the first check after in.
func check(in refund.CallInput) refund.CallInput {
	in.Key.Kind, in.Key.Seq, in.Origin = refund.KindCheck, 1, refund.OriginCheck
	return in
}

// execute runs the activity that the input asks for. It may be called from any
// goroutine.
func (r *rig) execute(in refund.CallInput) (refund.CallResult, error) {
	return r.executeUnder(context.Background(), in)
}

// executeUnder is execute with a context whose end reaches the activity as a
// cancellation.
func (r *rig) executeUnder(ctx context.Context, in refund.CallInput) (refund.CallResult, error) {
	activity := r.egress.SubmitRefund
	if in.Key.Kind == refund.KindCheck {
		activity = r.egress.CheckRefund
	}
	env := newEnv()
	env.SetWorkerOptions(worker.Options{BackgroundActivityContext: ctx})
	return runActivity[refund.CallResult](env, activity, in)
}

// result is execute for a call that has to have a result.
func (r *rig) result(in refund.CallInput) refund.CallResult {
	r.t.Helper()
	res, err := r.execute(in)
	require.NoError(r.t, err)
	return res
}

// start executes in the background.
func (r *rig) start(in refund.CallInput) (wait func() (refund.CallResult, error)) {
	var res refund.CallResult
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err = r.execute(in)
	}()
	return func() (refund.CallResult, error) {
		<-done
		return res, err
	}
}

// wire returns what has reached the provider.
func (r *rig) wire() []standin.Request {
	r.t.Helper()
	requests, err := r.provider.Record(r.t.Context())
	require.NoError(r.t, err)
	return requests
}

func (r *rig) waitWire(n int) []standin.Request {
	r.t.Helper()
	requests, err := r.provider.WaitRecord(r.t.Context(), n)
	require.NoError(r.t, err)
	return requests
}

// executions returns how often the provider has executed each refund.
func (r *rig) executions() map[string]int {
	r.t.Helper()
	n, err := r.provider.Executions(r.t.Context())
	require.NoError(r.t, err)
	return n
}

func (r *rig) plan(rules ...standin.Rule) {
	r.t.Helper()
	require.NoError(r.t, r.provider.SetPlan(r.t.Context(), rules...))
}

// faulty makes the provider misbehave on every request.
func (r *rig) faulty(f standin.Fault) {
	r.t.Helper()
	r.plan(standin.Rule{Fault: f})
}

// recorded returns the call's row.
func (r *rig) recorded(key refund.CallKey) refund.Call {
	r.t.Helper()
	call, err := r.ledger.Call(r.t.Context(), key)
	require.NoError(r.t, err)
	return call
}

// requireUntouched holds a call to having left no trace: no request, no row,
// no attempt.
func (r *rig) requireUntouched(key refund.CallKey) {
	r.t.Helper()
	require.Empty(r.t, r.wire())
	c, err := r.ledger.Case(r.t.Context(), key.RefundID)
	require.NoError(r.t, err)
	require.Empty(r.t, c.Calls)
	require.Zero(r.t, c.Attempts)
}

func newEnv() *testsuite.TestActivityEnvironment {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(telemetry.TemporalLogger(slog.New(slog.DiscardHandler)))
	return suite.NewTestActivityEnvironment()
}

// runActivity executes one activity function in its environment.
func runActivity[Out, In any](env *testsuite.TestActivityEnvironment, activity func(context.Context, In) (Out, error), in In) (out Out, err error) {
	env.RegisterActivity(activity)
	value, err := env.ExecuteActivity(activity, in)
	if err != nil {
		return out, err
	}
	return out, value.Get(&out)
}

// lookUp is the ledger with something that happens right after the look-up of
// a call, as another process would do it.
type lookUp struct {
	CallRecords
	then func()
}

func (l lookUp) Call(ctx context.Context, key refund.CallKey) (refund.Call, error) {
	call, err := l.CallRecords.Call(ctx, key)
	l.then()
	return call, err
}

// firstWrite is a connection that calls before ahead of its first Write.
type firstWrite struct {
	net.Conn
	once   sync.Once
	before func()
}

func (c *firstWrite) Write(b []byte) (int, error) {
	c.once.Do(c.before)
	return c.Conn.Write(b)
}

// errBroken is an error of no kind that anybody knows.
var errBroken = errors.New("broken")
