package ledger

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
)

func TestAcquireEgress_OneOwner(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	l, other := openLedger(t, dsn, Options{}), openLedger(t, dsn, Options{})

	_, err := l.EgressOwner(t.Context(), account)
	require.ErrorIs(t, err, ErrNotFound)

	first, err := l.AcquireEgress(t.Context(), account, "host-1/pid-1")
	require.NoError(t, err)
	require.EqualValues(t, 1, first.Epoch())

	_, err = other.AcquireEgress(t.Context(), account, "host-2/pid-2")
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "host-1/pid-1", held.Owner.Holder)
	require.True(t, held.Owner.Held)

	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, first.Release(over), "a stopping process hands back, too")
	owner, err := other.EgressOwner(t.Context(), account)
	require.NoError(t, err)
	require.False(t, owner.Held)
	require.NotNil(t, owner.ReleasedAt)

	second, err := other.AcquireEgress(t.Context(), account, "host-2/pid-2")
	require.NoError(t, err, "free as soon as Release returns")
	require.EqualValues(t, 2, second.Epoch())
	owner, err = l.EgressOwner(t.Context(), account)
	require.NoError(t, err)
	require.Equal(t, "host-2/pid-2", owner.Holder)
	require.Nil(t, owner.ReleasedAt)
	require.True(t, owner.Held)
	require.NoError(t, second.Release(t.Context()))
}

func TestAcquireEgress_AccountsAndDatabasesAreApart(t *testing.T) {
	t.Parallel()
	l, other := newLedger(t), newLedger(t)
	acquire(t, l)
	acquire(t, other)
	k, err := l.AcquireEgress(t.Context(), strings.Repeat("a", 32), strings.Repeat("\U0001F4B8", 300))
	require.NoError(t, err)
	owners, err := l.EgressOwners(t.Context())
	require.NoError(t, err)
	require.Len(t, owners, 2)
	require.NoError(t, k.Release(t.Context()))
}

func TestVerify(t *testing.T) {
	t.Parallel()
	l := openLedger(t, migrated(t), Options{Now: ticking(time.Now())})
	k := acquire(t, l)
	before, err := l.EgressOwner(t.Context(), account)
	require.NoError(t, err)
	require.NoError(t, k.Verify(t.Context()))
	after, err := l.EgressOwner(t.Context(), account)
	require.NoError(t, err)
	require.True(t, after.SeenAt.After(before.SeenAt))
	require.Equal(t, before.AcquiredAt, after.AcquiredAt)
}

func TestReport(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	k := acquire(t, l)
	reported := func() Owner {
		o, err := l.EgressOwner(t.Context(), account)
		require.NoError(t, err)
		return o
	}
	require.Empty(t, reported().Metrics)
	require.NoError(t, k.Report(t.Context(), Report{Gate: []byte(`{"a":1}`), Metrics: "m 1\n"}))
	require.NoError(t, k.Report(t.Context(), Report{Metrics: "m 2\n"}))
	require.NoError(t, k.Verify(t.Context()))
	require.Equal(t, "m 2\n", reported().Metrics)
	require.JSONEq(t, `{"a":1}`, string(reported().Gate), "what isn't told stays")

	killOwner(t, l)
	require.ErrorIs(t, k.Report(t.Context(), Report{Metrics: "m 3\n"}), ErrLockLost)
	require.Equal(t, "m 2\n", reported().Metrics, "only an owner is heard")
	next := acquireSoon(t, l)
	require.Empty(t, reported().Metrics, "another owner's")
	require.Empty(t, reported().Gate)
	require.NoError(t, next.Report(t.Context(), Report{Metrics: "m 4\n"}))
	require.Equal(t, "m 4\n", reported().Metrics)
}

