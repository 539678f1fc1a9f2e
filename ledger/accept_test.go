package ledger

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/refund"
)

func TestAccept(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return now }})
	r := newRefund("r-1")
	r.PaymentAmount = &refund.Money{Value: 9000, Currency: "TWD"}

	c := accept(t, l, r)

	at := now.Truncate(time.Microsecond)
	require.Equal(t, refund.Case{
		Refund: r, Fingerprint: r.Fingerprint(), Status: refund.StatusQueued, Version: 1, Generation: 1,
		AcceptedAt: at, DeadlineAt: at.Add(15 * time.Minute), Calls: []refund.Call{}, Notices: []refund.Notice{}, Decisions: []refund.Decision{},
	}, c)
	events, err := l.Events(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, []refund.Event{{At: at, Actor: "shop", Action: "refund.accepted", Detail: "12.50 TWD of payment pay-r-1 for order order-r-1"}}, events)
}

func TestAccept_SameAgain(t *testing.T) {
	t.Parallel()
	l := openLedger(t, migrated(t), Options{Now: ticking(time.Now())})
	first := accept(t, l, newRefund("r-1"))

	again, created, err := l.Accept(t.Context(), Submission{Refund: newRefund("r-1"), Deadline: time.Hour})
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, bare(first), again, "the first acceptance's deadline stands")
	events, err := l.Events(t.Context(), "r-1")
	require.NoError(t, err)
	require.Len(t, events, 1)
}

func TestAccept_SameIDOtherContent(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	first := accept(t, l, newRefund("r-1"))
	for name, change := range map[string]func(*refund.Refund){
		"amount":  func(r *refund.Refund) { r.Amount.Value++ },
		"reason":  func(r *refund.Refund) { r.Reason = "other" },
		"payment": func(r *refund.Refund) { r.PaymentID = "pay-2" },
		"account": func(r *refund.Refund) { r.Account = "other" },
	} {
		changed := newRefund("r-1")
		change(&changed)
		_, _, err := l.Accept(t.Context(), Submission{Refund: changed, Deadline: time.Hour})
		require.ErrorIs(t, err, ErrConflict, name)
	}
	require.Equal(t, first, theCase(t, l, "r-1"))
}

func TestAccept_InvalidIsRefused(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	r := newRefund("r-1")
	r.Amount.Value = 0 // missing never means "all"
	_, _, err := l.Accept(t.Context(), Submission{Refund: r, Deadline: time.Hour})
	var invalid *refund.InvalidError
	require.ErrorAs(t, err, &invalid)
	_, err = l.Case(t.Context(), "r-1")
	require.ErrorIs(t, err, ErrNotFound)
}

func TestCase06_FiftySubmissionsAtOnceThroughTwoProcesses(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	intakes := []*Ledger{openLedger(t, dsn, Options{}), openLedger(t, dsn, Options{})}
	r := newRefund("r-1")
	r.PaymentAmount = &r.Amount // room for one such refund only

	var created atomic.Int64
	var mu sync.Mutex
	cases := map[time.Time]int{}
	var callers errgroup.Group
	for i := range 50 {
		callers.Go(func() error {
			c, isNew, err := intakes[i%2].Accept(t.Context(), Submission{Refund: r, Deadline: time.Minute})
			if isNew {
				created.Add(1)
			}
			mu.Lock()
			defer mu.Unlock()
			cases[c.AcceptedAt]++
			return err
		})
	}
	require.NoError(t, callers.Wait(), "every caller gets the case")
	require.EqualValues(t, 1, created.Load())
	require.Len(t, cases, 1, "and the same one")
	require.Equal(t, 1, queryValue[int](t, intakes[0], `SELECT COUNT(*) FROM refunds`))
	require.Equal(t, 1, queryValue[int](t, intakes[0], `SELECT COUNT(*) FROM case_events`))
}

