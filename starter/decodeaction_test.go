package starter

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

func TestDecodeAction(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]struct {
		action refund.Action
		in     refund.ActionInput
	}{
		`{"by":"mei","reason":"hers","owner":"lin"}`:  {refund.ActionAssign, refund.ActionInput{By: "mei", Reason: "hers", Owner: "lin"}},
		`{"by":"mei","reason":"on leave","owner":""}`: {refund.ActionAssign, refund.ActionInput{By: "mei", Reason: "on leave", Nobody: true}},
		` {"by":"mei","reason":"asked","version":7} `: {refund.ActionNote, refund.ActionInput{By: "mei", Reason: "asked", Version: 7}},
		`{"by":"mei","reason":"again","owner":null}`:  {refund.ActionCheck, refund.ActionInput{By: "mei", Reason: "again"}},
		`{"by":"mei","reason":"r","status":"succeeded","evidence":"line 88"}`: {
			refund.ActionSettle, refund.ActionInput{By: "mei", Reason: "r", Status: refund.StatusSucceeded, Evidence: "line 88"},
		},
	} {
		in, err := DecodeAction(want.action, []byte(content))
		require.NoError(t, err, content)
		require.Equal(t, want.in, in)
	}
}

// badActions are bodies of actions and what is wrong with each field.
var badActions = []struct {
	action refund.Action
	body   string
	want   []refund.FieldError
}{
	{refund.ActionNote, `{}`, []refund.FieldError{{Field: "by", Message: "is required"}, {Field: "reason", Message: "is required"}}},
	{refund.ActionNote, `{"by":" ","reason":"\n"}`, []refund.FieldError{{Field: "by", Message: "is required"}, {Field: "reason", Message: "is required"}}},
	{refund.ActionNote, `{"by":5,"reason":null}`, []refund.FieldError{{Field: "by", Message: "must be a string"}, {Field: "reason", Message: "is required"}}},
	{refund.ActionNote, `{"by":"m","reason":"r","note":"x"}`, []refund.FieldError{{Field: "note", Message: "is not a known member"}}},
	{refund.ActionNote, `{"by":"m","reason":"r","By":"x"}`, []refund.FieldError{{Field: "By", Message: "is not a known member"}}},
	{refund.ActionNote, `{"by":"m","by":"x","reason":"r"}`, []refund.FieldError{{Field: "by", Message: "is there twice"}}},
	{refund.ActionNote, `{"by":"` + strings.Repeat("m", 129) + `","reason":"r"}`, []refund.FieldError{{Field: "by", Message: "is longer than 128 characters"}}},
	{refund.ActionNote, `{"by":"m","reason":"r","version":-1}`, []refund.FieldError{{Field: "version", Message: "must not be negative"}}},
	{refund.ActionNote, `{"by":"m","reason":"r","version":"7"}`, []refund.FieldError{{Field: "version", Message: "must be an integer"}}},
	{refund.ActionNote, `{"by":"m","reason":"r","version":1.0}`, []refund.FieldError{{Field: "version", Message: "must be an integer"}}},
	{refund.ActionCheck, `{"by":"m","reason":"r","owner":"x"}`, []refund.FieldError{{Field: "owner", Message: "goes with assign only"}}},
	{refund.ActionResend, `{"by":"m","reason":"r","status":"succeeded","evidence":"e"}`, []refund.FieldError{
		{Field: "status", Message: "goes with settle only"}, {Field: "evidence", Message: "goes with settle only"},
	}},
	{refund.ActionAssign, `{"by":"m","reason":"r"}`, []refund.FieldError{{Field: "owner", Message: "is required; an empty one takes the case from whoever has it"}}},
	{refund.ActionAssign, `{"by":"m","reason":"r","owner":null}`, []refund.FieldError{{Field: "owner", Message: "is required; an empty one takes the case from whoever has it"}}},
	{refund.ActionAssign, `{"by":"m","reason":"r","owner":" "}`, []refund.FieldError{{Field: "owner", Message: "is required"}}},
	{refund.ActionSettle, `{"by":"m","reason":"r"}`, []refund.FieldError{
		{Field: "status", Message: "must be succeeded or not_refunded"}, {Field: "evidence", Message: "is required"},
	}},
	{refund.ActionSettle, `{"by":"m","reason":"r","status":"rejected","evidence":"e"}`, []refund.FieldError{{Field: "status", Message: "must be succeeded or not_refunded"}}},
	{refund.ActionCorrect, `{"by":"m","reason":"r","amount":1200}`, []refund.FieldError{{Field: "amount", Message: mustBeMoney}}},
	{refund.ActionCorrect, `{"by":"m","reason":"r","amount":{"value":12.5,"currency":"TWD"}}`, []refund.FieldError{{Field: "amount.value", Message: mustBeInteger}}},
	{refund.ActionCorrect, `{"by":"m","reason":"r","order_id":"o-2"}`, []refund.FieldError{{Field: "order_id", Message: "is not a known member"}}},
}

