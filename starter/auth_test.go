package starter

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
)

// TestScopes: what each client may call. Operations are answered by what they
// find, so that a 404 or a 422 means "allowed".
func TestScopes(t *testing.T) {
	t.Parallel()
	i := newDeskIntake(t, newLedger(t, testenv.MariaDB(t)), nil, &fakeDesk{})
	require.Equal(t, 202, i.post(body(nil)).status)

	type operation struct{ method, path, content string }
	operations := []operation{
		{"POST", "/v1/refunds", body(nil)},
		{"GET", "/v1/refunds", ""},
		{"GET", "/v1/refunds/r-1", ""},
	}
	for _, action := range []string{"assign", "note", "check", "resend", "correct", "settle"} {
		operations = append(operations, operation{"POST", "/v1/refunds/r-1/actions/" + action, `{"by":1}`})
	}
	// By operation, in the order above; the last six are the actions.
	for client, want := range map[string][4]int{
		"":          {401, 401, 401, 401},
		"unknown":   {401, 401, 401, 401},
		writeToken:  {200, 403, 403, 403},
		readToken:   {403, 200, 404, 403},
		ordersToken: {200, 200, 200, 403},
		auditToken:  {403, 200, 200, 403},
		reviewToken: {403, 200, 200, 422},
	} {
		for n, op := range operations {
			a := i.do(op.method, op.path, client, op.content)
			require.Equal(t, want[min(n, 3)], a.status, "%s %s as %q: %s", op.method, op.path, client, a.body)
			require.Equal(t, a.status == 401 || a.status == 403, a.header.Get("WWW-Authenticate") != "")
		}
	}
	for _, open := range []string{"/healthz", "/readyz", "/metrics"} {
		require.Equal(t, http.StatusOK, i.do("GET", open, "", "").status, open)
	}
}

// TestClientsSeeTheirOwnCases: of another client's case there is no sign.
func TestClientsSeeTheirOwnCases(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	shop, other := func(content string) answer { return i.do("POST", "/v1/refunds", shopToken, content) }, i.post
	require.Equal(t, 202, shop(body(nil)).status)
	require.Equal(t, 202, other(body(map[string]string{"refund_id": `"r-2"`})).status)

	ids := func(token string) (ids []string) {
		for _, c := range i.do("GET", "/v1/refunds", token, "").object(t)["cases"].([]any) {
			ids = append(ids, c.(map[string]any)["refund"].(map[string]any)["refund_id"].(string))
		}
		return ids
	}
	require.Equal(t, []string{"r-1"}, ids(shopToken))
	require.Equal(t, []string{"r-2"}, ids(ordersToken))
	require.Equal(t, []string{"r-2", "r-1"}, ids(auditToken))
	require.Equal(t, []string{"r-2", "r-1"}, ids(reviewToken))

	hidden, missing := i.get("/v1/refunds/r-1"), i.get("/v1/refunds/r-none")
	require.Equal(t, 404, hidden.status)
	require.Equal(t, missing.body, hidden.body, "not told from one that doesn't exist")

	t.Run("the same refund by another client", func(t *testing.T) {
		a := other(body(nil))
		require.Equal(t, 200, a.status, "it knows all of the content, and it is the same operation")
		require.Equal(t, "shop", a.object(t)["client"])
		require.Equal(t, 404, i.get("/v1/refunds/r-1").status, "the case stays the first one's")
		other(body(map[string]string{"reason": `"another"`})).problem(t, 409, "conflict")
	})
	t.Run("a case that was nobody's", func(t *testing.T) {
		content := body(map[string]string{"refund_id": `"r-3"`}) // came by the inbox, the command line or directly
		rf, err := DecodeRefund([]byte(content))
		require.NoError(t, err)
		_, _, err = l.Accept(t.Context(), ledger.Submission{Refund: rf, Deadline: testDeadline})
		require.NoError(t, err)
		require.Equal(t, 404, i.get("/v1/refunds/r-3").status)
		require.Equal(t, 200, i.do("GET", "/v1/refunds/r-3", reviewToken, "").status)
		require.Equal(t, 409, other(body(map[string]string{"refund_id": `"r-3"`, "reason": `"a guess"`})).status)
		require.Equal(t, 404, i.get("/v1/refunds/r-3").status, "a guess of its id is not enough")
		require.Equal(t, 200, other(content).status)
		require.Equal(t, 200, i.get("/v1/refunds/r-3").status, "it is the client's that knows what it asks for")
		require.Equal(t, 200, shop(content).status)
		require.Equal(t, 404, i.do("GET", "/v1/refunds/r-3", shopToken, "").status)
	})
}

