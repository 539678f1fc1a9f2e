package devenv

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func startMariaDB(t *testing.T, dir string) *MariaDB {
	t.Helper()
	db, err := StartMariaDB(t.Context(), MariaDBOptions{Dir: dir, NoSync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Kill()) })
	return db
}

func openDB(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	conn, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // fails when the server is gone
	return conn
}

func TestMariaDBKeepsWhatWasCommitted(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := startMariaDB(t, t.TempDir())
	require.NoError(t, db.CreateDatabase(ctx, "odd`name"))
	require.NoError(t, db.CreateDatabase(ctx, "odd`name"), "creating it twice")
	dsn := db.DSN("odd`name")

	conn := openDB(t, dsn)
	_, err := conn.ExecContext(ctx, "CREATE TABLE t (at DATETIME(6))")
	require.NoError(t, err)
	for _, end := range []func() error{db.Kill, db.Stop} {
		_, err = conn.ExecContext(ctx, "INSERT INTO t VALUES ('2026-01-02 03:04:05.000006')")
		require.NoError(t, err)
		ended := db.Done()
		require.NoError(t, end())
		<-ended
		require.Error(t, openDB(t, dsn).PingContext(ctx), "a stopped server answers")
		require.NoError(t, end(), "ending it twice")
		require.NoError(t, db.Start(ctx))
		require.Equal(t, dsn, db.DSN("odd`name"))
	}
	var n int
	var at time.Time
	require.NoError(t, openDB(t, dsn).QueryRowContext(ctx, "SELECT COUNT(*), MIN(at) FROM t").Scan(&n, &at))
	require.Equal(t, 2, n)
	require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), at)

	require.NoError(t, db.DropDatabase(ctx, "odd`name"))
	require.ErrorContains(t, openDB(t, dsn).PingContext(ctx), "Unknown database")
}

func TestMariaDBOneServerPerDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startMariaDB(t, dir)

	_, err := StartMariaDB(t.Context(), MariaDBOptions{Dir: dir})
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, "by process")
	require.NoError(t, openDB(t, first.DSN("")).PingContext(t.Context()), "the first one was disturbed")

	require.NoError(t, first.Stop())
	startMariaDB(t, dir)
}

func TestMariaDBInterruptedCreation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data.new", "mysql"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data.new", "ibdata1"), []byte("half"), 0o600))
	startMariaDB(t, dir)
}

func TestMariaDBDeepDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30))
	db := startMariaDB(t, dir)
	require.NoError(t, openDB(t, db.DSN("")).PingContext(t.Context()))
	require.LessOrEqual(t, len(db.socket), maxSocketPath)
	require.NoError(t, db.Stop())
	require.NoDirExists(t, filepath.Dir(db.socket), "the socket's own directory was left behind")
}

func TestMariaDBOnlyForItsUser(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.Mkdir(dir, 0o777))
	startMariaDB(t, dir)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = StartMariaDB(t.Context(), MariaDBOptions{Dir: file})
	require.ErrorContains(t, err, file)
}

func TestMariaDBStartGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	_, err := StartMariaDB(ctx, MariaDBOptions{Dir: dir})
	require.ErrorIs(t, err, context.Canceled)
	startMariaDB(t, dir) // nothing is in its way
}

func TestMariaDBNoticesTheEnd(t *testing.T) {
	t.Parallel()
	db := startMariaDB(t, t.TempDir())
	require.NoError(t, syscall.Kill(db.proc.cmd.Process.Pid, syscall.SIGKILL))
	select {
	case <-db.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the server went unnoticed")
	}
	require.NoError(t, db.Stop())
	require.NoError(t, db.Start(t.Context()))
}
