package starter

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// body is a valid submission with some members replaced or, by an empty
// value, left out. Values are raw JSON.
func body(changes map[string]string) string {
	members := []string{"refund_id", "account", "order_id", "payment_id", "amount", "reason", "requested_by"}
	values := map[string]string{
		"refund_id": `"r-1"`, "account": `"main"`, "order_id": `"o-1"`, "payment_id": `"pay_1"`,
		"amount": `{"value":1250,"currency":"TWD"}`, "reason": `"broken on arrival"`, "requested_by": `"mei"`,
	}
	for name, value := range changes {
		if _, known := values[name]; !known {
			members = append(members, name)
		}
		values[name] = value
	}
	var parts []string
	for _, name := range members {
		if values[name] != "" {
			parts = append(parts, fmt.Sprintf("%q:%s", name, values[name]))
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func TestDecodeRefund(t *testing.T) {
	t.Parallel()
	want := refund.Refund{
		ID: "r-1", Account: "main", OrderID: "o-1", PaymentID: "pay_1",
		Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "broken on arrival", RequestedBy: "mei",
	}
	got, err := DecodeRefund([]byte(body(nil)))
	require.NoError(t, err)
	require.Equal(t, want, got)

	got, err = DecodeRefund([]byte(" " + body(map[string]string{"payment_amount": "null"}) + "\n"))
	require.NoError(t, err)
	require.Equal(t, want, got, "null and space around mean nothing")

	want.PaymentAmount = &refund.Money{Value: 2000, Currency: "TWD"}
	got, err = DecodeRefund([]byte(body(map[string]string{"payment_amount": `{"currency":"TWD","value":2000}`})))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

const (
	mustBeInteger = "must be an integer in minor units, such as 1250 for 12.50"
	mustBeMoney   = `must be an object {"value": integer in minor units, "currency": "ISO 4217 code"}`
)

// badFields are bodies whose fields are refused, with exactly what is said
// about each.
var badFields = map[string][]refund.FieldError{
	body(map[string]string{"amount": `{"value":12.50,"currency":"TWD"}`}):                {{Field: "amount.value", Message: mustBeInteger}},
	body(map[string]string{"amount": `{"value":1250.0,"currency":"TWD"}`}):               {{Field: "amount.value", Message: mustBeInteger}},
	body(map[string]string{"amount": `{"value":1e3,"currency":"TWD"}`}):                  {{Field: "amount.value", Message: mustBeInteger}},
	body(map[string]string{"amount": `{"value":"1250","currency":"TWD"}`}):               {{Field: "amount.value", Message: mustBeInteger}},
	body(map[string]string{"amount": `{"value":true,"currency":"TWD"}`}):                 {{Field: "amount.value", Message: mustBeInteger}},
	body(map[string]string{"amount": `{"value":-1250,"currency":"TWD"}`}):                {{Field: "amount.value", Message: "must be positive, in minor units"}},
	body(map[string]string{"amount": `{"value":-0,"currency":"TWD"}`}):                   {{Field: "amount.value", Message: "must be positive, in minor units"}},
	body(map[string]string{"amount": `{"value":0,"currency":"TWD"}`}):                    {{Field: "amount.value", Message: "must be positive, in minor units"}},
	body(map[string]string{"amount": `{"value":null,"currency":"TWD"}`}):                 {{Field: "amount.value", Message: "is required"}},
	body(map[string]string{"amount": `{"currency":"TWD"}`}):                              {{Field: "amount.value", Message: "is required"}},
	body(map[string]string{"amount": `{"value":99999999999999999999,"currency":"TWD"}`}): {{Field: "amount.value", Message: "is out of range"}},
	body(map[string]string{"amount": `{"value":1000000000000001,"currency":"TWD"}`}):     {{Field: "amount.value", Message: "must not be over 1000000000000000"}},
	body(map[string]string{"amount": `{"value":1250}`}):                                  {{Field: "amount.currency", Message: "is required"}},
	body(map[string]string{"amount": `{"value":1250,"currency":null}`}):                  {{Field: "amount.currency", Message: "is required"}},
	body(map[string]string{"amount": `{"value":1250,"currency":901}`}):                   {{Field: "amount.currency", Message: "must be a string"}},
	body(map[string]string{"amount": `{"value":1250,"currency":"twd"}`}):                 {{Field: "amount.currency", Message: "must be an active ISO 4217 code such as TWD"}},
	body(map[string]string{"amount": `{"value":"x","currency":5}`}):                      {{Field: "amount.currency", Message: "must be a string"}, {Field: "amount.value", Message: mustBeInteger}},
	body(map[string]string{"amount": ""}):                                                {{Field: "amount", Message: "is required"}},
	body(map[string]string{"amount": "null"}):                                            {{Field: "amount", Message: "is required"}},
	body(map[string]string{"amount": "1250"}):                                            {{Field: "amount", Message: mustBeMoney}},
	body(map[string]string{"amount": "[]"}):                                              {{Field: "amount", Message: mustBeMoney}},
	body(map[string]string{"amount": `{"Value":1250,"currency":"TWD"}`}):                 {{Field: "amount.Value", Message: "is not a known member"}, {Field: "amount.value", Message: "is required"}},
	body(map[string]string{"amount": `{"value":1,"value":1250,"currency":"TWD"}`}):       {{Field: "amount.value", Message: "is there twice"}},
	body(map[string]string{"payment_amount": `{"value":"2000","currency":"TWD"}`}):       {{Field: "payment_amount.value", Message: mustBeInteger}},
	body(map[string]string{"payment_amount": `{"value":2000,"currency":"JPY"}`}):         {{Field: "payment_amount.currency", Message: "is JPY but the refund's is TWD; a refund is made in the payment's currency"}},
	body(map[string]string{"payment_amount": `{"value":1249,"currency":"TWD"}`}):         {{Field: "amount.value", Message: "is more than the payment_amount"}},
	body(map[string]string{"payment_amount": `{}`}):                                      {{Field: "payment_amount.value", Message: "is required"}, {Field: "payment_amount.currency", Message: "is required"}},
	body(map[string]string{"refund_id": `"-r"`}):                                         {{Field: "refund_id", Message: "must be 1 to 64 characters of A-Z a-z 0-9 . _ - and start with a letter or digit"}},
	body(map[string]string{"refund_id": `"` + strings.Repeat("r", 300) + `"`}):           {{Field: "refund_id", Message: "must be 1 to 64 characters of A-Z a-z 0-9 . _ - and start with a letter or digit"}},
	body(map[string]string{"refund_id": "7"}):                                            {{Field: "refund_id", Message: "must be a string"}},
	body(map[string]string{"refund_id": ""}):                                             {{Field: "refund_id", Message: "is required"}},
	body(map[string]string{"refund_id": "null"}):                                         {{Field: "refund_id", Message: "is required"}},
	body(map[string]string{"account": `"Main"`}):                                         {{Field: "account", Message: "must be 1 to 32 characters of a-z 0-9 _ - and start with a letter or digit"}},
	body(map[string]string{"reason": `" \n"`}):                                           {{Field: "reason", Message: "is required"}},
	body(map[string]string{"reason": `"` + strings.Repeat("退", 1001) + `"`}):             {{Field: "reason", Message: "is longer than 1000 characters"}},
	body(map[string]string{"reason": `"a\u0000b"`}):                                      {{Field: "reason", Message: "must not contain a NUL character"}},
	body(map[string]string{"Refund_ID": `"r-2"`}):                                        {{Field: "Refund_ID", Message: "is not a known member"}},
	body(map[string]string{"amuont": "1", "x": "[1,{}]"}):                                {{Field: "amuont", Message: "is not a known member"}, {Field: "x", Message: "is not a known member"}},
	body(map[string]string{strings.Repeat("x", 80): "1"}):                                {{Field: strings.Repeat("x", 64) + "...", Message: "is not a known member"}},
	`{"refund_id":"r-1",` + body(nil)[1:]:                                                {{Field: "refund_id", Message: "is there twice"}},
	`{"\u0072efund_id":"r-1",` + body(nil)[1:]:                                           {{Field: "refund_id", Message: "is there twice"}},
	"{}": {
		{Field: "amount", Message: "is required"},
		{Field: "refund_id", Message: "is required"},
		{Field: "account", Message: "is required"},
		{Field: "order_id", Message: "is required"},
		{Field: "payment_id", Message: "is required"},
		{Field: "reason", Message: "is required"},
		{Field: "requested_by", Message: "is required"},
	},
}

// TestCase31_AmountsAreNeverGuessed and every other refusal of a field.
func TestCase31_AmountsAreNeverGuessed(t *testing.T) {
	t.Parallel()
	for content, want := range badFields {
		_, err := DecodeRefund([]byte(content))
		var invalid *refund.InvalidError
		require.ErrorAs(t, err, &invalid, content)
		require.ElementsMatch(t, want, invalid.Fields, content)
	}
}

// malformed are bodies that are not one JSON object, with what is said.
var malformed = map[string]string{
	"":                     "the body is not one valid JSON document; see byte 0",
	"{":                    "the body is not one valid JSON document; see byte 1",
	`{"refund_id":"r-1",}`: "the body is not one valid JSON document; see byte 20",
	"{} {}":                "the body is not one valid JSON document; see byte 4",
	"{}x":                  "the body is not one valid JSON document; see byte 3",
	"refund_id=r-1":        "the body is not one valid JSON document; see byte 1",
	"[]":                   "the body must be a JSON object",
	"null":                 "the body must be a JSON object",
	`"r-1"`:                "the body must be a JSON object",
	"{\"a\":\"\xff\"}":     "the body is not valid UTF-8",
	body(map[string]string{"amount": `{"value":01250,"currency":"TWD"}`}): "the body is not one valid JSON document; see byte 94",
}

func TestMalformedBodies(t *testing.T) {
	t.Parallel()
	for content, want := range malformed {
		_, err := DecodeRefund([]byte(content))
		var bad *malformedError
		require.ErrorAs(t, err, &bad, content)
		require.Equal(t, want, bad.Error(), content)
	}
}

func TestReportedFieldsAreBounded(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf(`"x%d":1`, i))
	}
	_, err := DecodeRefund([]byte("{" + strings.Join(many, ",") + "}"))
	var invalid *refund.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Len(t, invalid.Fields, maxFieldErrors)
}

// FuzzDecodeRefund: whatever is sent ends as a valid refund or as one of the
// two refusals, and a refund that was read reads the same again.
func FuzzDecodeRefund(f *testing.F) {
	f.Add([]byte(body(nil)))
	f.Add([]byte(body(map[string]string{"payment_amount": `{"value":2000,"currency":"TWD"}`})))
	for content := range badFields {
		f.Add([]byte(content))
	}
	for content := range malformed {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		r, err := DecodeRefund(content)
		if err != nil {
			var bad *malformedError
			var invalid *refund.InvalidError
			require.True(t, errors.As(err, &bad) || errors.As(err, &invalid), "%T", err)
			if invalid != nil {
				require.NotEmpty(t, invalid.Fields)
			}
			require.Zero(t, r)
			return
		}
		require.NoError(t, r.Validate())
		again, err := json.Marshal(r)
		require.NoError(t, err)
		same, err := DecodeRefund(again)
		require.NoError(t, err)
		require.Equal(t, r.Fingerprint(), same.Fingerprint())
	})
}
