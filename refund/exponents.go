package refund

import "fmt"

// MaxExponent bounds the decimal places in which a provider may count: with it
// MaxAmount still fits an int64 many times.
const MaxExponent = 3

// Exponents are the decimal places in which a provider counts amounts, by
// currency, where they are not those of ISO 4217: {"TWD": 0} for one that takes
// whole dollars only. The zero value is ISO 4217 throughout.
type Exponents map[string]int

// scale returns by what a value in ISO 4217 minor units is multiplied and
// divided to get the provider's units. One of the two is 1.
func (e Exponents) scale(currency string) (times, by int64) {
	times, by = 1, 1
	iso, known := Exponent(currency)
	own, differs := e[currency]
	if !known || !differs {
		return times, by
	}
	for ; own > iso; own-- {
		times *= 10
	}
	for ; own < iso; own++ {
		by *= 10
	}
	return times, by
}

// Units returns the amount as the provider counts it. The error says that the
// provider can't take an amount of that precision; nothing is rounded. The
// amount is one that Validate allows.
func (e Exponents) Units(m Money) (int64, error) {
	times, by := e.scale(m.Currency)
	if m.Value%by != 0 {
		return 0, fmt.Errorf("must be a multiple of %d: the account's provider takes nothing smaller than %s", by, Money{by, m.Currency})
	}
	return m.Value / by * times, nil
}

// Money returns the amount that the provider states in units of its own. The
// error says that no amount of ours equals it.
func (e Exponents) Money(units int64, currency string) (Money, error) {
	times, by := e.scale(currency)
	if units%times != 0 || (by > 1 && (units > MaxAmount/by || units < -MaxAmount/by)) {
		return Money{}, fmt.Errorf("the amount is none in minor units of %s", currency)
	}
	return Money{units / times * by, currency}, nil
}

// Validate returns nil or an *InvalidError if the provider can't be asked for
// an amount of the refund's precision.
func (e Exponents) Validate(r Refund) error {
	if _, err := e.Units(r.Amount); err != nil {
		return &InvalidError{Fields: []FieldError{{"amount.value", err.Error()}}}
	}
	return nil
}
