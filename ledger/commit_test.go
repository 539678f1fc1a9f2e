package ledger

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// A fault is what happens to the next COMMIT that a wire carries.
type fault int32

const (
	sound      fault = iota
	cutBefore        // the connection dies; the server never sees the COMMIT
	cutAfter         // the server commits; the connection dies with the reply
	lateCommit       // the connection dies for us; the server sees the COMMIT a little later
)

// wires are the connections of one ledger, as a network that can fail.
type wires struct {
	next    atomic.Int32 // the fault of the next COMMIT
	commits atomic.Int32 // how many faults have struck
}

// brokenLedger opens a ledger on a fresh database over wires.
func brokenLedger(t *testing.T) (*Ledger, *wires) {
	t.Helper()
	w := &wires{}
	name := "wires-" + t.Name()
	name = strings.ReplaceAll(name, "/", "-")
	mysql.RegisterDialContext(name, func(ctx context.Context, socket string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", socket)
		return &wire{Conn: conn, wires: w}, err
	})
	t.Cleanup(func() { mysql.DeregisterDialContext(name) })
	dsn := migrated(t)
	require.Contains(t, dsn, "unix(")
	return openLedger(t, strings.Replace(dsn, "unix(", name+"(", 1), Options{}), w
}

var errCut = errors.New("the wire was cut")

type wire struct {
	net.Conn
	wires *wires
	fault fault
}

// commitPacket is COM_QUERY "COMMIT" as the client sends it.
const commitPacket = "\x07\x00\x00\x00\x03COMMIT"

func (w *wire) Write(b []byte) (int, error) {
	if string(b) != commitPacket {
		return w.Conn.Write(b)
	}
	w.fault = fault(w.wires.next.Swap(int32(sound)))
	if w.fault != sound {
		w.wires.commits.Add(1)
	}
	switch w.fault {
	case cutBefore:
		_ = w.Conn.Close()
		return 0, errCut
	case lateCommit:
		time.AfterFunc(200*time.Millisecond, func() {
			_, _ = w.Conn.Write(b)
			_, _ = w.Conn.Read(make([]byte, 64))
			_ = w.Conn.Close()
		})
		return 0, errCut
	}
	return w.Conn.Write(b)
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if w.fault == cutAfter { // the reply has come, and goes no further
		_ = w.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

func (w *wire) Close() error {
	if w.fault == lateCommit {
		return nil // the server doesn't learn of it yet
	}
	return w.Conn.Close()
}

func TestCase42_ConnectionDiesAtCommitOfTheIntent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault  fault
		landed bool
	}{
		"before the commit":         {cutBefore, false},
		"after the commit":          {cutAfter, true},
		"with the commit under way": {lateCommit, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, wires := brokenLedger(t)
			accept(t, l, newRefund("r-1"))
			k := acquire(t, l)

			wires.next.Store(int32(tc.fault))
			body, err := k.Intent(t.Context(), submit("r-1", 1))
			require.EqualValues(t, 1, wires.commits.Load())
			require.ErrorIs(t, err, ErrLockLost, "not acknowledged: nothing may be sent")
			require.Nil(t, body)

			// What became of it was settled before Intent returned.
			call, err := l.Call(t.Context(), submit("r-1", 1).Call.Key)
			if tc.landed {
				require.NoError(t, err)
				require.Equal(t, refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeStorage}, call.Result)
			} else {
				require.ErrorIs(t, err, ErrNotFound)
			}
			require.Equal(t, 0, attemptsOf(t, l, "r-1"), "no attempt was used")

			// The next owner goes on with a key that nobody has used.
			next := acquireSoon(t, l)
			intend(t, next, submit("r-1", 2))
			require.Equal(t, 1, attemptsOf(t, l, "r-1"))
		})
	}
}

// If what became of the intent can't be asked, the error says so: the caller
// alone knows that the call was not sent, and has to record it.
func TestCase42_NobodyCanBeAskedAboutTheIntent(t *testing.T) {
	t.Parallel()
	l, wires := brokenLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	require.NoError(t, l.pool.Close())
	wires.next.Store(int32(cutAfter))
	_, err := k.Intent(t.Context(), submit("r-1", 1))
	require.ErrorIs(t, err, ErrMayBeRecorded)
	require.ErrorIs(t, err, ErrLockLost)
}

