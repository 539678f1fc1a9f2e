package devenv

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MariaDBOptions says how a private MariaDB is started.
type MariaDBOptions struct {
	// Dir keeps the data, the socket and the lock. It is created if missing
	// and reused if a server ran on it before.
	Dir string
	// Log receives the server's own messages. Nil drops them.
	Log io.Writer
	// NoSync leaves it to the operating system when commits reach the disk.
	// A killed server still loses nothing; a power cut may lose the last
	// second. For tests.
	NoSync bool
}

// MariaDB is a private server that is reached through a Unix socket only.
// Anyone who can reach the socket is root without a password, so the socket
// lies in a directory that only its owner can enter.
type MariaDB struct {
	server
	dir    string
	binary string // path of mariadbd
	socket string // in dir, or in a directory of its own if that is too deep
	noSync bool
}

const (
	mariadbStop = 20 * time.Second
	// maxSocketPath is what a Unix socket address holds, in bytes.
	maxSocketPath = 107
)

const mariadbMissing = "MariaDB is needed and mariadbd was not found; install it with " +
	"`apt-get install mariadb-server-core mariadb-client-core` (`make deps` does)"

// StartMariaDB starts a server on the directory, creating its data first if
// there is none, and returns when it takes connections. The context bounds the
// start only.
func StartMariaDB(ctx context.Context, opts MariaDBOptions) (*MariaDB, error) {
	binary, err := findProgram([]string{"mariadbd", "mysqld"}, "/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/opt/homebrew/bin")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", mariadbMissing, err)
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("starting MariaDB: %w", err)
	}
	if err := privateDir(dir); err != nil {
		return nil, fmt.Errorf("starting MariaDB: %w", err)
	}
	db := &MariaDB{dir: dir, binary: binary, socket: socketPath(dir), noSync: opts.NoSync}
	db.server = server{
		name:     "MariaDB in " + dir,
		log:      opts.Log,
		lockPath: filepath.Join(dir, "lock"),
		grace:    mariadbStop,
		prepare:  db.prepare,
		ready:    db.ping,
		cleanup:  db.removeSocketDir,
	}
	if err := db.Start(ctx); err != nil {
		return nil, err
	}
	return db, nil
}

// prepare creates the data if there is none, and returns the server's command.
func (db *MariaDB) prepare(ctx context.Context) (*exec.Cmd, error) {
	for _, dir := range []string{filepath.Dir(db.socket), db.tmpDir()} {
		if err := privateDir(dir); err != nil {
			return nil, err
		}
	}
	if err := db.createData(ctx); err != nil {
		return nil, fmt.Errorf("creating the data directory: %w", err)
	}
	flags := db.flags(db.dataDir(),
		"--socket="+db.socket,
		"--pid-file="+filepath.Join(db.dir, "mariadb.pid"),
		"--skip-networking",
		"--skip-name-resolve",
		"--max-connections=500",
	)
	if db.noSync {
		flags = append(flags, "--innodb-flush-log-at-trx-commit=2")
	}
	return exec.Command(db.binary, flags...), nil
}

// removeSocketDir removes the socket's directory if the socket needed one of
// its own.
func (db *MariaDB) removeSocketDir() error {
	if dir := filepath.Dir(db.socket); dir != db.dir {
		return os.RemoveAll(dir)
	}
	return nil
}

// createData creates the data directory unless there is one. It is created
// under another name first, so that an interrupted start leaves no half of it.
func (db *MariaDB) createData(ctx context.Context) error {
	if _, err := os.Stat(db.dataDir()); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	installer, err := findProgram([]string{"mariadb-install-db", "mysql_install_db"}, filepath.Dir(db.binary))
	if err != nil {
		return fmt.Errorf("%s: %w", mariadbMissing, err)
	}
	fresh := db.dataDir() + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	p, err := startProcess(exec.Command(installer, db.flags(fresh, "--auth-root-authentication-method=normal", "--skip-test-db")...), db.log)
	if err != nil {
		return err
	}
	if err := p.wait(ctx); err != nil {
		return fmt.Errorf("running %s: %w; its last words: %s", installer, err, p.tail)
	}
	return os.Rename(fresh, db.dataDir())
}

func (db *MariaDB) dataDir() string { return filepath.Join(db.dir, "data") }

// tmpDir is the server's own directory for temporary tables. A server deletes
// what it takes for leftovers there when it starts, so two must not share one.
func (db *MariaDB) tmpDir() string { return filepath.Join(db.dir, "tmp") }

// flags returns the flags that the installer and the server share, followed by
// more. --no-defaults has to come first.
func (db *MariaDB) flags(dataDir string, more ...string) []string {
	flags := []string{"--no-defaults", "--datadir=" + dataDir, "--tmpdir=" + db.tmpDir(), "--innodb-log-file-size=4M"}
	if os.Geteuid() == 0 {
		flags = append(flags, "--user=root") // it refuses to run as root unasked
	}
	return append(flags, more...)
}

// DSN returns the data source name of a database for go-sql-driver/mysql. It
// stays the same across Stop and Start.
func (db *MariaDB) DSN(database string) string {
	cfg := db.config()
	cfg.DBName = database
	return cfg.FormatDSN()
}

func (db *MariaDB) config() *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr = "root", "unix", db.socket
	cfg.ParseTime = true
	return cfg
}

// open opens a pool without a database that keeps the driver's messages to
// itself: until the server is up there is one for each try.
func (db *MariaDB) open() (*sql.DB, error) {
	cfg := db.config()
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

func (db *MariaDB) ping(ctx context.Context) error {
	conn, err := db.open()
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.PingContext(ctx)
}

// CreateDatabase creates a database, empty and in utf8mb4, unless it exists.
func (db *MariaDB) CreateDatabase(ctx context.Context, name string) error {
	return db.exec(ctx, "CREATE DATABASE IF NOT EXISTS "+quoteName(name)+" CHARACTER SET utf8mb4")
}

// DropDatabase drops a database and all that is in it, if it exists.
func (db *MariaDB) DropDatabase(ctx context.Context, name string) error {
	return db.exec(ctx, "DROP DATABASE IF EXISTS "+quoteName(name))
}

func (db *MariaDB) exec(ctx context.Context, statement string) error {
	conn, err := db.open()
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// socketPath returns where the socket of a server in dir goes: in dir, or, if
// a socket address can't hold that path, in a directory of its own under the
// system's temporary one, named after dir so that it stays the same.
func socketPath(dir string) string {
	const name = "mariadb.sock"
	if path := filepath.Join(dir, name); len(path) <= maxSocketPath {
		return path
	}
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join("/tmp", fmt.Sprintf("refundgate-%d-%x", os.Geteuid(), sum[:6]), name)
}

// privateDir makes sure that dir exists, is a directory of the current user
// and lets nobody else in.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to another user (%d)", dir, stat.Uid)
	}
	return os.Chmod(dir, 0o700)
}
