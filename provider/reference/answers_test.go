package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/refund"
)

const testSecret = "sk_test"

var testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// got makes the answer that the classifier sees; headers are "Name: value".
func got(status int, body string, headers ...string) answer {
	a := answer{status: status, header: http.Header{}, body: []byte(body), now: testNow, secret: testSecret}
	a.header.Set("Content-Type", "application/json; charset=utf-8")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		a.header.Set(name, value)
	}
	return a
}

func failing(err error) answer {
	return answer{err: fmt.Errorf("waiting for the answer: %w", err), now: testNow, secret: testSecret}
}

// ourRefund is the provider's view of ours(); replace is pairs of old and new
// text in it.
func ourRefund(replace ...string) string {
	s := `{"id":"re_1","reference":"r-1","payment_id":"pay_1","amount":1250,"currency":"TWD","status":"succeeded","created_at":"2026-03-01T12:00:00Z"}`
	return strings.NewReplacer(replace...).Replace(s)
}

func errorBody(code string) string {
	return fmt.Sprintf(`{"error":{"code":%q,"message":"no"}}`, code)
}

const (
	toPending = `"status":"pending"`
	succeeded = `"status":"succeeded"`
)

func failed(code string) string {
	return fmt.Sprintf(`"status":"failed","failure":{"code":%q,"message":"no"}`, code)
}

// same are the answers that mean the same to a send and to both checks.
func same() map[string]answerCase {
	huge := `{"x":"` + strings.Repeat("x", maxAnswer) + `"}`
	truncated := got(200, ourRefund()[:40])
	truncated.err = fmt.Errorf("reading the answer: %w", io.ErrUnexpectedEOF)
	stalled := got(200, "")
	stalled.err = fmt.Errorf("reading the answer: %w", context.DeadlineExceeded)
	bounded := got(200, "")
	bounded.err = fmt.Errorf("reading the answer: %w", &http.MaxBytesError{Limit: maxAnswer})

	unknown := func(code string) refund.Result {
		return refund.Result{Outcome: refund.OutcomeUnknown, Code: code}
	}
	busy := refund.Result{Outcome: refund.OutcomeBusy, Code: "temporarily_unavailable"}
	quota := refund.Result{Outcome: refund.OutcomeBusy, Code: "rate_limited", AccountWide: true}
	later := func(r refund.Result, d time.Duration) refund.Result {
		at := testNow.Add(d)
		r.RetryAt = &at
		return r
	}
	return map[string]answerCase{
		"Case33 429 for quota":            {got(429, errorBody("rate_limited"), "Retry-After: 7"), later(quota, 7*time.Second)},
		"429 for quota, no Retry-After":   {got(429, errorBody("rate_limited")), quota},
		"429 for quota, junk Retry-After": {got(429, errorBody("rate_limited"), "Retry-After: -3"), quota},
		"Case33 429 for a lock":           {got(429, errorBody("lock_timeout"), "Retry-After: 7"), unknown(refund.CodeUnreadable)},
		"429 without a code":              {got(429, `{}`), unknown(refund.CodeUnreadable)},
		"429 with another status's code":  {got(429, errorBody("temporarily_unavailable")), unknown(refund.CodeUnreadable)},
		"429 as text":                     {got(429, "slow down", "Content-Type: text/plain"), unknown(refund.CodeUnreadable)},
		"503 busy":                        {got(503, errorBody("temporarily_unavailable")), busy},
		"503 busy with a date":            {got(503, errorBody("temporarily_unavailable"), "Retry-After: Sun, 01 Mar 2026 12:00:30 GMT"), later(busy, 30*time.Second)},
		"503 of a proxy":                  {got(503, "<html>", "Content-Type: text/html"), unknown(refund.CodeUnreadable)},
		"503 empty":                       {got(503, ""), unknown(refund.CodeUnreadable)},
		"503 without its code":            {got(503, errorBody("rate_limited")), unknown(refund.CodeUnreadable)},
		"503 with a code in a wrong type": {got(503, `{"error":{"code":503}}`), unknown(refund.CodeUnreadable)},
		"503 with a code in another case": {got(503, `{"error":{"Code":"temporarily_unavailable"}}`), unknown(refund.CodeUnreadable)},

		"500":             {got(500, errorBody("internal")), unknown(refund.CodeUnreadable)},
		"502":             {got(502, "", "Content-Type: text/html"), unknown(refund.CodeUnreadable)},
		"504":             {got(504, ""), unknown(refund.CodeUnreadable)},
		"400":             {got(400, errorBody("invalid_request")), unknown(refund.CodeUnreadable)},
		"408":             {got(408, ""), unknown(refund.CodeUnreadable)},
		"307":             {got(307, "", "Location: /v2"), unknown(refund.CodeUnreadable)},
		"302 with refund": {got(302, ourRefund(), "Location: /v2"), unknown(refund.CodeUnreadable)},
		"204":             {got(204, ""), unknown(refund.CodeUnreadable)},
		"206":             {got(206, ourRefund()), unknown(refund.CodeUnreadable)},

		"200 empty":                 {got(200, ""), unknown(refund.CodeUnreadable)},
		"200 HTML":                  {got(200, "<html>ok</html>", "Content-Type: text/html"), unknown(refund.CodeUnreadable)},
		"200 null":                  {got(200, "null"), unknown(refund.CodeUnreadable)},
		"200 array":                 {got(200, "[]"), unknown(refund.CodeUnreadable)},
		"200 over 1 MiB":            {got(200, huge), unknown(refund.CodeUnreadable)},
		"200 over the gate's bound": {bounded, unknown(refund.CodeUnreadable)},
		"200 compressed":            {got(200, "\x1f\x8b\x08\x00", "Content-Encoding: gzip"), unknown(refund.CodeUnreadable)},
		"200 truncated":             {truncated, unknown(refund.CodeDisconnected)},
		"200 stalled body":          {stalled, unknown(refund.CodeTimeout)},

		"time-out by deadline": {failing(context.DeadlineExceeded), unknown(refund.CodeTimeout)},
		"time-out by socket":   {failing(os.ErrDeadlineExceeded), unknown(refund.CodeTimeout)},
		"reset":                {failing(syscall.ECONNRESET), unknown(refund.CodeDisconnected)},
		"closed":               {failing(io.EOF), unknown(refund.CodeDisconnected)},
		"cancelled":            {failing(context.Canceled), unknown(refund.CodeDisconnected)},
		"anything else":        {failing(errors.New("malformed HTTP response \"sk_test\"")), unknown(refund.CodeDisconnected)},
	}
}

