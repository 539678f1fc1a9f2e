package reference_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider/reference"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// CASE 29: an account with exponents of its own is asked in its units, and what
// it says in them (in an answer, a notification, a report) is our amount again.
func TestCase29_AccountWithItsOwnExponents(t *testing.T) {
	t.Parallel()
	own := refund.Exponents{"TWD": 0, "UGX": 2}
	for _, tt := range []struct {
		amount refund.Money
		units  int64
	}{
		{refund.Money{Value: 1300, Currency: "TWD"}, 13},
		{refund.Money{Value: 500, Currency: "UGX"}, 50000},
		{refund.Money{Value: refund.MaxAmount, Currency: "UGX"}, refund.MaxAmount * 100},
		{refund.Money{Value: 1235, Currency: "KWD"}, 1235},
	} {
		t.Run(tt.amount.String(), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			target := b.adapter.Target().String()
			var err error
			b.adapter, err = reference.New(reference.Config{BaseURL: target, APIKey: func() string { return "sk_test" }, Exponents: own})
			require.NoError(t, err)
			notices := reference.NewNotices("acme", own, func() []string { return []string{webhookSecret} })
			came := make(chan refund.Notice, 10)
			srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				var body bytes.Buffer
				_, _ = body.ReadFrom(r.Body)
				if n, err := notices.Notification(r.Header, body.Bytes(), time.Now()); err == nil {
					came <- n
				}
			}))
			t.Cleanup(srv.Close)
			require.NoError(t, b.control.SetWebhooks(t.Context(), standin.Webhooks{Enabled: true, URL: srv.URL, Secrets: []string{webhookSecret}}))
			r := aRefund("r-1")
			r.Amount = tt.amount

			body, err := b.adapter.Encode(r)
			require.NoError(t, err)
			var sent struct{ Amount json.Number }
			require.NoError(t, json.Unmarshal(body, &sent))
			units, err := sent.Amount.Int64()
			require.NoError(t, err)
			require.Equal(t, tt.units, units)
			done := b.submit(t, r)
			require.Equal(t, refund.OutcomeSucceeded, done.Outcome, done.Detail)
			require.Equal(t, refund.OutcomeSucceeded, b.check(t, r, "").Outcome)
			require.Equal(t, refund.OutcomeSucceeded, b.check(t, r, done.ProviderRefundID).Outcome)
			select {
			case n := <-came:
				require.Equal(t, tt.amount, n.Amount)
			case <-time.After(20 * time.Second):
				require.FailNow(t, "no notification came")
			}
			report, err := b.control.Settlement(t.Context())
			require.NoError(t, err)
			rows := collect(t, notices.Settlement(bytes.NewReader(report)))
			require.Empty(t, rows.rows)
			require.Len(t, rows.notices, 1)
			require.Equal(t, tt.amount, rows.notices[0].Amount)
		})
	}
}

// What is too precise is not sent, and what the provider made of another amount
// is not ours.
func TestCase29_NothingIsRounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	adapter, err := reference.New(reference.Config{BaseURL: b.adapter.Target().String(), APIKey: func() string { return "sk_test" }, Exponents: refund.Exponents{"TWD": 0, "UGX": 2}})
	require.NoError(t, err)
	body, err := adapter.Encode(aRefund("r-1")) // NT$12.50
	require.EqualError(t, err, "encoding for the reference provider: amount must be a multiple of 100: the account's provider takes nothing smaller than 1.00 TWD")
	require.Nil(t, body)

	b.adapter = adapter
	r := aRefund("r-2")
	r.Amount.Value = 1300
	_, err = b.control.AddRefund(t.Context(), standin.Refund{Reference: "r-2", PaymentID: "pay_1", Amount: 1300, Currency: "TWD"})
	require.NoError(t, err)
	require.Equal(t, refund.CodeContradiction, b.check(t, r, "").Code, "1300 of its units are NT$1300")
	r = aRefund("r-3")
	r.Amount = refund.Money{Value: 500, Currency: "UGX"}
	_, err = b.control.AddRefund(t.Context(), standin.Refund{Reference: "r-3", PaymentID: "pay_1", Amount: 50050, Currency: "UGX"})
	require.NoError(t, err)
	require.Equal(t, refund.OutcomeUnknown, b.check(t, r, "").Outcome, "half a shilling more")
}
