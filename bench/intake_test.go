package main

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIntakeRoundIsTakenAgainWhenARequestFails(t *testing.T) {
	t.Parallel()
	fails, tries := errors.New("a request failed"), 0
	var r intakeReport
	got, err := r.round(t.Context(), "x", func() (intakeRound, error) {
		if tries++; tries == 1 {
			return intakeRound{}, fails
		}
		return intakeRound{started: 7}, nil
	}, t.Output())
	require.NoError(t, err)
	require.Equal(t, intakeRound{started: 7}, got)
	require.Equal(t, 1, r.Repeated)

	_, err = r.round(t.Context(), "x", func() (intakeRound, error) { return intakeRound{}, fails }, t.Output())
	require.ErrorIs(t, err, fails)

	tries = 0
	_, err = r.round(t.Context(), "x", func() (intakeRound, error) {
		tries++
		return intakeRound{}, fmt.Errorf("y: %w", errLost)
	}, t.Output())
	require.ErrorIs(t, err, errLost)
	require.Equal(t, 1, tries, "what is lost would be lost again")
}

// On real programs and a real database: an answer that is not the wanted one,
// and a database that has other refunds than were accepted.
func TestIntakeRoundMustBeWhole(t *testing.T) {
	t.Parallel()
	l, err := newLab(t.Context(), findTemporal())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.close()) })

	settings, err := l.settings(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, settings.FlushLog)
	require.EqualValues(t, redoLog, settings.RedoLog)

	_, err = l.round(t.Context(), briefly, intakeCandidate{bare: true, status: http.StatusOK}, 2)
	require.ErrorContains(t, err, "status 202 instead of 200")
	_, err = l.round(t.Context(), briefly, intakeCandidate{status: http.StatusServiceUnavailable}, 2)
	require.ErrorContains(t, err, "status 202 instead of 503")

	require.NoError(t, l.db.CreateDatabase(t.Context(), "lost"))
	require.NoError(t, l.query("lost", func(db *sql.DB) error {
		_, err := db.ExecContext(t.Context(), "CREATE TABLE refunds SELECT 1 AS refund_id")
		require.NoError(t, err)
		require.NoError(t, stored(t.Context(), db, 1))
		require.ErrorIs(t, stored(t.Context(), db, 2), errLost)
		require.ErrorIs(t, stored(t.Context(), db, 0), errLost)
		return nil
	}))
}
