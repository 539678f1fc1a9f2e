package reference_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/provider/reference"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// told is what the reader made of one notification.
type told struct {
	notice refund.Notice
	err    error
}

// listen has the stand-in's notifications read at a socket as they come, and
// refused with 401 if they can't be.
func (b bench) listen(t *testing.T, settings standin.Webhooks, secrets ...string) (<-chan told, standin.Webhooks) {
	t.Helper()
	came := make(chan told, 100)
	notices := reference.NewNotices("acme", nil, func() []string { return secrets })
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // half a body has no signature
		n, err := notices.Notification(r.Header, body, time.Now())
		if err != nil {
			w.WriteHeader(http.StatusUnauthorized)
		}
		came <- told{n, err}
	}))
	t.Cleanup(srv.Close)
	settings.Enabled, settings.URL = true, srv.URL
	if settings.Secrets == nil {
		settings.Secrets = secrets
	}
	require.NoError(t, b.control.SetWebhooks(t.Context(), settings))
	return came, settings
}

func next(t *testing.T, came <-chan told) refund.Notice {
	t.Helper()
	select {
	case got := <-came:
		require.NoError(t, got.err)
		requireSoundNotice(t, got.notice, refund.SourceNotification)
		return got.notice
	case <-time.After(10 * time.Second):
		require.FailNow(t, "no notification came")
		return refund.Notice{}
	}
}

func (b bench) settlement(t *testing.T) []refund.Notice {
	t.Helper()
	report, err := b.control.Settlement(t.Context())
	require.NoError(t, err)
	got := collect(t, newNotices().Settlement(bytes.NewReader(report)))
	require.Empty(t, got.rows)
	require.NoError(t, got.end)
	return got.notices
}

func TestCase01_NoticeAndReportSettleALostAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, standin.Rule{Fault: standin.Fault{Kind: standin.AcceptThenDrop}, Times: 1})
	came, _ := b.listen(t, standin.Webhooks{}, webhookSecret)
	r := aRefund("r-1")
	require.Equal(t, refund.OutcomeUnknown, b.submit(t, r).Outcome)
	n := next(t, came)
	require.Equal(t, refund.OutcomeSucceeded, n.Outcome)
	require.Equal(t, "r-1", n.Reference)
	require.Equal(t, r.PaymentID, n.PaymentID)
	require.Equal(t, r.Amount, n.Amount)
	require.Equal(t, b.check(t, r, "").ProviderRefundID, n.ProviderRefundID)
	require.WithinDuration(t, time.Now(), n.SaidAt, time.Minute)

	rows := b.settlement(t)
	require.Len(t, rows, 1)
	require.Equal(t, n.ProviderRefundID, rows[0].ProviderRefundID)
	require.Equal(t, refund.OutcomeSucceeded, rows[0].Outcome)
	require.Equal(t, rows, b.settlement(t), "the same report again is the same notices")
}

func TestCase17_RefundByDashboardShowsItsOwnAmount(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	came, _ := b.listen(t, standin.Webhooks{}, webhookSecret)
	_, err := b.control.AddRefund(t.Context(), standin.Refund{Reference: "r-1", PaymentID: "pay_1", Amount: 99, Currency: "TWD"})
	require.NoError(t, err)
	other := refund.Money{Value: 99, Currency: "TWD"}
	n := next(t, came)
	require.Equal(t, "r-1", n.Reference)
	require.Equal(t, other, n.Amount, "for the ledger to see that it isn't ours")
	rows := b.settlement(t)
	require.Len(t, rows, 1)
	require.Equal(t, other, rows[0].Amount)

	require.Equal(t, refund.OutcomeSucceeded, b.submit(t, aRefund("r-1")).Outcome)
	res := b.check(t, aRefund("r-1"), "")
	require.Equal(t, refund.OutcomeUnknown, res.Outcome, "two refunds with our reference: which is ours would be a guess")
	require.Equal(t, refund.CodeContradiction, res.Code)
}

func TestCase19_LateFailureIsToldByNoticeAndReport(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	came, _ := b.listen(t, standin.Webhooks{}, webhookSecret)
	sent := b.submit(t, aRefund("r-1"))
	require.Equal(t, refund.OutcomeSucceeded, next(t, came).Outcome)
	before := b.settlement(t)
	require.NoError(t, b.control.SetStatus(t.Context(), sent.ProviderRefundID, "failed", "account_closed"))
	n := next(t, came)
	require.Equal(t, refund.OutcomeRejected, n.Outcome)
	require.Equal(t, "account_closed", n.Code)
	require.Equal(t, sent.ProviderRefundID, n.ProviderRefundID)
	after := b.settlement(t)
	require.Len(t, after, 1)
	require.Equal(t, refund.OutcomeRejected, after[0].Outcome)
	require.NotEqual(t, before[0].EventID, after[0].EventID, "a changed row is news")
}

