package reference_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/provider/providertest"
	"refundgate/provider/reference"
	"refundgate/refund"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Factory{
		New: func(baseURL, apiKey string) (provider.Adapter, error) {
			return reference.New(reference.Config{BaseURL: baseURL, APIKey: func() string { return apiKey }})
		},
		Found: func(list ...providertest.Found) string {
			entries := make([]string, len(list))
			for i, f := range list {
				status := string(f.Outcome)
				if f.Outcome == refund.OutcomeRejected {
					status = "failed"
				}
				entries[i] = fmt.Sprintf(`{"id":%q,"reference":%q,"payment_id":%q,"amount":%d,"currency":%q,"status":%q,"created_at":"2026-03-01T12:00:00Z"}`,
					f.ID, f.Refund.ID, f.Refund.PaymentID, f.Refund.Amount.Value, f.Refund.Amount.Currency, status)
			}
			return `{"data":[` + strings.Join(entries, ",") + `]}`
		},
	})
}

func TestBadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	key := func() string { return "sk_test" }
	for want, cfg := range map[string]reference.Config{
		"not a URL":                     {BaseURL: "http://sk_test:\x7f@host", APIKey: key},
		"must start with":               {BaseURL: "api.example.com", APIKey: key},
		"names no host":                 {BaseURL: "https:///v1", APIKey: key},
		"only scheme, host":             {BaseURL: "https://sk_test@api.example.com", APIKey: key},
		"only scheme, host and path":    {BaseURL: "https://api.example.com?x=1", APIKey: key},
		"is required":                   {BaseURL: "https://api.example.com"},
		"is empty":                      {BaseURL: "https://api.example.com", APIKey: func() string { return "" }},
		"space, a line end or a contro": {BaseURL: "https://api.example.com", APIKey: func() string { return "sk_test\n" }},
	} {
		_, err := reference.New(cfg)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "sk_test")
	}
}

func TestConfigNeverPrintsTheKey(t *testing.T) {
	t.Parallel()
	cfg := reference.Config{BaseURL: "https://api.example.com", APIKey: func() string { return "sk_secret" }}
	for _, verb := range []string{"%v", "%+v", "%#v"} {
		require.NotContains(t, fmt.Sprintf(verb, cfg), "sk_secret")
	}
}

// sent is a round tripper that keeps the request and answers nothing useful.
type sent struct{ req *http.Request }

func (s *sent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.req = r
	return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: http.NoBody}, nil
}

func TestRequestsAreTheContracts(t *testing.T) {
	t.Parallel()
	key := "sk_1"
	a, err := reference.New(reference.Config{BaseURL: "https://api.example.com/pay/", APIKey: func() string { return key }})
	require.NoError(t, err)
	require.Equal(t, "https://api.example.com", a.Target().String())
	r := refund.Refund{ID: "r-1", PaymentID: "pay_1", Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "damaged"}

	var s sent
	a.Submit(t.Context(), &s, provider.Submission{Refund: r, Key: "refund-r-1", Body: []byte("{}")})
	require.Equal(t, "POST", s.req.Method)
	require.Equal(t, "https://api.example.com/pay/v1/refunds", s.req.URL.String())
	require.Equal(t, "Bearer sk_1", s.req.Header.Get("Authorization"))
	require.Equal(t, "application/json", s.req.Header.Get("Content-Type"))
	require.Equal(t, "refund-r-1", s.req.Header.Get("Idempotency-Key"))
	require.Equal(t, "identity", s.req.Header.Get("Accept-Encoding"))
	require.Equal(t, int64(2), s.req.ContentLength)
	require.Nil(t, s.req.GetBody, "net/http must have no way to send the body again")

	key = "sk_2" // a changed key counts from the next call on
	a.Check(t.Context(), &s, provider.Query{Refund: r})
	require.Equal(t, "GET", s.req.Method)
	require.Equal(t, "https://api.example.com/pay/v1/refunds?reference=r-1", s.req.URL.String())
	require.Equal(t, "Bearer sk_2", s.req.Header.Get("Authorization"))

	a.Check(t.Context(), &s, provider.Query{Refund: r, ProviderRefundID: "re_1"})
	require.Equal(t, "https://api.example.com/pay/v1/refunds/re_1", s.req.URL.String())
	for _, wild := range []string{"..", "../admin", "re_1?x=1", "re 1"} {
		a.Check(t.Context(), &s, provider.Query{Refund: r, ProviderRefundID: wild})
		require.Equal(t, "https://api.example.com/pay/v1/refunds?reference=r-1", s.req.URL.String())
	}
}
