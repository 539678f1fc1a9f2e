package ledger

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// One starter migrates; the others ask again every migrateRetry, for five
// minutes at most.
const (
	migrateRetry = 250 * time.Millisecond
	migrateTries = uint64(5 * time.Minute / migrateRetry)
)

// Migrate creates the schema or brings it up to date. Any number of processes
// may start it at once; each returns when the schema is current. Every
// migration changes one thing and can be repeated, because MySQL commits a
// schema change by itself and a crash may come before it is written down.
func Migrate(ctx context.Context, dsn string) error {
	cfg, err := poolConfig(dsn)
	if err != nil {
		return err
	}
	db, err := openDB(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()

	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("reading the embedded migrations: %w", err)
	}
	locker, err := lock.NewMySQLTableLocker(lock.WithTableLockTimeout(migrateRetry, migrateTries))
	if err != nil {
		return fmt.Errorf("preparing the migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectMySQL, db, files,
		goose.WithLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("preparing the migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrating the database: %w", err)
	}
	return nil
}
