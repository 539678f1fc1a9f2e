package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

func untoldOf(t *testing.T, l *Ledger, limit int) []News {
	t.Helper()
	news, err := l.Untold(t.Context(), limit)
	require.NoError(t, err)
	return news
}

func TestUntold(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for _, id := range []string{"r-1", "r-2"} {
		accept(t, l, newRefund(id))
	}
	require.Empty(t, untoldOf(t, l, 10))
	for _, n := range []refund.Notice{newNotice("evt_1", "r-2"), newNotice("evt_2", "nobody"), newNotice("evt_3", "r-1"), newNotice("evt_4", "r-2")} {
		n.ProviderRefundID = ""
		addNotice(t, l, n)
	}
	news := untoldOf(t, l, 10)
	require.Len(t, news, 2, "each case once")
	require.Equal(t, newRefund("r-2"), news[0].Refund, "the oldest first")
	require.Len(t, news[0].Notices, 2)
	require.Equal(t, newRefund("r-1"), news[1].Refund)
	require.Len(t, untoldOf(t, l, 1), 1)

	require.NoError(t, l.MarkTold(t.Context(), news[0]))
	require.NoError(t, l.MarkTold(t.Context(), news[0]), "again")
	require.Equal(t, news[1:], untoldOf(t, l, 10))
	require.NoError(t, l.MarkTold(t.Context(), News{Refund: news[1].Refund}), "nothing")
	require.NoError(t, l.MarkTold(t.Context(), News{Refund: news[0].Refund, Notices: news[1].Notices}), "another case's")
	require.Equal(t, news[1:], untoldOf(t, l, 10))
	require.ErrorIs(t, l.MarkTold(t.Context(), News{Refund: newRefund("nobody"), Notices: []int64{1}}), ErrNotFound)
}

// What comes between reading the news and marking it as told was not told.
func TestCase41_WhatComesInBetweenIsNewsAgain(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return now }})
	k := acquire(t, l)
	accept(t, l, newRefund("r-1"))
	early := newNotice("early, parked", "")
	early.PaymentID = ""
	addNotice(t, l, early)
	first := newNotice("read", "r-1")
	first.ProviderRefundID = ""
	addNotice(t, l, first)
	news := untoldOf(t, l, 10)
	require.Len(t, news[0].Notices, 1)

	late := newNotice("stored since", "r-1")
	late.ProviderRefundID = ""
	addNotice(t, l, late)
	learn(t, l, k, "r-1", 1, "re_1", refund.OutcomePending)
	now = now.Add(parkedRetry)
	matched, err := l.MatchParked(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, matched)

	require.NoError(t, l.MarkTold(t.Context(), news[0]))
	again := untoldOf(t, l, 10)
	require.Len(t, again, 1)
	require.Len(t, again[0].Notices, 2, "both")
	require.NotContains(t, again[0].Notices, news[0].Notices[0])
}