type answerCase struct {
	answer answer
	want   refund.Result
}

// check compares everything but Detail, whose words are not fixed, and holds
// Detail to its rules.
func (c answerCase) check(t *testing.T, name string, res refund.Result) {
	t.Helper()
	require.LessOrEqual(t, len(res.Detail), refund.MaxDetailLen, name)
	require.NotContains(t, res.Detail, testSecret, name)
	if c.want.Outcome == refund.OutcomeUnknown && c.want.Code == refund.CodeUnreadable {
		require.NotEmpty(t, res.Detail, "%s: the cause is kept", name)
	}
	res.Detail = ""
	c.want.HTTPStatus = c.answer.status
	require.Equal(t, c.want, res, name)
}

// refundCases are the answers with one refund; they mean the same to a send
// and to a check by id.
func refundCases() map[string]answerCase {
	with := func(o refund.Outcome, code, id string) refund.Result {
		return refund.Result{Outcome: o, Code: code, ProviderRefundID: id}
	}
	contradiction := with(refund.OutcomeUnknown, refund.CodeContradiction, "")
	unreadable := with(refund.OutcomeUnknown, refund.CodeUnreadable, "")
	return map[string]answerCase{
		"succeeded":          {got(200, ourRefund()), with(refund.OutcomeSucceeded, "", "re_1")},
		"pending":            {got(200, ourRefund(succeeded, toPending)), with(refund.OutcomePending, "", "re_1")},
		"failed":             {got(200, ourRefund(succeeded, failed("card_closed"))), with(refund.OutcomeRejected, "card_closed", "re_1")},
		"failed, no code":    {got(200, ourRefund("succeeded", "failed")), with(refund.OutcomeRejected, "failed", "re_1")},
		"failed, wild code":  {got(200, ourRefund(succeeded, failed("a\nb sk_test"+strings.Repeat("c", 99)))), with(refund.OutcomeRejected, "a_b_***"+strings.Repeat("c", 57), "re_1")},
		"unknown members":    {got(200, ourRefund(`"id"`, `"new":[{}],"id"`)), with(refund.OutcomeSucceeded, "", "re_1")},
		"empty failure":      {got(200, ourRefund(succeeded, succeeded+`,"failure":{"code":""}`)), with(refund.OutcomeSucceeded, "", "re_1")},
		"null failure":       {got(200, ourRefund(succeeded, succeeded+`,"failure":null`)), with(refund.OutcomeSucceeded, "", "re_1")},
		"unknown status":     {got(200, ourRefund("succeeded", "on_its_way")), with(refund.OutcomeUnknown, refund.CodeUnreadable, "re_1")},
		"status in capitals": {got(200, ourRefund("succeeded", "SUCCEEDED")), with(refund.OutcomeUnknown, refund.CodeUnreadable, "re_1")},
		"succeeded, failure": {got(200, ourRefund(succeeded, succeeded+`,"failure":{"code":"x"}`)), with(refund.OutcomeUnknown, refund.CodeContradiction, "re_1")},

		"other amount":       {got(200, ourRefund("1250", "1251")), contradiction},
		"other currency":     {got(200, ourRefund("TWD", "JPY")), contradiction},
		"other payment":      {got(200, ourRefund("pay_1", "pay_2")), contradiction},
		"other reference":    {got(200, ourRefund("r-1", "r-2")), contradiction},
		"null amount":        {got(200, ourRefund("1250", "null")), contradiction},
		"decimal amount":     {got(200, ourRefund("1250", "1250.0")), unreadable},
		"exponent amount":    {got(200, ourRefund("1250", "125e1")), unreadable},
		"text amount":        {got(200, ourRefund("1250", `"1250"`)), unreadable},
		"overflowing amount": {got(200, ourRefund("1250", "18446744073709552866")), unreadable},
		"no amount":          {got(200, ourRefund(`"amount":1250,`, "")), unreadable},
		"no id":              {got(200, ourRefund(`"id":"re_1",`, "")), unreadable},
		"id with a path":     {got(200, ourRefund("re_1", "../re_1")), unreadable},
		"endless id":         {got(200, ourRefund("re_1", strings.Repeat("r", 300))), unreadable},
		"no status":          {got(200, ourRefund(succeeded+",", "")), unreadable},
		"null status":        {got(200, ourRefund(`"succeeded"`, "null")), unreadable},
		"status in a number": {got(200, ourRefund(`"succeeded"`, "1")), unreadable},
		"failure in text":    {got(200, ourRefund(succeeded, succeeded+`,"failure":"x"`)), unreadable},
		"status twice":       {got(200, ourRefund(succeeded, succeeded+","+failed("x"))), unreadable},
		"names in capitals":  {got(200, ourRefund(`"status"`, `"Status"`)), unreadable},
		"two values":         {got(200, ourRefund()+ourRefund()), unreadable},
		"no content type":    {got(200, ourRefund(), "Content-Type: "), unreadable},
		"wrong content type": {got(200, ourRefund(), "Content-Type: text/json"), unreadable},
	}
}

