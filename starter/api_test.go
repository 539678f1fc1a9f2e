package starter

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

func TestSubmitAndShow(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	woken := 0
	i := newIntake(t, l, func() { woken++ })

	first := i.post(body(nil))
	require.Equal(t, http.StatusAccepted, first.status, string(first.body))
	require.Equal(t, "/v1/refunds/r-1", first.header.Get("Location"))
	require.Equal(t, "application/json", first.header.Get("Content-Type"))
	require.Equal(t, "no-store", first.header.Get("Cache-Control"))
	got := first.object(t)
	require.Equal(t, "queued", got["status"])
	require.EqualValues(t, 0, got["attempts"])
	require.EqualValues(t, 1250, got["refund"].(map[string]any)["amount"].(map[string]any)["value"])
	require.Equal(t, "http://ui.example/namespaces/refunds/workflows/refund-r-1", got["web_ui_url"])
	require.NotContains(t, got, "calls", "the trail belongs to GET")
	accepted, err := time.Parse(time.RFC3339, got["accepted_at"].(string))
	require.NoError(t, err)
	deadline, err := time.Parse(time.RFC3339, got["deadline_at"].(string))
	require.NoError(t, err)
	require.Equal(t, testDeadline, deadline.Sub(accepted))

	again := i.post(body(nil))
	require.Equal(t, http.StatusOK, again.status)
	require.Equal(t, "/v1/refunds/r-1", again.header.Get("Location"))
	require.Equal(t, first.object(t), again.object(t))

	conflict := i.post(body(map[string]string{"amount": `{"value":1251,"currency":"TWD"}`})).problem(t, 409, "conflict")
	require.Equal(t, "/v1/refunds/r-1", conflict.CaseURL)

	shown := i.get("/v1/refunds/r-1").object(t)
	require.Equal(t, "queued", shown["status"])
	require.Equal(t, []any{}, shown["calls"])
	require.Equal(t, got["web_ui_url"], shown["web_ui_url"])
	events := shown["events"].([]any)
	require.Len(t, events, 1)
	require.Equal(t, ledger.ActionAccepted, events[0].(map[string]any)["action"])
	require.Equal(t, "mei", events[0].(map[string]any)["actor"])

	i.get("/v1/refunds/r-2").problem(t, 404, "not-found")
	i.get("/v1/refunds/-").problem(t, 404, "not-found")

	require.Equal(t, 1, woken, "only what was accepted wakes the relay")
	about := func(level, event string) map[string]any {
		return map[string]any{"level": level, "msg": event, "event": event, "refund_id": "r-1", "account": "main", "client": "orders"}
	}
	require.Equal(t, []map[string]any{about("INFO", "refund.accepted")}, i.events("refund.accepted"))
	require.Equal(t, []map[string]any{about("INFO", "refund.duplicate")}, i.events("refund.duplicate"))
	conflicted := about("WARN", "refund.conflict")
	conflicted["status"], conflicted["problem"] = 409.0, "conflict"
	require.Equal(t, []map[string]any{conflicted}, i.events("refund.conflict"))
	require.Empty(t, i.events("intake.refused"))
	require.NotContains(t, i.logs.String(), "broken on arrival")
	require.NotContains(t, i.logs.String(), "mei")
}

// TestShowTrail: a case that has been worked on shows each call.
func TestShowTrail(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	require.Equal(t, 202, i.post(body(nil)).status)

	lock, err := l.AcquireEgress(t.Context(), "main", "test")
	require.NoError(t, err)
	call := refund.Call{
		Key:    refund.CallKey{RefundID: "r-1", Generation: 1, Kind: refund.KindSubmit, Seq: 1},
		Origin: refund.OriginFirst, Account: "main", IntentAt: time.Now(),
	}
	_, err = lock.Intent(t.Context(), ledger.Intent{Call: call, IdempotencyKey: "refund-r-1", Body: []byte("{}"), MaxAttempts: 3})
	require.NoError(t, err)
	require.NoError(t, lock.Release(t.Context()))

	var shown struct {
		Attempts int
		Calls    []refund.Call
	}
	require.NoError(t, json.Unmarshal(i.get("/v1/refunds/r-1").body, &shown))
	require.Equal(t, 1, shown.Attempts)
	require.Len(t, shown.Calls, 1)
	require.Equal(t, call.Key, shown.Calls[0].Key)

	require.EqualValues(t, 1, i.post(body(nil)).object(t)["attempts"], "a repeat shows the case as it stands")
}

