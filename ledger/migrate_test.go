package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/internal/testenv"
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

// Whatever a server's defaults are, ids are compared byte by byte.
func TestSchema_IDsAreExact(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("abc"))
	accept(t, l, newRefund("ABC"))
	_, err := l.Case(t.Context(), "Abc")
	require.ErrorIs(t, err, ErrNotFound)
}