func TestOwner_Alive(t *testing.T) {
	t.Parallel()
	now := time.Now()
	require.True(t, Owner{Held: true, SeenAt: now.Add(-aliveFor + time.Millisecond)}.Alive(now))
	require.False(t, Owner{Held: true, SeenAt: now.Add(-aliveFor)}.Alive(now), "stopped")
	require.False(t, Owner{Held: false, SeenAt: now}.Alive(now), "released")
	require.True(t, Owner{Held: true, SeenAt: now.Add(time.Minute)}.Alive(now), "its clock is ahead")
}

// The ways in which an owner stops being one without noticing.
func TestEgressLock_LostForGood(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *Ledger, *EgressLock){
		"session killed": func(t *testing.T, l *Ledger, _ *EgressLock) { killOwner(t, l) },
		"lock freed on a living session": func(t *testing.T, l *Ledger, k *EgressLock) {
			_, err := k.conn.ExecContext(t.Context(), `DO RELEASE_LOCK(?)`, k.name)
			require.NoError(t, err)
		},
		"a later epoch": func(t *testing.T, l *Ledger, _ *EgressLock) {
			_, err := l.pool.ExecContext(t.Context(), `UPDATE egress_owners SET epoch = epoch + 1`)
			require.NoError(t, err)
		},
		"record gone": func(t *testing.T, l *Ledger, _ *EgressLock) {
			_, err := l.pool.ExecContext(t.Context(), `DELETE FROM egress_owners`)
			require.NoError(t, err)
		},
		"released": func(t *testing.T, l *Ledger, k *EgressLock) { require.NoError(t, k.Release(t.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger(t)
			accept(t, l, newRefund("r-1"))
			k := acquire(t, l)
			require.NoError(t, k.Verify(t.Context()))

			lose(t, l, k)

			_, err := k.Intent(t.Context(), submit("r-1", 1))
			require.ErrorIs(t, err, ErrLockLost)
			require.ErrorIs(t, k.Verify(t.Context()), ErrLockLost)
			_, err = k.Intent(t.Context(), submit("r-1", 1))
			require.ErrorIs(t, err, ErrLockLost, "once lost, lost for good")
			require.ErrorIs(t, k.Release(t.Context()), ErrLockLost)
			require.Equal(t, 0, queryValue[int](t, l, `SELECT COUNT(*) FROM provider_calls`))

			intend(t, acquireSoon(t, l), submit("r-1", 1))
		})
	}
}

// The old owner is refused even if it is the first to speak after a takeover.
func TestCase05_TakeoverFencesTheOldOwner(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	old := acquire(t, l)
	killOwner(t, l)
	next := acquireSoon(t, l)
	require.Equal(t, old.Epoch()+1, next.Epoch())

	_, err := old.Intent(t.Context(), submit("r-1", 1))
	require.ErrorIs(t, err, ErrLockLost)
	intend(t, next, submit("r-1", 1))
	require.Equal(t, next.Epoch(), completed(t, l, submit("r-1", 1).Call.Key).Epoch)
}

// The named lock may go at any moment, also between the proof and the commit
// of an intent. The next owner then waits until that intent is decided.
func TestAcquireEgress_WaitsForAnIntentUnderWay(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	old := acquire(t, l)
	acquired := make(chan int64, 1)
	call := submit("r-1", 1).Call
	call.Epoch = old.Epoch()

	err := runTx(t.Context(), old.conn, rolledBack, func(tx *sql.Tx) error {
		require.NoError(t, old.prove(t.Context(), tx))
		_, err := tx.ExecContext(t.Context(), `DO RELEASE_LOCK(?)`, old.name)
		require.NoError(t, err)
		go func() {
			next, err := l.AcquireEgress(context.Background(), account, "next")
			if err != nil {
				acquired <- 0
				return
			}
			acquired <- next.Epoch()
			_ = next.Release(context.Background())
		}()
		select {
		case <-acquired:
			return errors.New("acquired while an intent of the old epoch could still be committed")
		case <-time.After(300 * time.Millisecond):
		}
		return l.insertCall(t.Context(), tx, call, newToken())
	})
	require.NoError(t, err)
	require.Equal(t, old.Epoch()+1, <-acquired)
}

