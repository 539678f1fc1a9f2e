package starter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// order is what a desk was asked for.
type order struct {
	refundID, id string
	action       refund.Action
	in           refund.ActionInput
	correction   refund.Correction
}

// fakeDesk notes what it is asked for and answers with its err.
type fakeDesk struct {
	orders []order
	err    error
}

func (d *fakeDesk) Act(_ context.Context, refundID, id string, action refund.Action, in refund.ActionInput) (refund.Case, error) {
	d.orders = append(d.orders, order{refundID: refundID, id: id, action: action, in: in})
	return d.answer()
}

func (d *fakeDesk) Correct(_ context.Context, refundID, id string, c refund.Correction) (refund.Case, error) {
	d.orders = append(d.orders, order{refundID: refundID, id: id, action: refund.ActionCorrect, correction: c})
	return d.answer()
}

func (d *fakeDesk) answer() (refund.Case, error) {
	return refund.Case{Refund: testRefund("r-1"), Status: refund.StatusReview, Owner: "lin", Version: 8, Generation: 1}, d.err
}

// goodActions has a valid body for each action.
var goodActions = map[refund.Action]string{
	refund.ActionAssign:  `{"by":"mei","reason":"she knows","owner":"lin","version":7}`,
	refund.ActionNote:    `{"by":"mei","reason":"she knows"}`,
	refund.ActionCheck:   `{"by":"mei","reason":"she knows"}`,
	refund.ActionResend:  `{"by":"mei","reason":"she knows"}`,
	refund.ActionSettle:  `{"by":"mei","reason":"she knows","status":"succeeded","evidence":"line 88"}`,
	refund.ActionCorrect: `{"by":"mei","reason":"she knows","payment_id":"pay_2"}`,
}

func actionPath(a refund.Action) string { return "/v1/refunds/r-1/actions/" + string(a) }

// Every action is a request that its scope allows, and says what it did.
func TestActionsOverHTTP(t *testing.T) {
	t.Parallel()
	desk := &fakeDesk{}
	i := newDeskIntake(t, newLedger(t, testenv.MariaDB(t)), nil, desk)

	want := refund.ActionInput{By: "mei", Reason: "she knows"}
	for _, action := range refund.Actions {
		desk.orders = nil
		a := i.do("POST", actionPath(action), reviewToken, goodActions[action], "Idempotency-Key", "key-1")
		require.Equal(t, 200, a.status, string(a.body))
		got := a.object(t)
		require.Equal(t, "review", got["status"])
		require.EqualValues(t, 8, got["version"])
		require.Equal(t, []any{}, got["calls"])
		require.Equal(t, "http://ui.example/namespaces/refunds/workflows/refund-r-1", got["web_ui_url"])

		in := want
		wanted := order{refundID: "r-1", id: "key-1", action: action}
		switch action {
		case refund.ActionAssign:
			in.Owner, in.Version = "lin", 7
		case refund.ActionSettle:
			in.Status, in.Evidence = refund.StatusSucceeded, "line 88"
		case refund.ActionCorrect:
			in, wanted.correction = refund.ActionInput{}, refund.Correction{By: "mei", Reason: "she knows", PaymentID: "pay_2"}
		}
		wanted.in = in
		require.Equal(t, []order{wanted}, desk.orders)
	}
	require.Len(t, i.events("review.action"), len(refund.Actions))
	require.Equal(t, map[string]any{
		"level": "INFO", "msg": "review.action", "event": "review.action", "refund_id": "r-1", "action": "assign",
		"action_id": "key-1", "status": "review", "client": "reviewer",
	}, i.events("review.action")[0])
	require.NotContains(t, i.logs.String(), "mei")
	require.NotContains(t, i.logs.String(), "she knows")
}

// An action without a key gets one of its own; one that can't name an action
// is refused.
func TestActionKeys(t *testing.T) {
	t.Parallel()
	desk := &fakeDesk{}
	i := newDeskIntake(t, newLedger(t, testenv.MariaDB(t)), nil, desk)
	for range 2 {
		require.Equal(t, 200, i.do("POST", actionPath(refund.ActionNote), reviewToken, goodActions[refund.ActionNote]).status)
	}
	require.NotEqual(t, desk.orders[0].id, desk.orders[1].id)
	for _, o := range desk.orders {
		require.NoError(t, refund.ValidateID(o.id))
	}
	for _, key := range []string{"a b", strings.Repeat("k", 65), "é"} {
		p := i.do("POST", actionPath(refund.ActionNote), reviewToken, goodActions[refund.ActionNote], "Idempotency-Key", key).problem(t, 422, "invalid-action")
		require.Equal(t, []refund.FieldError{{Field: "Idempotency-Key", Message: "must be 1 to 64 characters of A-Z a-z 0-9 . _ - and start with a letter or digit"}}, p.Errors)
	}
	require.Len(t, desk.orders, 2)
}

