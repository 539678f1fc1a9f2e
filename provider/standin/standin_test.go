package standin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider/standin"
)

func start(t *testing.T, o standin.Options) (*standin.Server, *standin.Client) {
	t.Helper()
	s, err := standin.New(o)
	require.NoError(t, err)
	require.NoError(t, s.Start("127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, standin.NewClient(s.URL())
}

// got is what a client saw of one call.
type got struct {
	status int
	header http.Header
	body   string
	err    error
}

func call(ctx context.Context, method, url, key, body string) got {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return got{err: err}
	}
	req.Header.Set("Authorization", "Bearer sk_test")
	req.GetBody = nil
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return got{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return got{resp.StatusCode, resp.Header, string(b), err}
}

func body(reference string) string {
	return fmt.Sprintf(`{"reference":%q,"payment_id":"pay_1","amount":1250,"currency":"TWD","reason":"damaged"}`, reference)
}

func post(t *testing.T, s *standin.Server, reference string) got {
	t.Helper()
	return call(t.Context(), http.MethodPost, s.URL()+"/v1/refunds", "refund-"+reference, body(reference))
}

func get(t *testing.T, s *standin.Server, path string) got {
	t.Helper()
	return call(t.Context(), http.MethodGet, s.URL()+path, "", "")
}

func refundOf(t *testing.T, g got) standin.Refund {
	t.Helper()
	require.NoError(t, g.err)
	var r standin.Refund
	require.NoError(t, json.Unmarshal([]byte(g.body), &r), g.body)
	return r
}

func requireCode(t *testing.T, g got, status int, code string) {
	t.Helper()
	require.NoError(t, g.err)
	require.Equal(t, status, g.status, g.body)
	require.Contains(t, g.body, fmt.Sprintf(`"code":%q`, code))
}

func executions(t *testing.T, c *standin.Client) map[string]int {
	t.Helper()
	n, err := c.Executions(t.Context())
	require.NoError(t, err)
	return n
}

func record(t *testing.T, c *standin.Client) []standin.Request {
	t.Helper()
	list, err := c.Record(t.Context())
	require.NoError(t, err)
	return list
}

func TestRefundIsExecutedAndFound(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	require.Equal(t, `{"data":[]}`, get(t, s, "/v1/refunds?reference=r-1").body)

	made := post(t, s, "r-1")
	require.Equal(t, http.StatusCreated, made.status)
	r := refundOf(t, made)
	require.Equal(t, "succeeded", r.Status)
	require.Equal(t, int64(1250), r.Amount)
	require.Equal(t, r, refundOf(t, get(t, s, "/v1/refunds/"+r.ID)))
	require.Contains(t, get(t, s, "/v1/refunds?reference=r-1").body, r.ID)
	requireCode(t, get(t, s, "/v1/refunds/re_none"), http.StatusNotFound, "not_found")
	require.Equal(t, map[string]int{"r-1": 1}, executions(t, c))
}

func TestRecordIsTakenAtTheSocket(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	post(t, s, "r-1")
	get(t, s, "/v1/refunds?reference=r-1")
	list := record(t, c)
	require.Len(t, list, 2)
	first, second := list[0], list[1]
	require.Equal(t, 1, first.Number)
	require.Equal(t, "HTTP/1.1", first.Proto)
	require.Equal(t, "POST", first.Method)
	require.Equal(t, "/v1/refunds", first.Path)
	require.Equal(t, "refund-r-1", first.Key)
	require.Equal(t, "r-1", first.Reference)
	require.Equal(t, len(body("r-1")), first.BodyBytes)
	require.Len(t, first.BodySHA256, 64)
	require.True(t, first.Executed)
	require.Equal(t, standin.AnswerSent, first.Answer)
	require.Equal(t, 1, first.InFlight)
	require.Equal(t, first.ConnectionMonoNS, first.ArrivedMonoNS)
	require.Greater(t, first.FinishedMonoNS, first.ArrivedMonoNS)
	require.Equal(t, "/v1/refunds?reference=r-1", second.Path)
	require.Equal(t, "r-1", second.Reference)
	require.False(t, second.Executed)
	require.NotEqual(t, first.Connection, second.Connection)
	require.Greater(t, second.ArrivedMonoNS, first.FinishedMonoNS)

	require.NoError(t, c.ClearRecord(t.Context()))
	require.Empty(t, record(t, c))
	require.Equal(t, map[string]int{"r-1": 1}, executions(t, c), "clearing the record forgets no money")
}

func TestReusedConnectionStampsEachRequest(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 3 {
		resp, err := client.Get(s.URL() + "/v1/refunds?reference=r-1")
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	list := record(t, c)
	require.Len(t, list, 3)
	for i, r := range list {
		require.Equal(t, list[0].Connection, r.Connection)
		require.Equal(t, list[0].ConnectionMonoNS, r.ConnectionMonoNS)
		if i > 0 {
			require.Greater(t, r.ArrivedMonoNS, list[i-1].FinishedMonoNS)
		}
	}
}

func TestCase10_KeyReplaysTheFirstAnswer(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	first := post(t, s, "r-1")
	again := post(t, s, "r-1")
	require.Equal(t, first.body, again.body)
	require.Equal(t, first.status, again.status)
	require.Equal(t, map[string]int{"r-1": 1}, executions(t, c))
	require.True(t, record(t, c)[1].Replayed)

	call(t.Context(), http.MethodPost, s.URL()+"/v1/refunds", "another-key", body("r-1"))
	require.Equal(t, map[string]int{"r-1": 2}, executions(t, c), "a key per call pays twice, and it shows")
}

func TestCase12_OtherBytesUnderTheKeyAreAMismatch(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	post(t, s, "r-1")
	edited := strings.Replace(body("r-1"), "damaged", "late", 1)
	requireCode(t, call(t.Context(), http.MethodPost, s.URL()+"/v1/refunds", "refund-r-1", edited), http.StatusConflict, "idempotency_mismatch")
	require.Equal(t, map[string]int{"r-1": 1}, executions(t, c))
}

func TestCase13_500AfterAcceptingIsReplayed(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.ErrorAfterAccept}, Times: 1}))
	for range 3 {
		require.Equal(t, http.StatusInternalServerError, post(t, s, "r-1").status)
	}
	require.Equal(t, map[string]int{"r-1": 1}, executions(t, c))
	require.Contains(t, get(t, s, "/v1/refunds?reference=r-1").body, `"succeeded"`)
}

