package ledger

import (
	"context"
	"fmt"
	"time"

	"refundgate/refund"
)

// Digest says what waits for people.
type Digest struct {
	// InReview counts the cases in review, in all, by reason and by account.
	InReview  int                         `json:"in_review"`
	ByReason  map[refund.ReviewReason]int `json:"by_reason"`
	ByAccount map[string]int              `json:"by_account"`
	// Unassigned counts those that nobody has been given.
	Unassigned int `json:"unassigned"`
	// OldestAcceptedAt is when the oldest of them was accepted; nil if there
	// is none.
	OldestAcceptedAt *time.Time `json:"oldest_accepted_at,omitempty"`
	// Parked counts the notices that belong to no case.
	Parked int `json:"parked"`
}

// ReviewDigest sums up what waits for people. It reads no more than the cases
// in review.
func (l *Ledger) ReviewDigest(ctx context.Context) (Digest, error) {
	rows, err := queryAll(ctx, l.pool, scanDigestRow, `
		SELECT review_reason, account, COUNT(*), SUM(owner = ''), MIN(accepted_at) FROM refunds
		WHERE status = ? GROUP BY review_reason, account`, refund.StatusReview)
	if err != nil {
		return Digest{}, fmt.Errorf("summing up the reviews: %w", err)
	}
	d := Digest{ByReason: map[refund.ReviewReason]int{}, ByAccount: map[string]int{}}
	for _, r := range rows {
		d.InReview += r.cases
		d.ByReason[r.reason] += r.cases
		d.ByAccount[r.account] += r.cases
		d.Unassigned += r.unassigned
		if d.OldestAcceptedAt == nil || r.oldest.Before(*d.OldestAcceptedAt) {
			d.OldestAcceptedAt = &r.oldest
		}
	}
	err = l.pool.QueryRowContext(ctx, `SELECT COUNT(*) FROM notices WHERE refund_id IS NULL`).Scan(&d.Parked)
	if err != nil {
		return Digest{}, fmt.Errorf("counting the parked notices: %w", err)
	}
	return d, nil
}

type digestRow struct {
	reason            refund.ReviewReason
	account           string
	cases, unassigned int
	oldest            time.Time
}

func scanDigestRow(row scanner) (r digestRow, err error) {
	err = row.Scan(&r.reason, &r.account, &r.cases, &r.unassigned, &r.oldest)
	return r, err
}
