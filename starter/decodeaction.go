package starter

import (
	"encoding/json"

	"refundgate/refund"
)

// DecodeAction reads the body of an action and validates it, as strictly as
// DecodeRefund: the error is a *refund.InvalidError that names every bad field,
// or says why the body can't be read at all.
func DecodeAction(a refund.Action, body []byte) (refund.ActionInput, error) {
	var d decoder
	members, err := d.document(body, "by", "reason", "owner", "status", "evidence", "version")
	if err != nil {
		return refund.ActionInput{}, err
	}
	in := refund.ActionInput{
		By:       d.text("by", members["by"]),
		Reason:   d.text("reason", members["reason"]),
		Owner:    d.text("owner", members["owner"]),
		Status:   refund.Status(d.text("status", members["status"])),
		Evidence: d.text("evidence", members["evidence"]),
		Version:  d.version(members["version"]),
	}
	// Nobody is an owner too, but has to be meant.
	switch {
	case a == refund.ActionAssign && absent(members["owner"]):
		d.refuse("owner", "is required; an empty one takes the case from whoever has it")
	case a == refund.ActionAssign && in.Owner == "":
		in.Nobody = true
	}
	d.refuseAll(in.Validate(a))
	if err := d.invalid("action"); err != nil {
		return refund.ActionInput{}, err
	}
	return in, nil
}

// DecodeCorrection reads the body of a correction, as strictly as DecodeRefund.
// Whether it makes a valid refund shows when it meets the case.
func DecodeCorrection(body []byte) (refund.Correction, error) {
	var d decoder
	members, err := d.document(body, "by", "reason", "payment_id", "amount", "payment_amount", "refund_reason", "version")
	if err != nil {
		return refund.Correction{}, err
	}
	c := refund.Correction{
		By:            d.text("by", members["by"]),
		Reason:        d.text("reason", members["reason"]),
		PaymentID:     d.text("payment_id", members["payment_id"]),
		Amount:        d.money("amount", members["amount"]),
		PaymentAmount: d.money("payment_amount", members["payment_amount"]),
		RefundReason:  d.text("refund_reason", members["refund_reason"]),
		Version:       d.version(members["version"]),
	}
	if err := d.invalid("correction"); err != nil {
		return refund.Correction{}, err
	}
	return c, nil
}

// version reads the version of a case; 0 if it is missing.
func (d *decoder) version(raw json.RawMessage) int64 {
	if absent(raw) {
		return 0
	}
	var v int64
	if json.Unmarshal(raw, &v) != nil {
		d.refuse("version", "must be an integer")
	}
	return v
}
