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
	where, args := []string{"TRUE"}, []any{}
	add := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	if f.Status != "" {
		add("status = ?", f.Status)
	}
	if f.Owner != "" {
		add("owner = ?", f.Owner)
	}
	if f.Account != "" {
		add("account = ?", f.Account)
	}
	if f.Cursor != "" {
		at, id, err := parseCursor(f.Cursor)
		if err != nil {
			return Page{}, err
		}
		// The first half is what an index can serve.
		add("accepted_at <= ? AND (accepted_at < ? OR refund_id < ?)", at, at, id)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = DefaultPageSize
	}
	limit = min(limit, MaxPageSize)

	// One more than asked for tells whether there is a next page.
	cases, err := queryAll(ctx, l.pool, scanCase, `
		SELECT `+caseColumns+` FROM refunds WHERE `+strings.Join(where, " AND ")+`
		ORDER BY accepted_at DESC, refund_id DESC LIMIT ?`, append(args, limit+1)...)
	if err != nil {
		return Page{}, fmt.Errorf("listing refunds: %w", err)
	}
	if len(cases) <= limit {
		return Page{Cases: cases}, nil
	}
	cases = cases[:limit]
	last := cases[limit-1]
	return Page{Cases: cases, Next: formatCursor(last.AcceptedAt, last.Refund.ID)}, nil
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
	fingerprint, status, review_reason, owner, version, generation, attempts, provider_refund_id,
	accepted_at, deadline_at, closed_at`

func scanCase(row scanner) (refund.Case, error) {
	var c refund.Case
	var paymentAmount *int64
	r := &c.Refund
	err := row.Scan(&r.ID, &r.Account, &r.OrderID, &r.PaymentID, &r.Amount.Value, &r.Amount.Currency, &paymentAmount, &r.Reason, &r.RequestedBy,
		&c.Fingerprint, &c.Status, &c.ReviewReason, &c.Owner, &c.Version, &c.Generation, &c.Attempts, &c.ProviderRefundID,
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
