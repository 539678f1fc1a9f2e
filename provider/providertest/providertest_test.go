package providertest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/provider/providertest"
	"refundgate/provider/reference"
	"refundgate/refund"
)

// badAdapter is the reference adapter with one defect.
type badAdapter struct {
	provider.Adapter
	wrap   func(http.RoundTripper) http.RoundTripper
	spoil  func(*provider.Submission)
	ask    func(*provider.Query)
	result func(refund.Result) refund.Result
}

func (b badAdapter) Submit(ctx context.Context, rt http.RoundTripper, s provider.Submission) refund.Result {
	if b.spoil != nil {
		b.spoil(&s)
	}
	return b.finish(b.Adapter.Submit(ctx, b.through(rt), s))
}

func (b badAdapter) Check(ctx context.Context, rt http.RoundTripper, q provider.Query) refund.Result {
	if b.ask != nil {
		b.ask(&q)
	}
	return b.finish(b.Adapter.Check(ctx, b.through(rt), q))
}

func (b badAdapter) through(rt http.RoundTripper) http.RoundTripper {
	if b.wrap == nil {
		return rt
	}
	return b.wrap(rt)
}

func (b badAdapter) finish(res refund.Result) refund.Result {
	if b.result == nil {
		return res
	}
	return b.result(res)
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// defects are mistakes that real adapters have made, with the subtest that
// must catch each.
var defects = map[string]struct {
	caughtBy string
	badAdapter
}{
	"retries after a lost connection": {"Case07_09_OneRequestPerCall/closed$", badAdapter{wrap: func(rt http.RoundTripper) http.RoundTripper {
		return roundTripFunc(func(r *http.Request) (*http.Response, error) {
			var body []byte
			if r.Body != nil {
				body, _ = io.ReadAll(r.Body)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			resp, err := rt.RoundTrip(r)
			if err != nil {
				r.Body = io.NopCloser(bytes.NewReader(body))
				return rt.RoundTrip(r)
			}
			return resp, err
		})
	}}},
	"follows redirects": {"Case07_09_OneRequestPerCall/302", badAdapter{wrap: func(rt http.RoundTripper) http.RoundTripper {
		return roundTripFunc((&http.Client{Transport: rt}).Do)
	}}},
	"goes around the ticket": {"TransportErrorIsUnknown", badAdapter{wrap: func(http.RoundTripper) http.RoundTripper {
		return http.DefaultTransport
	}}},
	"mints a key per call": {"Case10_KeyAndBodyAreAlwaysTheSame", badAdapter{spoil: func(s *provider.Submission) {
		s.Key += "-x"
	}}},
	"encodes anew": {"Case10_KeyAndBodyAreAlwaysTheSame", badAdapter{spoil: func(s *provider.Submission) {
		s.Body = bytes.TrimSpace(s.Body)
	}}},
	"shares one key": {"Case16_ConcurrentCallsDoNotMix", badAdapter{spoil: func(s *provider.Submission) {
		s.Key = "refund"
	}}},
	"takes any 200 for success": {"NonsenseIsUnknown", badAdapter{result: func(r refund.Result) refund.Result {
		if r.HTTPStatus == http.StatusOK {
			r.Outcome = refund.OutcomeSucceeded
		}
		return r
	}}},
	"counts an earlier generation": {"EarlierGenerationsAreNoTrace", badAdapter{ask: func(q *provider.Query) {
		q.Foreign = nil
	}}},
	"takes what contradicts for success": {"Case17_LookupNeverGuesses", badAdapter{result: func(r refund.Result) refund.Result {
		if r.Code == refund.CodeContradiction {
			r.Outcome = refund.OutcomeSucceeded
		}
		return r
	}}},
	"takes a time-out for a failure": {"TimeoutIsUnknownAndPrompt", badAdapter{result: func(r refund.Result) refund.Result {
		if r.Code == refund.CodeTimeout {
			r.Outcome = refund.OutcomeRejected
		}
		return r
	}}},
	"claims that nothing was sent": {"TransportErrorIsUnknown", badAdapter{result: func(r refund.Result) refund.Result {
		if r.HTTPStatus == 0 {
			r.Outcome = refund.OutcomeNotSent
		}
		return r
	}}},
	"shows the key": {"SecretsStayOut", badAdapter{result: func(r refund.Result) refund.Result {
		r.Detail = "sent with Bearer " + providertest.Secret
		return r
	}}},
	"leaves the body open": {"Case07_09_OneRequestPerCall/500", badAdapter{wrap: func(rt http.RoundTripper) http.RoundTripper {
		return roundTripFunc(func(r *http.Request) (*http.Response, error) {
			resp, err := rt.RoundTrip(r)
			if resp != nil {
				resp.Body = io.NopCloser(resp.Body)
			}
			return resp, err
		})
	}}},
}

const defectVariable = "PROVIDERTEST_DEFECT"

// TestDefective is the suite over the adapter with the defect named in the
// environment, or over the sound one.
func TestDefective(t *testing.T) {
	t.Parallel()
	providertest.Run(t, providertest.Factory{
		New: func(baseURL, apiKey string) (provider.Adapter, error) {
			a, err := reference.New(reference.Config{BaseURL: baseURL, APIKey: func() string { return apiKey }})
			if err != nil {
				return nil, err
			}
			bad := defects[os.Getenv(defectVariable)].badAdapter
			bad.Adapter = a
			return bad, nil
		},
		Found: found,
	})
}

// found is a look-up's answer as the reference provider gives it.
func found(list ...providertest.Found) string {
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
}

// TestSuiteCatchesDefects runs the suite in a process of its own for each
// defect: a failing subtest can't be caught from within.
func TestSuiteCatchesDefects(t *testing.T) {
	t.Parallel()
	if os.Getenv(defectVariable) != "" {
		return // this is such a process
	}
	for name, d := range defects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDefective$/"+d.caughtBy)
			cmd.Env = append(os.Environ(), defectVariable+"="+name)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "the suite passed an adapter that %s:\n%s", name, out)
			require.Contains(t, string(out), "--- FAIL: TestDefective/", "it failed by the suite, not otherwise")
		})
	}
}
