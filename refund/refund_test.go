package refund_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

func valid() refund.Refund {
	return refund.Refund{
		ID: "r-1", Account: "demo", OrderID: "o-1", PaymentID: "pay_1",
		Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "破損 \U0001F4E6", RequestedBy: "alice",
	}
}

func TestValidateNamesEveryBadField(t *testing.T) {
	t.Parallel()
	require.NoError(t, valid().Validate())
	for name, tt := range map[string]struct {
		change func(*refund.Refund)
		fields []string
	}{
		"nothing":                     {func(r *refund.Refund) { *r = refund.Refund{} }, []string{"refund_id", "account", "order_id", "payment_id", "amount.value", "amount.currency", "reason", "requested_by"}},
		"CASE 32 a long id":           {func(r *refund.Refund) { r.ID = strings.Repeat("a", 65) }, []string{"refund_id"}},
		"an id with a slash":          {func(r *refund.Refund) { r.ID = "a/b" }, []string{"refund_id"}},
		"an id with a dot first":      {func(r *refund.Refund) { r.ID = ".a" }, []string{"refund_id"}},
		"an id with a newline":        {func(r *refund.Refund) { r.ID = "a\n" }, []string{"refund_id"}},
		"account in capitals":         {func(r *refund.Refund) { r.Account = "Demo" }, []string{"account"}},
		"CASE 31 zero":                {func(r *refund.Refund) { r.Amount.Value = 0 }, []string{"amount.value"}},
		"CASE 31 negative":            {func(r *refund.Refund) { r.Amount.Value = -1 }, []string{"amount.value"}},
		"beyond any payment":          {func(r *refund.Refund) { r.Amount.Value = refund.MaxAmount + 1 }, []string{"amount.value"}},
		"no such currency":            {func(r *refund.Refund) { r.Amount.Currency = "NTD" }, []string{"amount.currency"}},
		"small letters":               {func(r *refund.Refund) { r.Amount.Currency = "twd" }, []string{"amount.currency"}},
		"more than the payment":       {func(r *refund.Refund) { r.PaymentAmount = &refund.Money{Value: 1249, Currency: "TWD"} }, []string{"amount.value"}},
		"another currency":            {func(r *refund.Refund) { r.PaymentAmount = &refund.Money{Value: 5000, Currency: "JPY"} }, []string{"payment_amount.currency"}},
		"a payment of zero":           {func(r *refund.Refund) { r.PaymentAmount = &refund.Money{Currency: "TWD"} }, []string{"payment_amount.value"}},
		"a reason of blanks":          {func(r *refund.Refund) { r.Reason = " \n" }, []string{"reason"}},
		"a reason that is too long":   {func(r *refund.Refund) { r.Reason = strings.Repeat("退", 1001) }, []string{"reason"}},
		"a reason that is no text":    {func(r *refund.Refund) { r.Reason = "a\xff" }, []string{"reason"}},
		"a reason with a NUL":         {func(r *refund.Refund) { r.Reason = "a\x00" }, []string{"reason"}},
		"a name that is too long":     {func(r *refund.Refund) { r.RequestedBy = strings.Repeat("a", 129) }, []string{"requested_by"}},
		"nothing about a long reason": {func(r *refund.Refund) { r.Reason = strings.Repeat("退", 1000) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := valid()
			tt.change(&r)
			err := r.Validate()
			if tt.fields == nil {
				require.NoError(t, err)
				return
			}
			var invalid *refund.InvalidError
			require.ErrorAs(t, err, &invalid)
			var got []string
			for _, f := range invalid.Fields {
				got = append(got, f.Field)
				require.NotEmpty(t, f.Message)
			}
			require.Equal(t, tt.fields, got)
			require.NotContains(t, err.Error(), "破損", "free text in an error")
		})
	}
}

func TestFingerprintCoversEveryField(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for name, change := range map[string]func(*refund.Refund){
		"as it is":       func(*refund.Refund) {},
		"id":             func(r *refund.Refund) { r.ID = "r-2" },
		"account":        func(r *refund.Refund) { r.Account = "other" },
		"order":          func(r *refund.Refund) { r.OrderID = "o-2" },
		"payment":        func(r *refund.Refund) { r.PaymentID = "pay_2" },
		"value":          func(r *refund.Refund) { r.Amount.Value++ },
		"currency":       func(r *refund.Refund) { r.Amount.Currency = "JPY" },
		"payment amount": func(r *refund.Refund) { r.PaymentAmount = &refund.Money{Value: 5000, Currency: "TWD"} },
		"reason":         func(r *refund.Refund) { r.Reason = "other" },
		"by":             func(r *refund.Refund) { r.RequestedBy = "bob" },
	} {
		r := valid()
		change(&r)
		other, ok := seen[r.Fingerprint()]
		require.False(t, ok, "%s and %s", name, other)
		seen[r.Fingerprint()] = name
	}
	require.Len(t, valid().Fingerprint(), 64)
}

