package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// maxTries bounds how often one transaction is run. Deadlocks are rare by the
// lock order; a hot payment with many first refunds at once needs a few.
const maxTries = 8

// beginner is a *sql.DB or a *sql.Conn.
type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// tx runs fn in a transaction of the pool. fn may run several times, also
// after a run whose commit succeeded unnoticed, so it has to be idempotent.
func (l *Ledger) tx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	return runTx(ctx, l.pool, func(err error) bool { return rolledBack(err) || connectionLost(err) }, fn)
}

// runTx runs fn in one transaction and commits unless fn fails. It starts over
// while again says that the error allows it, with a growing random pause.
func runTx(ctx context.Context, db beginner, again func(error) bool, fn func(tx *sql.Tx) error) error {
	for try := 1; ; try++ {
		err := runTxOnce(ctx, db, fn)
		if err == nil || try == maxTries || !again(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(rand.N(time.Duration(try) * 10 * time.Millisecond)):
		}
	}
}

func runTxOnce(ctx context.Context, db beginner, fn func(tx *sql.Tx) error) error {
	// READ COMMITTED: no gap locks, and a plain read sees what was committed
	// before the lock it was read under was granted.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	// After a deadlock the transaction is gone on the server but *sql.Tx would
	// still take statements, each then committing by itself. So the first
	// error ends it.
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("committing: %w", err)
	}
	return nil
}

// queryer is a *sql.DB, *sql.Conn or *sql.Tx.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// scanner is a *sql.Row or *sql.Rows.
type scanner interface {
	Scan(dest ...any) error
}

// queryAll runs a query and scans each row with scan.
func queryAll[T any](ctx context.Context, db queryer, scan func(scanner) (T, error), query string, args ...any) (all []T, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	all = []T{}
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// execOne runs a statement that is about one row, by its key, of the pool's
// database. ErrNotFound if there is no such row.
func (l *Ledger) execOne(ctx context.Context, query string, args ...any) error {
	res, err := l.pool.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	matched, err := res.RowsAffected()
	if err == nil && matched == 0 {
		err = ErrNotFound
	}
	return err
}

// placeholders are those of n parameters, n > 0.
func placeholders(n int) string { return "?" + strings.Repeat(", ?", n-1) }

// orNotFound turns the driver's "no rows" into ErrNotFound.
func orNotFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// orNull is v as a parameter, NULL for the zero value.
func orNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}