// malformedActions are bodies that are no JSON object at all.
var malformedActions = map[string]string{
	"":                     "the body is not one valid JSON document; see byte 0",
	"[]":                   "the body must be a JSON object",
	`{"by":"m"} {}`:        "the body is not one valid JSON document; see byte 12",
	"{\"by\":\"\xff\"}":    "the body is not valid UTF-8",
	`{"by":"m","reason":}`: "the body is not one valid JSON document; see byte 20",
}

func TestDecodeActionRefuses(t *testing.T) {
	t.Parallel()
	decode := func(a refund.Action, content string) error {
		if a == refund.ActionCorrect {
			_, err := DecodeCorrection([]byte(content))
			return err
		}
		_, err := DecodeAction(a, []byte(content))
		return err
	}
	for _, tt := range badActions {
		var invalid *refund.InvalidError
		require.ErrorAs(t, decode(tt.action, tt.body), &invalid, tt.body)
		require.ElementsMatch(t, tt.want, invalid.Fields, tt.body)
	}
	for content, want := range malformedActions {
		for _, a := range []refund.Action{refund.ActionNote, refund.ActionCorrect} {
			var malformed *malformedError
			require.ErrorAs(t, decode(a, content), &malformed)
			require.EqualError(t, malformed, want)
		}
	}
}

func TestDecodeCorrection(t *testing.T) {
	t.Parallel()
	c, err := DecodeCorrection([]byte(`{"by":"mei","reason":"typo","payment_id":"pay_2","amount":{"value":1200,"currency":"TWD"},
		"payment_amount":{"value":5000,"currency":"TWD"},"refund_reason":"broken","version":4}`))
	require.NoError(t, err)
	require.Equal(t, refund.Correction{
		By: "mei", Reason: "typo", PaymentID: "pay_2", Amount: &refund.Money{Value: 1200, Currency: "TWD"},
		PaymentAmount: &refund.Money{Value: 5000, Currency: "TWD"}, RefundReason: "broken", Version: 4,
	}, c)
}

// FuzzDecodeAction: whatever the body is, it is an action that is valid or a
// refusal that says why.
func FuzzDecodeAction(f *testing.F) {
	for _, tt := range badActions {
		f.Add(string(tt.action), tt.body)
	}
	f.Add("settle", `{"by":"mei","reason":"r","status":"succeeded","evidence":"line 88"}`)
	f.Fuzz(func(t *testing.T, action, content string) {
		in, err := DecodeAction(refund.Action(action), []byte(content))
		if err == nil {
			require.NoError(t, in.Validate(refund.Action(action)))
			return
		}
		require.Zero(t, in)
		var invalid *refund.InvalidError
		var malformed *malformedError
		require.True(t, errors.As(err, &invalid) || errors.As(err, &malformed))
		require.NotEmpty(t, err.Error())
	})
}
