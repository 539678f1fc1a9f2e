package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/provider/standin"
	"refundgate/refund"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const testToken = "token-of-the-end-to-end-tests"

// system is refundgate as it is deployed: real processes of the real program,
// a real Temporal server and MariaDB, and the stand-in at the other end of
// real sockets, all with the default numbers.
type system struct {
	t        *testing.T
	dsn      string
	temporal string
	ns       string
	config   string // path of the configuration file
	intake   string // URL of the intake API
	provider *standin.Server
	control  *standin.Client
	ledger   *ledger.Ledger
	db       *sql.DB // for what the ledger has no question for
}

// newSystem prepares a system on the shared servers. No process runs yet.
func newSystem(t *testing.T) *system {
	t.Helper()
	hostPort, ns := testenv.Temporal(t)
	return newSystemOn(t, testenv.MariaDB(t), hostPort, ns)
}

func newSystemOn(t *testing.T, dsn, hostPort, ns string) *system {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, ledger.Migrate(ctx, dsn))
	l, err := ledger.Open(ctx, dsn, ledger.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	db.SetMaxIdleConns(-1) // the server may be restarted between two questions
	t.Cleanup(func() { require.NoError(t, db.Close()) })

	provider, err := standin.New(standin.Options{StateFile: filepath.Join(t.TempDir(), "standin.jsonl")})
	require.NoError(t, err)
	require.NoError(t, provider.Start("127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, provider.Close()) })

	s := &system{
		t: t, dsn: dsn, temporal: hostPort, ns: ns, provider: provider,
		control: standin.NewClient(provider.URL()), ledger: l, db: db,
	}
	s.configure(map[string]string{"demo": provider.URL()})
	return s
}

// configure writes the configuration with the given accounts' base URLs, and
// more sections of it as YAML.
func (s *system) configure(accounts map[string]string, sections ...string) {
	dir := s.t.TempDir()
	key := filepath.Join(dir, "key")
	require.NoError(s.t, os.WriteFile(key, []byte("secret-of-the-provider\n"), 0o600))
	sum := sha256.Sum256([]byte(testToken))
	port := freePort(s.t)
	s.intake = fmt.Sprintf("http://127.0.0.1:%d", port)
	var b strings.Builder
	fmt.Fprintf(&b, "mysql:\n  dsn: %q\n", s.dsn)
	fmt.Fprintf(&b, "temporal:\n  address: %q\n  namespace: %q\n", s.temporal, s.ns)
	fmt.Fprintf(&b, "http:\n  listen: \"127.0.0.1:%d\"\n  drain_delay: 100ms\n", port)
	fmt.Fprintf(&b, "clients:\n  - name: shop\n    token_sha256: %q\n    scopes: [\"refunds:write\", \"refunds:read\"]\n", hex.EncodeToString(sum[:]))
	b.WriteString("accounts:\n")
	for name, url := range accounts {
		fmt.Fprintf(&b, "  %s:\n    base_url: %q\n    api_key_file: %q\n", name, url, key)
	}
	b.WriteString(strings.Join(sections, ""))
	s.config = filepath.Join(dir, "refundgate.yaml")
	require.NoError(s.t, os.WriteFile(s.config, []byte(b.String()), 0o600))
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// dial returns a client of the system's Temporal, as an order service has one.
func (s *system) dial() client.Client {
	s.t.Helper()
	c, err := client.Dial(client.Options{HostPort: s.temporal, Namespace: s.ns, Logger: telemetry.TemporalLogger(slog.New(slog.DiscardHandler))})
	require.NoError(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

// process is a running refundgate.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	err  error // after done

	mu     sync.Mutex
	out    []string // lines of stdout
	stderr bytes.Buffer
}

// start runs a subcommand with the system's configuration. It is killed at the
// end of the test if it still runs.
func (s *system) start(args ...string) *process {
	s.t.Helper()
	return s.startWith(nil, args...)
}

// startWith is start with more environment variables.
func (s *system) startWith(env []string, args ...string) *process {
	s.t.Helper()
	p := &process{t: s.t, done: make(chan struct{})}
	p.cmd = exec.Command(testenv.Binary(s.t), append(args, "--config", s.config, "--log-format", "json")...)
	p.cmd.Env = append(os.Environ(), env...)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(s.t, err)
	p.cmd.Stderr = &lockedWriter{mu: &p.mu, w: &p.stderr}
	require.NoError(s.t, p.cmd.Start())
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.mu.Lock()
			p.out = append(p.out, lines.Text())
			p.mu.Unlock()
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	s.t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if s.t.Failed() {
			s.t.Logf("refundgate %s:\n%s\n%s", strings.Join(args, " "), strings.Join(p.lines(), "\n"), tail(p.log(), 6000))
		}
		require.NotContains(s.t, p.log(), "secret-of-the-provider", "a secret reached the log")
		require.NotContains(s.t, p.log(), testToken, "a token reached the log")
		_, race, found := strings.Cut(p.log(), "WARNING: DATA RACE")
		require.False(s.t, found, "refundgate %s: data race:%s", strings.Join(args, " "), race[:min(len(race), 6000)])
	})
	return p
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func (p *process) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.out...)
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

func (p *process) signal(sig os.Signal) { _ = p.cmd.Process.Signal(sig) } // it may have ended

// stop asks the process to end and returns how it did.
func (p *process) stop() error {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(30 * time.Second):
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("the process had not ended 30 s after SIGTERM")
	}
}

// kill ends the process as a crash does.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// waitFor waits until stdout has a line with the given beginning.
func (p *process) waitFor(prefix string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		for _, l := range p.lines() {
			if strings.HasPrefix(l, prefix) {
				return true
			}
		}
		return false
	}, 30*time.Second, 20*time.Millisecond, "no line %q", prefix)
}