// TestBadInput sends everything that must be refused and checks the exact
// answers, and that nothing of it was stored or logged.
func TestBadInput(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, func() { t.Error("nothing was accepted") })

	for content, want := range badFields {
		p := i.post(content).problem(t, 422, "invalid-refund")
		require.ElementsMatch(t, want, p.Errors, content)
	}
	for content, want := range malformed {
		a := i.do("POST", "/v1/refunds", ordersToken, content, "Content-Type", "application/json")
		require.Equal(t, want, a.problem(t, 400, "malformed-body").Detail)
	}
	unknown := i.post(body(map[string]string{"account": `"other"`})).problem(t, 422, "invalid-refund")
	require.Equal(t, []refund.FieldError{{Field: "account", Message: "is not a configured account"}}, unknown.Errors)

	huge := body(map[string]string{"reason": `"` + strings.Repeat("x", maxBody) + `"`})
	require.Equal(t, "It may have 65536 bytes.", i.post(huge).problem(t, 413, "too-large").Detail)
	largest := body(nil) + strings.Repeat(" ", maxBody-len(body(nil))+1)
	i.post(largest).problem(t, 413, "too-large")

	for _, contentType := range []string{"text/plain", "application/x-www-form-urlencoded", "application/json; charset=big5", "application/json;;", ""} {
		i.do("POST", "/v1/refunds", ordersToken, body(nil), "Content-Type", contentType).problem(t, 415, "unsupported-media-type")
	}
	i.do("POST", "/v1/refunds", ordersToken, body(nil), "Content-Encoding", "gzip").problem(t, 415, "unsupported-media-type")

	page, err := l.List(t.Context(), ledger.Filter{})
	require.NoError(t, err)
	require.Empty(t, page.Cases, "nothing that was refused is stored")
	for _, e := range i.events("intake.refused") {
		require.Equal(t, "orders", e["client"])
		require.Subset(t, []string{"level", "msg", "event", "client", "status", "problem"}, keys(e), "nothing of a body is logged")
	}
	require.Len(t, i.events("intake.refused"), len(badFields)+len(malformed)+9)
}

func keys(m map[string]any) []string {
	var names []string
	for k := range m {
		names = append(names, k)
	}
	return names
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	i := newIntake(t, newLedger(t, testenv.MariaDB(t)), nil)
	for n, contentType := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"} {
		content := body(map[string]string{"refund_id": fmt.Sprintf(`"r-%d"`, n)})
		a := i.do("POST", "/v1/refunds", ordersToken, content, "Content-Type", contentType)
		require.Equal(t, 202, a.status, string(a.body))
	}
	full := body(nil) + strings.Repeat(" ", maxBody-len(body(nil)))
	require.Equal(t, 200, i.post(full).status, "the limit itself is allowed")
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	i := newIntake(t, newLedger(t, testenv.MariaDB(t)), nil)

	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + writeToken, writeToken, "Bearer  " + writeToken, "Bearer " + writeToken + " x"} {
		for _, call := range [][2]string{{"POST", "/v1/refunds"}, {"GET", "/v1/refunds"}, {"GET", "/v1/refunds/r-1"}} {
			a := i.do(call[0], call[1], "", body(nil), "Authorization", authorization)
			a.problem(t, 401, "unauthorized")
			require.Equal(t, `Bearer realm="refundgate"`, a.header.Get("WWW-Authenticate"))
		}
	}
	a := i.do("POST", "/v1/refunds", readToken, body(nil))
	require.Equal(t, "It needs the scope refunds:write.", a.problem(t, 403, "forbidden").Detail)
	require.Equal(t, `Bearer realm="refundgate", error="insufficient_scope", scope="refunds:write"`, a.header.Get("WWW-Authenticate"))
	i.do("GET", "/v1/refunds", writeToken, "").problem(t, 403, "forbidden")
	i.do("GET", "/v1/refunds/r-1", writeToken, "").problem(t, 403, "forbidden")

	require.Equal(t, 202, i.do("POST", "/v1/refunds", "", body(nil), "Authorization", "bearer "+writeToken).status)
	require.Equal(t, 200, i.do("GET", "/v1/refunds/r-1", auditToken, "").status)
	for _, token := range []string{writeToken, readToken, ordersToken} {
		require.NotContains(t, i.logs.String(), token)
	}
}

