package starter

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// inboxRig is an inbox table as an order service sees it.
type inboxRig struct {
	t    *testing.T
	dsn  string
	l    *ledger.Ledger
	db   *sql.DB
	logs *testenv.Logs
}

func newInboxRig(t *testing.T) *inboxRig {
	dsn := testenv.MariaDB(t)
	l := newLedger(t, dsn)
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return &inboxRig{t: t, dsn: dsn, l: l, db: db, logs: &testenv.Logs{}}
}

// inbox returns an inbox on the ledger.
func (r *inboxRig) inbox(store InboxStore, admission *Admission) *Inbox {
	return NewInbox(InboxOptions{
		Store: store, Accounts: []config.Account{testAccount("main"), testAccount("second")}, Client: "orders",
		Deadline: testDeadline, Admission: admission, Log: telemetry.NewLogger(r.logs, telemetry.FormatJSON, slog.LevelInfo),
	})
}

// put writes a row as an order service does.
func (r *inboxRig) put(id, payload string) {
	r.t.Helper()
	_, err := r.db.ExecContext(r.t.Context(), `INSERT INTO refund_inbox (refund_id, payload) VALUES (?, ?)`, id, payload)
	require.NoError(r.t, err)
}

func (r *inboxRig) load() ledger.InboxLoad {
	r.t.Helper()
	load, err := r.l.InboxLoad(r.t.Context())
	require.NoError(r.t, err)
	return load
}

// numbered is a submission of a refund and a payment of its own.
func numbered(n int) (id, content string) {
	id = fmt.Sprintf("r-%d", n)
	return id, body(map[string]string{"refund_id": fmt.Sprintf("%q", id), "payment_id": fmt.Sprintf(`"p-%d"`, n)})
}

func TestInbox(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	in := r.inbox(r.l, nil)
	woken := 0
	in.opts.Wake = func() { woken++ }
	r.put("r-1", body(nil))
	r.put("r-1", body(nil)) // the order service retried
	r.put("r-2", strings.Replace(body(map[string]string{"payment_id": `"p-2"`}), `"refund_id":"r-1",`, "", 1))
	load := r.load()
	require.Equal(t, 3, load.Waiting)
	require.WithinDuration(t, time.Now(), *load.Oldest, time.Minute, "in UTC, whatever the session's zone")
	require.NoError(t, in.pass(t.Context()))

	require.Equal(t, ledger.InboxLoad{}, r.load())
	require.Equal(t, 2, woken)
	for _, id := range []string{"r-1", "r-2"} {
		c, err := r.l.Case(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, refund.StatusQueued, c.Status)
		require.Equal(t, "orders", c.Client)
	}
	require.Len(t, r.logs.Events(t, "refund.accepted"), 2)
	require.Len(t, r.logs.Events(t, "refund.duplicate"), 1)
}

