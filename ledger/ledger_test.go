package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
	"refundgate/refund"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// account is the provider account of most tests' refunds.
const account = "acme"

// newLedger opens a ledger on a fresh database.
func newLedger(t *testing.T) *Ledger {
	t.Helper()
	return openLedger(t, migrated(t), Options{})
}

// migrated returns the DSN of a fresh database with the schema.
func migrated(t *testing.T) string {
	t.Helper()
	dsn := testenv.MariaDB(t)
	require.NoError(t, Migrate(t.Context(), dsn))
	return dsn
}

func openLedger(t *testing.T, dsn string, opts Options) *Ledger {
	t.Helper()
	l, err := Open(t.Context(), dsn, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func newRefund(id string) refund.Refund {
	return refund.Refund{
		ID: id, Account: account, OrderID: "order-" + id, PaymentID: "pay-" + id,
		Amount: refund.Money{Value: 1250, Currency: "TWD"},
		Reason: "damaged", RequestedBy: "shop",
	}
}

func accept(t *testing.T, l *Ledger, r refund.Refund) refund.Case {
	t.Helper()
	c, created, err := l.Accept(t.Context(), Submission{Refund: r, Deadline: 15 * time.Minute})
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, bare(theCase(t, l, r.ID)), c)
	return theCase(t, l, r.ID)
}

// acquire takes the egress lock of the tests' account until the test ends.
func acquire(t *testing.T, l *Ledger) *EgressLock {
	t.Helper()
	k, err := l.AcquireEgress(t.Context(), account, "test")
	require.NoError(t, err)
	t.Cleanup(func() { _ = k.Release(context.Background()) })
	return k
}

// submit is the intent of a generation's seq-th send.
func submit(refundID string, seq int) Intent {
	origin := refund.OriginFirst
	if seq > 1 {
		origin = refund.OriginRetry
	}
	return Intent{
		Call: refund.Call{
			Key:      refund.CallKey{RefundID: refundID, Generation: 1, Kind: refund.KindSubmit, Seq: seq},
			Origin:   origin,
			Account:  account,
			IntentAt: time.Now(),
		},
		IdempotencyKey: refund.IdempotencyKey(refundID, 1),
		Body:           []byte(`{"amount":1250}`),
		MaxAttempts:    3,
	}
}

// check is the intent of a generation's seq-th check.
func check(refundID string, seq int) Intent {
	in := submit(refundID, seq)
	in.Call.Key.Kind, in.Call.Origin = refund.KindCheck, refund.OriginCheck
	return in
}

// byHand is the intent of the call that a decision orders.
func byHand(in Intent, decisionID string) Intent {
	in.Call.Origin, in.Call.DecisionID = refund.OriginManual, decisionID
	return in
}

// finished is the call with an outcome.
func finished(call refund.Call, outcome refund.Outcome, code string) refund.Call {
	now := time.Now()
	call.FinishedAt = &now
	call.Result = refund.Result{Outcome: outcome, Code: code}
	return call
}

// theCase reads the case.
func theCase(t *testing.T, l *Ledger, refundID string) refund.Case {
	t.Helper()
	c, err := l.Case(t.Context(), refundID)
	require.NoError(t, err)
	return c
}

// bare is the case without what belongs to it, as Accept returns it.
func bare(c refund.Case) refund.Case {
	c.Calls, c.Notices, c.Decisions = nil, nil, nil
	return c
}

// toReview hands the case to people.
func toReview(t *testing.T, l *Ledger, refundID string) {
	t.Helper()
	require.NoError(t, l.Save(t.Context(), Change{RefundID: refundID, Status: refund.StatusReview, ReviewReason: refund.ReviewDeadlineUnknown}))
}

func intend(t *testing.T, k *EgressLock, in Intent) {
	t.Helper()
	_, err := k.Intent(t.Context(), in)
	require.NoError(t, err)
}

// queryValue reads one value past the ledger's own code.
func queryValue[T any](t *testing.T, l *Ledger, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, l.pool.QueryRowContext(t.Context(), query, args...).Scan(&v))
	return v
}

// killOwner ends the session that holds the account's lock, as a fail-over or
// a DBA would.
func killOwner(t *testing.T, l *Ledger) {
	t.Helper()
	id := queryValue[sql.Null[int64]](t, l, `SELECT IS_USED_LOCK(?)`, l.lockPrefix+account)
	require.True(t, id.Valid, "nobody holds the lock")
	_, err := l.pool.ExecContext(t.Context(), fmt.Sprintf(`KILL CONNECTION %d`, id.V))
	require.NoError(t, err)
}

// ticking is a clock that moves on by a second each time it is read.
func ticking(start time.Time) func() time.Time {
	var reads atomic.Int64
	return func() time.Time { return start.Add(time.Duration(reads.Add(1)) * time.Second) }
}

func TestOpen_WithoutADatabaseServer(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), "root:hunter2@unix(/nonexistent/mysql.sock)/refunds", Options{})
	require.ErrorContains(t, err, "reaching the database")
	require.NotContains(t, err.Error(), "hunter2")
}