func TestCase20_NoticeBeatsTheAnswerWhichSaysPending(t *testing.T) {
	t.Parallel()
	b := newBench(t, standin.Rule{Fault: standin.Fault{Kind: standin.Pending, DelayMS: 2000, SettleMS: 1}, Times: 1})
	came, _ := b.listen(t, standin.Webhooks{}, webhookSecret)
	answered := make(chan refund.Result, 1)
	r := aRefund("r-1")
	body, err := b.adapter.Encode(r)
	require.NoError(t, err)
	go func() {
		answered <- b.adapter.Submit(t.Context(), transport(), provider.Submission{Refund: r, Key: "refund-r-1", Body: body})
	}()
	byOutcome := map[refund.Outcome]refund.Notice{}
	for range 2 {
		n := next(t, came)
		byOutcome[n.Outcome] = n
	}
	require.Empty(t, answered, "both notices came before the answer")
	res := <-answered
	require.Equal(t, refund.OutcomePending, res.Outcome)
	require.Equal(t, res.ProviderRefundID, byOutcome[refund.OutcomePending].ProviderRefundID)
	require.Equal(t, res.ProviderRefundID, byOutcome[refund.OutcomeSucceeded].ProviderRefundID)
}

func TestCase25_NoticeNamesOnlyOneOfTheTwo(t *testing.T) {
	t.Parallel()
	b := newBench(t, standin.Rule{Match: standin.Match{Method: "POST"}, Fault: standin.Fault{Kind: standin.AcceptThenDrop}})
	send := func(omit string) refund.Notice {
		came, _ := b.listen(t, standin.Webhooks{Omit: []string{omit}}, webhookSecret)
		res := b.submit(t, aRefund("r-"+omit))
		require.Equal(t, refund.OutcomeUnknown, res.Outcome)
		require.Empty(t, res.ProviderRefundID, "after a lost answer we have no id")
		n := next(t, came)
		require.Equal(t, refund.OutcomeSucceeded, n.Outcome)
		return n
	}
	ours := send("id")
	require.Equal(t, "r-id", ours.Reference)
	require.Empty(t, ours.ProviderRefundID)
	theirs := send("reference")
	require.Empty(t, theirs.Reference)
	require.Equal(t, b.check(t, aRefund("r-reference"), "").ProviderRefundID, theirs.ProviderRefundID)
}

func TestCase26_NoticesComeTwiceAndOutOfOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	came, _ := b.listen(t, standin.Webhooks{Duplicate: true, Reorder: true, ReorderMS: 60_000}, webhookSecret)
	b.submit(t, aRefund("r-1"))
	b.submit(t, aRefund("r-2"))
	first, again, second := next(t, came), next(t, came), next(t, came)
	require.Equal(t, "r-2", first.Reference)
	require.Equal(t, first, again, "a duplicate is the same notice in every field")
	require.Equal(t, "r-1", second.Reference)
	require.NotEqual(t, first.EventID, second.EventID)
	require.True(t, second.SaidAt.Before(first.SaidAt), "when it was said survives the wrong order")
}

func TestCase28_RedeliveryWithAFreshSignatureSucceeds(t *testing.T) {
	t.Parallel()
	for _, offset := range []int64{-360, 360} {
		b := newBench(t)
		came, settings := b.listen(t, standin.Webhooks{ClockOffsetS: offset, Tries: 1}, "old", webhookSecret)
		b.submit(t, aRefund("r-1"))
		refused := <-came
		require.ErrorIs(t, refused.err, provider.ErrSignature)
		// The signature's seconds are whole, ours aren't.
		require.Regexp(t, ` -?(5m59s|6m0s|6m1s) before`, refused.err.Error(), "the log says by how much")
		settings.ClockOffsetS = 0
		require.NoError(t, b.control.SetWebhooks(t.Context(), settings))
		var deliveries []standin.Delivery
		require.Eventually(t, func() bool {
			var err error
			deliveries, err = b.control.Deliveries(t.Context())
			return err == nil && len(deliveries) == 1 && deliveries[0].Status == http.StatusUnauthorized
		}, 5*time.Second, 5*time.Millisecond)
		require.NoError(t, b.control.Redeliver(t.Context(), deliveries[0].EventID))
		require.Equal(t, deliveries[0].EventID, next(t, came).EventID)
	}
}

func TestCheckOfACorrectedRefundSeesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t, standin.Rule{Match: standin.Match{Method: "POST"}, Fault: standin.Fault{Kind: standin.Pending}, Times: 1})
	first := aRefund("r-1")
	sent := b.submit(t, first)
	require.NoError(t, b.control.SetStatus(t.Context(), sent.ProviderRefundID, "failed", "account_closed"))
	second := first
	second.PaymentID = "pay_2"
	check := func() refund.Result {
		return b.adapter.Check(t.Context(), transport(), provider.Query{Refund: second, Foreign: []string{sent.ProviderRefundID}})
	}
	require.Equal(t, refund.OutcomeNotFound, check().Outcome)

	body, err := b.adapter.Encode(second)
	require.NoError(t, err)
	again := b.adapter.Submit(t.Context(), transport(), provider.Submission{Refund: second, Key: refund.IdempotencyKey("r-1", 2), Body: body})
	require.Equal(t, refund.OutcomeSucceeded, again.Outcome)
	found := check()
	require.Equal(t, refund.OutcomeSucceeded, found.Outcome)
	require.Equal(t, again.ProviderRefundID, found.ProviderRefundID)
	require.NotEqual(t, sent.ProviderRefundID, found.ProviderRefundID)
}