func TestCase14_KeyIsForgottenAfterItsLifetime(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{KeyLifetime: time.Millisecond})
	post(t, s, "r-1")
	time.Sleep(2 * time.Millisecond) // the lifetime itself
	post(t, s, "r-1")
	require.Equal(t, map[string]int{"r-1": 2}, executions(t, c))
}

func TestKeyInUseIsInProgress(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.Hang, Execute: true}, Times: 1}))
	ctx, giveUp := context.WithCancel(t.Context())
	var hung got
	var wg sync.WaitGroup
	wg.Go(func() { hung = call(ctx, http.MethodPost, s.URL()+"/v1/refunds", "refund-r-1", body("r-1")) })
	_, err := c.WaitRecord(t.Context(), 1)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return executions(t, c)["r-1"] == 1 }, 5*time.Second, time.Millisecond)
	requireCode(t, post(t, s, "r-1"), http.StatusConflict, "in_progress")
	giveUp()
	wg.Wait()
	require.ErrorIs(t, hung.err, context.Canceled)
	require.Eventually(t, func() bool { return post(t, s, "r-1").status == http.StatusCreated }, 5*time.Second, 5*time.Millisecond)
	require.Equal(t, map[string]int{"r-1": 1}, executions(t, c))
	require.Equal(t, standin.AnswerClientGone, record(t, c)[0].Answer)
}

