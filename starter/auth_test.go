package starter

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
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

// who are those that ask, in the order of the columns of authorizations.
var who = []struct{ name, authorization string }{
	{"nobody", ""},
	{"a wrong token", "Bearer unknown"},
	{"half a token", "Bearer " + ordersToken[:10]},
	{"another scheme", "Basic " + ordersToken},
	{"no scope", "Bearer " + idleToken},
	{"refunds:write", "Bearer " + writeToken},
	{"refunds:read", "Bearer " + readToken},
	{"refunds:read-all", "Bearer " + auditToken},
	{"review", "Bearer " + reviewToken},
	{"whose case it is", "Bearer " + ordersToken}, // refunds:write and refunds:read, as the next
	{"another client", "Bearer " + shopToken},
}

// authorizations say for every operation of the document how each of who is
// answered. It is answered by what it finds, so a 200, a 404 of a reader or a 422
// means "allowed". The case is that of the client orders.
var authorizations = map[string][11]int{
	"submitRefund": {401, 401, 401, 401, 403, 200, 403, 403, 403, 200, 200},
	"listRefunds":  {401, 401, 401, 401, 403, 403, 200, 200, 200, 200, 200},
	"showRefund":   {401, 401, 401, 401, 403, 403, 404, 200, 200, 200, 404},
	"assignCase":   {401, 401, 401, 401, 403, 403, 403, 403, 422, 403, 403},
	"noteCase":     {401, 401, 401, 401, 403, 403, 403, 403, 422, 403, 403},
	"checkCase":    {401, 401, 401, 401, 403, 403, 403, 403, 422, 403, 403},
	"resendCase":   {401, 401, 401, 401, 403, 403, 403, 403, 422, 403, 403},
	"correctCase":  {401, 401, 401, 401, 403, 403, 403, 403, 422, 403, 403},
	"settleCase":   {401, 401, 401, 401, 403, 403, 403, 403, 422, 403, 403},
	// Its signature lets it in, and no token does.
	"notify":  {401, 401, 401, 401, 401, 401, 401, 401, 401, 401, 401},
	"health":  {200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
	"ready":   {200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
	"metrics": {200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
	"openAPI": {200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200},
}

// listed are the cases that each of who finds in the list.
var listed = map[string]int{"refunds:read": 0, "refunds:read-all": 1, "review": 1, "whose case it is": 1, "another client": 0}

// TestScopes: what each client may call, for every operation that there is. A
// client that is over its limit may call none of those that ask for a token,
// whatever it is allowed; who has no valid token is told that and no more.
func TestScopes(t *testing.T) {
	t.Parallel()
	i := newDeskIntake(t, newLedger(t, testenv.MariaDB(t)), nil, &fakeDesk{})
	require.Equal(t, 202, i.post(body(nil)).status)
	ops := newDocument(t).operations()
	require.ElementsMatch(t, slices.Collect(maps.Keys(ops)), slices.Collect(maps.Keys(authorizations)))

	ask := func(op operation, method, authorization string) answer {
		path := strings.NewReplacer("{id}", "r-1", "{account}", "main").Replace(op.path)
		content := map[string]string{"submitRefund": body(nil), "notify": notification()}[op.id]
		if content == "" && op.method == http.MethodPost {
			content = `{"by":1}`
		}
		return i.do(method, path, "", content, "Authorization", authorization)
	}
	check := func(op operation, n, want int) answer {
		t.Helper()
		about := fmt.Sprintf("%s for %s", op.id, who[n].name)
		a := ask(op, op.method, who[n].authorization)
		require.Equal(t, want, a.status, "%s: %s", about, a.body)
		require.Equal(t, want == 401 || want == 403, a.header.Get("WWW-Authenticate") != "", about)
		if problems := map[int]string{401: "unauthorized", 403: "forbidden", 429: "too-many-requests"}; problems[want] != "" && op.id != "notify" {
			a.problem(t, want, problems[want])
			require.NotContains(t, string(a.body), "pay_1", about)
		}
		if op.method == http.MethodGet {
			require.Equal(t, want, ask(op, http.MethodHead, who[n].authorization).status, "HEAD, %s", about)
		}
		return a
	}
	for id, op := range ops {
		for n, want := range authorizations[id] {
			a := check(op, n, want)
			if id == "listRefunds" && want == 200 {
				require.Len(t, a.object(t)["cases"], listed[who[n].name], who[n].name)
			}
		}
	}

	for n := range i.api.callers {
		i.api.callers[n].limit = rate.NewLimiter(1, 0)
	}
	for id, op := range ops {
		for n, want := range authorizations[id] {
			if want != 401 && authorizations[id][0] == 401 {
				want = 429
			}
			a := check(op, n, want)
			require.Equal(t, want == 429, a.header.Get("Retry-After") != "", "%s for %s", id, who[n].name)
		}
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
