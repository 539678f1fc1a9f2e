package reference

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"refundgate/provider"
	"refundgate/refund"
)

// Notices reads the reference provider's notifications and settlement reports.
// It implements provider.Notices.
//
// signature.go tells whose message it is, notification.go and settlement.go
// read the two forms, and this file says what they may hold.
type Notices struct {
	account   string
	exponents refund.Exponents
	secrets   func() []string
}

var _ provider.Notices = (*Notices)(nil)

// NewNotices reads what is meant for an account, in which amounts are counted
// with these exponents; see Config. secrets returns those that sign its
// notifications; while one is exchanged for another it returns both.
// It is asked for each notification, and without a secret none is let in.
func NewNotices(account string, exponents refund.Exponents, secrets func() []string) *Notices {
	return &Notices{account: account, exponents: exponents, secrets: secrets}
}

// statement is what a notification or a row says about a refund, as it came.
type statement struct {
	id, reference string // one of them may be empty
	paymentID     string
	amount        string
	currency      string
	status        string
	failure       string // failure code, if any
	at            string
}

// amountPattern is an integer in minor units: no sign, no decimals, no
// exponent, no leading zeros. 16 digits hold refund.MaxAmount, and 19 do in the
// units of any account.
var amountPattern = regexp.MustCompile(`^[1-9][0-9]{0,18}$`)

// notice checks the statement and says what it means. secrets are kept out of
// its texts. An error says in our own words what is wrong.
func (s statement) notice(secrets []string, exponents refund.Exponents) (refund.Notice, error) {
	n := refund.Notice{
		ProviderRefundID: s.id,
		Reference:        recognisable(s.reference),
		PaymentID:        recognisable(s.paymentID),
	}
	if s.id == "" && s.reference == "" {
		return refund.Notice{}, errors.New("the refund has neither id nor reference")
	}
	if s.id != "" && !providerID.MatchString(s.id) {
		return refund.Notice{}, errors.New("the refund's id must be 1 to 128 characters of A-Z a-z 0-9 . _ -")
	}
	units, _ := strconv.ParseInt(s.amount, 10, 64) // 0 if it is none
	var err error
	n.Amount, err = exponents.Money(units, s.currency)
	if err != nil || !amountPattern.MatchString(s.amount) || n.Amount.Value > refund.MaxAmount {
		return refund.Notice{}, fmt.Errorf("the amount must be an integer in minor units, such as 1250 for 12.50, from 1 to %d", int64(refund.MaxAmount))
	}
	if _, ok := refund.Exponent(s.currency); !ok {
		return refund.Notice{}, errors.New("the currency must be an active ISO 4217 code such as TWD")
	}
	if s.status == "" {
		return refund.Notice{}, errors.New("the status is missing")
	}
	if n.SaidAt, err = instant(s.at); err != nil {
		return refund.Notice{}, err
	}
	n.Outcome, n.Code = s.meaning(secrets)
	return n, nil
}

// meaning says what the status means. One that isn't listed, or that the
// failure code contradicts, proves nothing.
func (s statement) meaning(secrets []string) (outcome refund.Outcome, code string) {
	outcome, listed := statuses[s.status]
	switch {
	case !listed:
		return refund.OutcomeUnknown, cleanCode(s.status, secrets...)
	case outcome == refund.OutcomeRejected:
		return outcome, failureCode(s.failure, secrets...)
	case s.failure != "":
		return refund.OutcomeUnknown, refund.CodeContradiction
	}
	return outcome, ""
}

// recognisable returns a reference or payment id as it is if it may be one of
// ours. Another one (a refund made by hand can have any text there) is made
// short and plain, and ends in a character that none of ours has: it stays
// recognisable, and equals none.
func recognisable(s string) string {
	if s == "" || refund.ValidateID(s) == nil {
		return s
	}
	plain := strings.Map(func(r rune) rune {
		if refund.ValidateID("x"+string(r)) != nil {
			return '?'
		}
		return r
	}, s)
	return cut(plain, refund.MaxReferenceLen-1) + "?"
}

// instant reads an RFC 3339 time to the microsecond, in UTC. Years that no
// refund is of are refused: a database may not be able to keep them.
func instant(s string) (time.Time, error) {
	var at time.Time
	// Unlike time.Parse, it takes nothing but what RFC 3339 allows.
	err := at.UnmarshalText([]byte(s))
	at = at.UTC().Truncate(time.Microsecond)
	if err != nil || at.Year() < 2000 || at.Year() > 9999 {
		return time.Time{}, errors.New("the time must be RFC 3339, such as 2026-03-01T12:00:00Z")
	}
	return at, nil
}
