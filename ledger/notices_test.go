package ledger

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/refund"
)

// newNotice says that the refund of newRefund(reference) succeeded as "re_1".
func newNotice(eventID, reference string) refund.Notice {
	return refund.Notice{
		Account: account, Source: refund.SourceNotification, EventID: eventID,
		ProviderRefundID: "re_1", Reference: reference, PaymentID: "pay-" + reference,
		Amount: refund.Money{Value: 1250, Currency: "TWD"}, Outcome: refund.OutcomeSucceeded,
		SaidAt: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC),
	}
}

// addNotice stores a notice that wasn't there.
func addNotice(t *testing.T, l *Ledger, n refund.Notice) refund.Notice {
	t.Helper()
	stored, isNew, err := l.AddNotice(t.Context(), n)
	require.NoError(t, err)
	require.True(t, isNew)
	return stored
}

func TestAddNotice(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 1, 0, 123456789, time.UTC)
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return now }})
	before := accept(t, l, newRefund("r-1"))
	n := newNotice("evt_1", "r-1")
	n.Outcome, n.Code = refund.OutcomeRejected, "account_closed"

	stored := addNotice(t, l, n)

	want := n
	want.SaidAt = n.SaidAt.Truncate(time.Microsecond)
	want.ReceivedAt, want.RefundID, want.Generation = now.Truncate(time.Microsecond), "r-1", 1
	require.Equal(t, want, stored)
	c := theCase(t, l, "r-1")
	require.Equal(t, []refund.Notice{want}, c.Notices)
	require.Equal(t, "re_1", c.ProviderRefundID, "an id that wasn't known is from now on")
	require.Equal(t, before.Version+1, c.Version)
	require.Equal(t, refund.StatusQueued, c.Status, "what follows from it is for others to say")
	events, err := l.Events(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, refund.Event{
		At: want.ReceivedAt, Actor: "provider", Action: "notice.notification",
		Detail: "rejected (account_closed): 12.50 TWD, provider's id re_1, event evt_1",
	}, events[1])
}

func TestCase26_RedeliveredAfterAnother(t *testing.T) {
	t.Parallel()
	l := openLedger(t, migrated(t), Options{Now: ticking(time.Now())})
	for _, id := range []string{"r-1", "r-2"} {
		accept(t, l, newRefund(id))
	}
	first := addNotice(t, l, newNotice("evt_1", "r-1"))
	other := newNotice("evt_2", "r-2")
	other.ProviderRefundID = "re_2"
	addNotice(t, l, other)
	before := theCase(t, l, "r-1")

	again := newNotice("evt_1", "r-1")
	again.Outcome = refund.OutcomeRejected // whatever it says now
	stored, isNew, err := l.AddNotice(t.Context(), again)
	require.NoError(t, err)
	require.False(t, isNew)
	require.Equal(t, first, stored)
	require.Equal(t, before, theCase(t, l, "r-1"))
	require.Equal(t, []string{"notice.notification"}, trail(t, l, "r-1"))

	// The same name from elsewhere is another event.
	row := newNotice("evt_1", "r-1")
	row.Source = refund.SourceSettlement
	addNotice(t, l, row)
	elsewhere := newNotice("evt_1", "r-1")
	elsewhere.Account = "other"
	require.True(t, addNotice(t, l, elsewhere).Parked())
	require.Equal(t, []string{"notice.notification", "notice.settlement"}, trail(t, l, "r-1"))
}

func TestCase26_DeliveredTwentyTimesAtOnce(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	intakes := []*Ledger{openLedger(t, dsn, Options{}), openLedger(t, dsn, Options{})}
	accept(t, intakes[0], newRefund("r-1"))
	for _, n := range []refund.Notice{newNotice("matched", "r-1"), newNotice("parked", "nobody")} {
		n.ProviderRefundID = ""
		var stored atomic.Int64
		var senders errgroup.Group
		for i := range 20 {
			senders.Go(func() error {
				got, isNew, err := intakes[i%2].AddNotice(t.Context(), n)
				if isNew {
					stored.Add(1)
				}
				if err == nil && got.EventID != n.EventID {
					err = fmt.Errorf("got %q", got.EventID)
				}
				return err
			})
		}
		require.NoError(t, senders.Wait(), "every sender gets its 2xx")
		require.EqualValues(t, 1, stored.Load())
	}
	require.Len(t, theCase(t, intakes[0], "r-1").Notices, 1)
	require.Equal(t, []string{"notice.notification"}, trail(t, intakes[0], "r-1"))
	require.Equal(t, 2, queryValue[int](t, intakes[0], `SELECT COUNT(*) FROM notices`))
}