func TestAnswersToASend(t *testing.T) {
	t.Parallel()
	rejected := func(code string) refund.Result {
		return refund.Result{Outcome: refund.OutcomeRejected, Code: code}
	}
	unknown := func(code string) refund.Result {
		return refund.Result{Outcome: refund.OutcomeUnknown, Code: code}
	}
	cases := map[string]answerCase{
		"201 succeeded":            {got(201, ourRefund()), refund.Result{Outcome: refund.OutcomeSucceeded, ProviderRefundID: "re_1"}},
		"202 pending":              {got(202, ourRefund(succeeded, toPending)), refund.Result{Outcome: refund.OutcomePending, ProviderRefundID: "re_1"}},
		"202 empty":                {got(202, "", "Content-Type: "), refund.Result{Outcome: refund.OutcomePending}},
		"202 junk":                 {got(202, "accepted"), unknown(refund.CodeUnreadable)},
		"202 for another refund":   {got(202, ourRefund("r-1", "r-2")), unknown(refund.CodeContradiction)},
		"202 yet succeeded":        {got(202, ourRefund()), unknown(refund.CodeContradiction)},
		"202 yet failed":           {got(202, ourRefund(succeeded, failed("x"))), unknown(refund.CodeContradiction)},
		"404":                      {got(404, errorBody("not_found")), unknown(refund.CodeUnreadable)},
		"409 in progress":          {got(409, errorBody("in_progress")), unknown("in_progress")},
		"409 of another kind":      {got(409, errorBody("conflict")), unknown(refund.CodeUnreadable)},
		"422 unlisted":             {got(422, errorBody("computer_says_no")), unknown(refund.CodeUnreadable)},
		"422 without a code":       {got(422, `{"error":{}}`), unknown(refund.CodeUnreadable)},
		"422 as HTML":              {got(422, errorBody("invalid_request"), "Content-Type: text/html"), unknown(refund.CodeUnreadable)},
		"400 with a listed code":   {got(400, errorBody("payment_disputed")), unknown(refund.CodeUnreadable)},
		"200 with an error":        {got(200, errorBody("payment_disputed")), unknown(refund.CodeUnreadable)},
		"Case12 409 mismatch":      {got(409, errorBody("idempotency_mismatch")), refund.Result{Outcome: refund.OutcomeUnknown, Code: "idempotency_mismatch", NeverResend: true}},
		"401":                      {got(401, "", "Content-Type: "), refund.Result{Outcome: refund.OutcomeRejected, Code: "unauthorized", AccountWide: true}},
		"403":                      {got(403, "<html>", "Content-Type: text/html"), refund.Result{Outcome: refund.OutcomeRejected, Code: "forbidden", AccountWide: true}},
		"Case17 already refunded":  {got(422, errorBody("already_refunded")), refund.Result{Outcome: refund.OutcomeRejected, Code: "already_refunded", Ambiguous: true}},
		"amount exceeds remaining": {got(422, errorBody("amount_exceeds_remaining")), refund.Result{Outcome: refund.OutcomeRejected, Code: "amount_exceeds_remaining", Ambiguous: true}},
	}
	for _, code := range []string{"invalid_request", "unknown_payment", "currency_mismatch", "refund_window_closed", "insufficient_balance", "payment_disputed"} {
		cases["422 "+code] = answerCase{got(422, errorBody(code)), rejected(code)}
	}
	broken := got(401, "")
	broken.err = io.ErrUnexpectedEOF
	cases["401 that broke off"] = answerCase{broken, refund.Result{Outcome: refund.OutcomeRejected, Code: "unauthorized", AccountWide: true}}
	empty := got(202, "")
	empty.err = io.ErrUnexpectedEOF
	cases["202 that broke off"] = answerCase{empty, unknown(refund.CodeDisconnected)}

	for _, table := range []map[string]answerCase{same(), refundCases(), cases} {
		for name, c := range table {
			c.check(t, name, c.answer.submitted(ours()))
		}
	}
}