func TestRouting(t *testing.T) {
	t.Parallel()
	i := newIntake(t, newLedger(t, testenv.MariaDB(t)), nil)
	for path, allow := range map[string]string{
		"/v1/refunds": "GET, HEAD, POST", "/v1/refunds/r-1": "GET, HEAD", "/healthz": "GET, HEAD", "/readyz": "GET, HEAD",
		"/openapi.yaml": "GET, HEAD",
	} {
		a := i.do("DELETE", path, ordersToken, "")
		a.problem(t, 405, "method-not-allowed")
		require.Equal(t, allow, a.header.Get("Allow"))
	}
	for _, path := range []string{"/", "/v1", "/v1/refunds/", "/v1/refunds/r-1/x", "/v2/refunds"} {
		i.get(path).problem(t, 404, "not-found")
	}
	require.JSONEq(t, `{"status":"ok","egress":{"main":{"owned":false},"second":{"owned":false}}}`, string(i.do("GET", "/healthz", "", "").body))
	require.JSONEq(t, `{"status":"ready"}`, string(i.do("GET", "/readyz", "", "").body))
}

func TestList(t *testing.T) {
	t.Parallel()
	i := newIntake(t, newLedger(t, testenv.MariaDB(t)), nil)
	for n := range 5 {
		account := []string{`"main"`, `"second"`}[n%2]
		require.Equal(t, 202, i.post(body(map[string]string{"refund_id": fmt.Sprintf(`"r-%d"`, n), "account": account})).status)
	}
	list := func(query string) (ids []string, next string) {
		a := i.get("/v1/refunds" + query)
		require.Equal(t, 200, a.status, string(a.body))
		require.NotContains(t, string(a.body), `"calls"`)
		var page struct {
			Cases []struct {
				Refund   refund.Refund `json:"refund"`
				WebUIURL string        `json:"web_ui_url"`
			} `json:"cases"`
			NextCursor string `json:"next_cursor"`
		}
		require.NoError(t, json.Unmarshal(a.body, &page))
		for _, c := range page.Cases {
			ids = append(ids, c.Refund.ID)
			require.Equal(t, i.api.webUIURL(c.Refund.ID), c.WebUIURL)
		}
		return ids, page.NextCursor
	}

	ids, next := list("")
	require.Equal(t, []string{"r-4", "r-3", "r-2", "r-1", "r-0"}, ids, "the newest first")
	require.Empty(t, next)
	ids, next = list("?limit=2&status=queued")
	require.Equal(t, []string{"r-4", "r-3"}, ids)
	ids, next = list("?limit=2&status=queued&cursor=" + next)
	require.Equal(t, []string{"r-2", "r-1"}, ids)
	ids, next = list("?limit=2&status=queued&cursor=" + next)
	require.Equal(t, []string{"r-0"}, ids)
	require.Empty(t, next)
	ids, _ = list("?account=second")
	require.Equal(t, []string{"r-3", "r-1"}, ids)
	ids, _ = list("?status=review")
	require.Empty(t, ids)
	require.JSONEq(t, `{"cases":[]}`, string(i.get("/v1/refunds?owner=nobody").body))

	for query, want := range map[string]refund.FieldError{
		"status=done":              {Field: "status", Message: "must be one of [queued retrying unknown pending review succeeded rejected not_refunded]"},
		"status=":                  {Field: "status", Message: "must be one of [queued retrying unknown pending review succeeded rejected not_refunded]"},
		"state=review":             {Field: "state", Message: "is not a known parameter"},
		"status=review&status=new": {Field: "status", Message: "is there twice"},
		"limit=0":                  {Field: "limit", Message: "must be from 1 to 200"},
		"limit=201":                {Field: "limit", Message: "must be from 1 to 200"},
		"limit=ten":                {Field: "limit", Message: "must be from 1 to 200"},
		"owner=":                   {Field: "owner", Message: "must be a person's name"},
		"account=A":                {Field: "account", Message: "must be the name of an account"},
		"cursor=x":                 {Field: "cursor", Message: "is not a next_cursor of this API"},
		"%zz":                      {Field: "query", Message: "is not a valid URL query"},
	} {
		p := i.get("/v1/refunds?"+query).problem(t, 400, "invalid-query")
		require.Equal(t, []refund.FieldError{want}, p.Errors, query)
	}
}

