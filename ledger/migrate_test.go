package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/internal/testenv"
	"refundgate/refund"
)

func TestMigrate_ConcurrentStarters(t *testing.T) {
	t.Parallel()
	dsn := testenv.MariaDB(t)
	var starters errgroup.Group
	for range 4 {
		starters.Go(func() error { return Migrate(t.Context(), dsn) })
	}
	require.NoError(t, starters.Wait())
	accept(t, openLedger(t, dsn, Options{}), newRefund("r-1"))
}

func TestMigrate_KeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	l := openLedger(t, dsn, Options{})
	c := accept(t, l, newRefund("r-1"))
	require.NoError(t, Migrate(t.Context(), dsn))
	again, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, c, again)
}

// A crash between a schema change and its note in goose's table.
func TestMigrate_RepeatsAStepThatWasNotNotedDown(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	l := openLedger(t, dsn, Options{})
	_, err := l.pool.ExecContext(t.Context(), `DELETE FROM goose_db_version WHERE version_id > 3`)
	require.NoError(t, err)
	require.NoError(t, Migrate(t.Context(), dsn))
}

// Cases from before there were notices and decisions.
func TestMigrate_OldCasesKeepWorking(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	l := openLedger(t, dsn, Options{})
	accept(t, l, newRefund("r-1"))
	learn(t, l, acquire(t, l), "r-1", 1, "re_1", refund.OutcomeRejected)
	reject(t, l, "r-1")
	before := theCase(t, l, "r-1")
	for _, undo := range []string{
		`DROP TABLE notices, decisions, refund_generations`,
		`ALTER TABLE provider_calls DROP KEY provider_calls_provider_id, DROP COLUMN decision_id`,
		`ALTER TABLE refunds DROP KEY refunds_provider_id`,
		`DELETE FROM goose_db_version WHERE version_id >= 13`,
	} {
		_, err := l.pool.ExecContext(t.Context(), undo)
		require.NoError(t, err)
	}
	require.NoError(t, Migrate(t.Context(), dsn))
	require.Equal(t, before, theCase(t, l, "r-1"))
	require.Equal(t, 1, queryValue[int](t, l, `
		SELECT COUNT(DISTINCT index_name) FROM information_schema.statistics
		WHERE table_schema = DATABASE() AND index_name = 'provider_calls_provider_id'`))
	require.Equal(t, 1, queryValue[int](t, l, `
		SELECT COUNT(DISTINCT index_name) FROM information_schema.statistics
		WHERE table_schema = DATABASE() AND index_name = 'refunds_provider_id'`))

	n := newNotice("evt_1", "")
	n.PaymentID, n.Outcome = "", refund.OutcomeRejected
	require.Equal(t, "r-1", addNotice(t, l, n).RefundID)
	require.Equal(t, 2, correct(t, l, "r-1", "fix-1", refund.Correction{RefundReason: "late"}).Generation)
	_, created, err := l.Accept(t.Context(), Submission{Refund: newRefund("r-1"), Deadline: time.Minute})
	require.NoError(t, err)
	require.False(t, created)
}

// Whatever a server's defaults are, ids are compared byte by byte.
func TestSchema_IDsAreExact(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("abc"))
	accept(t, l, newRefund("ABC"))
	_, err := l.Case(t.Context(), "Abc")
	require.ErrorIs(t, err, ErrNotFound)
}
