package refund

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Money is an amount in integer minor units of a currency: {1250 TWD} is
// NT$12.50, {500 JPY} is 500 yen, {1235 KWD} is 1.235 dinars.
type Money struct {
	Value    int64  `json:"value"`
	Currency string `json:"currency"` // ISO 4217 alphabetic code, upper case
}

// MaxAmount bounds a single amount, in minor units. It is far above any
// payment and far below the point where the sum of a payment's refunds could
// overflow an int64.
const MaxAmount = 1_000_000_000_000_000

// UnmarshalJSON takes {"value": <integer>, "currency": "<code>"} and refuses
// every value that is not a plain JSON integer: 12.50, 1e3, "1250" and null
// are errors, never rounded or guessed.
func (m *Money) UnmarshalJSON(b []byte) error {
	var raw struct {
		Value    json.RawMessage `json:"value"`
		Currency *string         `json:"currency"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return &InvalidError{Fields: []FieldError{{"", `must be an object {"value": integer in minor units, "currency": "ISO 4217 code"}`}}}
	}
	var bad []FieldError
	value, err := parseMinorUnits(raw.Value)
	if err != nil {
		bad = append(bad, FieldError{"value", err.Error()})
	}
	if raw.Currency == nil {
		bad = append(bad, FieldError{"currency", "is required"})
	}
	if len(bad) > 0 {
		return &InvalidError{Fields: bad}
	}
	*m = Money{Value: value, Currency: *raw.Currency}
	return nil
}

// parseMinorUnits reads a JSON integer: an optional minus, digits, no leading
// zeros, nothing else.
func parseMinorUnits(raw json.RawMessage) (int64, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return 0, fmt.Errorf("is required")
	}
	digits := raw
	if digits[0] == '-' {
		digits = digits[1:]
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("must be an integer in minor units, such as 1250 for 12.50")
		}
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("is out of range")
	}
	return v, nil
}

// Exponent returns how many decimal places the currency's minor unit has by
// ISO 4217, and false for a code that is not an active currency.
func Exponent(currency string) (int, bool) {
	e, ok := exponents[currency]
	return e, ok
}

// String formats the amount with the currency's decimal places: "12.50 TWD".
func (m Money) String() string {
	exp, ok := Exponent(m.Currency)
	if !ok || exp == 0 {
		return fmt.Sprintf("%d %s", m.Value, m.Currency)
	}
	sign, v := "", m.Value
	if v < 0 {
		sign, v = "-", -v
	}
	unit := int64(1)
	for range exp {
		unit *= 10
	}
	return fmt.Sprintf("%s%d.%0*d %s", sign, v/unit, exp, v%unit, m.Currency)
}

func (m Money) validate(field string) []FieldError {
	var bad []FieldError
	if m.Value <= 0 {
		bad = append(bad, FieldError{field + ".value", "must be positive, in minor units"})
	} else if m.Value > MaxAmount {
		bad = append(bad, FieldError{field + ".value", fmt.Sprintf("must not be over %d", int64(MaxAmount))})
	}
	if _, ok := Exponent(m.Currency); !ok {
		bad = append(bad, FieldError{field + ".currency", "must be an active ISO 4217 code such as TWD"})
	}
	return bad
}

// exponents holds the active currencies of ISO 4217 (List One) with the
// number of decimal places of their minor unit. Funds codes, precious metals
// and test codes are left out: nobody is refunded in them.
var exponents = func() map[string]int {
	m := map[string]int{}
	for exp, codes := range map[int][]string{
		0: {"BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF"},
		2: {
			"AED", "AFN", "ALL", "AMD", "AOA", "ARS", "AUD", "AWG", "AZN", "BAM", "BBD", "BDT", "BMD", "BND", "BOB",
			"BRL", "BSD", "BTN", "BWP", "BYN", "BZD", "CAD", "CDF", "CHF", "CNY", "COP", "CRC", "CUP", "CVE", "CZK",
			"DKK", "DOP", "DZD", "EGP", "ERN", "ETB", "EUR", "FJD", "FKP", "GBP", "GEL", "GHS", "GIP", "GMD", "GTQ",
			"GYD", "HKD", "HNL", "HTG", "HUF", "IDR", "ILS", "INR", "IRR", "JMD", "KES", "KGS", "KHR", "KPW", "KYD",
			"KZT", "LAK", "LBP", "LKR", "LRD", "LSL", "MAD", "MDL", "MGA", "MKD", "MMK", "MNT", "MOP", "MRU", "MUR",
			"MVR", "MWK", "MXN", "MYR", "MZN", "NAD", "NGN", "NIO", "NOK", "NPR", "NZD", "PAB", "PEN", "PGK", "PHP",
			"PKR", "PLN", "QAR", "RON", "RSD", "RUB", "SAR", "SBD", "SCR", "SDG", "SEK", "SGD", "SHP", "SLE", "SOS",
			"SRD", "SSP", "STN", "SVC", "SYP", "SZL", "THB", "TJS", "TMT", "TOP", "TRY", "TTD", "TWD", "TZS", "UAH",
			"USD", "UYU", "UZS", "VED", "VES", "WST", "XCD", "XCG", "YER", "ZAR", "ZMW", "ZWG",
		},
		3: {"BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"},
	} {
		for _, c := range codes {
			m[c] = exp
		}
	}
	return m
}()