// TestInbox_Poison: a row that can't be accepted is set aside with the reason,
// holds up none behind it, and is tried again when people say so.
func TestInbox_Poison(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	in := r.inbox(r.l, nil)
	r.put("r-1", body(nil))
	require.NoError(t, in.pass(t.Context()))

	poison := map[string]struct{ payload, reason string }{
		"r-1":       {body(map[string]string{"reason": `"other"`}), "conflict: The refund id was used with other content. Another refund needs an id of its own; the same refund needs the same content."},
		"r-other":   {body(map[string]string{"refund_id": `"r-9"`}), "invalid-refund: The refund was refused; refund_id is not that of the row"},
		"r-float":   {body(map[string]string{"refund_id": `"r-float"`, "amount": `{"value":12.5,"currency":"TWD"}`}), "invalid-refund: The refund was refused; amount.value must be an integer in minor units"},
		"r-account": {body(map[string]string{"refund_id": `"r-account"`, "account": `"none"`}), "invalid-refund: The refund was refused; account is not a configured account"},
		"r-list":    {`[]`, "malformed-body: The body is not one JSON object. the body must be a JSON object"},
		"r-huge":    {`{"reason":"` + strings.Repeat("x", ledger.MaxPayload) + `"}`, "too-large: The body is too large. It may have 65536 bytes."},
	}
	for id, p := range poison {
		r.put(id, p.payload)
	}
	r.put("r-2", body(map[string]string{"refund_id": `"r-2"`, "payment_id": `"p-2"`}))
	require.NoError(t, in.pass(t.Context()))
	require.NoError(t, in.pass(t.Context()), "once")

	_, err := r.l.Case(t.Context(), "r-2")
	require.NoError(t, err)
	refused, err := r.l.RefusedInbox(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, refused, len(poison))
	for _, row := range refused {
		require.NotNil(t, row.RefusedAt)
		require.Contains(t, row.Refusal, strings.TrimSuffix(poison[row.RefundID].reason, " in minor units"), row.RefundID)
	}
	require.Equal(t, ledger.InboxLoad{Refused: len(poison)}, r.load())
	require.NotContains(t, r.logs.String(), "broken on arrival")
	require.Len(t, r.logs.Events(t, "refund.conflict"), 1)
	require.Len(t, r.logs.Events(t, "intake.refused"), len(poison)-1)

	// Somebody configures the account.
	in.opts.Accounts = append(in.opts.Accounts, testAccount("none"))
	for _, row := range refused {
		require.NoError(t, r.l.RetryInbox(t.Context(), row.ID))
	}
	require.ErrorIs(t, r.l.RetryInbox(t.Context(), refused[0].ID), ledger.ErrNotFound)
	require.NoError(t, in.pass(t.Context()))
	_, err = r.l.Case(t.Context(), "r-account")
	require.NoError(t, err)
	require.Equal(t, ledger.InboxLoad{Refused: len(poison) - 1}, r.load())
}

// TestInbox_OverCapacity: what has no room waits, and passes nobody's promise;
// another account's rows don't wait for it.
func TestInbox_OverCapacity(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	admission := NewAdmission(r.l, config.Admission{MaxBacklog: 2}, []config.Account{testAccount("main"), testAccount("second")}, testDeadline, slog.New(slog.DiscardHandler))
	in := r.inbox(r.l, admission)
	for n := range 4 {
		r.put(numbered(n))
	}
	r.put("r-9", body(map[string]string{"refund_id": `"r-9"`, "account": `"second"`}))
	require.NoError(t, in.pass(t.Context()))
	require.Equal(t, 2, r.load().Waiting)
	require.Zero(t, r.load().Refused)
	for _, id := range []string{"r-0", "r-1", "r-9"} {
		_, err := r.l.Case(t.Context(), id)
		require.NoError(t, err, "the first come first")
	}
	closeCase(t, r.l, "r-0")
	require.NoError(t, admission.measure(t.Context(), time.Now()))
	require.Eventually(t, func() bool {
		require.NoError(t, in.pass(t.Context()))
		return r.load().Waiting == 1
	}, 10*time.Second, 50*time.Millisecond)
	_, err := r.l.Case(t.Context(), "r-2")
	require.NoError(t, err)
}

// forgetful loses the reply to one call in three, after it took effect or before.
type forgetful struct {
	InboxStore
	calls atomic.Int64
}

var errLost = errors.New("the reply is lost")

func (s *forgetful) Accept(ctx context.Context, sub ledger.Submission) (refund.Case, bool, error) {
	c, created, err := s.InboxStore.Accept(ctx, sub)
	if s.calls.Add(1)%3 == 0 {
		return refund.Case{}, false, errLost
	}
	return c, created, err
}

func (s *forgetful) DeleteInbox(ctx context.Context, id int64) error {
	if s.calls.Add(1)%3 == 0 {
		return errLost
	}
	return s.InboxStore.DeleteInbox(ctx, id)
}