// The pool's transactions are run again, and have happened once.
func TestCase42_ConnectionDiesAtCommitElsewhere(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fault{"before the commit": cutBefore, "after the commit": cutAfter, "with the commit under way": lateCommit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, wires := brokenLedger(t)
			strike := func() { wires.next.Store(int32(f)) }

			strike()
			_, _, err := l.Accept(t.Context(), Submission{Refund: newRefund("r-1"), Deadline: time.Minute})
			require.NoError(t, err)
			intend(t, acquire(t, l), submit("r-1", 1))
			strike()
			require.NoError(t, l.Complete(t.Context(), finished(submit("r-1", 1).Call, refund.OutcomeBusy, "temporarily_unavailable")))
			strike()
			tombstone, err := l.Abandon(t.Context(), submit("r-1", 2).Call)
			require.NoError(t, err)
			require.Equal(t, refund.CodeAbandoned, tombstone.Result.Code)
			strike()
			require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusRetrying, Event: event("retry.scheduled")}))
			require.EqualValues(t, 4, wires.commits.Load())

			c, err := l.Case(t.Context(), "r-1")
			require.NoError(t, err)
			require.Equal(t, refund.StatusRetrying, c.Status)
			require.Equal(t, 1, c.Attempts)
			require.Len(t, c.Calls, 2)
			require.Equal(t, refund.OutcomeBusy, c.Calls[0].Result.Outcome)
			events, err := l.Events(t.Context(), "r-1")
			require.NoError(t, err)
			require.Len(t, events, 2, "accepted and scheduled, once each")
		})
	}
}

// An owner that dies at COMMIT of its epoch has no lock, and the next one can
// have it.
func TestCase42_ConnectionDiesAtCommitOfTheEpoch(t *testing.T) {
	t.Parallel()
	l, wires := brokenLedger(t)
	wires.next.Store(int32(cutAfter))
	_, err := l.AcquireEgress(t.Context(), account, "test")
	require.Error(t, err)
	require.EqualValues(t, 2, acquireSoon(t, l).Epoch())
}

func TestCase42_ConnectionDiesAtCommitOfANoticeOrADecision(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fault{"before the commit": cutBefore, "after the commit": cutAfter, "with the commit under way": lateCommit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, wires := brokenLedger(t)
			l.clock = ticking(time.Now()) // so that a second event would be told from the first
			accept(t, l, newRefund("r-1"))
			strike := func() { wires.next.Store(int32(f)) }

			strike()
			_, _, err := l.AddNotice(t.Context(), newNotice("evt_1", "r-1"))
			require.NoError(t, err)
			parked := newNotice("evt_2", "r-2")
			parked.ProviderRefundID = ""
			strike()
			_, _, err = l.AddNotice(t.Context(), parked)
			require.NoError(t, err)
			toReview(t, l, "r-1")
			settle := newAct("r-1", "a-1", refund.ActionSettle)
			settle.Input.Version = theCase(t, l, "r-1").Version // the notice is in it
			strike()
			mustAct(t, l, settle)
			strike()
			require.NoError(t, l.Save(t.Context(), reopen("r-1", refund.StatusSucceeded, time.Now())))
			reject(t, l, "r-1")
			strike()
			require.Equal(t, 2, correct(t, l, "r-1", "fix-1", refund.Correction{RefundReason: "late"}).Generation)
			strike()
			require.NoError(t, l.MarkTold(t.Context(), untoldOf(t, l, 10)[0]))
			require.EqualValues(t, 6, wires.commits.Load())

			c := theCase(t, l, "r-1")
			require.Len(t, c.Notices, 1)
			require.Len(t, c.Decisions, 2)
			require.ElementsMatch(t, []string{"notice.notification", "review.settle", "status.review", "review.correct"}, trail(t, l, "r-1"))
			require.Empty(t, untoldOf(t, l, 10))

			accept(t, l, newRefund("r-2"))
			now := time.Now().Add(time.Hour)
			l.clock = func() time.Time { return now }
			strike()
			_, err = l.MatchParked(t.Context(), 10) // the note of the try
			require.NoError(t, err)
			require.Len(t, theCase(t, l, "r-2").Notices, 1)
			require.Len(t, trail(t, l, "r-2"), 1)
		})
	}
}
