package starter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/refund"
)

// coverage notes which optional properties and which enum values of the
// document's schemas answers have had.
type coverage struct {
	d *document
	// present and absent: properties by pointer. values: enum values by the
	// pointer of their schema.
	present, absent map[string]bool
	values          map[string]map[string]bool
}

func newCoverage(d *document) *coverage {
	return &coverage{d: d, present: map[string]bool{}, absent: map[string]bool{}, values: map[string]map[string]bool{}}
}

// note goes through a value along the schema that a pointer leads to.
func (c *coverage) note(pointer string, value any) {
	s, at := c.d.at(pointer)
	schema, _ := s.(map[string]any)
	if ref, ok := schema["$ref"].(string); ok { // with words beside it
		c.note(strings.TrimPrefix(ref, "#"), value)
	}
	if all, ok := schema["allOf"].([]any); ok {
		for n := range all {
			c.note(fmt.Sprintf("%s/allOf/%d", at, n), value)
		}
	}
	if enum, ok := schema["enum"].([]any); ok {
		if c.values[at] == nil {
			c.values[at] = map[string]bool{}
			for _, v := range enum {
				c.values[at][fmt.Sprint(v)] = false
			}
		}
		c.values[at][fmt.Sprint(value)] = true
	}
	switch value := value.(type) {
	case []any:
		for _, v := range value {
			c.note(at+"/items", v)
		}
	case map[string]any:
		c.noteObject(schema, at, value)
	}
}

func (c *coverage) noteObject(schema map[string]any, at string, value map[string]any) {
	if _, ok := schema["additionalProperties"].(map[string]any); ok {
		for _, v := range value {
			c.note(at+"/additionalProperties", v)
		}
	}
	required, _ := schema["required"].([]any)
	properties, _ := schema["properties"].(map[string]any)
	for name := range properties {
		p := at + "/properties/" + name
		v, there := value[name]
		if there {
			c.note(p, v)
		}
		if !slices.Contains(required, any(name)) {
			c.present[p] = c.present[p] || there
			c.absent[p] = c.absent[p] || !there
		}
	}
}

// neverAbsent and neverSeen are what no answer about a case can have, with why.
var (
	neverAbsent = map[string]string{
		"/components/schemas/Notice/properties/refund_id":  "a notice without a case is in no case",
		"/components/schemas/Notice/properties/generation": "a notice without a case is in no case",
	}
	neverSeen = map[string]string{
		"/components/schemas/NoticeProblem no_match":  "such a notice is in no case",
		"/components/schemas/NoticeProblem two_cases": "such a notice is in no case",
	}
)

