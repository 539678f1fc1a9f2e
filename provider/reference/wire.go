package reference

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"refundgate/refund"
)

// providerID is what the provider's refund ids look like. They are stored and
// become part of a URL, so anything else is not taken for one.
var providerID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// statusFailed is the status of a refund that didn't work.
const statusFailed = "failed"

// statuses are what the contract lists. Another one says nothing.
var statuses = map[string]refund.Outcome{
	"succeeded":  refund.OutcomeSucceeded,
	"pending":    refund.OutcomePending,
	statusFailed: refund.OutcomeRejected,
}

// wireRefund is a refund as the provider describes it.
type wireRefund struct {
	id, reference, paymentID string
	amount                   refund.Money
	status                   string // as it came; may be one that the contract doesn't know
	failure                  string // failure code, if any
}

// readRefund takes the members that the contract gives a refund. One that is
// missing, null or of another type is an error that names it.
func readRefund(o object, exponents refund.Exponents) (wireRefund, error) {
	var r wireRefund
	for _, m := range []struct {
		name string
		into *string
	}{
		{"id", &r.id},
		{"reference", &r.reference},
		{"payment_id", &r.paymentID},
		{"currency", &r.amount.Currency},
		{"status", &r.status},
	} {
		s, ok := o.text(m.name)
		if !ok {
			return wireRefund{}, fmt.Errorf("refund without a readable %s", m.name)
		}
		*m.into = s
	}
	if !providerID.MatchString(r.id) {
		return wireRefund{}, errors.New("refund without a readable id")
	}
	// A null would pass as 0, which is nobody's amount.
	var units int64
	if json.Unmarshal(o["amount"], &units) != nil {
		return wireRefund{}, errors.New("refund without a readable amount")
	}
	var err error
	if r.amount, err = exponents.Money(units, r.amount.Currency); err != nil {
		return wireRefund{}, errors.New("refund without a readable amount")
	}
	r.failure, err = o.failure()
	return r, err
}

// differsFrom names the first member that contradicts the refund we asked
// about, or returns "".
func (r wireRefund) differsFrom(want refund.Refund) string {
	switch {
	case r.reference != want.ID:
		return "reference"
	case r.paymentID != want.PaymentID:
		return "payment"
	case r.amount.Currency != want.Amount.Currency:
		return "currency"
	case r.amount.Value != want.Amount.Value:
		return "amount"
	}
	return ""
}

// object is a JSON object whose names count exactly as written. encoding/json
// would take "Status" for "status" and the last of two; here a name that comes
// twice makes the object unreadable, since it says two things.
type object map[string]json.RawMessage

// UnmarshalJSON implements json.Unmarshaler.
func (o *object) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New("not an object")
	}
	members := object{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		name, ok := t.(string)
		if !ok {
			return errors.New("not an object")
		}
		if _, twice := members[name]; twice {
			return errors.New("a name comes twice")
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		members[name] = raw
	}
	*o = members
	return nil
}

// text returns a member that is a non-empty JSON string.
func (o object) text(name string) (string, bool) {
	var s string
	if json.Unmarshal(o[name], &s) != nil || s == "" {
		return "", false
	}
	return s, true
}

// failure returns the failure code of a refund, empty if it has none.
func (o object) failure() (string, error) {
	raw, ok := o["failure"]
	if !ok || string(raw) == "null" {
		return "", nil
	}
	var f object
	if json.Unmarshal(raw, &f) != nil {
		return "", errors.New("refund without a readable failure")
	}
	code, _ := f.text("code")
	return code, nil
}
