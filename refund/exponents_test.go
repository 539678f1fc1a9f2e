package refund_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/refund"
)

// CASE 29: a provider's own exponents; nothing is rounded on the way there or
// back.
func TestCase29_ProvidersOwnExponents(t *testing.T) {
	t.Parallel()
	own := refund.Exponents{"TWD": 0, "KWD": 2, "UGX": 2}
	for _, tt := range []struct {
		amount refund.Money
		units  int64
		err    string
	}{
		{refund.Money{Value: 1300, Currency: "TWD"}, 13, ""},
		{refund.Money{Value: 1250, Currency: "TWD"}, 0, "must be a multiple of 100: the account's provider takes nothing smaller than 1.00 TWD"},
		{refund.Money{Value: 50050, Currency: "TWD"}, 0, "must be a multiple of 100: the account's provider takes nothing smaller than 1.00 TWD"},
		{refund.Money{Value: 1230, Currency: "KWD"}, 123, ""},
		{refund.Money{Value: 1235, Currency: "KWD"}, 0, "must be a multiple of 10: the account's provider takes nothing smaller than 0.010 KWD"},
		{refund.Money{Value: 500, Currency: "UGX"}, 50000, ""},
		{refund.Money{Value: refund.MaxAmount, Currency: "UGX"}, refund.MaxAmount * 100, ""},
		{refund.Money{Value: 500, Currency: "JPY"}, 500, ""}, // not its own: ISO 4217's
		{refund.Money{Value: 1251, Currency: "EUR"}, 1251, ""},
	} {
		units, err := own.Units(tt.amount)
		r := valid()
		r.Amount = tt.amount
		if tt.err != "" {
			require.EqualError(t, err, tt.err)
			require.Equal(t, &refund.InvalidError{Fields: []refund.FieldError{{Field: "amount.value", Message: tt.err}}}, own.Validate(r))
			continue
		}
		require.NoError(t, err)
		require.NoError(t, own.Validate(r))
		require.Equal(t, tt.units, units)
		back, err := own.Money(units, tt.amount.Currency)
		require.NoError(t, err)
		require.Equal(t, tt.amount, back)
	}

	for currency, units := range map[string]int64{"UGX": 50050, "TWD": math.MaxInt64, "KWD": math.MinInt64} {
		_, err := own.Money(units, currency)
		require.Error(t, err, "%s: no amount of ours", currency)
	}
	units, err := refund.Exponents(nil).Units(refund.Money{Value: 1250, Currency: "TWD"})
	require.NoError(t, err)
	require.EqualValues(t, 1250, units)
}

// TestPropertyUnits: what is sent is worth what was asked for, or not sent.
func TestPropertyUnits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		currency := rapid.SampledFrom([]string{"JPY", "TWD", "KWD"}).Draw(t, "currency")
		own := refund.Exponents{currency: rapid.IntRange(0, refund.MaxExponent).Draw(t, "exponent")}
		amount := refund.Money{Value: rapid.Int64Range(1, refund.MaxAmount).Draw(t, "value"), Currency: currency}
		units, err := own.Units(amount)
		if err != nil {
			return
		}
		require.Positive(t, units)
		back, err := own.Money(units, currency)
		require.NoError(t, err)
		require.Equal(t, amount, back)
	})
}