func TestCase01_AmountStaysReservedUntilTheNotice(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, partOf("r-1", 60, 100))
	intend(t, acquire(t, l), submit("r-1", 1))
	require.NoError(t, l.Complete(t.Context(), finished(submit("r-1", 1).Call, refund.OutcomeUnknown, refund.CodeDisconnected)))
	exceeded := &PaymentExceededError{PaymentID: "pay-1", Limit: twd(100), Reserved: twd(60)}
	reserved := func() {
		t.Helper()
		var got *PaymentExceededError
		require.ErrorAs(t, tryAccept(t, l, partOf("r-2", 60, 0)), &got)
		require.Equal(t, exceeded, got)
	}
	for _, status := range []refund.Status{refund.StatusUnknown, refund.StatusReview} {
		change := Change{RefundID: "r-1", Status: status}
		if status == refund.StatusReview {
			change.ReviewReason = refund.ReviewDeadlineUnknown
		}
		require.NoError(t, l.Save(t.Context(), change))
		reserved()
	}
	n := newNotice("evt_1", "r-1")
	n.PaymentID, n.Amount = "pay-1", twd(60)
	require.Empty(t, addNotice(t, l, n).Problem)
	reserved()
	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusSucceeded}))
	reserved()
}

// Long after its workflow ended, a case still takes notice.
func TestCase27_TheLedgerRemembersAClosedCase(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	require.NoError(t, l.MarkStarted(t.Context(), "r-1"))
	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusSucceeded}))
	n := newNotice("evt_1", "r-1")
	n.Outcome = refund.OutcomeRejected
	addNotice(t, l, n)

	c := theCase(t, l, "r-1")
	require.Equal(t, refund.StatusSucceeded, c.Status, "a final state stands until the workflow has looked")
	require.Len(t, c.Notices, 1)
	news, err := l.Untold(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, news, 1)
	require.Equal(t, newRefund("r-1"), news[0].Refund, "what a workflow is started with")
}

func TestAddNotice_Refuses(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	for field, spoil := range map[string]func(*refund.Notice){
		"account":  func(n *refund.Notice) { n.Account = "No Such" },
		"source":   func(n *refund.Notice) { n.Source = "rumour" },
		"event_id": func(n *refund.Notice) { n.EventID = "" },
		"outcome":  func(n *refund.Notice) { n.Outcome = refund.OutcomeNotSent },
		"said_at":  func(n *refund.Notice) { n.SaidAt = time.Time{} },
	} {
		n := newNotice("evt_1", "r-1")
		spoil(&n)
		_, _, err := l.AddNotice(t.Context(), n)
		var invalid *refund.InvalidError
		require.ErrorAs(t, err, &invalid, field)
		require.Len(t, invalid.Fields, 1)
		require.Equal(t, field, invalid.Fields[0].Field)
	}
	for _, id := range []string{" evt_1", "evt_1 ", "evt\xff", strings.Repeat("x", maxEventID+1)} {
		_, _, err := l.AddNotice(t.Context(), newNotice(id, "r-1"))
		require.Error(t, err)
	}
	require.Equal(t, 0, queryValue[int](t, l, `SELECT COUNT(*) FROM notices`))
	addNotice(t, l, newNotice(strings.Repeat("\U0001F4B8", maxEventID), "r-1"))
}

// A signed message is stored, whatever is in it.
func TestAddNotice_HostileText(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	n := newNotice("evt_1", strings.Repeat("\U0001F4B8\xff", 300))
	n.ProviderRefundID = strings.Repeat("x", maxProviderRefundID+1)
	n.PaymentID = strings.Repeat("\xf0\x9f", 300) + "\x00"
	n.Amount = refund.Money{Value: -1 << 63, Currency: strings.Repeat("元", 40)}
	n.Code = strings.Repeat("'", 100)

	stored := addNotice(t, l, n)
	require.Equal(t, refund.ProblemNoMatch, stored.Problem)
	require.Empty(t, stored.ProviderRefundID, "half an id is none")
	parked, err := l.Parked(t.Context(), "", 10)
	require.NoError(t, err)
	require.Equal(t, []refund.Notice{stored}, parked)
}

func TestParked(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	addNotice(t, l, newNotice("matched", "r-1"))
	for i, acc := range []string{account, "other", account, "other"} {
		n := newNotice(fmt.Sprintf("evt_%d", i), "nobody")
		n.Account, n.ProviderRefundID = acc, ""
		addNotice(t, l, n)
	}
	for _, tc := range []struct {
		account string
		limit   int
		want    []string
	}{
		{"", 10, []string{"evt_0", "evt_1", "evt_2", "evt_3"}},
		{"", 3, []string{"evt_0", "evt_1", "evt_2"}},
		{"other", 10, []string{"evt_1", "evt_3"}},
		{"third", 10, nil},
	} {
		parked, err := l.Parked(t.Context(), tc.account, tc.limit)
		require.NoError(t, err)
		var got []string
		for _, n := range parked {
			require.True(t, n.Parked())
			require.Zero(t, n.Generation)
			got = append(got, n.EventID)
		}
		require.Equal(t, tc.want, got)
	}
}
