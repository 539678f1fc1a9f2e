package starter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/internal/telemetry/prom"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Tokens of the clients that every API under test has.
const (
	writeToken  = "token-that-writes"
	readToken   = "token-that-reads"
	ordersToken = "token-that-does-both"
	shopToken   = "token-of-another-that-does-both"
	reviewToken = "token-that-reviews"
	auditToken  = "token-that-reads-all"
	idleToken   = "token-that-may-nothing"
)

func testClients() []config.Client {
	hash := func(token string) string {
		sum := sha256.Sum256([]byte(token))
		return hex.EncodeToString(sum[:])
	}
	return []config.Client{
		{Name: "writer", TokenSHA256: hash(writeToken), Scopes: []string{config.ScopeWrite}},
		{Name: "reader", TokenSHA256: hash(readToken), Scopes: []string{config.ScopeRead}},
		{Name: "orders", TokenSHA256: hash(ordersToken), Scopes: []string{config.ScopeWrite, config.ScopeRead}},
		{Name: "shop", TokenSHA256: hash(shopToken), Scopes: []string{config.ScopeWrite, config.ScopeRead}},
		{Name: "auditor", TokenSHA256: hash(auditToken), Scopes: []string{config.ScopeReadAll}},
		{Name: "idle", TokenSHA256: hash(idleToken)},
		{Name: "reviewer", TokenSHA256: hash(reviewToken), Scopes: []string{config.ScopeReview}},
	}
}

// testAccount is an account with the default budgets.
func testAccount(name string) config.Account {
	acc := config.Default().Defaults
	acc.Name = name
	return acc
}

const testDeadline = 15 * time.Minute

// intake is an intake API on real HTTP.
type intake struct {
	t     *testing.T
	api   *API
	url   string
	logs  *testenv.Logs
	tells atomic.Int64 // how often the teller was woken
}

// newIntake serves an API on the ledger; wake may be nil. Its desk reaches no
// workflow.
func newIntake(t *testing.T, l Ledger, wake func()) *intake {
	t.Helper()
	return newDeskIntake(t, l, wake, nil)
}

// newDeskIntake is newIntake with a desk.
func newDeskIntake(t *testing.T, l Ledger, wake func(), desk Actor) *intake {
	t.Helper()
	i := &intake{t: t, logs: &testenv.Logs{}}
	var err error
	i.api, err = NewAPI(Options{
		Ledger:        l,
		Accounts:      []config.Account{testAccount("main"), testAccount("second")},
		Clients:       testClients(),
		Deadline:      testDeadline,
		Wake:          wake,
		Notifications: testNotifications(),
		WakeTeller:    func() { i.tells.Add(1) },
		Desk:          desk,
		WebUIURL:      "http://ui.example/",
		Namespace:     "refunds",
		Metrics:       prom.NewProcess(),
		Log:           telemetry.NewLogger(i.logs, telemetry.FormatJSON, slog.LevelInfo),
	})
	require.NoError(t, err)
	srv := httptest.NewServer(i.api)
	t.Cleanup(srv.Close)
	i.url = srv.URL
	return i
}

// woken tells how often the teller was woken.
func (i *intake) woken() int { return int(i.tells.Load()) }

// newLedger opens a ledger on the migrated database.
func newLedger(t *testing.T, dsn string) *ledger.Ledger {
	t.Helper()
	require.NoError(t, ledger.Migrate(t.Context(), dsn))
	return openLedger(t, dsn)
}

func openLedger(t *testing.T, dsn string) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), dsn, ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// dial returns a client that connects when it is first used, as the relay's
// does in production: Temporal may be down when it starts.
func dial(t *testing.T, hostPort, namespace string) client.Client {
	t.Helper()
	c, err := client.NewLazyClient(client.Options{HostPort: hostPort, Namespace: namespace, Logger: telemetry.TemporalLogger(slog.New(slog.DiscardHandler))})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// runner is a relay, a teller or a digest.
type runner interface{ Run(ctx context.Context) }

// runRelay runs a relay, or what else runs beside the API, until the test ends.
func runRelay(t *testing.T, r runner) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
}

// runWorkflow serves fn as the refund's workflow until the test ends.
func runWorkflow(t *testing.T, c client.Client, fn any) worker.Worker {
	t.Helper()
	w := worker.New(c, refund.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(fn, workflow.RegisterOptions{Name: refund.WorkflowType})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	return w
}

// answer is a whole HTTP answer.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// object is the answer's body as JSON.
func (a answer) object(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal(a.body, &v), string(a.body))
	return v
}

// problem checks that the answer is a problem of that status and type.
func (a answer) problem(t *testing.T, status int, name string) problem {
	t.Helper()
	var p problem
	require.NoError(t, json.Unmarshal(a.body, &p), string(a.body))
	require.Equal(t, status, a.status, string(a.body))
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
	require.Equal(t, problemPrefix+name, p.Type)
	require.Equal(t, status, p.Status)
	require.NotEmpty(t, p.Title)
	return p
}

// do makes a request. Tests call it from goroutines too, so a failure marks
// the test and gives an empty answer instead of ending the goroutine.
func (i *intake) do(method, path, token, content string, header ...string) answer {
	i.t.Helper()
	req, err := http.NewRequestWithContext(i.t.Context(), method, i.url+path, strings.NewReader(content))
	if err != nil {
		i.t.Error(err)
		return answer{}
	}
	if content != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for n := 0; n < len(header); n += 2 {
		req.Header.Set(header[n], header[n+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		i.t.Error(err)
		return answer{}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		i.t.Error(err)
	}
	return answer{res.StatusCode, res.Header, b}
}

func (i *intake) post(content string) answer {
	i.t.Helper()
	return i.do("POST", "/v1/refunds", ordersToken, content)
}

func (i *intake) get(path string) answer {
	i.t.Helper()
	return i.do("GET", path, ordersToken, "")
}

// events returns the attributes, but the time, of the lines that carry the
// event.
func (i *intake) events(name string) []map[string]any {
	i.t.Helper()
	found := i.logs.Events(i.t, name)
	for _, attrs := range found {
		delete(attrs, "time")
	}
	return found
}