func TestAnswersToACheckByID(t *testing.T) {
	t.Parallel()
	q := provider.Query{Refund: ours(), ProviderRefundID: "re_1"}
	unknown := func(code string) refund.Result {
		return refund.Result{Outcome: refund.OutcomeUnknown, Code: code}
	}
	for _, table := range []map[string]answerCase{same(), refundCases(), checkCases(), {
		"404":              {got(404, "", "Content-Type: "), refund.Result{Outcome: refund.OutcomeNotFound}},
		"another refund's": {got(200, ourRefund("re_1", "re_2")), unknown(refund.CodeContradiction)},
		"201":              {got(201, ourRefund()), unknown(refund.CodeUnreadable)},
		"a list":           {got(200, `{"data":[]}`), unknown(refund.CodeUnreadable)},
	}} {
		for name, c := range table {
			c.check(t, name, c.answer.checkedByID(q))
		}
	}
}

// checkCases are answers that would be definite on a send and say nothing
// about the refund on a check.
func checkCases() map[string]answerCase {
	return map[string]answerCase{
		"401":         {got(401, ""), refund.Result{Outcome: refund.OutcomeUnknown, Code: "unauthorized", AccountWide: true}},
		"403":         {got(403, ""), refund.Result{Outcome: refund.OutcomeUnknown, Code: "forbidden", AccountWide: true}},
		"202 empty":   {got(202, ""), refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeUnreadable}},
		"422 reject":  {got(422, errorBody("payment_disputed")), refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeUnreadable}},
		"409":         {got(409, errorBody("in_progress")), refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeUnreadable}},
		"410 is gone": {got(410, ""), refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeUnreadable}},
	}
}

