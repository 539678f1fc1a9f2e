package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"refundgate/refund"
)

// Sizes of the columns that hold what a notice says, in characters.
const (
	maxEventID  = 255
	maxTold     = 255 // a reference and a payment id
	maxCurrency = 16
)

// AddNotice stores what the provider told us and finds the case that it is
// about. The same event of the same account and source again returns what was
// stored the first time, with isNew false. (isNew can also be false for the one
// whose commit was only confirmed by asking again.)
//
// A notice that belongs to a case becomes part of it, with a line on its trail,
// in the same transaction; it is among the Untold from then on. One that
// belongs to none is parked, for MatchParked to try again. n's own fields from
// ReceivedAt on are ignored.
//
// An *refund.InvalidError says that n can't be stored as it is, ever; nothing
// was then. What is merely too long in it is stored cut, an id of the provider
// that is too long not at all.
func (l *Ledger) AddNotice(ctx context.Context, n refund.Notice) (stored refund.Notice, isNew bool, err error) {
	if err := validateNotice(n); err != nil {
		return refund.Notice{}, false, err
	}
	n = storableNotice(n)
	// Most repeats end here, without taking a lock.
	stored, err = l.noticeOfEvent(ctx, n)
	if errors.Is(err, ErrNotFound) {
		isNew = true
		err = l.tx(ctx, func(tx *sql.Tx) (err error) {
			stored, err = l.addNotice(ctx, tx, n)
			return err
		})
	}
	// A duplicate key: the same event was stored in the meantime.
	if errno(err) == errnoDuplicateKey {
		isNew = false
		stored, err = l.noticeOfEvent(ctx, n)
	}
	if err != nil {
		return refund.Notice{}, false, fmt.Errorf("storing %s %q of account %s: %w", n.Source, n.EventID, n.Account, err)
	}
	return stored, isNew, nil
}

func (l *Ledger) addNotice(ctx context.Context, tx *sql.Tx, n refund.Notice) (refund.Notice, error) {
	received := l.now()
	n.ReceivedAt, n.RefundID, n.Generation = received, "", 0
	refundID, problem, err := findCase(ctx, tx, n)
	if err != nil {
		return n, err
	}
	n.Problem = problem
	if problem == "" {
		c, err := lockCase(ctx, tx, refundID)
		if err != nil {
			return n, err
		}
		if n, err = l.attach(ctx, tx, c, n); err != nil {
			return n, err
		}
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO notices (account, source, event_id, provider_refund_id, reference, payment_id, amount, currency,
			outcome, code, said_at, received_at, tried_at, refund_id, generation, problem, matched_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		n.Account, n.Source, n.EventID, n.ProviderRefundID, n.Reference, n.PaymentID, n.Amount.Value, n.Amount.Currency,
		n.Outcome, n.Code, n.SaidAt, received, received, orNull(n.RefundID), n.Generation, n.Problem, matchedAt(n))
	if err != nil {
		return n, fmt.Errorf("inserting the notice: %w", err)
	}
	return n, nil
}

// Parked returns the notices that belong to no case (yet), in the order of
// storing, at most limit of them. An empty account means all of them.
func (l *Ledger) Parked(ctx context.Context, account string, limit int) ([]refund.Notice, error) {
	where, args := "refund_id IS NULL", []any{}
	if account != "" {
		where, args = where+" AND account = ?", append(args, account)
	}
	notices, err := queryAll(ctx, l.pool, scanNotice, `
		SELECT `+noticeColumns+` FROM notices WHERE `+where+` ORDER BY id LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("listing parked notices: %w", err)
	}
	return notices, nil
}

// noticeOfEvent returns the stored notice with n's event id.
func (l *Ledger) noticeOfEvent(ctx context.Context, n refund.Notice) (refund.Notice, error) {
	stored, err := scanNotice(l.pool.QueryRowContext(ctx, `
		SELECT `+noticeColumns+` FROM notices WHERE account = ? AND source = ? AND event_id = ?`,
		n.Account, n.Source, n.EventID))
	return stored, orNotFound(err)
}

// noticeColumns: to its case, a notice was received when it was matched. What
// people decided before that, they decided without it.
const noticeColumns = `account, source, event_id, provider_refund_id, reference, payment_id, amount, currency,
	outcome, code, said_at, COALESCE(matched_at, received_at), COALESCE(refund_id, ''), generation, problem`

func scanNotice(row scanner) (n refund.Notice, err error) {
	err = row.Scan(&n.Account, &n.Source, &n.EventID, &n.ProviderRefundID, &n.Reference, &n.PaymentID, &n.Amount.Value, &n.Amount.Currency,
		&n.Outcome, &n.Code, &n.SaidAt, &n.ReceivedAt, &n.RefundID, &n.Generation, &n.Problem)
	return n, err
}

// matchedAt is when the notice became part of its case, as a parameter.
func matchedAt(n refund.Notice) any {
	if n.Parked() {
		return nil
	}
	return n.ReceivedAt
}

// validateNotice refuses what makes no sense to store: a sender has to be told
// so, because sending it again wouldn't help.
func validateNotice(n refund.Notice) error {
	var bad []refund.FieldError
	add := func(field, message string) { bad = append(bad, refund.FieldError{Field: field, Message: message}) }
	if err := refund.ValidateAccount(n.Account); err != nil {
		add("account", err.Error())
	}
	if n.Source != refund.SourceNotification && n.Source != refund.SourceSettlement {
		add("source", "is not a source of notices")
	}
	if !storableKey(n.EventID, maxEventID) {
		add("event_id", fmt.Sprintf("must be 1 to %d characters, without space around them", maxEventID))
	}
	if !slices.Contains(noticeOutcomes, n.Outcome) {
		add("outcome", fmt.Sprintf("must be one of %v", noticeOutcomes))
	}
	if !storableTime(n.SaidAt) {
		add("said_at", "must be a time from 1970 to 9999")
	}
	if len(bad) > 0 {
		return &refund.InvalidError{What: "notice", Fields: bad}
	}
	return nil
}

// noticeOutcomes are what a notice can say.
var noticeOutcomes = []refund.Outcome{refund.OutcomeSucceeded, refund.OutcomePending, refund.OutcomeRejected, refund.OutcomeUnknown}

// storableNotice is n as it reads after a round trip through the database.
func storableNotice(n refund.Notice) refund.Notice {
	n.ProviderRefundID = storableID(n.ProviderRefundID)
	n.Reference = clip(n.Reference, maxTold)
	n.PaymentID = clip(n.PaymentID, maxTold)
	n.Amount.Currency = clip(n.Amount.Currency, maxCurrency)
	n.Code = clip(n.Code, maxCode)
	n.SaidAt = stored(n.SaidAt)
	return n
}

// storableKey tells whether s can name a row: what the database would take for
// another's name, or not take at all, can't.
func storableKey(s string, maxRunes int) bool {
	return s != "" && utf8.ValidString(s) && utf8.RuneCountInString(s) <= maxRunes && strings.TrimSpace(s) == s
}

// storableTime tells whether a DATETIME holds t.
func storableTime(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 1970 && year <= 9999
}
