package starter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"refundgate/internal/config"
	"refundgate/refund"
)

// malformedError says why a body is not one JSON document. It holds nothing
// of the body.
type malformedError struct {
	reason string
}

func (e *malformedError) Error() string { return "the body " + e.reason }

// maxFieldErrors bounds how many refused fields are reported of one body.
const maxFieldErrors = 30

// DecodeRefund reads a submission and validates it. It is stricter than
// encoding/json, which would let a typo, a doubled member or other letter case
// decide about money without a word. The error is a *refund.InvalidError that
// names every bad field, or says why the body can't be read at all.
func DecodeRefund(body []byte) (refund.Refund, error) { return decodeRefund(body, "") }

// decodeRefund is DecodeRefund for a refund whose id is known from elsewhere, if
// knownID isn't empty: the body may leave it out, and must not differ.
func decodeRefund(body []byte, knownID string) (refund.Refund, error) {
	var d decoder
	members, err := d.document(body, "refund_id", "account", "order_id", "payment_id", "amount", "payment_amount", "reason", "requested_by")
	if err != nil {
		return refund.Refund{}, err
	}
	if _, there := members["refund_id"]; !there && knownID != "" {
		members["refund_id"], _ = json.Marshal(knownID) // a string always can be
	}
	r := refund.Refund{
		ID:          d.text("refund_id", members["refund_id"]),
		Account:     d.text("account", members["account"]),
		OrderID:     d.text("order_id", members["order_id"]),
		PaymentID:   d.text("payment_id", members["payment_id"]),
		Reason:      d.text("reason", members["reason"]),
		RequestedBy: d.text("requested_by", members["requested_by"]),
	}
	if amount := d.money("amount", members["amount"]); amount != nil {
		r.Amount = *amount
	} else {
		d.refuse("amount", "is required")
	}
	r.PaymentAmount = d.money("payment_amount", members["payment_amount"])

	d.refuseAll(r.Validate())
	if knownID != "" && r.ID != knownID {
		d.refuse("refund_id", "is not that of the row")
	}
	if err := d.invalid(""); err != nil {
		return refund.Refund{}, err
	}
	return r, nil
}

// decodeServed is decodeRefund for refunds of one of the accounts, whose
// provider can be asked for the amount.
func decodeServed(body []byte, knownID string, accounts []config.Account) (refund.Refund, error) {
	r, err := decodeRefund(body, knownID)
	if err != nil {
		return r, err
	}
	i := slices.IndexFunc(accounts, func(acc config.Account) bool { return acc.Name == r.Account })
	if i < 0 {
		return r, &refund.InvalidError{Fields: []refund.FieldError{{Field: "account", Message: "is not a configured account"}}}
	}
	return r, accounts[i].Exponents.Validate(r)
}

// decoder collects what is wrong with the fields of a body.
type decoder struct {
	refused []refund.FieldError
}

// document reads a body that must be one JSON object and returns its known
// members; what it refuses of the others it notes. The error is a
// *malformedError.
func (d *decoder) document(body []byte, known ...string) (map[string]json.RawMessage, error) {
	if !utf8.Valid(body) {
		return nil, &malformedError{"is not valid UTF-8"}
	}
	var root json.RawMessage
	if err := json.Unmarshal(body, &root); err != nil {
		reason := "is not valid JSON"
		if at := (*json.SyntaxError)(nil); errors.As(err, &at) {
			reason = fmt.Sprintf("is not one valid JSON document; see byte %d", at.Offset)
		}
		return nil, &malformedError{reason}
	}
	members, ok := d.object("", root, known...)
	if !ok {
		return nil, &malformedError{"must be a JSON object"}
	}
	return members, nil
}

// invalid returns what was refused, or nil if nothing was; what names the
// input for people.
func (d *decoder) invalid(what string) error {
	if len(d.refused) == 0 {
		return nil
	}
	return &refund.InvalidError{What: what, Fields: d.refused}
}

// refuseAll notes what a validation found.
func (d *decoder) refuseAll(err error) {
	var invalid *refund.InvalidError
	if errors.As(err, &invalid) {
		for _, f := range invalid.Fields {
			d.refuse(f.Field, f.Message)
		}
	}
}

// refuse notes what is wrong with a field, unless the field or the object
// around it was refused before: the first reason is the cause of the others.
func (d *decoder) refuse(field, message string) {
	known := func(f refund.FieldError) bool {
		return f.Field == field || strings.HasPrefix(field, f.Field+".")
	}
	if len(d.refused) < maxFieldErrors && !slices.ContainsFunc(d.refused, known) {
		d.refused = append(d.refused, refund.FieldError{Field: field, Message: message})
	}
}

// object returns the known members of a JSON object by their exact names.
// Unknown and repeated members are refused. It returns false if raw is
// something else than an object.
func (d *decoder) object(path string, raw json.RawMessage, known ...string) (map[string]json.RawMessage, bool) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	members := map[string]json.RawMessage{}
	for dec.More() {
		t, err := dec.Token()
		name, isName := t.(string)
		var value json.RawMessage
		if err != nil || !isName || dec.Decode(&value) != nil {
			return nil, false
		}
		switch _, again := members[name]; {
		case !slices.Contains(known, name):
			d.refuse(path+shorten(name), "is not a known member")
		case again:
			d.refuse(path+name, "is there twice")
		default:
			members[name] = value
		}
	}
	return members, true
}

// text reads a string member. A missing one is left to the validation.
func (d *decoder) text(field string, raw json.RawMessage) string {
	if absent(raw) {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		d.refuse(field, "must be a string")
	}
	return s
}

// money reads an amount; nil if it is missing.
func (d *decoder) money(field string, raw json.RawMessage) *refund.Money {
	if absent(raw) {
		return nil
	}
	var m refund.Money
	members, ok := d.object(field+".", raw, "value", "currency")
	if !ok {
		d.refuse(field, `must be an object {"value": integer in minor units, "currency": "ISO 4217 code"}`)
		return &m
	}
	var currency string
	switch raw := members["currency"]; {
	case absent(raw):
		d.refuse(field+".currency", "is required")
	case json.Unmarshal(raw, &currency) != nil:
		d.refuse(field+".currency", "must be a string")
	}
	// What a value may look like is Money's own business. It is given the
	// value alone, so that a bad currency does not hide it.
	value, err := json.Marshal(map[string]json.RawMessage{"value": members["value"], "currency": json.RawMessage(`""`)})
	if err != nil { // it was read as JSON
		panic(err)
	}
	var invalid *refund.InvalidError
	if errors.As(json.Unmarshal(value, &m), &invalid) {
		for _, f := range invalid.Fields {
			d.refuse(field+"."+f.Field, f.Message)
		}
	}
	m.Currency = currency
	return &m
}

// absent tells whether a member is missing or null, which mean the same.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// shorten bounds a name that the client made up, for an error message.
func shorten(name string) string {
	const longest = 64
	if len(name) <= longest {
		return name
	}
	return strings.ToValidUTF8(name[:longest], "") + "..."
}