// TestPaymentSum: the money of a payment can't be given back twice.
func TestPaymentSum(t *testing.T) {
	t.Parallel()
	i := newIntake(t, newLedger(t, testenv.MariaDB(t)), nil)
	part := func(id string, value int, payment string) answer {
		return i.post(body(map[string]string{
			"refund_id": `"` + id + `"`, "amount": fmt.Sprintf(`{"value":%d,"currency":"TWD"}`, value), "payment_amount": payment,
		}))
	}
	const hundred = `{"value":10000,"currency":"TWD"}`
	require.Equal(t, 202, part("r-1", 6000, hundred).status)
	p := part("r-2", 6000, hundred).problem(t, 422, "payment-exceeded")
	require.Equal(t, []refund.FieldError{{Field: "amount.value", Message: "exceeds what is left of the payment: 60.00 TWD of 100.00 TWD is refunded or reserved"}}, p.Errors)
	p = part("r-3", 1000, `{"value":20000,"currency":"TWD"}`).problem(t, 422, "payment-mismatch")
	require.Equal(t, []refund.FieldError{{Field: "payment_amount", Message: "is not what earlier refunds of the payment said: 100.00 TWD"}}, p.Errors)
	require.Equal(t, 202, part("r-4", 4000, hundred).status)
	require.Equal(t, 200, part("r-1", 6000, hundred).status, "a repeat is not counted again")

	refused := i.events("intake.refused")
	require.Len(t, refused, 2)
	require.Equal(t, "r-2", refused[0]["refund_id"])
	require.Equal(t, "payment-exceeded", refused[0]["problem"])
}

// TestCase06_OneIDFiftyTimesThroughTwoProcesses: one case, every caller gets
// it, and one workflow is started though two relays compete for it.
func TestCase06_OneIDFiftyTimesThroughTwoProcesses(t *testing.T) {
	t.Parallel()
	dsn := testenv.MariaDB(t)
	hostPort, namespace := testenv.Temporal(t)
	temporal := dial(t, hostPort, namespace)
	var intakes [2]*intake
	for n := range intakes {
		l := newLedger(t, dsn)
		relay := NewRelay(l, temporal, discard)
		runRelay(t, relay)
		intakes[n] = newIntake(t, l, relay.Wake)
	}

	answers := make([]answer, 50)
	var wg sync.WaitGroup
	for n := range answers {
		wg.Go(func() { answers[n] = intakes[n%2].post(body(nil)) })
	}
	wg.Wait()

	accepted := 0
	for _, a := range answers {
		require.Contains(t, []int{200, 202}, a.status, string(a.body))
		require.Equal(t, answers[0].object(t), a.object(t), "every caller gets the same case")
		if a.status == 202 {
			accepted++
		}
	}
	require.Equal(t, 1, accepted)
	l := openLedger(t, dsn)
	page, err := l.List(t.Context(), ledger.Filter{})
	require.NoError(t, err)
	require.Len(t, page.Cases, 1)
	waitStarted(t, l)
	require.Len(t, waitWorkflows(t, temporal, 1), 1)
}

