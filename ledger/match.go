package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"refundgate/refund"
)

// parkedRetry is how long a parked notice waits before it is tried again.
const parkedRetry = 10 * time.Second

// findCase returns the case that the notice is about, or why there is none.
// Nothing is locked yet: an id that becomes known a moment later is found by
// the next try.
func findCase(ctx context.Context, tx *sql.Tx, n refund.Notice) (refundID string, problem refund.NoticeProblem, err error) {
	found := map[string]bool{}
	if n.ProviderRefundID != "" {
		owners, err := queryAll(ctx, tx, scanString, `
			SELECT refund_id FROM provider_calls WHERE account = ? AND provider_refund_id = ?
			UNION SELECT refund_id FROM refunds WHERE account = ? AND provider_refund_id = ?
			UNION SELECT refund_id FROM notices WHERE account = ? AND provider_refund_id = ? AND refund_id IS NOT NULL AND problem = ''
			LIMIT 2`,
			n.Account, n.ProviderRefundID, n.Account, n.ProviderRefundID, n.Account, n.ProviderRefundID)
		if err != nil {
			return "", "", fmt.Errorf("looking for the provider's id: %w", err)
		}
		for _, id := range owners {
			found[id] = true
		}
	}
	if refund.ValidateID(n.Reference) == nil {
		switch c, err := caseRow(ctx, tx, n.Reference); {
		case err == nil && c.Refund.Account == n.Account:
			found[n.Reference] = true
		case err != nil && !errors.Is(err, ErrNotFound):
			return "", "", fmt.Errorf("looking for the reference: %w", err)
		}
	}
	switch len(found) {
	case 0:
		return "", refund.ProblemNoMatch, nil
	case 1:
		for id := range found {
			refundID = id
		}
		return refundID, "", nil
	}
	return "", refund.ProblemTwoCases, nil
}

// attach makes the notice a part of the case, which must be locked, and returns
// it as it is to be stored.
func (l *Ledger) attach(ctx context.Context, tx *sql.Tx, c refund.Case, n refund.Notice) (refund.Notice, error) {
	generation, err := generationOf(ctx, tx, c, n)
	if err != nil {
		return n, err
	}
	told, err := content(ctx, tx, c, generation)
	if err != nil {
		return n, err
	}
	n.RefundID, n.Generation, n.Problem = c.Refund.ID, generation, ""
	wrong := differences(n, told)
	if len(wrong) > 0 {
		n.Problem = refund.ProblemContent
	}
	now := l.now()
	if n.ReceivedAt, err = afterSettlements(ctx, tx, c.Refund.ID, now); err != nil {
		return n, err
	}
	providerRefundID := c.ProviderRefundID
	if n.Problem == "" && generation == c.Generation && providerRefundID == "" {
		providerRefundID = n.ProviderRefundID
	}
	_, err = tx.ExecContext(ctx, `
		UPDATE refunds SET provider_refund_id = ?, updated_at = ?, version = version + 1 WHERE refund_id = ?`,
		providerRefundID, now, c.Refund.ID)
	if err != nil {
		return n, fmt.Errorf("updating the case: %w", err)
	}
	return n, addEvent(ctx, tx, c.Refund.ID, refund.Event{
		At: n.ReceivedAt, Actor: "provider", Action: "notice." + string(n.Source), Detail: describeNotice(n, c, wrong),
	})
}

// generationOf returns the generation of the case that the notice is about. An
// id of the provider belongs to the generation in which it was first seen. All
// generations have the same reference; by that alone, a notice is about the
// latest one that may have reached the provider.
func generationOf(ctx context.Context, tx *sql.Tx, c refund.Case, n refund.Notice) (int, error) {
	if c.Generation == 1 {
		return 1, nil
	}
	var seen, sent sql.Null[int]
	err := tx.QueryRowContext(ctx, `
		SELECT MIN(generation) FROM (
			SELECT generation FROM provider_calls WHERE refund_id = ? AND provider_refund_id = ?
			UNION ALL
			SELECT generation FROM notices WHERE refund_id = ? AND provider_refund_id = ? AND problem = ''
		) AS known`, c.Refund.ID, orNull(n.ProviderRefundID), c.Refund.ID, orNull(n.ProviderRefundID)).Scan(&seen)
	if err != nil {
		return 0, fmt.Errorf("looking for the generation of the provider's id: %w", err)
	}
	if seen.Valid {
		return seen.V, nil
	}
	err = tx.QueryRowContext(ctx, `
		SELECT MAX(generation) FROM provider_calls WHERE refund_id = ? AND kind = 'submit' AND `+mayHaveReached,
		c.Refund.ID).Scan(&sent)
	if err != nil {
		return 0, fmt.Errorf("looking for the generation that was sent: %w", err)
	}
	if sent.Valid {
		return sent.V, nil
	}
	return c.Generation, nil
}

// differences names what of the notice is not the refund's.
func differences(n refund.Notice, r refund.Refund) []string {
	var wrong []string
	if n.Reference != "" && n.Reference != r.ID {
		wrong = append(wrong, "reference")
	}
	if n.PaymentID != "" && n.PaymentID != r.PaymentID {
		wrong = append(wrong, "payment")
	}
	if n.Amount != r.Amount {
		wrong = append(wrong, "amount")
	}
	return wrong
}

