package ledger

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"

	"refundgate/refund"
)

// Intent is a call about to be made.
type Intent struct {
	// Call holds the key, the origin, the account and the time of the intent;
	// the epoch is the lock's, and the rest is recorded when it is known.
	Call refund.Call
	// IdempotencyKey and Body are what a submit would send if it were its
	// generation's first. Not used by checks.
	IdempotencyKey string
	Body           []byte
	// MaxAttempts is how many automatic sends a generation has.
	MaxAttempts int
}

// Intent records that a call is about to be made. Once it returns without an
// error, the call counts as one that may have reached the provider until
// Complete says otherwise. For a submit it returns the body to send: the bytes
// that the generation's first intent recorded.
//
// It is committed by the session that holds the lock, in a transaction that
// finds the lock held and the epoch current, the case open, the key unused and
// an attempt left. An automatic call finds that people don't have the case. A
// send by hand finds its case in review, instead of an attempt left. It, and any
// call that names a decision, finds that decision to order it, in this
// generation, and no other call made for it that may have reached the provider;
// the refusal has CodeClosed otherwise.
//
// If one of these fails nothing is recorded and nothing may be sent:
// *RefusedError, ErrDuplicateCall, ErrKeyTaken, ErrNotFound or ErrLockLost.
//
// Any other error comes from the database. Nothing may be sent then either.
// Should the intent have been committed all the same, it is found by its token
// and recorded as not sent; if even that fails, the error is ErrMayBeRecorded,
// and Complete has to be told that the call was not sent.
func (k *EgressLock) Intent(ctx context.Context, in Intent) ([]byte, error) {
	var body, token []byte // of the last run; the token once its intent was on its way
	err := k.use(ctx, func(ctx context.Context) error {
		return runTx(ctx, k.conn, rolledBack, func(tx *sql.Tx) error {
			token = nil
			var err error
			if body, err = k.permit(ctx, tx, in); err != nil {
				return err
			}
			token = newToken()
			call := in.Call
			call.Epoch = k.epoch
			return k.ledger.insertCall(ctx, tx, call, token)
		})
	})
	if err == nil {
		return body, nil
	}
	err = fmt.Errorf("recording the intent of %s: %w", in.Call.Key, err)
	if token != nil {
		err = errors.Join(err, k.ledger.disown(context.WithoutCancel(ctx), in.Call.Key, token))
	}
	return nil, err
}

// permit decides whether the call may be made and returns the body of a
// submit.
func (k *EgressLock) permit(ctx context.Context, tx *sql.Tx, in Intent) ([]byte, error) {
	if err := k.prove(ctx, tx); err != nil {
		return nil, err
	}
	key := in.Call.Key
	c, err := lockCase(ctx, tx, key.RefundID)
	if err != nil {
		return nil, err
	}
	if c.Refund.Account != k.account || in.Call.Account != k.account {
		return nil, &RefusedError{Code: refund.CodeNotOwner}
	}
	recorded, err := callRow(ctx, tx, key)
	switch {
	case err == nil && recorded.Result.Code == refund.CodeAbandoned:
		return nil, &RefusedError{Code: refund.CodeAbandoned}
	case err == nil:
		return nil, ErrDuplicateCall
	case !errors.Is(err, ErrNotFound):
		return nil, fmt.Errorf("looking up the call: %w", err)
	}
	if !c.Open() || key.Generation != c.Generation {
		return nil, &RefusedError{Code: refund.CodeClosed}
	}
	// People have the case. A run that was reset may not know it yet.
	if c.Status == refund.StatusReview && in.Call.Origin != refund.OriginManual {
		return nil, &RefusedError{Code: refund.CodeClosed}
	}
	if err := ordered(ctx, tx, c, in.Call); err != nil {
		return nil, err
	}
	if key.Kind != refund.KindSubmit {
		return nil, nil
	}
	if in.Call.Origin != refund.OriginManual {
		used, err := attempts(ctx, tx, key.RefundID, key.Generation)
		if err != nil {
			return nil, err
		}
		if used >= in.MaxAttempts {
			return nil, &RefusedError{Code: refund.CodeExhausted}
		}
	}
	return k.firstRequest(ctx, tx, in)
}

