package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"refundgate/internal/devenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// lab is what the intake's candidates stand on: the programs, and a MariaDB.
type lab struct {
	dir       string
	db        *devenv.MariaDB
	cli       string // of Temporal
	token     string // of the client that submits
	databases int    // how many there were; each round has its own
}

// redoLog is MariaDB's default, in bytes. That of devenv is small so that a
// test's server is there quickly; here it would keep the server busy with
// writing pages back.
const redoLog = 96 << 20

func newLab(ctx context.Context, cli string) (_ *lab, err error) {
	l := &lab{token: rand.Text()}
	if l.cli, err = filepath.Abs(cli); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("", "refundgate-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if err := build(ctx, moduleRoot, "./cmd/refundgate", l.path("refundgate")); err != nil {
		return nil, err
	}
	if err := build(ctx, ".", "./bare", l.path("bare")); err != nil {
		return nil, err
	}
	if l.db, err = devenv.StartMariaDB(ctx, devenv.MariaDBOptions{Dir: l.path("mariadb")}); err != nil {
		return nil, err
	}
	return l, l.query("", func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, fmt.Sprintf("SET GLOBAL innodb_log_file_size = %d", redoLog))
		return err
	})
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *lab) close() error {
	var err error
	if l.db != nil {
		err = l.db.Kill() // its data goes too
	}
	return errors.Join(err, os.RemoveAll(l.dir))
}

// query calls f with a pool of the database, or of none with "".
func (l *lab) query(database string, f func(*sql.DB) error) (err error) {
	cfg, err := mysql.ParseDSN(l.db.DSN(database))
	if err != nil {
		return err
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, db.Close()) }()
	return f(db)
}

// databaseSettings are those that say what a commit costs.
type databaseSettings struct {
	Version    string
	FlushLog   int // innodb_flush_log_at_trx_commit
	BinaryLog  bool
	RedoLog    int64 // bytes
	BufferPool int64 // bytes
}

// settings asks the server. It fails unless a commit is on the disk before it is
// answered: without that there is nothing to compare.
func (l *lab) settings(ctx context.Context) (s databaseSettings, err error) {
	err = l.query("", func(db *sql.DB) error {
		return db.QueryRowContext(ctx, `
			SELECT @@version, @@innodb_flush_log_at_trx_commit, @@log_bin, @@innodb_log_file_size, @@innodb_buffer_pool_size`).
			Scan(&s.Version, &s.FlushLog, &s.BinaryLog, &s.RedoLog, &s.BufferPool)
	})
	if err == nil && s.FlushLog != 1 {
		err = fmt.Errorf("innodb_flush_log_at_trx_commit is %d: commits are not durable", s.FlushLog)
	}
	return s, err
}

