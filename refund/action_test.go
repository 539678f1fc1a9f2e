package refund_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

func TestActionInputs(t *testing.T) {
	t.Parallel()
	good := refund.ActionInput{By: "mei", Reason: "the customer called"}
	with := func(change func(*refund.ActionInput)) refund.ActionInput {
		in := good
		change(&in)
		return in
	}
	for name, tc := range map[string]struct {
		action refund.Action
		in     refund.ActionInput
		want   string // part of the error; empty: valid
	}{
		"note":                        {refund.ActionNote, good, ""},
		"assign":                      {refund.ActionAssign, with(func(in *refund.ActionInput) { in.Owner = "jun" }), ""},
		"assign to nobody":            {refund.ActionAssign, with(func(in *refund.ActionInput) { in.Nobody = true }), ""},
		"assign, but to whom":         {refund.ActionAssign, good, "owner: is required"},
		"assign to two":               {refund.ActionAssign, with(func(in *refund.ActionInput) { in.Owner, in.Nobody = "jun", true }), "owner: goes without nobody"},
		"nobody where none belongs":   {refund.ActionNote, with(func(in *refund.ActionInput) { in.Nobody = true }), "owner: goes with assign only"},
		"settle":                      {refund.ActionSettle, with(func(in *refund.ActionInput) { in.Status, in.Evidence = refund.StatusNotRefunded, "statement of May" }), ""},
		"nobody does it":              {refund.ActionCheck, refund.ActionInput{Reason: "why"}, "by: is required"},
		"no reason":                   {refund.ActionResend, refund.ActionInput{By: "mei"}, "reason: is required"},
		"reason too long":             {refund.ActionNote, with(func(in *refund.ActionInput) { in.Reason = strings.Repeat("退", refund.MaxReasonLen+1) }), "reason: is longer than"},
		"owner where none belongs":    {refund.ActionNote, with(func(in *refund.ActionInput) { in.Owner = "jun" }), "owner: goes with assign only"},
		"settled as something else":   {refund.ActionSettle, with(func(in *refund.ActionInput) { in.Status, in.Evidence = refund.StatusRejected, "x" }), "status: must be succeeded or not_refunded"},
		"settled without evidence":    {refund.ActionSettle, with(func(in *refund.ActionInput) { in.Status = refund.StatusSucceeded }), "evidence: is required"},
		"evidence where none belongs": {refund.ActionCheck, with(func(in *refund.ActionInput) { in.Evidence = "x" }), "evidence: goes with settle only"},
		"status where none belongs":   {refund.ActionResend, with(func(in *refund.ActionInput) { in.Status = refund.StatusSucceeded }), "status: goes with settle only"},
		"a version that can't be":     {refund.ActionNote, with(func(in *refund.ActionInput) { in.Version = -1 }), "version: must not be negative"},
		"text that can't be stored":   {refund.ActionNote, with(func(in *refund.ActionInput) { in.By = "\xff" }), "by: is not valid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.in.Validate(tc.action)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "invalid action: ")
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestOrders(t *testing.T) {
	t.Parallel()
	for action, want := range map[refund.Action]refund.CallKind{
		refund.ActionCheck: refund.KindCheck, refund.ActionResend: refund.KindSubmit,
		refund.ActionAssign: "", refund.ActionNote: "", refund.ActionSettle: "",
	} {
		kind, ok := refund.Decision{Action: action}.Orders()
		require.Equal(t, want, kind)
		require.Equal(t, want != "", ok)
	}
}

func TestCorrections(t *testing.T) {
	t.Parallel()
	r := refund.Refund{
		ID: "r-1", Account: "main", OrderID: "o-1", PaymentID: "pay_1", Amount: refund.Money{Value: 1250, Currency: "TWD"},
		Reason: "broken", RequestedBy: "orders",
	}
	by := refund.Correction{By: "mei", Reason: "wrong payment"}

	c := by
	c.PaymentID, c.Amount = "pay_2", &refund.Money{Value: 1000, Currency: "TWD"}
	got, err := c.Apply(r)
	require.NoError(t, err)
	require.Equal(t, "pay_2", got.PaymentID)
	require.Equal(t, int64(1000), got.Amount.Value)
	require.Equal(t, r.ID, got.ID)
	require.Equal(t, "pay_1", r.PaymentID, "the refund itself is as it was")

	_, err = by.Apply(r)
	require.ErrorContains(t, err, "invalid correction: payment_id: nothing is corrected")
	c = by
	c.PaymentID = r.PaymentID
	_, err = c.Apply(r)
	require.ErrorContains(t, err, "nothing is corrected", "the same again")
	_, err = refund.Correction{PaymentID: "pay_2"}.Apply(r)
	require.ErrorContains(t, err, "by: is required; reason: is required")
	c = by
	c.Amount = &refund.Money{Value: -1, Currency: "TWD"}
	_, err = c.Apply(r)
	require.ErrorContains(t, err, "amount.value")
}