// slowLedger holds every Accept until it is let go.
type slowLedger struct {
	*ledger.Ledger
	entered, release chan struct{}
	ctxErr           chan error // of the Accept's context, after the release
}

func newSlowLedger(l *ledger.Ledger) *slowLedger {
	return &slowLedger{Ledger: l, entered: make(chan struct{}, 1), release: make(chan struct{}), ctxErr: make(chan error, 1)}
}

func (s *slowLedger) Accept(ctx context.Context, sub ledger.Submission) (refund.Case, bool, error) {
	s.entered <- struct{}{}
	<-s.release
	c, created, err := s.Ledger.Accept(ctx, sub)
	s.ctxErr <- ctx.Err()
	return c, created, err
}

// TestClientThatHangsUp: once the body is read, the refund is accepted whether
// or not anybody waits for the answer.
func TestClientThatHangsUp(t *testing.T) {
	t.Parallel()
	slow := newSlowLedger(newLedger(t, testenv.MariaDB(t)))
	i := newIntake(t, slow, nil)

	conn, err := net.Dial("tcp", strings.TrimPrefix(i.url, "http://"))
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "POST /v1/refunds HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		ordersToken, len(body(nil)), body(nil))
	require.NoError(t, err)
	<-slow.entered
	require.NoError(t, conn.(*net.TCPConn).SetLinger(0))
	require.NoError(t, conn.Close())
	time.Sleep(100 * time.Millisecond) // for the server to notice, which must not matter
	close(slow.release)
	require.NoError(t, <-slow.ctxErr)

	c, err := slow.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, refund.StatusQueued, c.Status)
}

// TestClientThatHangsUpEarly: half a body is no refund.
func TestClientThatHangsUpEarly(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, func() { t.Error("nothing was accepted") })
	conn, err := net.Dial("tcp", strings.TrimPrefix(i.url, "http://"))
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "POST /v1/refunds HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		ordersToken, len(body(nil))+1, body(nil))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return len(i.events("intake.refused")) == 1 }, 5*time.Second, 10*time.Millisecond)
	page, err := l.List(t.Context(), ledger.Filter{})
	require.NoError(t, err)
	require.Empty(t, page.Cases)
}

// TestMySQLDown: while the database is away callers are told when to come
// back, nothing is half done, and the same request works afterwards.
func TestMySQLDown(t *testing.T) {
	t.Parallel()
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refunds"))
	l := newLedger(t, db.DSN("refunds"))
	i := newIntake(t, l, nil)
	require.Equal(t, 202, i.post(body(nil)).status)
	require.NoError(t, db.Kill())

	second := body(map[string]string{"refund_id": `"r-2"`})
	for _, a := range []answer{i.post(second), i.get("/v1/refunds/r-1"), i.get("/v1/refunds"), i.get("/readyz")} {
		a.problem(t, 503, "unavailable")
		require.Equal(t, "5", a.header.Get("Retry-After"))
	}
	require.Equal(t, "/v1/refunds/r-2", i.post(second).problem(t, 503, "unavailable").CaseURL)
	require.Equal(t, 200, i.get("/healthz").status, "the process itself is well")
	require.Len(t, i.events("intake.refused"), 2)

	require.NoError(t, db.Start(t.Context()))
	require.Equal(t, 200, i.get("/readyz").status)
	require.Equal(t, 200, i.post(body(nil)).status, "what was accepted is still there")
	require.Equal(t, 202, i.post(second).status, "what was refused was not stored")
	page, err := l.List(t.Context(), ledger.Filter{})
	require.NoError(t, err)
	require.Len(t, page.Cases, 2)
}