func TestFaults(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	for name, f := range map[string]struct {
		fault    standin.Fault
		executed bool
		answer   standin.AnswerKind
		check    func(*testing.T, got)
	}{
		"accept_then_drop": {standin.Fault{Kind: standin.AcceptThenDrop}, true, standin.AnswerDropped, func(t *testing.T, g got) {
			require.ErrorIs(t, g.err, io.EOF)
		}},
		"accept_then_reset": {standin.Fault{Kind: standin.AcceptThenReset}, true, standin.AnswerReset, func(t *testing.T, g got) {
			require.ErrorIs(t, g.err, syscall.ECONNRESET)
			require.Equal(t, http.StatusCreated, g.status)
			require.NotEmpty(t, g.body)
		}},
		"drop": {standin.Fault{Kind: standin.Drop}, false, standin.AnswerReset, func(t *testing.T, g got) {
			require.ErrorIs(t, g.err, syscall.ECONNRESET)
			require.Zero(t, g.status)
		}},
		"reject": {standin.Fault{Kind: standin.Reject, Code: "payment_disputed"}, false, standin.AnswerSent, func(t *testing.T, g got) {
			requireCode(t, g, http.StatusUnprocessableEntity, "payment_disputed")
		}},
		"busy": {standin.Fault{Kind: standin.Busy, RetryAfter: "2"}, false, standin.AnswerSent, func(t *testing.T, g got) {
			requireCode(t, g, http.StatusServiceUnavailable, "temporarily_unavailable")
			require.Equal(t, "2", g.header.Get("Retry-After"))
		}},
		"rate_limit": {standin.Fault{Kind: standin.RateLimit, RetryAfter: "soon"}, false, standin.AnswerSent, func(t *testing.T, g got) {
			requireCode(t, g, http.StatusTooManyRequests, "rate_limited")
			require.Equal(t, "soon", g.header.Get("Retry-After"))
		}},
		"deny": {standin.Fault{Kind: standin.Deny, Status: 403}, false, standin.AnswerSent, func(t *testing.T, g got) {
			require.Equal(t, http.StatusForbidden, g.status)
		}},
		"garbage": {standin.Fault{Kind: standin.Garbage, Execute: true}, true, standin.AnswerSent, func(t *testing.T, g got) {
			require.Equal(t, http.StatusOK, g.status)
			require.False(t, json.Valid([]byte(g.body)))
		}},
		"partial": {standin.Fault{Kind: standin.Partial}, false, standin.AnswerPartial, func(t *testing.T, g got) {
			require.ErrorIs(t, g.err, io.ErrUnexpectedEOF)
		}},
		"redirect": {standin.Fault{Kind: standin.Redirect, Status: 302, Location: "/elsewhere"}, false, standin.AnswerSent, func(t *testing.T, g got) {
			require.Equal(t, http.StatusFound, g.status)
			require.Equal(t, "/elsewhere", g.header.Get("Location"))
		}},
		"answer": {standin.Fault{Kind: standin.Answer, Status: 418, ContentType: "text/plain", Body: "tea"}, false, standin.AnswerSent, func(t *testing.T, g got) {
			require.Equal(t, http.StatusTeapot, g.status)
			require.Equal(t, "text/plain", g.header.Get("Content-Type"))
			require.Equal(t, "tea", g.body)
		}},
		"accepted, empty": {standin.Fault{Kind: standin.Pending, Status: 202, EmptyBody: true}, true, standin.AnswerSent, func(t *testing.T, g got) {
			require.Equal(t, http.StatusAccepted, g.status)
			require.Empty(t, g.body)
		}},
		"pending": {standin.Fault{Kind: standin.Pending}, true, standin.AnswerSent, func(t *testing.T, g got) {
			require.Equal(t, http.StatusCreated, g.status)
			require.Equal(t, "pending", refundOf(t, g).Status)
		}},
	} {
		reference := "f-" + strings.NewReplacer(" ", "-", ",", "", "_", "-").Replace(name)
		require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Match: standin.Match{Reference: reference}, Fault: f.fault}))
		t.Log(name)
		f.check(t, post(t, s, reference))
		want := 0
		if f.executed {
			want = 1
		}
		require.Equal(t, want, executions(t, c)[reference], name)
		list := record(t, c)
		last := list[len(list)-1]
		require.Equal(t, f.fault.Kind, last.Fault, name)
		require.Equal(t, f.executed, last.Executed, name)
		require.Equal(t, f.answer, last.Answer, name)
	}
}

