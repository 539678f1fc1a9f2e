package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	dialTimeout  = 5 * time.Second
	replyTimeout = 30 * time.Second // longer than lockWait, so that the server answers first

	// lockWait is how long a statement of the pool waits for a row lock, in
	// seconds.
	lockWait = "10"

	// sessionTimeout bounds one transaction on a session that holds an egress
	// lock. When it runs out the session is closed and the lock is lost, so it
	// is well above what a healthy database takes.
	sessionTimeout = 15 * time.Second
	// sessionLockWait is lockWait for such a session: a row that somebody else
	// holds must fail one call, not the session.
	sessionLockWait = "2"
	// sessionIdle is the longest wait_timeout that servers take, one year: an
	// owner that is stopped keeps its lock until a person frees it.
	sessionIdle = "31536000"

	// sqlMode makes every server refuse what it would otherwise store changed.
	sqlMode = "'STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"
)

// errDSN replaces the driver's own words, which can quote the password.
var errDSN = errors.New("the MySQL DSN is not of the form user:password@tcp(host:port)/database?param=value")

// poolConfig reads the DSN, pins what the ledger's meaning depends on (UTC,
// strict mode, the character set, matched instead of changed row counts) and
// fills in the time-outs that the DSN leaves open.
func poolConfig(dsn string) (*mysql.Config, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errDSN
	}
	if cfg.DBName == "" {
		return nil, errors.New("the MySQL DSN names no database")
	}
	// No collation by name: one that a server doesn't know would silently
	// leave the connection at latin1.
	if err := cfg.Apply(mysql.Charset("utf8mb4", ""), mysql.TimeTruncate(time.Microsecond)); err != nil {
		return nil, errDSN
	}
	cfg.ParseTime = true
	cfg.Loc = time.UTC
	cfg.ClientFoundRows = true
	cfg.InterpolateParams = true
	cfg.Logger = &mysql.NopLogger{} // it repeats the errors that are returned, as plain text
	if cfg.Timeout == 0 {
		cfg.Timeout = dialTimeout
	}
	if cfg.ReadTimeout == 0 {
		cfg.ReadTimeout = replyTimeout
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = replyTimeout
	}
	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	cfg.Params["time_zone"] = "'+00:00'"
	cfg.Params["sql_mode"] = sqlMode
	if cfg.Params["innodb_lock_wait_timeout"] == "" {
		cfg.Params["innodb_lock_wait_timeout"] = lockWait
	}
	return cfg, nil
}

// sessionConfig derives the configuration of the sessions that hold egress
// locks.
func sessionConfig(pool *mysql.Config) *mysql.Config {
	cfg := pool.Clone()
	cfg.ReadTimeout = sessionTimeout
	cfg.WriteTimeout = sessionTimeout
	cfg.Params["wait_timeout"] = sessionIdle
	cfg.Params["innodb_lock_wait_timeout"] = sessionLockWait
	return cfg
}

// lockPrefix begins the names of all egress locks of a database. Named locks
// are server-wide and at most 64 characters long, so the database's name goes
// in as a digest; lower case, because on some servers the same database
// answers to both.
func lockPrefix(database string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(database)))
	return "refundgate." + hex.EncodeToString(sum[:8]) + "."
}
