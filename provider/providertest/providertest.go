// Package providertest is the suite that every adapter passes, whatever its
// provider's wire format. It plays a provider that breaks off, redirects and
// answers nonsense on raw TCP sockets, and counts what arrives there: an
// adapter makes exactly one request per call, sends the key and the bytes it
// was given, and never takes nonsense for an answer.
//
// What a provider's right answers mean is for the adapter's own tests, except
// what a look-up finds: which refund is ours must not be a guess anywhere.
package providertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/refund"
)

// Secret is the API key that adapters under test are given. It may appear in
// a request's headers and nowhere else.
const Secret = "sk_providertest_5bd1e995"

// Factory makes the adapter under test.
type Factory struct {
	// New returns an adapter that speaks to the base URL and signs in with the
	// API key. Required.
	New func(baseURL, apiKey string) (provider.Adapter, error)
	// Found returns the body of a whole 200 answer of type application/json to
	// a look-up by reference that lists these refunds, in this order. Required.
	Found func(list ...Found) string
	// KeyHeader is the header that carries the idempotency key.
	// Defaults to "Idempotency-Key".
	KeyHeader string
	// Refund is one that the adapter can encode. Defaults to 12.50 TWD of
	// payment pay_1.
	Refund refund.Refund
}

// Found is a refund as the provider shows it.
type Found struct {
	ID      string         // the provider's
	Refund  refund.Refund  // its reference, payment and amount
	Outcome refund.Outcome // succeeded, pending or rejected (it failed)
}