// flushTime returns the median time of appending a block to a file and having it
// on the disk, where the database is: what a commit takes at least.
func (l *lab) flushTime() (_ time.Duration, err error) {
	f, err := os.Create(l.path("flush"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	times := make([]time.Duration, 200)
	for i := range times {
		begin := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times[i] = time.Since(begin)
	}
	slices.Sort(times)
	return percentile(times, 50), nil
}

// intakeRound is one round of one candidate.
type intakeRound struct {
	answers
	started    int // workflows that were started until its end
	statements int // that the database answered meanwhile, whoever asked
}

// round starts the candidate on a fresh database, lets the clients make their
// requests, and makes sure that what was accepted is stored.
func (l *lab) round(ctx context.Context, p intakePlan, c intakeCandidate, clients int) (r intakeRound, err error) {
	l.databases++
	database := fmt.Sprintf("intake_%d", l.databases)
	if err := l.db.CreateDatabase(ctx, database); err != nil {
		return intakeRound{}, err
	}
	defer func() { err = errors.Join(err, l.db.DropDatabase(context.WithoutCancel(ctx), database)) }()
	temporal := nobody
	if c.temporal {
		server, startErr := devenv.StartTemporal(ctx, devenv.TemporalOptions{Binary: l.cli, Headless: true})
		if startErr != nil {
			return intakeRound{}, startErr
		}
		defer func() { err = errors.Join(err, server.Kill()) }()
		temporal = server.HostPort()
	}
	server, err := l.start(ctx, c, database, temporal)
	if err != nil {
		return intakeRound{}, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()

	target := target{url: server.url + "/v1/refunds", token: l.token}
	if err := target.first(ctx, c.known); err != nil {
		return intakeRound{}, fmt.Errorf("before the measurement: %w", err)
	}
	if c.full {
		time.Sleep(admissionRests)
	}
	submissions := func(n int) int { return c.known + n }
	if c.again {
		submissions = func(n int) int { return n % c.known }
	}
	before, err := l.statements(ctx)
	if err != nil {
		return intakeRound{}, err
	}
	if r.answers, err = target.load(ctx, clients, p, c.status, submissions); err != nil {
		return intakeRound{}, err
	}
	after, err := l.statements(ctx)
	if err != nil {
		return intakeRound{}, err
	}
	r.statements = after - before
	accepted := c.known
	if c.status == http.StatusAccepted {
		accepted += r.all
	}
	return r, l.query(database, func(db *sql.DB) error {
		if c.temporal {
			if r.started, err = count(ctx, db, "workflow_started_at IS NOT NULL"); err != nil {
				return err
			}
		}
		return stored(ctx, db, accepted)
	})
}

// statements returns how many the server has answered since it runs.
func (l *lab) statements(ctx context.Context) (n int, err error) {
	err = l.query("", func(db *sql.DB) error {
		var name string
		return db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n)
	})
	return n, err
}

// errLost says that other refunds are stored than were accepted. It is no matter
// of a busy machine, so the round is not taken again.
var errLost = errors.New("what is stored is not what was accepted")

// stored fails with errLost unless the database has so many refunds. It works
// for both programs, whose tables have the same name.
func stored(ctx context.Context, db *sql.DB, accepted int) error {
	rows, err := count(ctx, db, "TRUE")
	if err == nil && rows != accepted {
		err = fmt.Errorf("%w: %d refunds, but %d were accepted", errLost, rows, accepted)
	}
	return err
}

func count(ctx context.Context, db *sql.DB, condition string) (n int, err error) {
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM refunds WHERE "+condition).Scan(&n)
	return n, err
}

// start starts the candidate's program on an empty database.
func (l *lab) start(ctx context.Context, c intakeCandidate, database, temporal string) (*program, error) {
	dsn := l.db.DSN(database)
	if c.bare {
		return startProgram(ctx, l.path("bare"), "-dsn", dsn)
	}
	if err := ledger.Migrate(ctx, dsn); err != nil {
		return nil, err
	}
	backlog := wide
	if c.full {
		backlog = c.known
	}
	config := fmt.Sprintf(serveConfig, dsn, temporal, sha256.Sum256([]byte(l.token)), wide, backlog, account)
	file := l.path("refundgate.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return startProgram(ctx, l.path("refundgate"), "serve", "--config", file)
}

const (
	account = "main"
	// wide is the widest that the configuration takes for a client's requests
	// per second and for a backlog.
	wide = 1_000_000
	// admissionRests is longer than the second after which admission counts anew
	// what is open. A refund that was being stored during one count is known to
	// the next.
	admissionRests = 1500 * time.Millisecond
	// nobody is an address at which no Temporal answers.
	nobody = "127.0.0.1:1"
)

// serveConfig leaves all as it comes, but for limits that are far away: of the
// client, of the backlog, and by the account's rate of the wait for a turn.
const serveConfig = `
mysql:
  dsn: %q
temporal:
  address: %q
http:
  listen: 127.0.0.1:0
  drain_delay: 0s
clients:
  - name: bench
    token_sha256: %x
    scopes: [refunds:write]
    requests_per_second: %[4]d
    burst: %[4]d
admission:
  max_backlog: %[5]d
accounts:
  %[6]s:
    base_url: http://127.0.0.1:1
    starts_per_second: 1000
    max_in_flight: 1000
`

// submission is the body of the n-th refund: one of a payment of its own, whose
// amount is stated.
func submission(n int) []byte {
	b, err := json.Marshal(refund.Refund{
		ID: fmt.Sprintf("r-%d", n), Account: account, OrderID: fmt.Sprintf("order-%d", n), PaymentID: fmt.Sprintf("pay-%d", n),
		Amount: refund.Money{Value: 1250, Currency: "TWD"}, PaymentAmount: &refund.Money{Value: 5000, Currency: "TWD"},
		Reason: "damaged on arrival", RequestedBy: "order-service",
	})
	if err != nil {
		panic("a refund is always JSON: " + err.Error())
	}
	return b
}
