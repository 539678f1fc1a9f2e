package starter

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"

	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// whole is an account whose provider counts in exponents of its own.
const whole = "whole"

var wholeExponents = refund.Exponents{"TWD": 0, "KWD": 2, "UGX": 2}

const (
	mustBePositive = "must be positive, in minor units"
	mustBeActive   = "must be an active ISO 4217 code such as TWD"
	mustNotBeOver  = "must not be over 1000000000000000"
	wholeDollars   = "must be a multiple of 100: the account's provider takes nothing smaller than 1.00 TWD"
)

// amounts are submissions by their money, with what is said of each. account is
// main unless it is set.
var amounts = []struct {
	account, amount, payment string
	bad                      []refund.FieldError // empty: it is accepted
	// typed is what is said where a program hands it in, and Go's types have
	// left nothing of the text; nil: the same.
	typed []refund.FieldError
}{
	{amount: `{"value":500,"currency":"JPY"}`},
	{amount: `{"value":500,"currency":"UGX"}`},
	{amount: `{"value":1235,"currency":"KWD"}`},
	{amount: `{"value":1,"currency":"TWD"}`},
	{amount: `{"value":50050,"currency":"TWD"}`},
	{amount: `{"value":1000000000000000,"currency":"JPY"}`},
	{amount: `{"value":1250,"currency":"TWD"}`, payment: `{"value":1250,"currency":"TWD"}`},
	{amount: `{"value":1250,"currency":"TWD"}`, payment: "null"},

	{amount: `{"value":500.5,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}}},
	{amount: `{"value":1.235,"currency":"KWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}}},
	{amount: `{"value":500.0,"currency":"JPY"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}}},
	{amount: `{"value":12.50,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}}},
	{amount: `{"value":1e3,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}}},
	{amount: `{"value":"1250","currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}}},
	{amount: `{"value":[1250],"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}}},
	{amount: `{"value":-1250,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustBePositive}}},
	{amount: `{"value":0,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustBePositive}}},
	{amount: `{"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: "is required"}}},
	{amount: `{"value":null,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: "is required"}}},
	{amount: `{"value":9223372036854775808,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: "is out of range"}}},
	{amount: `{"value":-9223372036854775809,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: "is out of range"}}},
	{amount: `{"value":9223372036854775807,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustNotBeOver}}},
	{amount: `{"value":1000000000000001,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: mustNotBeOver}}},
	{amount: `{"value":1250,"currency":"twd"}`, bad: []refund.FieldError{{Field: "amount.currency", Message: mustBeActive}}},
	{amount: `{"value":1250,"currency":"XXX"}`, bad: []refund.FieldError{{Field: "amount.currency", Message: mustBeActive}}},
	{amount: `{"value":1250,"currency":""}`, bad: []refund.FieldError{{Field: "amount.currency", Message: mustBeActive}}},
	{amount: `{"value":1250,"currency":null}`, bad: []refund.FieldError{{Field: "amount.currency", Message: "is required"}}},
	{amount: `{"value":1250}`, bad: []refund.FieldError{{Field: "amount.currency", Message: "is required"}}},
	{
		amount: `{"value":-1.5,"currency":"twd"}`,
		bad:    []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}, {Field: "amount.currency", Message: mustBeActive}},
		typed:  []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}},
	},
	{
		amount: "", bad: []refund.FieldError{{Field: "amount", Message: "is required"}},
		typed: []refund.FieldError{{Field: "amount.value", Message: mustBePositive}, {Field: "amount.currency", Message: mustBeActive}},
	},
	{
		amount: "null", bad: []refund.FieldError{{Field: "amount", Message: "is required"}},
		typed: []refund.FieldError{{Field: "amount.value", Message: "is required"}, {Field: "amount.currency", Message: "is required"}},
	},
	{
		amount: `{"value":1250,"currency":"TWD"}`, payment: `{"value":1250,"currency":"JPY"}`,
		bad: []refund.FieldError{{Field: "payment_amount.currency", Message: "is JPY but the refund's is TWD; a refund is made in the payment's currency"}},
	},
	{
		amount: `{"value":1250,"currency":"TWD"}`, payment: `{"value":1249,"currency":"TWD"}`,
		bad: []refund.FieldError{{Field: "amount.value", Message: "is more than the payment_amount"}},
	},
	{
		amount: `{"value":1250,"currency":"TWD"}`, payment: `{"value":0,"currency":"twd"}`,
		bad: []refund.FieldError{{Field: "payment_amount.value", Message: mustBePositive}, {Field: "payment_amount.currency", Message: mustBeActive}},
	},

	// A provider with exponents of its own.
	{account: whole, amount: `{"value":1300,"currency":"TWD"}`},
	{account: whole, amount: `{"value":1230,"currency":"KWD"}`},
	{account: whole, amount: `{"value":500,"currency":"UGX"}`},
	{account: whole, amount: `{"value":500,"currency":"JPY"}`},
	{account: whole, amount: `{"value":1250,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: wholeDollars}}},
	{account: whole, amount: `{"value":50050,"currency":"TWD"}`, bad: []refund.FieldError{{Field: "amount.value", Message: wholeDollars}}},
	{
		account: whole, amount: `{"value":1235,"currency":"KWD"}`,
		bad: []refund.FieldError{{Field: "amount.value", Message: "must be a multiple of 10: the account's provider takes nothing smaller than 0.010 KWD"}},
	},
}

// TestCase29_EveryDoorSaysTheSame: an amount is taken exactly as it is, or
// refused with the field's name before anything of it is kept: over HTTP, as a
// row of the inbox, and as a workflow started directly.
func TestCase29_EveryDoorSaysTheSame(t *testing.T) {
	t.Parallel()
	r := newInboxRig(t)
	i := newIntake(t, r.l, nil)
	account := testAccount(whole)
	account.Exponents = wholeExponents
	i.api.opts.Accounts = append(i.api.opts.Accounts, account)
	in := r.inbox(r.l, nil)
	in.opts.Accounts = i.api.opts.Accounts
	hostPort, namespace := testenv.Temporal(t)
	temporal := dial(t, hostPort, namespace)
	direct := Client{Temporal: temporal, Exponents: map[string]refund.Exponents{whole: wholeExponents}}

	content := func(n int, door string) (id, content string) {
		a := amounts[n]
		id = fmt.Sprintf("%s-%d", door, n)
		changes := map[string]string{
			"refund_id": fmt.Sprintf("%q", id), "payment_id": fmt.Sprintf("%q", "pay-"+id), "amount": a.amount, "payment_amount": a.payment,
		}
		if a.account != "" {
			changes["account"] = fmt.Sprintf("%q", a.account)
		}
		return id, body(changes)
	}
	kept := func(n int, id string) {
		t.Helper()
		c, err := r.l.Case(t.Context(), id)
		if len(amounts[n].bad) > 0 {
			require.ErrorIs(t, err, ledger.ErrNotFound, id)
			return
		}
		require.NoError(t, err, amounts[n].amount)
		text, err := json.Marshal(c.Refund.Amount)
		require.NoError(t, err)
		require.JSONEq(t, amounts[n].amount, string(text))
	}

	refusals := map[string]string{}
	for n, a := range amounts {
		id, text := content(n, "http")
		switch answer := i.post(text); {
		case len(a.bad) > 0:
			require.ElementsMatch(t, a.bad, answer.problem(t, http.StatusUnprocessableEntity, "invalid-refund").Errors, text)
		default:
			require.Equal(t, http.StatusAccepted, answer.status, "%s: %s", text, answer.body)
		}
		kept(n, id)

		id, text = content(n, "row")
		r.put(id, text)
		if len(a.bad) > 0 {
			refusals[id] = text
		}

		id, text = content(n, "direct")
		err := submitTyped(t, direct, text)
		want := a.typed
		if want == nil {
			want = a.bad
		}
		if len(want) == 0 {
			require.NoError(t, err, text)
		} else {
			var invalid *refund.InvalidError
			require.ErrorAs(t, err, &invalid, text)
			require.ElementsMatch(t, want, invalid.Fields, text)
		}
		_, err = temporal.DescribeWorkflow(t.Context(), refund.WorkflowID(id), "")
		var none *serviceerror.NotFound
		require.Equal(t, len(want) > 0, errors.As(err, &none), "%s: %v", text, err)
	}

	require.NoError(t, in.pass(t.Context()))
	aside, err := r.l.RefusedInbox(t.Context(), 1000)
	require.NoError(t, err)
	require.Len(t, aside, len(refusals))
	for n, a := range amounts {
		id, _ := content(n, "row")
		kept(n, id)
		for _, row := range aside {
			if row.RefundID != id {
				continue
			}
			parts := strings.Split(row.Refusal, "; ")
			require.Equal(t, "invalid-refund: The refund was refused", parts[0])
			var said []string
			for _, f := range a.bad {
				// A message may itself have the separator.
				said = append(said, strings.Split(f.Field+" "+f.Message, "; ")...)
			}
			require.ElementsMatch(t, said, parts[1:], row.Refusal)
		}
	}
}

// submitTyped submits what a program has read of the text, as one that holds a
// Temporal client does. What Money refuses to read is said of the whole field.
func submitTyped(t *testing.T, direct Client, text string) error {
	t.Helper()
	var rf refund.Refund
	err := json.Unmarshal([]byte(text), &rf)
	var invalid *refund.InvalidError
	if errors.As(err, &invalid) {
		for n := range invalid.Fields {
			invalid.Fields[n].Field = "amount." + invalid.Fields[n].Field
		}
		return invalid
	}
	require.NoError(t, err)
	return direct.Submit(t.Context(), rf)
}

// TestCase29_Correction: a correction can't bring in what was refused.
func TestCase29_Correction(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	desk := &Desk{Ledger: l, Deadline: testDeadline, Exponents: map[string]refund.Exponents{whole: wholeExponents}}
	rf := testRefund("r-1")
	rf.Account, rf.Amount = whole, refund.Money{Value: 1300, Currency: "TWD"}
	_, _, err := l.Accept(t.Context(), ledger.Submission{Refund: rf, Deadline: testDeadline})
	require.NoError(t, err)
	require.NoError(t, l.Save(t.Context(), ledger.Change{RefundID: "r-1", Status: refund.StatusRejected}))

	correct := func(value int64) error {
		_, err := desk.Correct(t.Context(), "r-1", "c-1", refund.Correction{By: "mei", Reason: "less", Amount: &refund.Money{Value: value, Currency: "TWD"}})
		return err
	}
	require.Equal(t, &refund.InvalidError{Fields: []refund.FieldError{{Field: "amount.value", Message: wholeDollars}}}, correct(1250))
	c, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, refund.StatusRejected, c.Status)
	require.NoError(t, correct(1200))
}