func TestBadTokenHashIsRefused(t *testing.T) {
	t.Parallel()
	for _, hash := range []string{"", "abc", strings.Repeat("0", 62), strings.Repeat("x", 64)} {
		clients := testClients()
		clients[1].TokenSHA256 = hash
		_, err := NewAPI(Options{Clients: clients})
		require.EqualError(t, err, `setting up the intake API: client "reader": token_sha256 is not a SHA-256 in hex`)
	}
}

// D4: who owns an account's egress, and its breaker's state, are in the health
// endpoint; without the database it still answers.
func TestHealthShowsTheEgress(t *testing.T) {
	t.Parallel()
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refundgate"))
	l := newLedger(t, db.DSN("refundgate"))
	i := newIntake(t, l, func() {})
	health := func() map[string]any { return i.do("GET", "/healthz", "", "").object(t) }

	lock, err := l.AcquireEgress(t.Context(), "main", "host-a:17")
	require.NoError(t, err)
	other, err := l.AcquireEgress(t.Context(), "not-configured", "host-a:17")
	require.NoError(t, err)
	require.NoError(t, lock.Report(t.Context(), ledger.Report{Gate: json.RawMessage(`{"breaker":"open","in_flight":3}`)}))
	require.NoError(t, lock.Verify(t.Context()), "which leaves the gate's state")
	egress := health()["egress"].(map[string]any)
	require.NotContains(t, egress, "not-configured")
	main := egress["main"].(map[string]any)
	require.Equal(t, true, main["owned"])
	require.Equal(t, "host-a:17", main["holder"])
	require.NotEmpty(t, main["seen_at"])
	require.Equal(t, map[string]any{"breaker": "open", "in_flight": 3.0}, main["gate"])

	// How long calls took, beside the budgets that end them.
	require.NotContains(t, main, "calls", "there were none")
	require.Equal(t, 202, i.post(body(nil)).status)
	started := time.Now().UTC().Truncate(time.Microsecond)
	finished := started.Add(2900 * time.Millisecond)
	call := refund.Call{
		Key:    refund.CallKey{RefundID: "r-1", Generation: 1, Kind: refund.KindSubmit, Seq: 1},
		Origin: refund.OriginFirst, Account: "main", IntentAt: started, StartedAt: &started, FinishedAt: &finished,
		Result: refund.Result{Outcome: refund.OutcomeUnknown, Budget: refund.BudgetOverall},
	}
	_, err = lock.Intent(t.Context(), ledger.Intent{Call: call, IdempotencyKey: "refund-r-1", Body: []byte("{}"), MaxAttempts: 3})
	require.NoError(t, err)
	require.NoError(t, l.Complete(t.Context(), call))
	calls := map[string]any{"connect_timeout_ms": 1000.0, "call_timeout_ms": 3000.0, "kinds": []any{map[string]any{
		"kind": "submit", "calls": 1.0, "timed_out": 1.0, "p50_ms": 2900.0, "p95_ms": 2900.0, "p99_ms": 2900.0, "max_ms": 2900.0,
		"since": started.Format(time.RFC3339Nano),
	}}}
	require.Equal(t, calls, health()["egress"].(map[string]any)["main"].(map[string]any)["calls"])

	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, other.Release(t.Context()))
	require.Equal(t, map[string]any{"owned": false, "calls": calls}, health()["egress"].(map[string]any)["main"])
	require.Equal(t, map[string]any{"owned": false}, health()["egress"].(map[string]any)["second"])
	next, err := l.AcquireEgress(t.Context(), "main", "host-b:1")
	require.NoError(t, err)
	owner, err := l.EgressOwner(t.Context(), "main")
	require.NoError(t, err)
	require.Empty(t, owner.Gate, "another owner's gate")
	require.NoError(t, next.Release(t.Context()))

	require.NoError(t, db.Kill())
	require.Equal(t, map[string]any{"status": "degraded"}, health())
}
