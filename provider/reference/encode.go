package reference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"refundgate/refund"
)

// maxReason bounds the reason, in characters.
const maxReason = 255

// submission is the body of a POST. Amounts are in ISO 4217 minor units, as
// ours are, unless the account is configured with exponents of its own.
type submission struct {
	Reference string `json:"reference"`
	PaymentID string `json:"payment_id"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Reason    string `json:"reason"`
}

// Encode returns the request's body: the same refund gives the same bytes.
func (a *Adapter) Encode(r refund.Refund) ([]byte, error) {
	if err := encodable(r); err != nil {
		return nil, fmt.Errorf("encoding for the reference provider: %w", err)
	}
	units, err := a.exponents.Units(r.Amount)
	if err != nil {
		return nil, fmt.Errorf("encoding for the reference provider: amount %w", err)
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err = enc.Encode(submission{
		Reference: r.ID,
		PaymentID: r.PaymentID,
		Amount:    units,
		Currency:  r.Amount.Currency,
		Reason:    cleanReason(r.Reason),
	})
	if err != nil {
		return nil, fmt.Errorf("encoding for the reference provider: %w", err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

func encodable(r refund.Refund) error {
	if err := refund.ValidateID(r.ID); err != nil {
		return fmt.Errorf("refund id %w", err)
	}
	if err := refund.ValidateID(r.PaymentID); err != nil {
		return fmt.Errorf("payment id %w", err)
	}
	if r.Amount.Value <= 0 || r.Amount.Value > refund.MaxAmount {
		return fmt.Errorf("amount must be positive and not over %d", int64(refund.MaxAmount))
	}
	if _, ok := refund.Exponent(r.Amount.Currency); !ok {
		return fmt.Errorf("currency is not an active ISO 4217 code")
	}
	return nil
}

// cleanReason makes free text fit the provider's field: line ends, control
// characters and runs of spaces become one space each, and what is too long
// is cut between two characters as people see them.
func cleanReason(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || unicode.IsSpace(r)
	}), " ")
	text := []rune(s)
	if len(text) <= maxReason {
		return s
	}
	end := maxReason
	for end > 0 && joined(text, end) {
		end--
	}
	if end == 0 { // one endless "character": nothing better than a plain cut
		end = maxReason
	}
	return strings.TrimRight(string(text[:end]), " ")
}

const (
	zeroWidthJoiner = '\u200D'
	tagFirst        = '\U000E0020' // flags of England, Scotland and Wales
	tagLast         = '\U000E007F'
	skinToneFirst   = '\U0001F3FB'
	skinToneLast    = '\U0001F3FF'
	regionalFirst   = '\U0001F1E6' // two of them are a country's flag
	regionalLast    = '\U0001F1FF'
)

// joined tells whether text[i] belongs to the same visible character as
// text[i-1]: accents, variation selectors, and the parts of composed emoji.
func joined(text []rune, i int) bool {
	r := text[i]
	switch {
	case unicode.Is(unicode.M, r), r == zeroWidthJoiner, text[i-1] == zeroWidthJoiner:
		return true
	case r >= skinToneFirst && r <= skinToneLast, r >= tagFirst && r <= tagLast:
		return true
	case !regional(r):
		return false
	}
	before := 0
	for i > before && regional(text[i-1-before]) {
		before++
	}
	return before%2 == 1
}

func regional(r rune) bool { return r >= regionalFirst && r <= regionalLast }
