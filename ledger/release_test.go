package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
)

// B5: a person releases a dead holder's egress, and that is recorded. A holder
// that seems alive keeps it unless they insist; either way its proof is gone.
func TestReleaseEgress(t *testing.T) {
	t.Parallel()
	dsn := testenv.MariaDB(t)
	require.NoError(t, Migrate(t.Context(), dsn))
	now := time.Now()
	l, err := Open(t.Context(), dsn, Options{Now: func() time.Time { return now }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	order := Release{Account: "main", By: "alice", Reason: "host-a is gone"}

	_, err = l.ReleaseEgress(t.Context(), order)
	require.ErrorIs(t, err, ErrNotHeld, "there never was an owner")
	lock, err := l.AcquireEgress(t.Context(), "main", "host-a")
	require.NoError(t, err)
	for _, bad := range []Release{{Account: "main", Reason: "x"}, {Account: "main", By: " ", Reason: "x"}, {Account: "main", By: "alice"}} {
		_, err = l.ReleaseEgress(t.Context(), bad)
		require.ErrorContains(t, err, "a name and a reason are required")
	}
	now = now.Add(9 * time.Second)
	_, err = l.ReleaseEgress(t.Context(), order)
	var alive *AliveError
	require.ErrorAs(t, err, &alive)
	require.Equal(t, "host-a", alive.Owner.Holder)
	require.NoError(t, lock.Verify(t.Context()), "it was refused and done all the same")

	now = now.Add(11 * time.Second)
	owner, err := l.ReleaseEgress(t.Context(), order)
	require.NoError(t, err)
	require.Equal(t, "host-a", owner.Holder)
	next, err := l.AcquireEgress(t.Context(), "main", "host-b")
	require.NoError(t, err)
	require.Equal(t, int64(2), next.Epoch())
	require.ErrorIs(t, lock.Verify(t.Context()), ErrLockLost)

	order.By, order.Reason, order.Force = "bob", "it hangs", true
	_, err = l.ReleaseEgress(t.Context(), order)
	require.NoError(t, err)
	require.ErrorIs(t, next.Verify(t.Context()), ErrLockLost)
	_, err = l.ReleaseEgress(t.Context(), order)
	require.ErrorIs(t, err, ErrNotHeld)

	rows, err := queryAll(t.Context(), l.pool, func(s scanner) (row [3]string, err error) {
		err = s.Scan(&row[0], &row[1], &row[2])
		return row, err
	}, `SELECT epoch, actor, detail FROM egress_events ORDER BY id`)
	require.NoError(t, err)
	require.Equal(t, [][3]string{{"1", "alice", "host-a is gone"}, {"2", "bob", "it hangs"}}, rows)
}
