package ledger

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"refundgate/refund"
)

// maxEventDetail bounds an event's detail, in characters.
const maxEventDetail = 2000

// Events returns the case's trail, oldest first. ErrNotFound if there is no
// such refund (every case has at least the event of its acceptance).
func (l *Ledger) Events(ctx context.Context, refundID string) ([]refund.Event, error) {
	events, err := queryAll(ctx, l.pool, scanEvent, `
		SELECT at, actor, action, detail FROM case_events WHERE refund_id = ? ORDER BY at, id`, refundID)
	if err == nil && len(events) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("reading the events of refund %s: %w", refundID, err)
	}
	return events, nil
}

func scanEvent(row scanner) (e refund.Event, err error) {
	err = row.Scan(&e.At, &e.Actor, &e.Action, &e.Detail)
	return e, err
}

// addEvent appends e to the trail unless it is there. The refund must be
// locked or new.
func addEvent(ctx context.Context, tx *sql.Tx, refundID string, e refund.Event) error {
	if e.At.IsZero() {
		return errors.New("adding an event: it has no time, so a repeat could not be told from it")
	}
	e = storableEvent(e)
	_, err := tx.ExecContext(ctx, `
		INSERT INTO case_events (refund_id, at, actor, action, detail, digest) VALUES (?, ?, ?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE id = case_events.id`,
		refundID, e.At, e.Actor, e.Action, e.Detail, digest(e))
	if err != nil {
		return fmt.Errorf("adding an event: %w", err)
	}
	return nil
}

// hasEvent tells whether e is on the trail.
func hasEvent(ctx context.Context, tx *sql.Tx, refundID string, e refund.Event) (has bool, err error) {
	err = tx.QueryRowContext(ctx, `
		SELECT COUNT(*) > 0 FROM case_events WHERE refund_id = ? AND digest = ?`, refundID, digest(storableEvent(e))).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("looking for an event: %w", err)
	}
	return has, nil
}

// storableEvent is e as it reads after a round trip through the database.
func storableEvent(e refund.Event) refund.Event {
	e.At = stored(e.At)
	e.Detail = clip(e.Detail, maxEventDetail)
	return e
}

// digest identifies a storable event.
func digest(e refund.Event) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %q %q %q", e.At.UnixMicro(), e.Actor, e.Action, e.Detail))
	return sum[:]
}

// clip makes s storable: valid UTF-8, at most maxRunes characters. What a
// provider sent must never keep an outcome from being recorded.
func clip(s string, maxRunes int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	for i := range s {
		if maxRunes == 0 {
			return s[:i]
		}
		maxRunes--
	}
	return s
}