// afterSettlements returns now, or an instant later than it where the clock of
// whoever settled the case is ahead of ours: they did not know of what comes
// now, and must not seem to have.
func afterSettlements(ctx context.Context, tx *sql.Tx, refundID string, now time.Time) (time.Time, error) {
	var settled *time.Time
	err := tx.QueryRowContext(ctx, `
		SELECT MAX(at) FROM decisions WHERE refund_id = ? AND action = ?`, refundID, refund.ActionSettle).Scan(&settled)
	if err != nil {
		return now, fmt.Errorf("looking for settlements: %w", err)
	}
	if settled != nil && !now.After(*settled) {
		return settled.Add(time.Microsecond), nil
	}
	return now, nil
}

// describeNotice says for people what the notice says.
func describeNotice(n refund.Notice, c refund.Case, wrong []string) string {
	var b strings.Builder
	b.WriteString(string(n.Outcome))
	if n.Code != "" {
		fmt.Fprintf(&b, " (%s)", n.Code)
	}
	fmt.Fprintf(&b, ": %s", n.Amount)
	if n.ProviderRefundID != "" {
		fmt.Fprintf(&b, ", provider's id %s", n.ProviderRefundID)
	}
	if n.Generation != c.Generation {
		fmt.Fprintf(&b, ", about generation %d", n.Generation)
	}
	fmt.Fprintf(&b, ", event %s", n.EventID)
	if len(wrong) > 0 {
		fmt.Fprintf(&b, "; not the refund's: %s", strings.Join(wrong, ", "))
	}
	return b.String()
}

// MatchParked tries again to find the cases of parked notices, those first that
// were tried least recently and none of them more often than every ten seconds.
// It looks at limit of them at most and returns how many found their case.
func (l *Ledger) MatchParked(ctx context.Context, limit int) (matched int, err error) {
	ids, err := queryAll(ctx, l.pool, scanID, `
		SELECT id FROM notices WHERE refund_id IS NULL AND tried_at <= ?
		ORDER BY tried_at, id LIMIT ?`, l.now().Add(-parkedRetry), limit)
	if err != nil {
		return 0, fmt.Errorf("listing parked notices: %w", err)
	}
	if len(ids) == 0 {
		return 0, nil
	}
	// All of them before any of them, so that one that can't be matched for an
	// error goes to the end of the line like the others.
	err = l.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE notices SET tried_at = ? WHERE id IN (`+placeholders(len(ids))+`)`,
			append([]any{l.now()}, ids...)...)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("noting the try of parked notices: %w", err)
	}
	var failed []error
	for _, id := range ids {
		var found bool
		err := l.tx(ctx, func(tx *sql.Tx) (err error) {
			found, err = l.matchParked(ctx, tx, id)
			return err
		})
		if err != nil {
			failed = append(failed, fmt.Errorf("matching parked notice %d: %w", id, err))
		}
		if found {
			matched++
		}
	}
	return matched, errors.Join(failed...)
}

// matchParked tries to find the case of one notice. As everywhere, the notice's
// row is locked after the case's.
func (l *Ledger) matchParked(ctx context.Context, tx *sql.Tx, id any) (matched bool, err error) {
	const byID = `SELECT ` + noticeColumns + ` FROM notices WHERE id = ?`
	n, err := scanNotice(tx.QueryRowContext(ctx, byID, id))
	if err != nil {
		return false, fmt.Errorf("reading the notice: %w", err)
	}
	refundID, problem, err := findCase(ctx, tx, n)
	if err != nil {
		return false, err
	}
	if problem != "" {
		_, err := tx.ExecContext(ctx, `UPDATE notices SET problem = ? WHERE id = ? AND refund_id IS NULL`, problem, id)
		if err != nil {
			return false, fmt.Errorf("noting the problem: %w", err)
		}
		return false, nil
	}
	c, err := lockCase(ctx, tx, refundID)
	if err != nil {
		return false, err
	}
	switch n, err = scanNotice(tx.QueryRowContext(ctx, byID+` FOR UPDATE`, id)); {
	case err != nil:
		return false, fmt.Errorf("locking the notice: %w", err)
	case !n.Parked(): // somebody else has matched it
		return false, nil
	}
	if n, err = l.attach(ctx, tx, c, n); err != nil {
		return false, err
	}
	_, err = tx.ExecContext(ctx, `
		UPDATE notices SET refund_id = ?, generation = ?, problem = ?, matched_at = ? WHERE id = ?`,
		n.RefundID, n.Generation, n.Problem, matchedAt(n), id)
	if err != nil {
		return false, fmt.Errorf("updating the notice: %w", err)
	}
	return true, nil
}

func scanString(row scanner) (s string, err error) {
	err = row.Scan(&s)
	return s, err
}

// scanID scans a notice's id, for use as a parameter.
func scanID(row scanner) (any, error) {
	var id int64
	err := row.Scan(&id)
	return id, err
}