// TestInbox_SeveralRelays: four at once over a store that fails them, and rows
// that come as they work; every row becomes one case, and none is left.
func TestInbox_SeveralRelays(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	const rows = 150
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 4 {
		in := r.inbox(&forgetful{InboxStore: r.l}, nil)
		running.Go(func() {
			for ctx.Err() == nil {
				// A lease is not waited for: what it holds is due at once.
				_ = in.pass(ctx)
				_, _ = r.db.ExecContext(ctx, `UPDATE refund_inbox SET due_at = '1970-01-01'`)
			}
		})
	}
	for n := range rows {
		r.put(numbered(n))
	}
	require.Eventually(t, func() bool { return r.load() == ledger.InboxLoad{} }, time.Minute, 20*time.Millisecond)
	stop()
	running.Wait()
	var cases, events int
	require.NoError(t, r.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM refunds`).Scan(&cases))
	require.NoError(t, r.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM case_events`).Scan(&events))
	require.Equal(t, rows, cases)
	require.Equal(t, rows, events, "accepted once each")
}

// TestInbox_Lease: what a relay took and left is another's later, not before.
func TestInbox_Lease(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	r.put("r-1", body(nil))
	claim := func() int {
		rows, err := r.l.ClaimInbox(t.Context(), 10, time.Second)
		require.NoError(t, err)
		return len(rows)
	}
	require.Equal(t, 1, claim())
	require.Zero(t, claim())
	require.Eventually(t, func() bool { return claim() == 1 }, 10*time.Second, 100*time.Millisecond)
}

// TestInbox_Uncommitted: a row counts when its transaction does.
func TestInbox_Uncommitted(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	in := r.inbox(r.l, nil)
	for _, commit := range []bool{false, true} {
		tx, err := r.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), `INSERT INTO refund_inbox (refund_id, payload) VALUES ('r-1', ?)`, body(nil))
		require.NoError(t, err)
		require.NoError(t, in.pass(t.Context()))
		_, err = r.l.Case(t.Context(), "r-1")
		require.ErrorIs(t, err, ledger.ErrNotFound)
		if !commit {
			require.NoError(t, tx.Rollback())
		} else {
			require.NoError(t, tx.Commit())
		}
		require.NoError(t, in.pass(t.Context()))
		_, err = r.l.Case(t.Context(), "r-1")
		require.Equal(t, commit, err == nil)
	}
}

// failing is a store of which Accept fails as a broken database does.
type failing struct {
	InboxStore
	accept func(refundID string) error // nil: as the store says
	calls  atomic.Int64                // of every kind
}

func (s *failing) Accept(ctx context.Context, sub ledger.Submission) (refund.Case, bool, error) {
	s.calls.Add(1)
	if err := s.accept(sub.Refund.ID); err != nil {
		return refund.Case{}, false, err
	}
	return s.InboxStore.Accept(ctx, sub)
}

func (s *failing) ClaimInbox(ctx context.Context, limit int, lease time.Duration) ([]ledger.InboxRow, error) {
	s.calls.Add(1)
	return s.InboxStore.ClaimInbox(ctx, limit, lease)
}

func (s *failing) DelayInbox(ctx context.Context, until time.Time, ids ...int64) error {
	s.calls.Add(1)
	return s.InboxStore.DelayInbox(ctx, until, ids...)
}

// waiting returns the rows that wait and how long until they are due.
func (r *inboxRig) waiting() map[string]time.Duration {
	r.t.Helper()
	rows, err := r.db.QueryContext(r.t.Context(), `SELECT refund_id, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) FROM refund_inbox`)
	require.NoError(r.t, err)
	defer rows.Close()
	waiting := map[string]time.Duration{}
	for rows.Next() {
		var id string
		var micros int64
		require.NoError(r.t, rows.Scan(&id, &micros))
		waiting[id] = time.Duration(micros) * time.Microsecond
	}
	require.NoError(r.t, rows.Err())
	return waiting
}