// Every action needs the scope review, and no other.
func TestActionAuthorization(t *testing.T) {
	t.Parallel()
	desk := &fakeDesk{}
	i := newDeskIntake(t, newLedger(t, testenv.MariaDB(t)), nil, desk)
	for _, action := range refund.Actions {
		i.do("POST", actionPath(action), "", goodActions[action]).problem(t, 401, "unauthorized")
		i.do("POST", actionPath(action), "wrong", goodActions[action]).problem(t, 401, "unauthorized")
		for _, token := range []string{writeToken, readToken, ordersToken} {
			a := i.do("POST", actionPath(action), token, goodActions[action])
			require.Equal(t, "It needs the scope review.", a.problem(t, 403, "forbidden").Detail)
			require.Equal(t, `Bearer realm="refundgate", error="insufficient_scope", scope="review"`, a.header.Get("WWW-Authenticate"))
		}
	}
	require.Empty(t, desk.orders)

	// Who reviews may look, and submits nothing.
	require.Equal(t, 202, i.post(body(nil)).status)
	require.Equal(t, 200, i.do("GET", "/v1/refunds/r-1", reviewToken, "").status)
	require.Equal(t, 200, i.do("GET", "/v1/refunds?status=review", reviewToken, "").status)
	i.do("POST", "/v1/refunds", reviewToken, body(nil)).problem(t, 403, "forbidden")
	require.Equal(t, "It needs the scope refunds:read or refunds:read-all or review.", i.do("GET", "/v1/refunds", writeToken, "").problem(t, 403, "forbidden").Detail)
}

func TestBadActions(t *testing.T) {
	t.Parallel()
	desk := &fakeDesk{}
	i := newDeskIntake(t, newLedger(t, testenv.MariaDB(t)), nil, desk)
	for _, tt := range badActions {
		p := i.do("POST", actionPath(tt.action), reviewToken, tt.body).problem(t, 422, "invalid-action")
		require.ElementsMatch(t, tt.want, p.Errors, tt.body)
	}
	for content, want := range malformedActions {
		a := i.do("POST", actionPath(refund.ActionNote), reviewToken, content, "Content-Type", "application/json")
		require.Equal(t, want, a.problem(t, 400, "malformed-body").Detail)
	}
	huge := `{"by":"m","reason":"` + strings.Repeat("x", maxBody) + `"}`
	i.do("POST", actionPath(refund.ActionNote), reviewToken, huge).problem(t, 413, "too-large")
	i.do("POST", actionPath(refund.ActionNote), reviewToken, "{}", "Content-Type", "text/plain").problem(t, 415, "unsupported-media-type")
	for _, path := range []string{"/v1/refunds/r-1/actions/delete", "/v1/refunds/r-1/actions/", "/v1/refunds/-/actions/note", "/v1/refunds/r-1/actions/note/x"} {
		i.do("POST", path, reviewToken, goodActions[refund.ActionNote]).problem(t, 404, "not-found")
	}
	a := i.do("GET", actionPath(refund.ActionNote), reviewToken, "")
	a.problem(t, 405, "method-not-allowed")
	require.Equal(t, "POST", a.header.Get("Allow"))
	require.Empty(t, desk.orders)
}

// What the desk could not do is told so that the caller knows what to do.
func TestActionsThatFail(t *testing.T) {
	t.Parallel()
	desk := &fakeDesk{}
	i := newDeskIntake(t, newLedger(t, testenv.MariaDB(t)), nil, desk)
	act := func(err error) answer {
		desk.err = err
		return i.do("POST", actionPath(refund.ActionCorrect), reviewToken, goodActions[refund.ActionCorrect], "Idempotency-Key", "key-1")
	}
	twd := func(v int64) refund.Money { return refund.Money{Value: v, Currency: "TWD"} }

	act(fmt.Errorf("reading: %w", ledger.ErrNotFound)).problem(t, 404, "not-found")
	p := act(fmt.Errorf("settle on refund r-1: %w", &ledger.ActionRefusedError{Why: "it is already succeeded"})).problem(t, 409, "action-refused")
	require.Equal(t, "it is already succeeded", p.Detail)
	require.Equal(t, "/v1/refunds/r-1", p.CaseURL)
	p = act(&refund.InvalidError{Fields: []refund.FieldError{{Field: "by", Message: "is required"}}}).problem(t, 422, "invalid-action")
	require.Equal(t, []refund.FieldError{{Field: "by", Message: "is required"}}, p.Errors)
	p = act(&ledger.PaymentExceededError{PaymentID: "pay_2", Limit: twd(100), Reserved: twd(60)}).problem(t, 422, "payment-exceeded")
	require.Equal(t, "amount.value", p.Errors[0].Field)
	act(&ledger.PaymentMismatchError{Known: twd(100), Stated: twd(90)}).problem(t, 422, "payment-mismatch")

	for _, err := range []error{&UncertainError{"key-1", errors.New("no Temporal")}, errors.New("no database")} {
		a := act(err)
		p := a.problem(t, http.StatusServiceUnavailable, "unavailable")
		require.Equal(t, "It is not certain whether the action was recorded. Sending it again with the header Idempotency-Key: key-1 is safe.", p.Detail)
		require.Equal(t, "/v1/refunds/r-1", p.CaseURL)
		require.Equal(t, "5", a.header.Get("Retry-After"))
	}
	require.Empty(t, i.events("review.action"))
	refused := i.events("intake.refused")
	require.Len(t, refused, 7)
	require.Equal(t, "correct", refused[1]["action"])
}
