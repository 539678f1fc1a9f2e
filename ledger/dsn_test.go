package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPoolConfig_PinsWhatMeaningDependsOn(t *testing.T) {
	t.Parallel()
	cfg, err := poolConfig("u:p@tcp(db:3306)/refunds?loc=Asia%2FTaipei&parseTime=false&collation=utf8mb4_0900_ai_ci" +
		"&time_zone=%27%2B08%3A00%27&sql_mode=%27%27&clientFoundRows=false")
	require.NoError(t, err)
	require.Equal(t, time.UTC, cfg.Loc)
	require.True(t, cfg.ParseTime)
	require.True(t, cfg.ClientFoundRows)
	require.Empty(t, cfg.Collation)
	require.Equal(t, "'+00:00'", cfg.Params["time_zone"])
	require.Equal(t, sqlMode, cfg.Params["sql_mode"])
}

func TestPoolConfig_TimeoutsOfTheDSNStand(t *testing.T) {
	t.Parallel()
	cfg, err := poolConfig("u:p@tcp(db:3306)/refunds")
	require.NoError(t, err)
	require.Equal(t, []time.Duration{dialTimeout, replyTimeout, replyTimeout}, []time.Duration{cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout})

	cfg, err = poolConfig("u:p@tcp(db:3306)/refunds?timeout=1s&readTimeout=2s&writeTimeout=3s&innodb_lock_wait_timeout=4")
	require.NoError(t, err)
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}, []time.Duration{cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout})
	require.Equal(t, "4", cfg.Params["innodb_lock_wait_timeout"])
}

func TestPoolConfig_ErrorsNeverQuoteThePassword(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"", "root:hunter2/refunds", "root:hunter2@tcp(db/refunds", "root:hunter2@tcp(db:3306)/", "root:x@tcp(db)/refunds?parseTime=hunter2"} {
		_, err := poolConfig(dsn)
		require.Error(t, err, dsn)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestLockPrefix(t *testing.T) {
	t.Parallel()
	longestAccount := 32
	require.LessOrEqual(t, len(lockPrefix("refunds"))+longestAccount, 64)
	require.NotEqual(t, lockPrefix("refunds"), lockPrefix("refunds2"))
	require.Equal(t, lockPrefix("refunds"), lockPrefix("Refunds"), "one database on servers that ignore case")
}

func TestSessionSettings(t *testing.T) {
	t.Parallel()
	k := acquire(t, newLedger(t))
	var timeZone, charset string
	var waitTimeout, lockWait int
	require.NoError(t, k.conn.QueryRowContext(t.Context(),
		`SELECT @@session.time_zone, @@character_set_connection, @@session.wait_timeout, @@session.innodb_lock_wait_timeout`,
	).Scan(&timeZone, &charset, &waitTimeout, &lockWait))
	require.Equal(t, "+00:00", timeZone)
	require.Equal(t, "utf8mb4", charset)
	require.Equal(t, 31536000, waitTimeout, "an idle or stopped owner must not lose its lock")
	require.Equal(t, 2, lockWait)
}