// acquireSoon takes the lock as soon as the killed owner's session is gone.
func acquireSoon(t *testing.T, l *Ledger) *EgressLock {
	t.Helper()
	var k *EgressLock
	require.Eventually(t, func() bool {
		var err error
		k, err = l.AcquireEgress(t.Context(), account, "next")
		return err == nil
	}, 10*time.Second, time.Millisecond)
	t.Cleanup(func() { _ = k.Release(context.Background()) })
	return k
}

func TestEgressLock_CallersContextNeverReachesTheSession(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := k.Intent(cancelled, submit("r-1", 1))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 0, queryValue[int](t, l, `SELECT COUNT(*) FROM provider_calls`))

	// One whose caller gives up in the middle is answered all the same.
	row, err := l.pool.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = row.ExecContext(t.Context(), `SELECT 1 FROM refunds WHERE refund_id = 'r-1' FOR UPDATE`)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	intended := make(chan error, 1)
	go func() {
		_, err := k.Intent(short, submit("r-1", 1))
		intended <- err
	}()
	<-short.Done()

	// Meanwhile another caller waits for its turn, and may stop waiting.
	impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, k.Verify(impatient), context.DeadlineExceeded)

	require.NoError(t, row.Rollback())
	require.NoError(t, <-intended)
	require.NoError(t, k.Verify(t.Context()))
}

// A refund that somebody else keeps locked costs that call, not the egress.
func TestEgressLock_SurvivesALockedRefund(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	accept(t, l, newRefund("r-2"))
	k := acquire(t, l)
	row, err := l.pool.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = row.ExecContext(t.Context(), `SELECT 1 FROM refunds WHERE refund_id = 'r-1' FOR UPDATE`)
	require.NoError(t, err)

	_, err = k.Intent(t.Context(), submit("r-1", 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrLockLost)
	intend(t, k, submit("r-2", 1))
	require.NoError(t, row.Rollback())
	intend(t, k, submit("r-1", 1))
}

// A database that stops answering costs the lock after a bounded time.
func TestEgressLock_OwnTimeLimit(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	l.sessionTimeout = 200 * time.Millisecond
	k := acquire(t, l)
	row, err := l.pool.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = row.ExecContext(t.Context(), `SELECT 1 FROM egress_owners FOR UPDATE`)
	require.NoError(t, err)

	start := time.Now()
	err = k.Verify(t.Context())
	require.ErrorIs(t, err, ErrLockLost)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's deadline is not over")
	require.Less(t, time.Since(start), 2*time.Second)
	require.NoError(t, row.Rollback())
	acquireSoon(t, l)
}

// Each session ends with its lock: nothing goes back into a pool.
func TestRelease_ClosesTheSession(t *testing.T) {
	t.Parallel()
	l := openLedger(t, migrated(t), Options{})
	k := acquire(t, l)
	id := queryValue[int64](t, l, `SELECT IS_USED_LOCK(?)`, k.name)
	require.NoError(t, k.Release(t.Context()))
	require.Eventually(t, func() bool {
		return queryValue[int](t, l, `SELECT COUNT(*) FROM information_schema.processlist WHERE id = ?`, id) == 0
	}, 5*time.Second, 5*time.Millisecond)
}

func TestAcquireEgress_WithoutSchema(t *testing.T) {
	t.Parallel()
	l := openLedger(t, testenv.MariaDB(t), Options{})
	_, err := l.AcquireEgress(t.Context(), account, "test")
	require.Error(t, err)
	require.Eventually(t, func() bool {
		return queryValue[int](t, l, `SELECT IS_FREE_LOCK(?)`, l.lockPrefix+account) == 1
	}, 5*time.Second, 5*time.Millisecond, "a failure leaves no lock behind")
}
