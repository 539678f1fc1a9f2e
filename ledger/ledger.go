// Package ledger is the durable record of every refund: what was accepted,
// which calls may have reached a provider, what they turned out to mean, and
// who owns the right to send. It is the only place that counts attempts, and
// the only one that can say whether a call may go out.
//
// It speaks the SQL that MySQL 8 and MariaDB 10.11 have in common; the tests
// run on MariaDB. Binary logs, where they are on, must be ROW or MIXED:
// transactions run under READ COMMITTED.
//
// Every transaction takes its row locks in one order, so that they queue up
// instead of deadlocking: egress_owners, payments, refunds, then the rows that
// belong to one refund, then the totals. Whoever writes a row of a refund holds the lock on its
// refunds row. No transaction waits for anything but the database.
//
// Transactions of the pool are written so that running one twice has the
// effect of running it once. A deadlock or a connection that dies with the
// reply to COMMIT on it is therefore answered by running it again. The one
// exception is EgressLock.Intent, which asks the database what became of it.
package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Options tune a Ledger. The zero value is ready for use.
type Options struct {
	// MaxConns bounds the connections of the pool. The sessions that hold
	// egress locks come on top, one for each account owned.
	// Defaults to 16.
	MaxConns int
	// Now is the clock behind every time that the ledger sets itself.
	// Defaults to time.Now.
	Now func() time.Time
}

const (
	defaultMaxConns = 16

	// connLifetime makes the pool follow a fail-over or a changed DNS entry
	// within minutes.
	connLifetime = 5 * time.Minute
)

// Ledger is the refund database. It is safe for concurrent use.
type Ledger struct {
	pool *sql.DB
	// sessions opens the sessions that hold egress locks. It keeps no idle
	// connection, so closing one ends the session and frees its lock.
	sessions *sql.DB
	// sessionTimeout bounds one transaction on such a session.
	sessionTimeout time.Duration
	// lockPrefix and an account make the name of the account's lock.
	lockPrefix string
	clock      func() time.Time
}

// Open connects to the database that the DSN of go-sql-driver/mysql names. It
// fails if the database cannot be reached; it does not look at the schema (see
// Migrate). Close gives everything back.
func Open(ctx context.Context, dsn string, opts Options) (*Ledger, error) {
	cfg, err := poolConfig(dsn)
	if err != nil {
		return nil, err
	}
	pool, err := openDB(cfg)
	if err != nil {
		return nil, err
	}
	sessions, err := openDB(sessionConfig(cfg))
	if err != nil {
		return nil, err
	}
	if opts.MaxConns <= 0 {
		opts.MaxConns = defaultMaxConns
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	pool.SetMaxOpenConns(opts.MaxConns)
	pool.SetMaxIdleConns(opts.MaxConns)
	pool.SetConnMaxLifetime(connLifetime)
	sessions.SetMaxIdleConns(-1)

	l := &Ledger{
		pool:           pool,
		sessions:       sessions,
		sessionTimeout: sessionTimeout,
		lockPrefix:     lockPrefix(cfg.DBName),
		clock:          opts.Now,
	}
	if err := l.Ping(ctx); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

func openDB(cfg *mysql.Config) (*sql.DB, error) {
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("preparing the database connection: %w", err)
	}
	return sql.OpenDB(connector), nil
}

// Close closes the connections of the pool. Egress locks are to be released
// first: the session of one that isn't lives on until it is.
func (l *Ledger) Close() error {
	if err := l.sessions.Close(); err != nil {
		_ = l.pool.Close()
		return fmt.Errorf("closing the egress sessions: %w", err)
	}
	if err := l.pool.Close(); err != nil {
		return fmt.Errorf("closing the database pool: %w", err)
	}
	return nil
}

// Ping proves that the database answers.
func (l *Ledger) Ping(ctx context.Context) error {
	if err := l.pool.PingContext(ctx); err != nil {
		return fmt.Errorf("reaching the database: %w", err)
	}
	return nil
}

// now is the current time as the database stores it: UTC, in microseconds.
func (l *Ledger) now() time.Time { return stored(l.clock()) }

// stored is t as it reads after a round trip through a DATETIME(6).
func stored(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