// A refund id is used once, however long ago that was.
func TestCase39_AnOldIDIsTheOldRefund(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return now }})
	accept(t, l, newRefund("r-1"))
	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusSucceeded}))
	before := bare(theCase(t, l, "r-1"))

	now = now.AddDate(3, 0, 0) // Temporal has long forgotten the workflow
	c, created, err := l.Accept(t.Context(), Submission{Refund: newRefund("r-1"), Deadline: time.Minute})
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, before, c)
	other := newRefund("r-1")
	other.Amount.Value++
	_, _, err = l.Accept(t.Context(), Submission{Refund: other, Deadline: time.Minute})
	require.ErrorIs(t, err, ErrConflict)
	unstarted, err := l.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, unstarted, "nothing is started for it")
}

// One id with different payments takes different payment locks, so only the
// primary key keeps them apart.
func TestCase06_OneIDWithManyContentsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	var won, refused atomic.Int64
	var callers errgroup.Group
	for i := range 20 {
		callers.Go(func() error {
			r := newRefund("r-1")
			r.PaymentID = "pay-" + string(rune('a'+i))
			_, created, err := l.Accept(t.Context(), Submission{Refund: r, Deadline: time.Minute})
			switch {
			case err == nil && created:
				won.Add(1)
			case err != nil:
				refused.Add(1)
				require.ErrorIs(t, err, ErrConflict)
			}
			return nil
		})
	}
	require.NoError(t, callers.Wait())
	require.EqualValues(t, 1, won.Load())
	require.EqualValues(t, 19, refused.Load())
}

func TestCase32_LongTextWithEmoji(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	r := newRefund("r-1")
	r.Reason = ""
	for range 200 {
		r.Reason += "退款\U0001F4B8" // two CJK characters and one of four bytes
	}
	r.Reason += "\n'\\\" end"
	accept(t, l, r)
	c, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, r, c.Refund)
	require.Equal(t, c.Fingerprint, c.Refund.Fingerprint())
}

func TestUnstarted(t *testing.T) {
	t.Parallel()
	l := openLedger(t, migrated(t), Options{Now: ticking(time.Now())})
	var all []refund.Refund
	for _, id := range []string{"r-3", "r-1", "r-2", "r-4"} {
		r := newRefund(id)
		all = append(all, r)
		accept(t, l, r)
	}
	require.NoError(t, l.MarkStarted(t.Context(), "r-1"))
	require.NoError(t, l.MarkStarted(t.Context(), "r-1"))
	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-4", Status: refund.StatusNotRefunded}))

	waiting, err := l.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, []refund.Refund{all[0], all[2]}, waiting, "earliest accepted first")

	waiting, err = l.Unstarted(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, all[:1], waiting)

	require.ErrorIs(t, l.MarkStarted(t.Context(), "nobody"), ErrNotFound)
}

func TestCase44_TimesAreUTCInstants(t *testing.T) {
	t.Parallel()
	newYork, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	// 01:30 comes twice in the night when summer time ends.
	first := time.Date(2026, 11, 1, 5, 30, 0, 0, time.UTC).In(newYork)
	second := first.Add(time.Hour)
	require.Equal(t, first.Format(time.TimeOnly), second.Format(time.TimeOnly))

	now := first
	dsn := migrated(t) + "&loc=Asia%2FTaipei&time_zone=%27%2B08%3A00%27"
	l := openLedger(t, dsn, Options{Now: func() time.Time { return now }})
	accept(t, l, newRefund("r-1"))
	now = second
	accept(t, l, newRefund("r-2"))

	for id, want := range map[string]time.Time{"r-1": first, "r-2": second} {
		c, err := l.Case(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, want.UTC(), c.AcceptedAt)
		require.Equal(t, want.UTC().Add(15*time.Minute), c.DeadlineAt)
		stored := queryValue[string](t, l, `SELECT CAST(accepted_at AS CHAR) FROM refunds WHERE refund_id = ?`, id)
		require.Equal(t, want.UTC().Format("2006-01-02 15:04:05.000000"), stored)
	}
}