// ordered refuses a call that a person is to have ordered and has not, or that
// was made for the same order before. A check that names no order moves
// nothing and passes. The case must be locked.
func ordered(ctx context.Context, tx *sql.Tx, c refund.Case, call refund.Call) error {
	byHand := call.Key.Kind == refund.KindSubmit && call.Origin == refund.OriginManual
	if call.DecisionID == "" && !byHand {
		return nil
	}
	d, err := decisionRow(ctx, tx, c.Refund.ID, call.DecisionID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	kind, orders := d.Orders()
	if !orders || kind != call.Key.Kind || d.Generation != c.Generation {
		return &RefusedError{Code: refund.CodeClosed}
	}
	if byHand && c.Status != refund.StatusReview {
		return &RefusedError{Code: refund.CodeClosed}
	}
	var made bool
	err = tx.QueryRowContext(ctx, `
		SELECT COUNT(*) > 0 FROM provider_calls WHERE refund_id = ? AND decision_id = ? AND `+mayHaveReached,
		c.Refund.ID, d.ID).Scan(&made)
	switch {
	case err != nil:
		return fmt.Errorf("looking for the call of decision %q: %w", d.ID, err)
	case made:
		return &RefusedError{Code: refund.CodeClosed}
	}
	return nil
}

// firstRequest returns the stored body of the generation's first request, and
// stores the intent's as that if there is none.
func (k *EgressLock) firstRequest(ctx context.Context, tx *sql.Tx, in Intent) ([]byte, error) {
	key := in.Call.Key
	var stored struct {
		idempotencyKey string
		body           []byte
	}
	err := tx.QueryRowContext(ctx, `
		SELECT idempotency_key, body FROM refund_requests WHERE refund_id = ? AND generation = ?`,
		key.RefundID, key.Generation).Scan(&stored.idempotencyKey, &stored.body)
	switch {
	case err == nil && stored.idempotencyKey != in.IdempotencyKey:
		return nil, ErrKeyTaken
	case err == nil:
		return stored.body, nil
	case !errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("reading the first request: %w", err)
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO refund_requests (refund_id, generation, account, idempotency_key, body, created_at)
		VALUES (?, ?, ?, ?, ?, ?)`,
		key.RefundID, key.Generation, k.account, in.IdempotencyKey, in.Body, k.ledger.now())
	if errno(err) == errnoDuplicateKey {
		return nil, ErrKeyTaken
	}
	if err != nil {
		return nil, fmt.Errorf("storing the first request: %w", err)
	}
	return bytes.Clone(in.Body), nil
}

// disown settles an intent whose transaction ended in an error: if it was
// committed after all, it is recorded as not sent, which its only possible
// sender knows for certain. The refund's lock makes the answer final. As long
// as the server may still commit the intent, its transaction holds that lock.
func (l *Ledger) disown(ctx context.Context, key refund.CallKey, token []byte) error {
	ctx, cancel := context.WithTimeout(ctx, l.sessionTimeout)
	defer cancel()
	err := l.tx(ctx, func(tx *sql.Tx) error {
		if _, err := lockCase(ctx, tx, key.RefundID); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `
			UPDATE provider_calls SET outcome = ?, code = ?, finished_at = ? WHERE token = ? AND outcome IS NULL`,
			refund.OutcomeNotSent, refund.CodeStorage, l.now(), token)
		if err != nil {
			return err
		}
		if landed, err := res.RowsAffected(); err != nil || landed == 0 {
			return err
		}
		return l.recount(ctx, tx, key.RefundID)
	})
	if err != nil {
		return fmt.Errorf("%w: asking what became of the intent of %s: %w", ErrMayBeRecorded, key, err)
	}
	return nil
}

// newToken returns a random name for one run of one intent's transaction.
func newToken() []byte {
	token := make([]byte, 16)
	rand.Read(token) // never fails: it ends the process if the system can't deliver
	return token
}
