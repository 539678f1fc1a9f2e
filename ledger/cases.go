package ledger

import (
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"refundgate/refund"
)

// Limits of one page of List.
const (
	DefaultPageSize = 50
	MaxPageSize     = 200
)

// Filter selects cases; an empty field selects all.
type Filter struct {
	Status  refund.Status
	Owner   string
	Account string
	// Client is whose cases: of what it submitted to the intake API.
	Client string
	// Limit is how many cases to return, at most MaxPageSize.
	// Defaults to DefaultPageSize.
	Limit int
	// Cursor continues after the page that handed it out as Next. The rest of
	// the filter has to stay the same.
	Cursor string
}

// Page is a part of a list.
type Page struct {
	Cases []refund.Case // without their calls, notices and decisions
	Next  string        // the cursor of the next page; empty on the last
}

// Case returns the case with its calls, its notices and the decisions of
// people. ErrNotFound if there is none.
func (l *Ledger) Case(ctx context.Context, refundID string) (refund.Case, error) {
	c, err := caseRow(ctx, l.pool, refundID)
	if err != nil {
		return refund.Case{}, fmt.Errorf("reading refund %s: %w", refundID, err)
	}
	// Read after the case, so never older than what the case says of them. A
	// version that is older than they are only makes an action be refused.
	c.Calls, err = queryAll(ctx, l.pool, scanCall, `
		SELECT `+callColumns+` FROM provider_calls WHERE refund_id = ? ORDER BY intent_at, seq`, refundID)
	if err != nil {
		return refund.Case{}, fmt.Errorf("reading the calls of refund %s: %w", refundID, err)
	}
	c.Notices, err = queryAll(ctx, l.pool, scanNotice, `
		SELECT `+noticeColumns+` FROM notices WHERE refund_id = ? ORDER BY id`, refundID)
	if err != nil {
		return refund.Case{}, fmt.Errorf("reading the notices of refund %s: %w", refundID, err)
	}
	c.Decisions, err = queryAll(ctx, l.pool, scanDecision, `
		SELECT `+decisionColumns+` FROM decisions WHERE refund_id = ? ORDER BY at, id`, refundID)
	if err != nil {
		return refund.Case{}, fmt.Errorf("reading the decisions on refund %s: %w", refundID, err)
	}
	return c, nil
}

// List returns one page of cases, latest accepted first.
func (l *Ledger) List(ctx context.Context, f Filter) (Page, error) {
	s := selection{what: "refunds", direction: "DESC", beyond: "<"}
	if f.Status != "" {
		s.add("status = ?", f.Status)
	}
	if f.Owner != "" {
		s.add("owner = ?", f.Owner)
	}
	if f.Account != "" {
		s.add("account = ?", f.Account)
	}
	if f.Client != "" {
		s.add("client = ?", f.Client)
	}
	return l.page(ctx, s, f.Limit, f.Cursor)
}

// selection is what a list of cases holds, in the order of their acceptance.
type selection struct {
	what      string // for errors
	direction string // of the order: ASC or DESC
	beyond    string // how a case compares with the one before it: > or <
	where     []string
	args      []any
}

func (s *selection) add(condition string, values ...any) {
	s.where = append(s.where, condition)
	s.args = append(s.args, values...)
}

// page returns the part of a list that comes after the cursor. limit is as in
// Filter.
func (l *Ledger) page(ctx context.Context, s selection, limit int, cursor string) (Page, error) {
	s.add("TRUE")
	if cursor != "" {
		at, id, err := parseCursor(cursor)
		if err != nil {
			return Page{}, err
		}
		// The first half is what an index can serve.
		s.add("accepted_at "+s.beyond+"= ? AND (accepted_at "+s.beyond+" ? OR refund_id "+s.beyond+" ?)", at, at, id)
	}
	if limit <= 0 {
		limit = DefaultPageSize
	}
	limit = min(limit, MaxPageSize)

	// One more than asked for tells whether there is a next page.
	cases, err := queryAll(ctx, l.pool, scanCase, `
		SELECT `+caseColumns+` FROM refunds WHERE `+strings.Join(s.where, " AND ")+`
		ORDER BY accepted_at `+s.direction+`, refund_id `+s.direction+` LIMIT ?`, append(s.args, limit+1)...)
	if err != nil {
		return Page{}, fmt.Errorf("listing %s: %w", s.what, err)
	}
	if len(cases) <= limit {
		return Page{Cases: cases}, nil
	}
	cases = cases[:limit]
	last := cases[limit-1]
	return Page{Cases: cases, Next: formatCursor(last.AcceptedAt, last.Refund.ID)}, nil
}

// contents returns what the cases ask for.
func contents(cases []refund.Case) []refund.Refund {
	refunds := make([]refund.Refund, len(cases))
	for i, c := range cases {
		refunds[i] = c.Refund
	}
	return refunds
}

// A cursor is the position of a case in the list: when it was accepted, in
// microseconds since 1970, and its refund id.
func formatCursor(acceptedAt time.Time, refundID string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%s", acceptedAt.UnixMicro(), refundID))
}

func parseCursor(cursor string) (acceptedAt time.Time, refundID string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return time.Time{}, "", ErrBadCursor
	}
	at, id, _ := strings.Cut(string(b), ".")
	micros, err := strconv.ParseInt(at, 10, 64)
	if err != nil || refund.ValidateID(id) != nil {
		return time.Time{}, "", ErrBadCursor
	}
	acceptedAt = time.UnixMicro(micros).UTC()
	if y := acceptedAt.Year(); y < 1970 || y > 9999 { // what a DATETIME can hold
		return time.Time{}, "", ErrBadCursor
	}
	return acceptedAt, id, nil
}

const caseColumns = `refund_id, account, order_id, payment_id, amount, currency, payment_amount, reason, requested_by,
	client, fingerprint, status, review_reason, owner, version, generation, attempts, provider_refund_id,
	accepted_at, deadline_at, closed_at`

func scanCase(row scanner) (refund.Case, error) {
	var c refund.Case
	var paymentAmount *int64
	r := &c.Refund
	err := row.Scan(&r.ID, &r.Account, &r.OrderID, &r.PaymentID, &r.Amount.Value, &r.Amount.Currency, &paymentAmount, &r.Reason, &r.RequestedBy,
		&c.Client, &c.Fingerprint, &c.Status, &c.ReviewReason, &c.Owner, &c.Version, &c.Generation, &c.Attempts, &c.ProviderRefundID,
		&c.AcceptedAt, &c.DeadlineAt, &c.ClosedAt)
	if paymentAmount != nil {
		r.PaymentAmount = &refund.Money{Value: *paymentAmount, Currency: r.Amount.Currency}
	}
	return c, err
}

// caseRow reads a case without what belongs to it.
func caseRow(ctx context.Context, db queryer, refundID string) (refund.Case, error) {
	c, err := scanCase(db.QueryRowContext(ctx, `SELECT `+caseColumns+` FROM refunds WHERE refund_id = ?`, refundID))
	return c, orNotFound(err)
}

// lockCase is caseRow that also keeps the row, and with it everything that
// belongs to the refund, from being written by others until tx ends.
func lockCase(ctx context.Context, tx *sql.Tx, refundID string) (refund.Case, error) {
	c, err := scanCase(tx.QueryRowContext(ctx, `SELECT `+caseColumns+` FROM refunds WHERE refund_id = ? FOR UPDATE`, refundID))
	if err := orNotFound(err); err != nil {
		return refund.Case{}, fmt.Errorf("locking the refund: %w", err)
	}
	return c, nil
}