func TestNotAcceptedBindsNoKey(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	for i, kind := range []standin.Kind{standin.Busy, standin.RateLimit, standin.Drop} {
		reference := fmt.Sprintf("r-%d", i)
		require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: kind}, Times: 1}))
		require.NotEqual(t, http.StatusCreated, post(t, s, reference).status)
		require.Equal(t, http.StatusCreated, post(t, s, reference).status)
		require.Equal(t, 1, executions(t, c)[reference])
	}
}

func TestDelayExecutesAtOnceAndAnswersLate(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.Delay, DelayMS: 150}}))
	require.Equal(t, http.StatusCreated, post(t, s, "r-1").status)
	r := record(t, c)[0]
	require.GreaterOrEqual(t, r.FinishedMonoNS-r.ArrivedMonoNS, int64(150*time.Millisecond))

	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Match: standin.Match{Method: "POST"}, Fault: standin.Fault{Kind: standin.Delay, DelayMS: 60_000}}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, call(ctx, http.MethodPost, s.URL()+"/v1/refunds", "refund-r-2", body("r-2")).err, context.DeadlineExceeded)
	require.Contains(t, get(t, s, "/v1/refunds?reference=r-2").body, `"succeeded"`, "a time-out at the client stops nothing here")
}

func TestPendingSettles(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetPlan(t.Context(),
		standin.Rule{Match: standin.Match{Reference: "good"}, Fault: standin.Fault{Kind: standin.Pending, Status: 202, SettleMS: 20}},
		standin.Rule{Match: standin.Match{Reference: "bad"}, Fault: standin.Fault{Kind: standin.Pending, SettleMS: 20, SettleTo: "failed"}},
		standin.Rule{Match: standin.Match{Reference: "never"}, Fault: standin.Fault{Kind: standin.Pending}},
	))
	for reference, end := range map[string]string{"good": "succeeded", "bad": "failed", "never": "pending"} {
		r := refundOf(t, post(t, s, reference))
		require.Equal(t, "pending", r.Status)
		require.Eventually(t, func() bool { return refundOf(t, get(t, s, "/v1/refunds/"+r.ID)).Status == end }, 5*time.Second, 5*time.Millisecond)
		require.Equal(t, r, refundOf(t, post(t, s, reference)), "the key still replays the first answer")
	}
}

func TestPlanMatching(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	status := func(reference string) int { return post(t, s, reference).status }
	busy := standin.Fault{Kind: standin.Busy}

	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Match: standin.Match{FromRequest: 2, ToRequest: 3}, Fault: busy}))
	require.Equal(t, []int{201, 503, 503, 201}, []int{status("n-1"), status("n-2"), status("n-3"), status("n-4")})

	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Match: standin.Match{Reference: "slow-*"}, Fault: busy, Times: 1, PerReference: true}))
	require.Equal(t, []int{503, 503, 201, 201, 201}, []int{status("slow-1"), status("slow-2"), status("slow-1"), status("slow-2"), status("fast")})
	rules, err := c.Plan(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, rules[0].Hits)

	require.NoError(t, c.SetPlan(t.Context(),
		standin.Rule{Match: standin.Match{Method: "GET"}, Fault: busy},
		standin.Rule{Fault: standin.Fault{Kind: standin.Reject, Code: "unknown_payment"}, Times: 1},
		standin.Rule{Fault: standin.Fault{Kind: standin.Deny, Status: 401}, Times: 1},
	))
	require.Equal(t, []int{422, 401, 201}, []int{status("o-1"), status("o-2"), status("o-3")}, "in order, until used up")
	require.Equal(t, http.StatusServiceUnavailable, get(t, s, "/v1/refunds?reference=o-1").status)

	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Match: standin.Match{FromMS: 700, ToMS: 60_000}, Fault: busy}))
	require.Equal(t, http.StatusCreated, status("w-1"))
	require.Eventually(t, func() bool {
		return status("w-2") == http.StatusServiceUnavailable || status("w-3") == http.StatusServiceUnavailable
	},
		5*time.Second, 10*time.Millisecond)
}