// Run runs the suite as subtests of t.
func Run(t *testing.T, f Factory) {
	if f.KeyHeader == "" {
		f.KeyHeader = "Idempotency-Key"
	}
	if f.Refund.ID == "" {
		f.Refund = refund.Refund{
			ID: "r-1", Account: "acme", OrderID: "o-1", PaymentID: "pay_1",
			Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "damaged\n<&> 退款 🎁", RequestedBy: "shop",
		}
	}
	s := suite{f}
	for name, test := range map[string]func(*testing.T){
		"Contract":                          s.contract,
		"Target":                            s.target,
		"Encode":                            s.encode,
		"Case07_09_OneRequestPerCall":       s.oneRequest,
		"Case08_HTTP11Only":                 s.http11,
		"Case10_KeyAndBodyAreAlwaysTheSame": s.sameBytes,
		"Case11_ChecksCarryNoKey":           s.checkKey,
		"Case16_ConcurrentCallsDoNotMix":    s.concurrency,
		"Case17_LookupNeverGuesses":         s.lookup,
		"EarlierGenerationsAreNoTrace":      s.foreign,
		"NonsenseIsUnknown":                 s.nonsense,
		"TimeoutIsUnknownAndPrompt":         s.timeout,
		"TransportErrorIsUnknown":           s.transportError,
		"SecretsStayOut":                    s.secrets,
		"EndlessBodyIsBounded":              s.endless,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

type suite struct{ Factory }

func (s suite) adapter(t *testing.T, baseURL string) provider.Adapter {
	t.Helper()
	a, err := s.New(baseURL, Secret)
	require.NoError(t, err)
	return a
}

func (s suite) submission(t *testing.T, a provider.Adapter, r refund.Refund) provider.Submission {
	t.Helper()
	body, err := a.Encode(r)
	require.NoError(t, err)
	return provider.Submission{Refund: r, Key: refund.IdempotencyKey(r.ID, 1), Body: body}
}

// call is one of the ways to call an adapter.
type call struct {
	name string
	make func(context.Context, http.RoundTripper) refund.Result
}

func (s suite) calls(t *testing.T, a provider.Adapter) []call {
	t.Helper()
	sub := s.submission(t, a, s.Refund)
	return []call{
		{"submit", func(ctx context.Context, rt http.RoundTripper) refund.Result { return a.Submit(ctx, rt, sub) }},
		{"check by reference", func(ctx context.Context, rt http.RoundTripper) refund.Result {
			return a.Check(ctx, rt, provider.Query{Refund: s.Refund})
		}},
		{"check by id", func(ctx context.Context, rt http.RoundTripper) refund.Result {
			return a.Check(ctx, rt, provider.Query{Refund: s.Refund, ProviderRefundID: "re_1"})
		}},
	}
}

// exchange makes each call once against a peer of its own and gives its
// result to check, after holding it to what is true of any result.
func (s suite) exchange(t *testing.T, answer func(net.Conn, request), check func(t *testing.T, call string, res refund.Result)) {
	t.Helper()
	for i := range 3 {
		p := newPeer(t, answer)
		c := s.calls(t, s.adapter(t, p.url()))[i]
		rt := newTicket()
		res := c.make(t.Context(), rt)
		p.close() // whatever was still on its way has arrived
		require.Len(t, p.seen(), 1, "%s: requests at the socket", c.name)
		require.Equal(t, 1, rt.calls, "%s: round trips", c.name)
		rt.requireClosed(t)
		requireSound(t, res)
		check(t, c.name, res)
	}
}

// requireSound holds a result to the contract of provider.Adapter.
func requireSound(t *testing.T, res refund.Result) {
	t.Helper()
	require.True(t, slices.Contains(refund.Outcomes, res.Outcome), "outcome %q", res.Outcome)
	require.NotEqual(t, refund.OutcomeNotSent, res.Outcome, "not for an adapter to judge")
	require.LessOrEqual(t, len(res.Detail), refund.MaxDetailLen)
	b, err := json.Marshal(res)
	require.NoError(t, err)
	require.NotContains(t, string(b), Secret)
}

func requireUnknown(t *testing.T, name string, res refund.Result) {
	t.Helper()
	require.Equal(t, refund.OutcomeUnknown, res.Outcome, "%s: %+v", name, res)
}

func (s suite) contract(t *testing.T) {
	c := s.adapter(t, "http://127.0.0.1:1").Contract()
	require.Equal(t, c.IdempotentResends, c.KeyLifetime > 0, "safe resends need a key lifetime and the other way round")
	require.Equal(t, c.NotFoundAfter > 0, c.NotFoundChecks > 0, "not found counts after a time and a number of checks, or never")
	require.GreaterOrEqual(t, c.NotFoundAfter, time.Duration(0))
	require.GreaterOrEqual(t, c.NotFoundChecks, 0)
}

func (s suite) target(t *testing.T) {
	a := s.adapter(t, "http://127.0.0.1:8085")
	require.Equal(t, "http://127.0.0.1:8085", a.Target().String())
	a.Target().Host = "elsewhere"
	require.Equal(t, "127.0.0.1:8085", a.Target().Host, "a caller can't redirect the adapter")
}

func (s suite) encode(t *testing.T) {
	first, err := s.adapter(t, "http://127.0.0.1:1").Encode(s.Refund)
	require.NoError(t, err)
	require.NotEmpty(t, first)
	for range 20 {
		again, err := s.adapter(t, "http://127.0.0.1:2").Encode(s.Refund)
		require.NoError(t, err)
		require.Equal(t, string(first), string(again), "the bytes depend on the refund alone")
	}
	require.NotContains(t, string(first), Secret)
	bad := s.Refund
	bad.Amount.Value = 0
	_, err = s.adapter(t, "http://127.0.0.1:1").Encode(bad)
	require.Error(t, err, "nothing is not an amount")
}

const ok200 = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

// oneRequest covers every way in which HTTP clients are tempted to send twice.
func (s suite) oneRequest(t *testing.T) {
	status := func(line string, headers ...string) func(net.Conn, request) {
		return script("HTTP/1.1 " + line + "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n" + strings.Join(headers, "") + "\r\n{}")
	}
	for name, answer := range map[string]func(net.Conn, request){
		"closed":              script(""),
		"reset":               reset(""),
		"reset in the head":   reset("HTTP/1.1 20"),
		"reset in the body":   reset(ok200 + "Content-Length: 100\r\n\r\n{\"id\":"),
		"closed in the body":  script(ok200 + "Content-Length: 100\r\n\r\n{\"id\":"),
		"closed in a chunk":   script(ok200 + "Transfer-Encoding: chunked\r\n\r\n10\r\n{\"id\":"),
		"closed after 100":    script("HTTP/1.1 100 Continue\r\n\r\n"),
		"not HTTP":            script("SSH-2.0-OpenSSH_9.7\r\n"),
		"binary":              script("\x00\x01\x02\xff\r\n\r\n"),
		"500":                 status("500 Internal Server Error"),
		"502":                 status("502 Bad Gateway"),
		"503":                 status("503 Service Unavailable", "Retry-After: 0\r\n"),
		"504":                 status("504 Gateway Timeout"),
		"408 and close":       status("408 Request Timeout", "Connection: close\r\n"),
		"409":                 status("409 Conflict"),
		"421":                 status("421 Misdirected Request"),
		"425":                 status("425 Too Early", "Retry-After: 0\r\n"),
		"429":                 status("429 Too Many Requests", "Retry-After: 0\r\n"),
		"301":                 status("301 Moved Permanently", "Location: /again\r\n"),
		"302":                 status("302 Found", "Location: /again\r\n"),
		"303":                 status("303 See Other", "Location: /again\r\n"),
		"307":                 status("307 Temporary Redirect", "Location: /again\r\n"),
		"308":                 status("308 Permanent Redirect", "Location: /again\r\n"),
		"307 without a place": status("307 Temporary Redirect"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.exchange(t, answer, func(t *testing.T, call string, res refund.Result) {
				requireUnknown(t, call, res)
			})
		})
	}
	for name, answer := range map[string]func(net.Conn, request){
		"401": status("401 Unauthorized", "WWW-Authenticate: Basic realm=x\r\n"),
		"403": status("403 Forbidden"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.exchange(t, answer, func(t *testing.T, call string, res refund.Result) {
				require.True(t, res.AccountWide, "%s: refused credentials stop the account", call)
				if call != "submit" {
					requireUnknown(t, call, res) // it says nothing about the refund
				}
			})
		})
	}
}