func TestAnswersToACheckByReference(t *testing.T) {
	t.Parallel()
	list := func(entries ...string) answer {
		return got(200, `{"data":[`+strings.Join(entries, ",")+`]}`)
	}
	result := func(o refund.Outcome, code, id string) refund.Result {
		return refund.Result{Outcome: o, Code: code, ProviderRefundID: id}
	}
	contradiction := result(refund.OutcomeUnknown, refund.CodeContradiction, "")
	unreadable := result(refund.OutcomeUnknown, refund.CodeUnreadable, "")
	oldFailed := ourRefund("re_1", "re_0", succeeded, failed("card_closed"))

	for _, table := range []map[string]answerCase{same(), checkCases(), {
		"Case24 empty list":                    {list(), result(refund.OutcomeNotFound, "", "")},
		"404 is not in the contract":           {got(404, ""), unreadable},
		"no data":                              {got(200, `{}`), unreadable},
		"null data":                            {got(200, `{"data":null}`), unreadable},
		"data is an object":                    {got(200, `{"data":{}}`), unreadable},
		"a single refund, no list":             {got(200, ourRefund()), unreadable},
		"ours":                                 {list(ourRefund()), result(refund.OutcomeSucceeded, "", "re_1")},
		"ours pending":                         {list(ourRefund(succeeded, toPending)), result(refund.OutcomePending, "", "re_1")},
		"ours failed":                          {list(oldFailed), result(refund.OutcomeRejected, "card_closed", "re_0")},
		"ours with an unknown status":          {list(ourRefund("succeeded", "held")), result(refund.OutcomeUnknown, refund.CodeUnreadable, "re_1")},
		"ours and a failed one":                {list(oldFailed, ourRefund()), contradiction},
		"ours failed twice":                    {list(oldFailed, ourRefund(succeeded, failed("x"))), contradiction},
		"only a failed one with other content": {list(strings.Replace(oldFailed, "1250", "99", 1)), contradiction},
		"ours among others":                    {list(ourRefund("re_1", "re_9", "r-1", "r-2"), ourRefund()), result(refund.OutcomeSucceeded, "", "re_1")},
		"only others":                          {list(ourRefund("r-1", "r-2")), contradiction},
		"ours twice":                           {list(ourRefund(), ourRefund("re_1", "re_2")), contradiction},
		"Case17 our reference, other amount":   {list(ourRefund("1250", "99")), contradiction},
		"ours and one with another amount":     {list(ourRefund(), ourRefund("re_1", "re_2", "1250", "99")), contradiction},
		"ours and one unreadable":              {list(ourRefund(), `{}`), unreadable},
		"ours and a number":                    {list(ourRefund(), `7`), unreadable},
	}} {
		for name, c := range table {
			c.check(t, name, c.answer.checkedByReference(provider.Query{Refund: ours()}))
		}
	}
}