// TestOpenAPI_Cases: cases with everything that can happen to one, as the ledger
// has them, are as the document says: each optional property is there at least
// once and missing at least once, and each value of each enum comes.
func TestOpenAPI_Cases(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	ops := d.operations()
	seen := newCoverage(d)
	dsn := testenv.MariaDB(t)
	l := newLedger(t, dsn)
	i := newDeskIntake(t, l, nil, &Desk{Ledger: l, Deadline: testDeadline})
	look := func(id, method, path, content string) map[string]any {
		t.Helper()
		a := i.do(method, path, reviewToken, content)
		op := ops[id]
		d.check(op, a)
		require.Less(t, a.status, 300, "%s: %s", path, a.body)
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(a.body))
		require.NoError(t, err)
		seen.note(fmt.Sprintf("%s/responses/%d/content/application~1json/schema", op.at, a.status), v)
		return v.(map[string]any)
	}
	show := func(id string) map[string]any {
		t.Helper()
		return look("showRefund", "GET", "/v1/refunds/"+id, "")
	}
	accept := func(id string, change func(*refund.Refund)) refund.Refund {
		t.Helper()
		rf := testRefund(id)
		rf.PaymentID = "pay-" + id
		if change != nil {
			change(&rf)
		}
		_, _, err := l.Accept(t.Context(), ledger.Submission{Refund: rf, Deadline: testDeadline})
		require.NoError(t, err)
		return rf
	}

	// healthz: nobody owns an egress; somebody does and has not reported; and
	// with all that a gate can report, and with nothing of it.
	look("health", "GET", "/healthz", "")
	lock, err := l.AcquireEgress(t.Context(), "main", "host-a:17")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lock.Release(t.Context())) })
	look("health", "GET", "/healthz", "")
	now := time.Now()
	for _, gate := range []limiter.Status{
		{Breaker: limiter.BreakerClosed},
		{Breaker: limiter.BreakerHalfOpen, InFlight: 3, WaitingFirst: 2, WaitingFollowUp: 1},
		{Breaker: limiter.BreakerOpen, OpenUntil: now, PausedUntil: now, Refusing: refund.CodeStopped},
	} {
		text, err := json.Marshal(gate)
		require.NoError(t, err)
		require.NoError(t, lock.Report(t.Context(), ledger.Report{Gate: text}))
		health := look("health", "GET", "/healthz", "")["egress"].(map[string]any)["main"].(map[string]any)
		require.Equal(t, "host-a:17", health["holder"])
		require.Equal(t, string(gate.Breaker), health["gate"].(map[string]any)["breaker"])
	}

	// Calls with each kind of result.
	rf := accept("r-calls", func(r *refund.Refund) { r.PaymentAmount = &refund.Money{Value: 5000, Currency: "TWD"} })
	sequence := map[refund.CallKind]int{}
	call := func(id string, kind refund.CallKind, origin refund.Origin, decision string, result *refund.Result) {
		t.Helper()
		sequence[kind]++
		one := refund.Call{
			Key:    refund.CallKey{RefundID: id, Generation: 1, Kind: kind, Seq: sequence[kind]},
			Origin: origin, Account: "main", DecisionID: decision, IntentAt: now,
		}
		_, err := lock.Intent(t.Context(), ledger.Intent{Call: one, IdempotencyKey: refund.IdempotencyKey(id, 1), Body: []byte("{}"), MaxAttempts: 100})
		require.NoError(t, err)
		if result == nil {
			return // nobody knows yet
		}
		one.Epoch, one.FinishedAt, one.Result = lock.Epoch(), &now, *result
		if result.Outcome != refund.OutcomeNotSent {
			one.StartedAt, one.StartedMono, one.InFlight = &now, 1, 1
		}
		require.NoError(t, l.Complete(t.Context(), one))
	}
	call(rf.ID, refund.KindSubmit, refund.OriginFirst, "", &refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeConnect, Budget: refund.BudgetConnect})
	call(rf.ID, refund.KindSubmit, refund.OriginFirst, "", &refund.Result{Outcome: refund.OutcomeBusy, Code: "rate_limited", HTTPStatus: 429, RetryAt: &now, AccountWide: true})
	call(rf.ID, refund.KindSubmit, refund.OriginRetry, "", &refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: refund.BudgetOverall, Detail: "no whole answer in time"})
	call(rf.ID, refund.KindCheck, refund.OriginCheck, "", &refund.Result{Outcome: refund.OutcomeNotFound, HTTPStatus: 200})
	call(rf.ID, refund.KindCheck, refund.OriginCheck, "", &refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeTimeout, Budget: refund.BudgetDeadline})
	call(rf.ID, refund.KindSubmit, refund.OriginRetry, "", &refund.Result{Outcome: refund.OutcomePending, HTTPStatus: 202, ProviderRefundID: "re_1"})
	call(rf.ID, refund.KindSubmit, refund.OriginRetry, "", &refund.Result{Outcome: refund.OutcomeRejected, Code: "already_refunded", HTTPStatus: 422, Ambiguous: true})
	call(rf.ID, refund.KindSubmit, refund.OriginRetry, "", &refund.Result{Outcome: refund.OutcomeUnknown, Code: "idempotency_mismatch", HTTPStatus: 409, NeverResend: true})
	call(rf.ID, refund.KindCheck, refund.OriginCheck, "", &refund.Result{Outcome: refund.OutcomeSucceeded, HTTPStatus: 200, ProviderRefundID: "re_1"})
	_, err = l.Abandon(t.Context(), refund.Call{
		Key: refund.CallKey{RefundID: rf.ID, Generation: 1, Kind: refund.KindCheck, Seq: 4}, Origin: refund.OriginCheck, Account: "main", IntentAt: now,
	})
	require.NoError(t, err)
	sequence[refund.KindCheck]++

	look("health", "GET", "/healthz", "") // with how long the calls took

	// What people decide about it. The orders are carried out once.
	require.NoError(t, l.Save(t.Context(), ledger.Change{RefundID: rf.ID, Status: refund.StatusReview, ReviewReason: refund.ReviewContradiction}))
	for n, act := range []struct {
		action refund.Action
		in     refund.ActionInput
	}{
		{refund.ActionAssign, refund.ActionInput{Owner: "lin"}},
		{refund.ActionNote, refund.ActionInput{}},
		{refund.ActionResend, refund.ActionInput{}},
	} {
		act.in.By, act.in.Reason = "mei", "she knows"
		_, err := l.Act(t.Context(), ledger.Act{RefundID: rf.ID, ID: fmt.Sprintf("d-%d", n), Action: act.action, Input: act.in, At: now})
		require.NoError(t, err, act.action)
	}
	call(rf.ID, refund.KindSubmit, refund.OriginManual, "d-2", nil)
	_, err = l.Act(t.Context(), ledger.Act{RefundID: rf.ID, ID: "d-3", Action: refund.ActionCheck, Input: refund.ActionInput{By: "mei", Reason: "once more"}, At: now})
	require.NoError(t, err)

	// What the provider says of itself.
	amount := rf.Amount
	for n, notice := range []refund.Notice{
		{Source: refund.SourceNotification, Reference: rf.ID, ProviderRefundID: "re_1", PaymentID: rf.PaymentID, Amount: amount, Outcome: refund.OutcomeSucceeded},
		{Source: refund.SourceSettlement, Reference: rf.ID, Amount: amount, Outcome: refund.OutcomeRejected, Code: "account_closed"},
		{Source: refund.SourceSettlement, ProviderRefundID: "re_1", Amount: refund.Money{Value: 1, Currency: "JPY"}, Outcome: refund.OutcomePending},
	} {
		notice.Account, notice.EventID, notice.SaidAt = "main", fmt.Sprintf("evt_%d", n), now
		stored, _, err := l.AddNotice(t.Context(), notice)
		require.NoError(t, err)
		require.Equal(t, rf.ID, stored.RefundID)
	}
	trail := show(rf.ID)
	require.Len(t, trail["calls"], 11)
	require.Len(t, trail["notices"], 3)
	require.Len(t, trail["decisions"], 4)
	require.Equal(t, "contradiction", trail["review_reason"])
	require.Equal(t, "lin", trail["owner"])

	// Every status and every reason; the end of a case by a person, and the
	// generation after a reject.
	for _, status := range refund.Statuses {
		id := "r-" + string(status)
		accept(id, nil)
		if status == refund.StatusReview {
			continue
		}
		if status != refund.StatusQueued {
			require.NoError(t, l.Save(t.Context(), ledger.Change{RefundID: id, Status: status, ProviderRefundID: "re-" + id}))
		}
		require.Equal(t, status.Final(), show(id)["closed_at"] != nil)
	}
	reasons := enumValues(d, "/components/schemas/ReviewReason/enum")
	for n, reason := range reasons {
		id := fmt.Sprintf("r-reason-%d", n)
		accept(id, nil)
		require.NoError(t, l.Save(t.Context(), ledger.Change{RefundID: id, Status: refund.StatusReview, ReviewReason: refund.ReviewReason(reason)}))
		require.Equal(t, reason, show(id)["review_reason"])
	}
	_, err = l.Act(t.Context(), ledger.Act{
		RefundID: "r-reason-0", ID: "d-1", Action: refund.ActionSettle, At: now,
		Input: refund.ActionInput{By: "mei", Reason: "the portal says so", Status: refund.StatusNotRefunded, Evidence: "line 88"},
	})
	require.NoError(t, err)
	require.Equal(t, "not_refunded", show("r-reason-0")["status"])

	// What is answered by other operations: an action, a submission, a list with
	// pages.
	corrected := look("correctCase", "POST", "/v1/refunds/r-rejected/actions/correct", `{"by":"mei","reason":"wrong payment","payment_id":"pay_9"}`)
	require.Equal(t, json.Number("2"), corrected["generation"])
	look("noteCase", "POST", "/v1/refunds/r-succeeded/actions/note", `{"by":"mei","reason":"seen"}`)
	show("r-rejected")
	i.api.opts.WebUIURL = ""
	show("r-succeeded")
	i.api.opts.WebUIURL = "http://ui.example"
	a := i.post(body(map[string]string{"refund_id": `"r-http"`, "payment_id": `"pay-http"`}))
	d.check(ops["submitRefund"], a)
	require.Equal(t, 202, a.status)
	show("r-http")
	next := look("listRefunds", "GET", "/v1/refunds?limit=200", "")
	require.Nil(t, next["next_cursor"])
	require.NotNil(t, look("listRefunds", "GET", "/v1/refunds?limit=1", "")["next_cursor"])

	away, err := ledger.Open(t.Context(), dsn, ledger.Options{})
	require.NoError(t, err)
	require.NoError(t, away.Close())
	i.api.opts.Ledger = away
	require.Equal(t, "degraded", look("health", "GET", "/healthz", "")["status"])

	for p := range seen.present {
		require.True(t, seen.present[p], "%s never met an answer", p)
		require.NotEqual(t, seen.absent[p], neverAbsent[p] != "", "%s was never missing", p)
	}
	for at, values := range seen.values {
		for value, came := range values {
			about := at + " " + value
			require.NotEqual(t, came, neverSeen[about] != "", "%s never met an answer", about)
		}
	}
	// The schemas of answers, so that none drops out of the walk unseen.
	walked := map[string]bool{}
	for p := range maps.Keys(seen.present) {
		walked[strings.Split(p, "/")[3]] = true
	}
	for _, name := range []string{"CaseSummary", "CaseDetail", "Call", "Notice", "Decision", "Refund", "Health", "EgressHealth", "Gate", "CasePage"} {
		require.True(t, walked[name], name)
	}
}

// enumValues are those of an enum of the document.
func enumValues(d *document, pointer string) (values []string) {
	enum, _ := d.at(pointer)
	for _, v := range enum.([]any) {
		values = append(values, fmt.Sprint(v))
	}
	return values
}