func (s suite) http11(t *testing.T) {
	p := newPeer(t, script("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"))
	for _, c := range s.calls(t, s.adapter(t, p.url())) {
		c.make(t.Context(), newTicket())
	}
	for _, r := range p.seen() {
		require.Equal(t, "HTTP/1.1", r.proto)
		require.Empty(t, r.header.Get("Upgrade"))
		require.Empty(t, r.header.Get("Expect"), "waiting for a 100 splits the request in two writes")
	}
}

func (s suite) sameBytes(t *testing.T) {
	p := newPeer(t, script("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"))
	sub := s.submission(t, s.adapter(t, p.url()), s.Refund)
	// The stored bytes count, not what today's code would encode.
	sub.Body = slices.Concat(sub.Body, []byte(" \n"))
	stored := string(sub.Body)
	for range 3 {
		s.adapter(t, p.url()).Submit(t.Context(), newTicket(), sub)
	}
	seen := p.seen()
	require.Len(t, seen, 3)
	for _, r := range seen {
		require.Equal(t, []string{sub.Key}, r.header.Values(s.KeyHeader))
		require.Equal(t, stored, string(r.body))
	}
	require.Equal(t, stored, string(sub.Body), "the caller's bytes are left alone")
}

func (s suite) checkKey(t *testing.T) {
	p := newPeer(t, script("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"))
	a := s.adapter(t, p.url())
	a.Check(t.Context(), newTicket(), provider.Query{Refund: s.Refund})
	a.Check(t.Context(), newTicket(), provider.Query{Refund: s.Refund, ProviderRefundID: "re_1"})
	for _, r := range p.seen() {
		require.Empty(t, r.header.Values(s.KeyHeader), "keys are global across endpoints at some providers")
		require.Empty(t, r.body)
	}
}

func (s suite) concurrency(t *testing.T) {
	p := newPeer(t, script("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"))
	a := s.adapter(t, p.url())
	const n = 64
	want := map[string]string{} // key to body
	var wg sync.WaitGroup
	for i := range n {
		r := s.Refund
		r.ID = fmt.Sprintf("r-%d", i)
		r.Amount.Value += int64(i)
		sub := s.submission(t, a, r)
		want[sub.Key] = string(sub.Body)
		wg.Go(func() { a.Submit(t.Context(), newTicket(), sub) })
	}
	wg.Wait()
	seen := p.seen()
	require.Len(t, seen, n)
	got := map[string]string{}
	for _, r := range seen {
		got[r.header.Get(s.KeyHeader)] = string(r.body)
	}
	require.Equal(t, want, got)
}

