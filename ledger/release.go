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

const (
	// aliveFor is how long after its last proof an owner counts as alive. It
	// proves itself every second.
	aliveFor = 10 * time.Second
	// freeWithin bounds the wait for the server to let go of a killed session.
	freeWithin = 10 * time.Second

	actionReleased = "egress.released"
)

// ErrNotHeld means that nobody holds the account's egress, so there is nothing
// to release.
var ErrNotHeld = errors.New("the egress is held by nobody")

// AliveError refuses to release the egress of an owner that has proven itself
// a moment ago.
type AliveError struct {
	Owner Owner
	Ago   time.Duration // since its last proof
}

func (e *AliveError) Error() string {
	return fmt.Sprintf("%q proved %s ago that it holds the egress of account %s: it is alive", e.Owner.Holder, e.Ago.Round(100*time.Millisecond), e.Owner.Account)
}

// Release is a person's order to take the egress from a dead holder.
type Release struct {
	Account string
	By      string // who orders it
	Reason  string
	// Force releases also from a holder that seems alive.
	Force bool
}

// ReleaseEgress ends the database session that holds the account's egress, so
// that a standby can take it, and returns the owner that lost it. Who ordered
// it and why is recorded before anything happens. A holder that still lives
// finds its proof gone and sends nothing more; that one of its calls is in
// flight at this moment can't be excluded, which is why a new owner waits out
// a whole call budget. ErrNotHeld if nobody holds it, *AliveError if the holder
// seems alive.
func (l *Ledger) ReleaseEgress(ctx context.Context, r Release) (Owner, error) {
	owner, err := l.releaseEgress(ctx, r)
	if err != nil {
		return owner, fmt.Errorf("releasing the egress of %s: %w", r.Account, err)
	}
	return owner, nil
}

func (l *Ledger) releaseEgress(ctx context.Context, r Release) (Owner, error) {
	if strings.TrimSpace(r.By) == "" || strings.TrimSpace(r.Reason) == "" {
		return Owner{}, errors.New("a name and a reason are required")
	}
	owner, err := l.EgressOwner(ctx, r.Account)
	if errors.Is(err, ErrNotFound) {
		return Owner{}, ErrNotHeld
	}
	if err != nil {
		return Owner{}, err
	}
	session, err := l.lockHolder(ctx, r.Account)
	switch {
	case err != nil:
		return owner, err
	case !session.Valid:
		return owner, ErrNotHeld
	}
	if ago := l.clock().Sub(owner.SeenAt); ago < aliveFor && !r.Force {
		return owner, &AliveError{Owner: owner, Ago: ago}
	}
	_, err = l.pool.ExecContext(ctx, `
		INSERT INTO egress_events (account, epoch, at, actor, action, detail) VALUES (?, ?, ?, ?, ?, ?)`,
		r.Account, owner.Epoch, l.now(), clip(r.By, refund.MaxActorLen), actionReleased, clip(r.Reason, maxEventDetail))
	if err != nil {
		return owner, fmt.Errorf("recording it: %w", err)
	}
	// KILL takes no parameters; the id is a number from the server.
	if _, err := l.pool.ExecContext(ctx, fmt.Sprintf("KILL CONNECTION %d", session.V)); err != nil {
		return owner, fmt.Errorf("ending session %d: %w", session.V, err)
	}
	return owner, l.awaitFree(ctx, r.Account, session.V)
}

// awaitFree waits until the session holds the lock no more.
func (l *Ledger) awaitFree(ctx context.Context, account string, session int64) error {
	ctx, cancel := context.WithTimeout(ctx, freeWithin)
	defer cancel()
	for {
		now, err := l.lockHolder(ctx, account)
		if err != nil {
			return err
		}
		if !now.Valid || now.V != session {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("session %d was told to end and has not: %w", session, ctx.Err())
		}
	}
}

// lockHolder returns the session that holds the account's lock, if any does.
func (l *Ledger) lockHolder(ctx context.Context, account string) (id sql.Null[int64], err error) {
	if err = l.pool.QueryRowContext(ctx, `SELECT IS_USED_LOCK(?)`, l.lockPrefix+account).Scan(&id); err != nil {
		return id, fmt.Errorf("asking who holds the lock: %w", err)
	}
	return id, nil
}