func TestBadPlansAreRefusedAndChangeNothing(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.Busy}}))
	for plan, want := range map[string]string{
		`{"rules":[{"fault":{"kind":"explode"}}]}`:                                        `rule 1: unknown fault kind "explode"`,
		`{"rules":[{"fault":{"kind":"busy"}},{"fault":{"kind":"delay"}}]}`:                "rule 2: delay needs delay_ms",
		`{"rules":[{"fault":{"kind":"hang","code":"x"}}]}`:                                "hang takes no code",
		`{"rules":[{"fault":{"kind":"reject"}}]}`:                                         "reject needs a code",
		`{"rules":[{"fault":{"kind":"deny","status":500}}]}`:                              "deny takes status 401 403",
		`{"rules":[{"fault":{"kind":"redirect","status":200}}]}`:                          "redirect takes status",
		`{"rules":[{"fault":{"kind":"answer","status":99}}]}`:                             "answer needs a status",
		`{"rules":[{"fault":{"kind":"pending","empty_body":true}}]}`:                      "empty body",
		`{"rules":[{"fault":{"kind":"pending","settle_to":"failed"}}]}`:                   "settle_to needs settle_ms",
		`{"rules":[{"fault":{"kind":"pending","settle_ms":5,"settle_to":"lost"}}]}`:       "settle_to must be",
		`{"rules":[{"fault":{"kind":"busy","delay_ms":-1}}]}`:                             "must not be negative",
		`{"rules":[{"fault":{"kind":"busy","retry_after":"1\r\nX: y"}}]}`:                 "must be one line",
		`{"rules":[{"fault":{"kind":"busy"},"times":-1}]}`:                                "must not be negative",
		`{"rules":[{"fault":{"kind":"busy"},"per_reference":true}]}`:                      "per_reference needs times",
		`{"rules":[{"match":{"method":"PUT"},"fault":{"kind":"busy"}}]}`:                  "method must be",
		`{"rules":[{"match":{"method":"GET"},"fault":{"kind":"reject","code":"x"}}]}`:     "no meaning for GET",
		`{"rules":[{"match":{"reference":"a*b"},"fault":{"kind":"busy"}}]}`:               "only at its end",
		`{"rules":[{"match":{"from_request":5,"to_request":2},"fault":{"kind":"busy"}}]}`: "to_request is before",
		`{"rules":[{"match":{"from_ms":5,"to_ms":5},"fault":{"kind":"busy"}}]}`:           "to_ms is not after",
		`{"rules":[{"match":{"refund":"r"},"fault":{"kind":"busy"}}]}`:                    `unknown field "refund"`,
		`{"rules":[]} {}`: "more than one JSON value",
		`nonsense`:        "reading the body",
	} {
		g := call(t.Context(), http.MethodPut, s.URL()+"/control/plan", "", plan)
		require.NoError(t, g.err)
		require.Equal(t, http.StatusBadRequest, g.status, plan)
		var e struct{ Error string }
		require.NoError(t, json.Unmarshal([]byte(g.body), &e))
		require.Contains(t, e.Error, want, plan)
	}
	require.Equal(t, http.StatusServiceUnavailable, post(t, s, "r-1").status, "the old plan still holds")
	require.ErrorContains(t, c.SetPlan(t.Context(), standin.Rule{}), "unknown fault kind")
}