// TestInbox_HandsBackAfterAnError: what a relay had claimed when the database
// failed it is due at once, for this relay and any other. Only the row that it
// failed at waits a little, so that one row that always fails holds up none.
func TestInbox_HandsBackAfterAnError(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for n := range 5 {
		r.put(numbered(n))
	}
	store := &failing{InboxStore: r.l, accept: func(id string) error {
		if id == "r-1" || id == "r-3" {
			return errLost
		}
		return nil
	}}
	in := r.inbox(store, nil)
	require.ErrorIs(t, in.pass(t.Context()), errLost)
	waiting := r.waiting()
	require.Len(t, waiting, 4, "the first was accepted")
	for id, due := range waiting {
		if id == "r-1" {
			require.Greater(t, due, time.Duration(0))
			require.LessOrEqual(t, due, retryAfter)
		} else {
			require.LessOrEqual(t, due, time.Duration(0), "%s is due", id)
		}
	}

	require.ErrorIs(t, in.pass(t.Context()), errLost) // at r-3
	require.NoError(t, in.pass(t.Context()))
	waiting = r.waiting()
	require.Len(t, waiting, 2, "only those that fail are left")
	require.Contains(t, waiting, "r-1")
	require.Contains(t, waiting, "r-3")
	store.accept = func(string) error { return nil }
	require.Eventually(t, func() bool {
		require.NoError(t, in.pass(t.Context()))
		return r.load() == ledger.InboxLoad{}
	}, 20*time.Second, 100*time.Millisecond, "well before the lease ends")
}

// TestInbox_DatabaseGoesAway: in the middle of a batch. While it is away it is
// asked now and then and not in a loop, and when it is back all rows are
// accepted long before their lease would have ended.
func TestInbox_DatabaseGoesAway(t *testing.T) {
	t.Parallel()
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refunds"))
	dsn := db.DSN("refunds")
	pool, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	pool.SetMaxIdleConns(-1) // the server is restarted
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	r := &inboxRig{t: t, dsn: dsn, l: newLedger(t, dsn), db: pool, logs: &testenv.Logs{}}
	const rows = 50
	for n := range rows {
		r.put(numbered(n))
	}
	var killed atomic.Bool
	store := &failing{InboxStore: r.l}
	store.accept = func(id string) error {
		if id == "r-10" && killed.CompareAndSwap(false, true) {
			return db.Kill()
		}
		return nil
	}
	begun := time.Now()
	runRelay(t, r.inbox(store, nil))
	require.Eventually(t, killed.Load, 20*time.Second, 10*time.Millisecond)
	<-db.Done()
	before := store.calls.Load()
	const away = 4 * time.Second
	time.Sleep(away)
	require.LessOrEqual(t, store.calls.Load()-before, int64(12), "at most a few tries in %s", away)
	require.NoError(t, db.Start(t.Context()))
	require.Eventually(t, func() bool {
		load, err := r.l.InboxLoad(t.Context()) // a connection of before may fail it once
		return err == nil && load == ledger.InboxLoad{}
	}, inboxLease-time.Since(begun)-time.Second, 100*time.Millisecond)
	var cases int
	require.NoError(t, r.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM refunds`).Scan(&cases))
	require.Equal(t, rows, cases)
}

// TestInbox_StopsInTheMiddle: what a relay that is stopped had claimed is
// another's at once.
func TestInbox_StopsInTheMiddle(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	for n := range 5 {
		r.put(numbered(n))
	}
	ctx, stop := context.WithCancel(t.Context())
	in := r.inbox(&failing{InboxStore: r.l, accept: func(id string) error {
		if id == "r-2" {
			stop()
		}
		return nil
	}}, nil)
	in.Run(ctx)
	require.Len(t, r.waiting(), 3)
	require.NoError(t, r.inbox(r.l, nil).pass(t.Context()))
	waiting := r.waiting()
	require.Len(t, waiting, 1)
	require.Contains(t, waiting, "r-2", "which it may have been at")
	require.LessOrEqual(t, waiting["r-2"], retryAfter)
}
