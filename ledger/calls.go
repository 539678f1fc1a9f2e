package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"unicode/utf8"

	"refundgate/refund"
)

// Sizes of the columns that hold what a provider sent, in characters.
const (
	maxCode             = 64
	maxProviderRefundID = 255
)

// Call returns what is recorded under the key. ErrNotFound if nothing is.
func (l *Ledger) Call(ctx context.Context, key refund.CallKey) (refund.Call, error) {
	call, err := callRow(ctx, l.pool, key)
	if err != nil {
		return refund.Call{}, fmt.Errorf("reading call %s: %w", key, err)
	}
	return call, nil
}

// Complete records how a call went: its start as measured on the wire and its
// result. The first outcome recorded for a key stands and a repeat changes
// nothing, with one exception: CodeLost, which only says that nothing was
// heard of the call, gives way to what really happened.
//
// A call without an intent can only be one that was not sent; it is recorded
// as such and its key is used up. For any other, ErrNotFound.
func (l *Ledger) Complete(ctx context.Context, call refund.Call) error {
	if !call.Done() {
		return fmt.Errorf("completing call %s: it has no outcome", call.Key)
	}
	err := l.tx(ctx, func(tx *sql.Tx) error {
		if _, err := lockCase(ctx, tx, call.Key.RefundID); err != nil {
			return err
		}
		recorded, err := callRow(ctx, tx, call.Key)
		switch {
		case errors.Is(err, ErrNotFound) && call.Result.Outcome == refund.OutcomeNotSent:
			call.IntentAt = l.now() // when its key was used up
			return l.insertCall(ctx, tx, call, nil)
		case err != nil:
			return err
		case !supersedes(call, recorded):
			return nil
		}
		return l.recordOutcome(ctx, tx, call)
	})
	if err != nil {
		return fmt.Errorf("completing call %s: %w", call.Key, err)
	}
	return nil
}

// supersedes tells whether call's outcome is to replace what is recorded.
func supersedes(call, recorded refund.Call) bool {
	if !recorded.Done() {
		return true
	}
	return recorded.Result.Code == refund.CodeLost && call.Result.Code != refund.CodeLost
}

// Abandon settles a call whose worker is gone, and returns what is recorded
// then. Without an intent it was not sent, and the row that says so stops a
// worker that comes back late. With an intent and no outcome it may have been
// sent: unknown, CodeLost. An outcome that is recorded stands.
func (l *Ledger) Abandon(ctx context.Context, call refund.Call) (recorded refund.Call, err error) {
	err = l.tx(ctx, func(tx *sql.Tx) error {
		if _, err := lockCase(ctx, tx, call.Key.RefundID); err != nil {
			return err
		}
		now := l.now()
		recorded, err = callRow(ctx, tx, call.Key)
		switch {
		case errors.Is(err, ErrNotFound):
			recorded = refund.Call{
				Key: call.Key, Origin: call.Origin, Account: call.Account, DecisionID: call.DecisionID, IntentAt: now, FinishedAt: &now,
				Result: refund.Result{Outcome: refund.OutcomeNotSent, Code: refund.CodeAbandoned},
			}
			return l.insertCall(ctx, tx, recorded, nil)
		case err != nil:
			return err
		case recorded.Done():
			return nil
		}
		recorded.FinishedAt = &now
		recorded.Result = refund.Result{Outcome: refund.OutcomeUnknown, Code: refund.CodeLost}
		return l.recordOutcome(ctx, tx, recorded)
	})
	if err != nil {
		return refund.Call{}, fmt.Errorf("abandoning call %s: %w", call.Key, err)
	}
	return recorded, nil
}

const callColumns = `refund_id, generation, kind, seq, origin, account, COALESCE(decision_id, ''), epoch, intent_at,
	started_at, COALESCE(started_mono_ns, 0), COALESCE(in_flight, 0), finished_at,
	COALESCE(outcome, ''), COALESCE(code, ''), COALESCE(http_status, 0), COALESCE(budget, ''),
	COALESCE(provider_refund_id, ''), retry_at, account_wide, ambiguous, never_resend, COALESCE(detail, '')`

func scanCall(row scanner) (refund.Call, error) {
	var c refund.Call
	k, r := &c.Key, &c.Result
	err := row.Scan(&k.RefundID, &k.Generation, &k.Kind, &k.Seq, &c.Origin, &c.Account, &c.DecisionID, &c.Epoch, &c.IntentAt,
		&c.StartedAt, &c.StartedMono, &c.InFlight, &c.FinishedAt,
		&r.Outcome, &r.Code, &r.HTTPStatus, &r.Budget,
		&r.ProviderRefundID, &r.RetryAt, &r.AccountWide, &r.Ambiguous, &r.NeverResend, &r.Detail)
	return c, err
}