// CASE 29: the exponent is the currency's.
func TestCase29_Exponents(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]refund.Money{
		"12.50 TWD":  {Value: 1250, Currency: "TWD"},
		"0.05 TWD":   {Value: 5, Currency: "TWD"},
		"500 JPY":    {Value: 500, Currency: "JPY"},
		"500 UGX":    {Value: 500, Currency: "UGX"},
		"1.235 KWD":  {Value: 1235, Currency: "KWD"},
		"-1.00 USD":  {Value: -100, Currency: "USD"},
		"17 UNKNOWN": {Value: 17, Currency: "UNKNOWN"},
	} {
		require.Equal(t, want, m.String())
	}
	for currency, want := range map[string]int{"TWD": 2, "JPY": 0, "KRW": 0, "UGX": 0, "KWD": 3, "TND": 3, "EUR": 2} {
		got, ok := refund.Exponent(currency)
		require.True(t, ok)
		require.Equal(t, want, got, currency)
	}
	for _, no := range []string{"", "XAU", "XTS", "BTC", "usd"} {
		_, ok := refund.Exponent(no)
		require.False(t, ok, no)
	}
}

// CASE 31: an amount is an integer or it is refused; nothing is rounded,
// guessed or taken for "all".
func TestCase31_MoneyIsReadExactly(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{"1250": 1250, "0": 0, "-5": -5, "9223372036854775807": 9223372036854775807} {
		var m refund.Money
		require.NoError(t, json.Unmarshal([]byte(`{"value":`+in+`,"currency":"TWD"}`), &m))
		require.Equal(t, refund.Money{Value: want, Currency: "TWD"}, m)
	}
	for _, in := range []string{
		`{"value":12.50,"currency":"TWD"}`, `{"value":1e3,"currency":"TWD"}`, `{"value":"1250","currency":"TWD"}`,
		`{"value":1250.0,"currency":"TWD"}`, `{"value":null,"currency":"TWD"}`, `{"currency":"TWD"}`, `{"value":1250}`,
		`{"value":9223372036854775808,"currency":"TWD"}`, `{"value":true,"currency":"TWD"}`, `{"value":[1],"currency":"TWD"}`,
		`1250`, `"1250"`, `[]`, `null`,
	} {
		var m refund.Money
		var invalid *refund.InvalidError
		require.ErrorAs(t, json.Unmarshal([]byte(in), &m), &invalid, in)
		require.Equal(t, refund.Money{}, m)
	}
}

// Whatever is read as money was written as that very integer.
func FuzzMoney(f *testing.F) {
	for _, seed := range []string{
		`{"value":1250,"currency":"TWD"}`, `{"value":-0,"currency":""}`, `{"value":1e400,"currency":""}`, `{"Value":12.50,"currency":"TWD"}`, `null`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var m refund.Money
		if json.Unmarshal(in, &m) != nil {
			return
		}
		out, err := json.Marshal(m)
		require.NoError(t, err)
		var again refund.Money
		require.NoError(t, json.Unmarshal(out, &again))
		require.Equal(t, m, again)

		var members map[string]any
		d := json.NewDecoder(bytes.NewReader(in))
		d.UseNumber()
		require.NoError(t, d.Decode(&members))
		var written []any
		for name, value := range members {
			if strings.EqualFold(name, "value") {
				written = append(written, value)
			}
		}
		exact := json.Number(strconv.FormatInt(m.Value, 10))
		if m.Value == 0 && slices.Contains(written, any(json.Number("-0"))) {
			exact = "-0"
		}
		require.Contains(t, written, exact)
	})
}

func TestCase(t *testing.T) {
	t.Parallel()
	call := func(gen int, kind refund.CallKind, seq int, origin refund.Origin, o refund.Outcome) refund.Call {
		return refund.Call{Key: refund.CallKey{RefundID: "r-1", Generation: gen, Kind: kind, Seq: seq}, Origin: origin, Result: refund.Result{Outcome: o}}
	}
	c := refund.Case{Generation: 2, Calls: []refund.Call{
		call(1, refund.KindSubmit, 7, refund.OriginFirst, refund.OutcomeRejected),
		call(2, refund.KindSubmit, 1, refund.OriginFirst, refund.OutcomeNotSent),
		call(2, refund.KindSubmit, 2, refund.OriginFirst, refund.OutcomeBusy),
		call(2, refund.KindSubmit, 4, refund.OriginRetry, ""),
		call(2, refund.KindSubmit, 5, refund.OriginManual, refund.OutcomeUnknown),
		call(2, refund.KindCheck, 1, refund.OriginCheck, refund.OutcomeNotFound),
	}}
	require.Equal(t, 2, c.CountAttempts(), "busy, and the one without an outcome")
	require.Equal(t, 6, c.NextSeq(refund.KindSubmit))
	require.Equal(t, 2, c.NextSeq(refund.KindCheck))
	require.Equal(t, 1, refund.Case{Generation: 1}.NextSeq(refund.KindSubmit))
}
