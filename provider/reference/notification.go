package reference

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"refundgate/provider"
	"refundgate/refund"
)

// Notification reads a signed message that a refund has changed.
func (n *Notices) Notification(header http.Header, body []byte, now time.Time) (refund.Notice, error) {
	if len(body) > provider.MaxNotification {
		return refund.Notice{}, &provider.MalformedError{Message: fmt.Sprintf("the notification is over %d bytes", provider.MaxNotification)}
	}
	secrets := n.secrets()
	if err := verify(header, body, secrets, now); err != nil {
		return refund.Notice{}, err
	}
	notice, err := readEvent(body, secrets, n.exponents)
	if err != nil {
		return refund.Notice{}, &provider.MalformedError{Message: err.Error()}
	}
	notice.Account, notice.Source = n.account, refund.SourceNotification
	return notice, nil
}

func readEvent(body []byte, secrets []string, exponents refund.Exponents) (refund.Notice, error) {
	var event object
	if json.Unmarshal(body, &event) != nil || event == nil {
		return refund.Notice{}, errors.New("the notification is not one JSON object")
	}
	id, _ := event.text("id")
	if !providerID.MatchString(id) {
		return refund.Notice{}, errors.New("id must be 1 to 128 characters of A-Z a-z 0-9 . _ -")
	}
	kind, ok := event.text("type")
	if !ok {
		return refund.Notice{}, errors.New("type is missing")
	}
	var data object
	if json.Unmarshal(event["data"], &data) != nil || data == nil {
		return refund.Notice{}, errors.New("data must be a refund")
	}
	said, err := readStatement(data)
	if err != nil {
		return refund.Notice{}, fmt.Errorf("data: %w", err)
	}
	if said.at, ok = event.text("created_at"); !ok {
		return refund.Notice{}, errors.New("created_at is missing")
	}
	notice, err := said.notice(secrets, exponents)
	if err != nil {
		return refund.Notice{}, err
	}
	notice.EventID = id
	if kind != "refund."+said.status {
		// It says two things, or one that isn't in the contract.
		notice.Outcome, notice.Code = refund.OutcomeUnknown, cleanCode(kind+"/"+said.status, secrets...)
	}
	return notice, nil
}

// readStatement takes what a notification says about a refund. A member that
// is missing or null is empty; one that is no text is an error that names it.
func readStatement(data object) (statement, error) {
	var s statement
	for _, m := range []struct {
		name string
		into *string
	}{
		{"id", &s.id},
		{"reference", &s.reference},
		{"payment_id", &s.paymentID},
		{"currency", &s.currency},
		{"status", &s.status},
	} {
		if raw, ok := data[m.name]; ok && json.Unmarshal(raw, m.into) != nil {
			return statement{}, fmt.Errorf("%s must be a text", m.name)
		}
	}
	s.amount = string(data["amount"])
	var err error
	s.failure, err = data.failure()
	return s, err
}