func TestInvalidRequestsAreRejected(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{APIKey: "sk_test"})
	for i, bad := range []string{
		"", "null", "[]", "{", `{"reference":"r-1"}`,
		strings.Replace(body("r-1"), "1250", "0", 1),
		strings.Replace(body("r-1"), "1250", "12.5", 1),
		strings.Replace(body("r-1"), "1250", `"1250"`, 1),
		strings.Replace(body("r-1"), "TWD", "twd", 1),
		strings.Replace(body("r-1"), "damaged", strings.Repeat("x", 1<<20), 1),
	} {
		requireCode(t, call(t.Context(), http.MethodPost, s.URL()+"/v1/refunds", fmt.Sprint("key-", i), bad), http.StatusUnprocessableEntity, "invalid_request")
	}
	requireCode(t, call(t.Context(), http.MethodPost, s.URL()+"/v1/refunds", "", body("r-1")), http.StatusUnprocessableEntity, "invalid_request")
	requireCode(t, get(t, s, "/v1/refunds"), http.StatusUnprocessableEntity, "invalid_request")
	requireCode(t, get(t, s, "/v1/elsewhere"), http.StatusNotFound, "no_such_endpoint")
	require.Empty(t, executions(t, c))

	resp, err := http.Post(s.URL()+"/v1/refunds", "application/json", strings.NewReader(body("r-1")))
	require.NoError(t, err)
	_ = resp.Body.Close()
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	require.Empty(t, executions(t, c))
}

func TestDescribedPaymentIsEnforced(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	require.ErrorContains(t, c.SetPayment(t.Context(), "pay_1", standin.Payment{}), "positive amount")
	require.NoError(t, c.SetPayment(t.Context(), "pay_1", standin.Payment{Amount: 2000, Currency: "TWD"}))
	require.Equal(t, http.StatusCreated, post(t, s, "r-1").status)
	requireCode(t, post(t, s, "r-2"), http.StatusUnprocessableEntity, "amount_exceeds_remaining")
	require.NoError(t, c.SetPayment(t.Context(), "pay_1", standin.Payment{Amount: 1250, Currency: "TWD"}))
	requireCode(t, post(t, s, "r-3"), http.StatusUnprocessableEntity, "already_refunded")
	require.NoError(t, c.SetPayment(t.Context(), "pay_1", standin.Payment{Amount: 9000, Currency: "JPY"}))
	requireCode(t, post(t, s, "r-4"), http.StatusUnprocessableEntity, "currency_mismatch")
	require.Equal(t, map[string]int{"r-1": 1}, executions(t, c))
}

func TestCase19_RefundFailsAfterSuccess(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	r := refundOf(t, post(t, s, "r-1"))
	require.NoError(t, c.SetStatus(t.Context(), r.ID, "failed", "account_closed"))
	r = refundOf(t, get(t, s, "/v1/refunds/"+r.ID))
	require.Equal(t, "failed", r.Status)
	require.Equal(t, "account_closed", r.Failure.Code)
	require.ErrorContains(t, c.SetStatus(t.Context(), "re_none", "failed", ""), "no such refund")
	require.ErrorContains(t, c.SetStatus(t.Context(), r.ID, "gone", ""), "status must be")
	require.ErrorContains(t, c.SetStatus(t.Context(), r.ID, "succeeded", "x"), "only a failed refund")
}

func TestSettlementReport(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	r := refundOf(t, post(t, s, "r-1"))
	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.Pending}}))
	post(t, s, "r-2")
	report, err := c.Settlement(t.Context())
	require.NoError(t, err)
	require.Equal(t, "refund_id,reference,payment_id,amount,currency,status,settled_at\n"+
		r.ID+",r-1,pay_1,1250,TWD,succeeded,"+r.CreatedAt.Format(time.RFC3339)+"\n", string(report))
}

func TestSettlementReportFollowsLaterChanges(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	late := refundOf(t, post(t, s, "r-1"))
	byHand, err := c.AddRefund(t.Context(), standin.Refund{Reference: "r-2", PaymentID: "pay_2", Amount: 99, Currency: "JPY"})
	require.NoError(t, err)
	require.NoError(t, c.SetStatus(t.Context(), late.ID, "failed", "account_closed"))
	report, err := c.Settlement(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(report), "\n"+late.ID+",r-1,pay_1,1250,TWD,failed,")
	require.Contains(t, string(report), "\n"+byHand.ID+",r-2,pay_2,99,JPY,succeeded,")
}