// TestClientLimits: a client that is over its limit is told when it may come
// back, and may then; others aren't touched, nor is what needs no token.
func TestClientLimits(t *testing.T) {
	t.Parallel()
	i := newIntake(t, newLedger(t, testenv.MariaDB(t)), nil)
	limited := slices.IndexFunc(i.api.callers, func(c caller) bool { return c.name == "orders" })
	i.api.callers[limited].limit = rate.NewLimiter(0.4, 3) // one in 2.5 s

	require.Equal(t, 202, i.post(body(nil)).status)
	require.Equal(t, 200, i.get("/v1/refunds/r-1").status)
	require.Equal(t, 403, i.do("POST", "/v1/refunds/r-1/actions/note", ordersToken, "{}").status, "counts too")
	for range 5 { // being refused costs nothing
		a := i.post(body(nil))
		a.problem(t, 429, "too-many-requests")
		require.Contains(t, []string{"2", "3"}, a.header.Get("Retry-After"), "the rest of 2.5 s, rounded up")
	}
	i.get("/v1/refunds/r-1").problem(t, 429, "too-many-requests")
	require.Equal(t, 200, i.do("POST", "/v1/refunds", shopToken, body(nil)).status)
	require.Equal(t, 401, i.do("GET", "/v1/refunds/r-1", "unknown", "").status)
	require.Equal(t, 200, i.do("GET", "/readyz", "", "").status)
	require.InDelta(t, 5, samples(i.page()[telemetry.MetricIntakeRequests])["result=too-many-requests"], 0, "of submissions")

	time.Sleep(3 * time.Second)
	require.Equal(t, 200, i.post(body(nil)).status, "who comes back when told is served")
	i.post(body(nil)).problem(t, 429, "too-many-requests")
}

// TestOverLimit: the time until the next request to the nanosecond.
func TestOverLimit(t *testing.T) {
	t.Parallel()
	callers, err := newCallers(append(testClients()[:1], config.Client{TokenSHA256: testClients()[1].TokenSHA256, RequestsPerSecond: 4, Burst: 2}))
	require.NoError(t, err)
	require.InDelta(t, config.DefaultRequestsPerSecond, float64(callers[0].limit.Limit()), 0)
	require.Equal(t, config.DefaultBurst, callers[0].limit.Burst())

	c, now := callers[1], time.Now()
	require.Zero(t, c.overLimitAt(now))
	require.Zero(t, c.overLimitAt(now))
	require.Equal(t, 250*time.Millisecond, c.overLimitAt(now))
	require.Equal(t, 150*time.Millisecond, c.overLimitAt(now.Add(100*time.Millisecond)))
	require.Zero(t, c.overLimitAt(now.Add(250*time.Millisecond)))
	require.Equal(t, 250*time.Millisecond, c.overLimitAt(now.Add(250*time.Millisecond)))
	require.Zero(t, c.overLimitAt(now.Add(time.Hour)))
	require.Zero(t, c.overLimitAt(now.Add(time.Hour)))
	require.NotZero(t, c.overLimitAt(now.Add(time.Hour)), "no more than the burst is saved up")
}

// TestOverLimit_AtOnce: any number of requests at once that are refused cost
// nothing: each is told the rest of the time until the next one counts, and then
// it does. The burst is let through exactly.
func TestOverLimit_AtOnce(t *testing.T) {
	t.Parallel()
	const burst, interval = 10, 2 * time.Second
	callers, err := newCallers([]config.Client{{TokenSHA256: testClients()[0].TokenSHA256, RequestsPerSecond: 1 / interval.Seconds(), Burst: burst}})
	require.NoError(t, err)
	c := callers[0]
	begun := time.Now()
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 500 {
				switch wait := c.overLimit(); {
				case wait == 0:
					passed.Add(1)
				case wait > interval:
					t.Errorf("told to wait %s", wait)
					return
				}
			}
		})
	}
	all.Wait()
	earned := int64(time.Since(begun) / interval)
	require.GreaterOrEqual(t, passed.Load(), int64(burst))
	require.LessOrEqual(t, passed.Load(), burst+earned)
}