func TestRefundsOfEarlierGenerationsAreNoTrace(t *testing.T) {
	t.Parallel()
	list := func(entries ...string) answer {
		return got(200, `{"data":[`+strings.Join(entries, ",")+`]}`)
	}
	result := func(o refund.Outcome, code, id string) refund.Result {
		return refund.Result{Outcome: o, Code: code, ProviderRefundID: id}
	}
	foreign := ourRefund("re_1", "re_0", succeeded, failed("card_closed"), "1250", "99")
	for name, c := range map[string]answerCase{
		"only theirs":              {list(foreign), result(refund.OutcomeNotFound, "", "")},
		"theirs, succeeded":        {list(ourRefund("re_1", "re_0")), result(refund.OutcomeNotFound, "", "")},
		"theirs twice":             {list(foreign, ourRefund("re_1", "re_00")), result(refund.OutcomeNotFound, "", "")},
		"theirs and ours":          {list(foreign, ourRefund()), result(refund.OutcomeSucceeded, "", "re_1")},
		"ours and theirs":          {list(ourRefund(succeeded, failed("x")), ourRefund("re_1", "re_0")), result(refund.OutcomeRejected, "x", "re_1")},
		"theirs and ours, pending": {list(foreign, ourRefund(succeeded, toPending)), result(refund.OutcomePending, "", "re_1")},
		"theirs and two of ours":   {list(foreign, ourRefund(), ourRefund("re_1", "re_2")), result(refund.OutcomeUnknown, refund.CodeContradiction, "")},
		"theirs and another's":     {list(foreign, ourRefund("r-1", "r-2")), result(refund.OutcomeUnknown, refund.CodeContradiction, "")},
		"theirs, unreadable":       {list(`{"id":"re_0"}`), result(refund.OutcomeUnknown, refund.CodeUnreadable, "")},
	} {
		c.check(t, name, c.answer.checkedByReference(provider.Query{Refund: ours(), Foreign: []string{"re_00", "re_0"}}))
	}
}

func TestUnknownStatusKeepsTheRawValue(t *testing.T) {
	t.Parallel()
	res := got(200, ourRefund("succeeded", `held\n\u0000 sk_test for review`)).submitted(ours())
	require.Equal(t, `HTTP 200: unknown status "held   *** for review"`, res.Detail)
	res = got(200, ourRefund("succeeded", strings.Repeat("退", 500))).submitted(ours())
	require.Contains(t, res.Detail, "退退退")
	require.LessOrEqual(t, len(res.Detail), refund.MaxDetailLen)
}

// FuzzAnswers holds the classifier to what must be true of any answer at all:
// no panic, a listed outcome, and a definite one only with its ground.
func FuzzAnswers(f *testing.F) {
	for _, table := range []map[string]answerCase{same(), refundCases(), checkCases()} {
		for _, c := range table {
			if len(c.answer.body) <= 1024 {
				f.Add(c.answer.status, c.answer.header.Get("Content-Type"), c.answer.header.Get("Retry-After"), c.answer.body)
			}
		}
	}
	f.Add(200, "application/json", "", []byte(`{"data":[`+ourRefund()+`]}`))
	f.Add(200, "application/json", "", []byte(strings.Repeat("[", 20000)))
	f.Fuzz(func(t *testing.T, status int, contentType, retryAfter string, body []byte) {
		a := got(status, "", "Content-Type: "+contentType, "Retry-After: "+retryAfter)
		a.body = body
		q := provider.Query{Refund: ours(), ProviderRefundID: "re_1"}
		for _, res := range []refund.Result{a.submitted(ours()), a.checkedByID(q), a.checkedByReference(q)} {
			require.True(t, slices.Contains(refund.Outcomes, res.Outcome))
			require.NotEqual(t, refund.OutcomeNotSent, res.Outcome)
			require.LessOrEqual(t, len(res.Detail), refund.MaxDetailLen)
			require.NotContains(t, res.Detail+res.Code, testSecret)
			if res.Outcome == refund.OutcomeSucceeded {
				require.Contains(t, []int{200, 201}, status)
				require.True(t, json.Valid(body))
				require.Equal(t, "application/json", strings.ToLower(strings.TrimSpace(strings.Split(contentType, ";")[0])))
			}
			if res.Outcome == refund.OutcomeBusy {
				require.Contains(t, []int{429, 503}, status)
			}
			if res.RetryAt != nil {
				require.Equal(t, refund.OutcomeBusy, res.Outcome)
			}
		}
	})
}