func TestRefundsMadeByHand(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	s, c := start(t, standin.Options{StateFile: state})
	made, err := c.AddRefund(t.Context(), standin.Refund{ID: "mine", Reference: "r-1", PaymentID: "pay_1", Amount: 99, Currency: "TWD"})
	require.NoError(t, err)
	require.NotEqual(t, "mine", made.ID, "the provider gives the id")
	require.Equal(t, "succeeded", made.Status)
	require.Equal(t, made, refundOf(t, get(t, s, "/v1/refunds/"+made.ID)))
	require.Equal(t, map[string]int{"r-1": 1}, executions(t, c))
	for want, r := range map[string]standin.Refund{
		"needs a payment_id": {Amount: 1, Currency: "TWD"},
		"positive amount":    {PaymentID: "pay_1", Currency: "TWD"},
		"and a currency":     {PaymentID: "pay_1", Amount: 1},
		"status must be":     {PaymentID: "pay_1", Amount: 1, Currency: "TWD", Status: "held"},
	} {
		_, err := c.AddRefund(t.Context(), r)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, s.Close())
	_, again := start(t, standin.Options{StateFile: state})
	require.Equal(t, map[string]int{"r-1": 1}, executions(t, again), "it survives like any other")
}

func TestRefundsOfOneReferenceAreAllListed(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	first := refundOf(t, post(t, s, "r-1"))
	require.NoError(t, c.SetStatus(t.Context(), first.ID, "failed", "account_closed"))
	corrected := strings.Replace(body("r-1"), "pay_1", "pay_2", 1)
	second := refundOf(t, call(t.Context(), http.MethodPost, s.URL()+"/v1/refunds", "refund-r-1.g2", corrected))
	require.Equal(t, "pay_2", second.PaymentID)
	var found struct{ Data []standin.Refund }
	require.NoError(t, json.Unmarshal([]byte(get(t, s, "/v1/refunds?reference=r-1").body), &found))
	require.Len(t, found.Data, 2)
	require.Equal(t, "failed", found.Data[0].Status)
	require.Equal(t, second, found.Data[1])
}

func TestHundredsOfConnections(t *testing.T) {
	t.Parallel()
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.Delay, DelayMS: 300}}))
	const n = 300
	var wg sync.WaitGroup
	statuses := make([]int, n)
	for i := range n {
		wg.Go(func() {
			ref := fmt.Sprintf("r-%d", i)
			statuses[i] = call(t.Context(), http.MethodPost, s.URL()+"/v1/refunds", "refund-"+ref, body(ref)).status
		})
	}
	wg.Wait()
	for i := range n {
		require.Equal(t, http.StatusCreated, statuses[i])
	}
	list := record(t, c)
	require.Len(t, list, n)
	connections, most := map[int]bool{}, 0
	for _, r := range list {
		connections[r.Connection] = true
		most = max(most, r.InFlight)
	}
	require.Len(t, connections, n)
	require.Greater(t, most, 100, "they were there together")
	for reference, times := range executions(t, c) {
		require.Equal(t, 1, times, reference)
	}
	require.Len(t, executions(t, c), n)
}

func TestCloseEndsWhatHangs(t *testing.T) {
	t.Parallel()
	s, err := standin.New(standin.Options{})
	require.NoError(t, err)
	require.NoError(t, s.Start("localhost:0"))
	c := standin.NewClient(s.URL())
	require.NoError(t, c.SetPlan(t.Context(),
		standin.Rule{Match: standin.Match{Reference: "hang"}, Fault: standin.Fault{Kind: standin.Hang}},
		standin.Rule{Fault: standin.Fault{Kind: standin.Pending, DelayMS: 60_000, SettleMS: 60_000}},
	))
	var wg sync.WaitGroup
	for _, ref := range []string{"hang", "wait"} {
		wg.Go(func() {
			call(context.Background(), http.MethodPost, s.URL()+"/v1/refunds", ref, body(ref))
		})
	}
	_, err = c.WaitRecord(t.Context(), 2)
	require.NoError(t, err)
	begin := time.Now()
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "closing twice is fine")
	wg.Wait()
	require.Less(t, time.Since(begin), 5*time.Second)
}

func TestListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	s, err := standin.New(standin.Options{})
	require.NoError(t, err)
	defer s.Close()
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0"} {
		require.ErrorContains(t, s.Start(addr), "not loopback", addr)
	}
	require.ErrorContains(t, s.Start("nonsense"), "listen address")
}

func TestStateFileHasOneOwnerAndToleratesATornLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	s, err := standin.New(standin.Options{StateFile: path})
	require.NoError(t, err)
	require.NoError(t, s.Start("127.0.0.1:0"))
	first := post(t, s, "r-1")
	require.NoError(t, standin.NewClient(s.URL()).SetPayment(t.Context(), "pay_9", standin.Payment{Amount: 1, Currency: "TWD"}))
	_, err = standin.New(standin.Options{StateFile: path})
	require.ErrorContains(t, err, "another stand-in uses it")
	require.NoError(t, s.Close())

	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"key":{"key":"torn`)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	for range 2 { // the second time reads what was written after the cut
		s, c := reopen(t, path)
		require.Equal(t, first.body, post(t, s, "r-1").body)
		require.Equal(t, 1, executions(t, c)["r-1"])
		post(t, s, "r-2")
		require.Equal(t, 1, executions(t, c)["r-2"])
		require.NoError(t, s.Close())
	}
	require.NoError(t, os.WriteFile(path, []byte("nonsense\n"), 0o600))
	_, err = standin.New(standin.Options{StateFile: path})
	require.ErrorContains(t, err, "line 1")
}

func reopen(t *testing.T, path string) (*standin.Server, *standin.Client) {
	t.Helper()
	return start(t, standin.Options{StateFile: path})
}

// TestMain lets the test binary be a stand-in of its own, to be killed.
func TestMain(m *testing.M) {
	if path := os.Getenv("STANDIN_TEST_STATE"); path != "" {
		s, err := standin.New(standin.Options{StateFile: path})
		if err == nil {
			err = s.Start("127.0.0.1:0")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(s.URL())
		select {} // until killed
	}
	os.Exit(m.Run())
}

func TestKillForgetsNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "STANDIN_TEST_STATE="+path)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var url string
	_, err = fmt.Fscanln(out, &url)
	require.NoError(t, err)
	c := standin.NewClient(url)
	require.NoError(t, c.SetPlan(t.Context(),
		standin.Rule{Match: standin.Match{Reference: "dropped"}, Fault: standin.Fault{Kind: standin.AcceptThenDrop}},
		standin.Rule{Match: standin.Match{Reference: "pending"}, Fault: standin.Fault{Kind: standin.Pending, SettleMS: 1}},
	))
	send := func(url, ref string) got {
		return call(t.Context(), http.MethodPost, url+"/v1/refunds", "refund-"+ref, body(ref))
	}
	answers := map[string]got{}
	for _, ref := range []string{"done", "dropped", "pending"} {
		answers[ref] = send(url, ref)
	}
	require.NoError(t, child.Process.Kill())
	_ = child.Wait() // says "killed"

	s, c := reopen(t, path)
	require.Equal(t, answers["done"].body, send(s.URL(), "done").body)
	require.Equal(t, answers["pending"].body, send(s.URL(), "pending").body)
	require.Equal(t, http.StatusCreated, send(s.URL(), "dropped").status)
	require.Equal(t, map[string]int{"done": 1, "dropped": 1, "pending": 1}, executions(t, c))
	require.Eventually(t, func() bool {
		return strings.Contains(get(t, s, "/v1/refunds?reference=pending").body, `"succeeded"`)
	}, 5*time.Second, 5*time.Millisecond, "an open settlement goes on")
}