// request calls the intake API.
func (s *system) request(method, path string, body any) (status int, answer map[string]any) {
	s.t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		require.NoError(s.t, err)
		in = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.intake+path, in)
	require.NoError(s.t, err)
	req.Header.Set("Authorization", "Bearer "+testToken)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	require.NoError(s.t, json.NewDecoder(resp.Body).Decode(&answer))
	return resp.StatusCode, answer
}

// submit posts a refund and requires that it is accepted.
func (s *system) submit(id, account string) {
	s.t.Helper()
	status, answer := s.request(http.MethodPost, "/v1/refunds", newRefund(id, account))
	require.Equal(s.t, http.StatusAccepted, status, answer)
}

func newRefund(id, account string) refund.Refund {
	return refund.Refund{
		ID: id, Account: account, OrderID: "order-" + id, PaymentID: "pay-" + id,
		Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "破損 \U0001F4E6 damaged", RequestedBy: "e2e",
	}
}

// settled waits until the case is final or in review.
func (s *system) settled(id string, within time.Duration) refund.Case {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), within)
	defer cancel()
	for {
		c, err := s.ledger.Case(ctx, id)
		if err == nil && (!c.Open() || c.Status == refund.StatusReview) {
			return c
		}
		select {
		case <-ctx.Done():
			require.FailNow(s.t, "not settled in time", "%s: %s, %v, calls %v", id, c.Status, err, describeCalls(c))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func describeCalls(c refund.Case) []string {
	var all []string
	for _, call := range c.Calls {
		all = append(all, fmt.Sprintf("%s/%d %s: %s %s", call.Key.Kind, call.Key.Seq, call.Origin, call.Result.Outcome, call.Result.Code))
	}
	return all
}

// requireMatched holds the ledger to the wire, one to one: every request that
// the provider received is a call of which a byte left, in the same order, and
// the other way round; none arrived before its start was stamped; all sends of
// a refund carry the same key and bytes; and nothing was executed twice.
func (s *system) requireMatched(ids ...string) {
	s.t.Helper()
	ctx := s.t.Context()
	record, err := s.control.Record(ctx)
	require.NoError(s.t, err)
	executions, err := s.control.Executions(ctx)
	require.NoError(s.t, err)
	for _, id := range ids {
		c, err := s.ledger.Case(ctx, id)
		require.NoError(s.t, err)
		var calls []string
		var stamps []int64
		for _, call := range c.Calls {
			if call.StartedAt != nil || call.Result.Code == refund.CodeLost {
				stamps = append(stamps, call.StartedMono) // 0 if nobody could tell
				calls = append(calls, map[refund.CallKind]string{refund.KindSubmit: http.MethodPost, refund.KindCheck: http.MethodGet}[call.Key.Kind])
			}
		}
		var wire, bodies []string
		var arrivals []int64
		for _, r := range record {
			if r.Reference != id {
				continue
			}
			wire = append(wire, r.Method)
			arrivals = append(arrivals, r.ArrivedMonoNS)
			if r.Method == http.MethodPost {
				require.Equal(s.t, "refund-"+id, r.Key)
				bodies = append(bodies, r.BodySHA256)
			}
		}
		require.Equal(s.t, wire, calls, "%s: the wire and the ledger", id)
		for i, at := range arrivals {
			require.LessOrEqual(s.t, stamps[i], at, "%s: the stamp of start %d is later than its arrival", id, i+1)
		}
		for _, b := range bodies {
			require.Equal(s.t, bodies[0], b, "%s: the bytes of each attempt", id)
		}
		require.LessOrEqual(s.t, executions[id], 1, "%s was executed more than once", id)
	}
}
