package drill

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"refundgate/drill/record"
	"refundgate/internal/config"
	"refundgate/internal/devenv"
	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// lateDeadline is the deadline of the refunds that are to run out of time. It
// leaves room for a send and some checks.
const lateDeadline = 30 * time.Second

// system is refundgate as it is deployed: real processes of the real program on
// a real Temporal server and a real database, and the stand-in provider, in a
// process of its own as well, at the other end of real sockets.
type system struct {
	opts    Options
	runName string // begins the ids of the run's refunds
	account string
	token   string

	dsn      string
	temporal string
	database *devenv.MariaDB // nil if an address was given
	ledger   *ledger.Ledger
	log      *record.Log

	provider    *standin.Client
	providerURL string
	intake      string   // root URL
	late        string   // root URL of the intake that gives lateDeadline
	egress      *process // the one that owns, or nil
	egresses    int      // how many have been started
	running     []*process
	closes      []func() error // in the order of starting
	web         http.Client
}

// start starts everything but an egress. close has to be called, also
// after an error.
func (s *system) start(ctx context.Context) error {
	s.web.Timeout = 20 * time.Second
	s.token = rand.Text()
	serverLog, err := os.OpenFile(filepath.Join(s.opts.Dir, "servers.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	s.closes = append(s.closes, serverLog.Close)
	if err := s.startServers(ctx, serverLog); err != nil {
		return err
	}
	if s.ledger, err = ledger.Open(ctx, s.dsn, ledger.Options{}); err != nil {
		return err
	}
	s.closes = append(s.closes, s.ledger.Close)

	p, err := s.run(ctx, "standin", "standin", "--listen", "127.0.0.1:0", "--state", filepath.Join(s.opts.Dir, "standin.jsonl"))
	if err != nil {
		return err
	}
	url, err := p.await(ctx, "standin: ")
	if err != nil {
		return err
	}
	s.provider, s.providerURL = standin.NewClient(url), url
	if err := s.configure(url); err != nil {
		return err
	}
	if _, err := s.run(ctx, "orchestrator", "worker", "--roles", "orchestrator", "--config", s.file("intake")); err != nil {
		return err
	}
	for _, name := range []string{"intake", "late"} {
		p, err := s.run(ctx, name, "serve", "--config", s.file(name))
		if err != nil {
			return err
		}
		if _, err := p.await(ctx, "intake: "); err != nil {
			return err
		}
	}
	return nil
}

// startServers starts the database and Temporal, or takes those whose
// addresses were given.
func (s *system) startServers(ctx context.Context, log io.Writer) error {
	s.dsn, s.temporal = s.opts.DSN, s.opts.Temporal
	var both errgroup.Group
	if s.dsn == "" {
		both.Go(func() (err error) {
			s.database, err = devenv.StartMariaDB(ctx, devenv.MariaDBOptions{Dir: filepath.Join(s.opts.Dir, "mariadb"), Log: log})
			if err != nil {
				return err
			}
			s.dsn = s.database.DSN(databaseName)
			return s.database.CreateDatabase(ctx, databaseName)
		})
	}
	var server *devenv.Temporal
	if s.temporal == "" {
		both.Go(func() (err error) {
			server, err = devenv.StartTemporal(ctx, devenv.TemporalOptions{DBFile: filepath.Join(s.opts.Dir, "temporal.db"), Headless: true, Log: log})
			if err == nil {
				s.temporal = server.HostPort()
			}
			return err
		})
	}
	err := both.Wait()
	if s.database != nil {
		s.closes = append(s.closes, s.database.Stop)
	}
	if server != nil {
		s.closes = append(s.closes, server.Stop)
	}
	if err != nil {
		return err
	}
	return ledger.Migrate(ctx, s.dsn)
}

// databaseName is the database on a server of the drill's own.
const databaseName = "refundgate"

// configure writes the configuration files of the processes, which differ in
// where they listen and in the deadline that they give.
func (s *system) configure(provider string) error {
	key := filepath.Join(s.opts.Dir, "provider-key")
	if err := os.WriteFile(key, []byte("standin-accepts-any-key\n"), 0o600); err != nil {
		return err
	}
	for name, to := range map[string]struct {
		deadline time.Duration
		url      *string
	}{"intake": {s.opts.Policy.Deadline, &s.intake}, "late": {lateDeadline, &s.late}} {
		address, err := freeAddress()
		if err != nil {
			return err
		}
		*to.url = "http://" + address
		sum := sha256.Sum256([]byte(s.token))
		// JSON is YAML, and quotes whatever needs it.
		content, err := json.MarshalIndent(map[string]any{
			"temporal": map[string]any{"address": s.temporal, "namespace": s.opts.Namespace},
			"http":     map[string]any{"listen": address, "drain_delay": "100ms"},
			"clients": []map[string]any{{
				"name": "drill", "token_sha256": hex.EncodeToString(sum[:]), "scopes": config.Scopes,
				"requests_per_second": 1000, "burst": 1000,
			}},
			"policy": map[string]any{"deadline": to.deadline.String(), "max_attempts": s.opts.Policy.MaxAttempts},
			"accounts": map[string]any{s.account: map[string]any{
				"base_url": provider, "api_key_file": key, "starts_per_second": s.startsPerSecond(),
				"max_in_flight":   s.opts.Gate.MaxInFlight,
				"connect_timeout": s.opts.Gate.ConnectTimeout.String(), "call_timeout": s.opts.Gate.CallTimeout.String(),
			}},
		}, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// startsPerSecond is what the workers are told, which is what they are held to
// unless that is the promise that is broken on purpose.
func (s *system) startsPerSecond() float64 {
	rate := float64(time.Second) / float64(s.opts.Gate.Interval)
	if s.opts.Sabotage == SabotageDoubleRate {
		return 2 * rate
	}
	return rate
}

func (s *system) file(name string) string { return filepath.Join(s.opts.Dir, name+".yaml") }

// run starts a process of refundgate on the system's database. The database's
// address may hold a password, so it is in no file and no argument.
func (s *system) run(ctx context.Context, name string, args ...string) (*process, error) {
	return s.runOn(ctx, s.dsn, name, args...)
}

func (s *system) runOn(ctx context.Context, dsn, name string, args ...string) (*process, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	env := []string{config.EnvDSN + "=" + dsn, "REFUNDGATE_CONFIG="}
	p, err := start(name, s.opts.Binary, s.opts.Dir, env, s.log, append(args, "--log-format", "json")...)
	if err != nil {
		return nil, err
	}
	s.running = append(s.running, p)
	return p, nil
}

// startEgress starts a worker that makes the account's calls if it is the owner.
func (s *system) startEgress(ctx context.Context) (*process, error) {
	s.egresses++
	return s.run(ctx, fmt.Sprintf("egress-%d", s.egresses), "worker", "--roles", "egress", "--config", s.file("intake"))
}

// ownEgress starts an egress and waits until it is the owner.
func (s *system) ownEgress(ctx context.Context) error {
	p, err := s.startEgress(ctx)
	if err != nil {
		return err
	}
	s.egress = p
	_, err = p.await(ctx, "egress: owner")
	return err
}

// close ends everything, the last first.
func (s *system) close() error {
	var errs []error
	for i := len(s.running) - 1; i >= 0; i-- {
		p := s.running[i]
		// A process that is stopped has to go on to end.
		if err := p.goOn(); err != nil {
			errs = append(errs, err)
		}
		if err := p.Stop(startGrace); err != nil {
			errs = append(errs, fmt.Errorf("stopping %s: %w", p.name, err))
		}
		errs = append(errs, p.file.Close())
	}
	for i := len(s.closes) - 1; i >= 0; i-- {
		errs = append(errs, s.closes[i]())
	}
	return errors.Join(errs...)
}

// call makes a request of an intake API and decodes the answer into out, which
// may be nil. Any status but those wanted is an error.
func (s *system) call(ctx context.Context, method, url string, in, out any, wanted ...int) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.web.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	for _, status := range wanted {
		if resp.StatusCode != status {
			continue
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(answer, out)
	}
	return fmt.Errorf("%s %s: the intake answered %s: %.300s", method, url, resp.Status, answer)
}

// submit sends a refund to the intake at that URL.
func (s *system) submit(ctx context.Context, intake, id string) error {
	return s.call(ctx, http.MethodPost, intake+"/v1/refunds", refund.Refund{
		ID: id, Account: s.account, OrderID: "order-" + id, PaymentID: "pay-" + id,
		Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "drill", RequestedBy: "refundgate drill",
	}, nil, http.StatusAccepted)
}

// freeAddress returns an address on loopback that nobody listens at.
func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// databaseVersion is the database server's own word, or empty.
func (s *system) databaseVersion(ctx context.Context) (version string) {
	db, err := sql.Open("mysql", s.dsn)
	if err != nil {
		return ""
	}
	defer db.Close()
	_ = db.QueryRowContext(ctx, `SELECT VERSION()`).Scan(&version) // without it the report says less
	return version
}

// temporalVersion is the Temporal server's own word, or empty.
func (s *system) temporalVersion(ctx context.Context) string {
	c, err := client.Dial(client.Options{HostPort: s.temporal, Namespace: s.opts.Namespace, Logger: telemetry.TemporalLogger(slog.New(slog.DiscardHandler))})
	if err != nil {
		return ""
	}
	defer c.Close()
	info, err := c.WorkflowService().GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	if err != nil {
		return ""
	}
	return info.GetServerVersion()
}