// nonsense are complete answers that no provider's documentation contains.
func (s suite) nonsense(t *testing.T) {
	for name, body := range map[string]string{
		"empty":        "",
		"null":         "null",
		"true":         "true",
		"number":       "7",
		"text":         `"ok"`,
		"array":        "[]",
		"object":       "{}",
		"nulls":        `{"id":null,"status":null,"data":null,"error":null}`,
		"wrong types":  `{"id":1,"status":{},"data":7,"error":[]}`,
		"cut off":      `{"id":"re_1","status":"succeeded"`,
		"two values":   `{"status":"succeeded"}{"status":"failed"}`,
		"HTML":         "<html><body>OK</body></html>",
		"NUL":          "\x00\x00\x00\x00",
		"broken UTF-8": "{\"id\":\"\xff\xfe\",\"status\":\"\xff\"}",
		"deep":         strings.Repeat(`{"data":[`, 20_000),
		"long text":    `{"id":"` + strings.Repeat("x", 100_000) + `","status":"` + strings.Repeat("y", 100_000) + `"}`,
		"bare refund":  `{"id":"re_1","status":"succeeded","amount":1}`,
	} {
		for _, contentType := range []string{"application/json", "text/html", ""} {
			answer := script(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", contentType, len(body), body))
			s.exchange(t, answer, func(t *testing.T, call string, res refund.Result) {
				requireUnknown(t, call+", "+name, res)
			})
		}
	}
}

func (s suite) timeout(t *testing.T) {
	for name, head := range map[string]string{
		"before the answer": "",
		"in the head":       "HTTP/1.1 200",
		"in the body":       ok200 + "Content-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, func(c net.Conn, _ request) {
				_, _ = c.Write([]byte(head))
			})
			for _, c := range s.calls(t, s.adapter(t, p.url())) {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				begin := time.Now()
				res := c.make(ctx, newTicket())
				cancel()
				requireSound(t, res)
				requireUnknown(t, c.name, res)
				require.Equal(t, refund.CodeTimeout, res.Code, c.name)
				require.Less(t, time.Since(begin), 5*time.Second, "%s: ends with its budget", c.name)
			}
			require.Len(t, p.seen(), 3)
		})
	}
}

// roundTripFunc is a round tripper that never touches the network.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// refused is an error as the gate may return it, with words that must not be
// taken for anything.
type refused struct{ timeout bool }

func (refused) Error() string   { return "404 not found, succeeded, not sent" }
func (e refused) Timeout() bool { return e.timeout }

func (s suite) transportError(t *testing.T) {
	a := s.adapter(t, "http://127.0.0.1:1")
	for code, errs := range map[string][]error{
		refund.CodeTimeout:      {refused{true}, context.DeadlineExceeded},
		refund.CodeDisconnected: {refused{false}, context.Canceled, errors.New("sent Bearer " + Secret)},
	} {
		for _, err := range errs {
			for _, c := range s.calls(t, a) {
				n := 0
				res := c.make(t.Context(), roundTripFunc(func(r *http.Request) (*http.Response, error) {
					n++
					return nil, fmt.Errorf("egress: %w", err)
				}))
				requireSound(t, res)
				requireUnknown(t, c.name, res)
				require.Equal(t, code, res.Code, "%s after %v", c.name, err)
				require.Equal(t, 1, n, c.name)
			}
		}
	}
}

// secrets has the provider echo the credentials wherever it can.
func (s suite) secrets(t *testing.T) {
	echo := func(status int) func(net.Conn, request) {
		body := fmt.Sprintf(`{"error":{"code":%[1]q,"message":%[1]q},"id":"re_1","status":%[1]q,"failure":{"code":%[1]q,"message":%[1]q}}`, "Bearer "+Secret)
		return script(fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nX-Echo: %s\r\nRetry-After: %s\r\nContent-Length: %d\r\n\r\n%s",
			status, Secret, Secret, Secret, len(body), body))
	}
	for _, status := range []int{200, 201, 202, 302, 400, 401, 403, 404, 409, 422, 429, 500, 503} {
		s.exchange(t, echo(status), func(*testing.T, string, refund.Result) {})
	}
	s.exchange(t, script("HTTP/1.1 200 OK\r\nContent-Type: "+Secret+"\r\nContent-Length: 2\r\n\r\n{}"), func(*testing.T, string, refund.Result) {})
	s.exchange(t, script(Secret+"\r\n\r\n"), func(*testing.T, string, refund.Result) {})
	a := s.adapter(t, "http://127.0.0.1:1")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(verb, a), Secret, "an adapter that is printed")
	}
}

func (s suite) endless(t *testing.T) {
	chunk := []byte(fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat(" ", 64<<10)))
	answer := func(c net.Conn, _ request) {
		_, _ = c.Write([]byte(ok200 + "Transfer-Encoding: chunked\r\n\r\n"))
		for {
			if _, err := c.Write(chunk); err != nil {
				return // the client has had enough
			}
		}
	}
	s.exchange(t, answer, func(t *testing.T, call string, res refund.Result) {
		requireUnknown(t, call, res)
		require.Equal(t, refund.CodeUnreadable, res.Code, call)
	})
}