const callByKey = `refund_id = ? AND generation = ? AND kind = ? AND seq = ?`

func callRow(ctx context.Context, db queryer, k refund.CallKey) (refund.Call, error) {
	call, err := scanCall(db.QueryRowContext(ctx, `SELECT `+callColumns+` FROM provider_calls WHERE `+callByKey,
		k.RefundID, k.Generation, k.Kind, k.Seq))
	return call, orNotFound(err)
}

// insertCall writes the row of a call, with its outcome if it has one. token
// names the intent; nil if there was none. The refund must be locked.
func (l *Ledger) insertCall(ctx context.Context, tx *sql.Tx, call refund.Call, token []byte) error {
	k := call.Key
	_, err := tx.ExecContext(ctx, `
		INSERT INTO provider_calls (refund_id, generation, kind, seq, origin, account, decision_id, epoch, intent_at, token)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		k.RefundID, k.Generation, k.Kind, k.Seq, call.Origin, call.Account, orNull(call.DecisionID), call.Epoch, call.IntentAt, token)
	if err != nil {
		return fmt.Errorf("inserting the call: %w", err)
	}
	if call.Done() {
		return l.recordOutcome(ctx, tx, call)
	}
	return l.recount(ctx, tx, k.RefundID)
}

// recordOutcome writes call's measurements and result to its row.
func (l *Ledger) recordOutcome(ctx context.Context, tx *sql.Tx, call refund.Call) error {
	k, r := call.Key, call.Result
	_, err := tx.ExecContext(ctx, `
		UPDATE provider_calls SET started_at = ?, started_mono_ns = ?, in_flight = ?, finished_at = ?,
			outcome = ?, code = ?, http_status = ?, budget = ?, provider_refund_id = ?, retry_at = ?,
			account_wide = ?, ambiguous = ?, never_resend = ?, detail = ?
		WHERE `+callByKey,
		call.StartedAt, orNull(call.StartedMono), orNull(call.InFlight), call.FinishedAt,
		r.Outcome, orNull(clip(r.Code, maxCode)), orNull(r.HTTPStatus), orNull(r.Budget), orNull(storableID(r.ProviderRefundID)), r.RetryAt,
		r.AccountWide, r.Ambiguous, r.NeverResend, orNull(clip(r.Detail, refund.MaxDetailLen)),
		k.RefundID, k.Generation, k.Kind, k.Seq)
	if err != nil {
		return fmt.Errorf("recording the outcome: %w", err)
	}
	return l.recount(ctx, tx, k.RefundID)
}

// storableID is the provider's id, or nothing if it can't be stored whole: half
// an id names another refund, or none.
func storableID(id string) string {
	if !utf8.ValidString(id) || utf8.RuneCountInString(id) > maxProviderRefundID {
		return ""
	}
	return id
}

// mayHaveReached selects the calls that may have reached the provider. An
// intent without an outcome is one.
const mayHaveReached = `(outcome IS NULL OR outcome <> 'not_sent')`

// countsAsAttempt selects the calls that use up an attempt: automatic sends
// that may have reached the provider.
const countsAsAttempt = `kind = 'submit' AND origin IN ('first', 'retry') AND ` + mayHaveReached

// attempts counts the attempts that a generation has used.
func attempts(ctx context.Context, tx *sql.Tx, refundID string, generation int) (n int, err error) {
	err = tx.QueryRowContext(ctx, `
		SELECT COUNT(*) FROM provider_calls WHERE refund_id = ? AND generation = ? AND `+countsAsAttempt,
		refundID, generation).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting attempts: %w", err)
	}
	return n, nil
}

// recount brings refunds.attempts in line with the calls.
func (l *Ledger) recount(ctx context.Context, tx *sql.Tx, refundID string) error {
	_, err := tx.ExecContext(ctx, `
		UPDATE refunds SET version = version + 1, updated_at = ?, attempts = (
			SELECT COUNT(*) FROM provider_calls
			WHERE provider_calls.refund_id = refunds.refund_id AND provider_calls.generation = refunds.generation AND `+countsAsAttempt+`)
		WHERE refund_id = ?`, l.now(), refundID)
	if err != nil {
		return fmt.Errorf("updating the attempts: %w", err)
	}
	return nil
}
