package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
)

// maxHolder bounds the name of a holder, in characters.
const maxHolder = 255

// Owner says who owns, or last owned, an account's egress.
type Owner struct {
	Account string `json:"account"`
	// Epoch counts the account's owners, from 1.
	Epoch  int64  `json:"epoch"`
	Holder string `json:"holder"` // the process, in its own words
	// AcquiredAt is when it became the owner, SeenAt when it last proved it.
	AcquiredAt time.Time `json:"acquired_at"`
	SeenAt     time.Time `json:"seen_at"`
	// ReleasedAt is when it handed the egress back; nil if it hasn't, or died.
	ReleasedAt *time.Time `json:"released_at,omitempty"`
	// Held tells whether somebody holds the account's lock at this moment.
	// Only this decides; a held lock with an old SeenAt is a stopped owner.
	Held bool `json:"held"`
	// Gate is what the owner's gate was doing at SeenAt, as it was reported;
	// empty if it has not been since the ownership began.
	Gate json.RawMessage `json:"gate,omitempty"`
	// Metrics is what it had measured, as it was reported; empty if it has not
	// been since the ownership began.
	Metrics string `json:"-"`
}

// Alive tells whether the owner still holds the egress and has proven it a
// moment before now. One that holds it and is not alive is stopped, hangs or
// is cut off from the database, and nobody sends.
func (o Owner) Alive(now time.Time) bool { return o.Held && now.Sub(o.SeenAt) < aliveFor }

// Report is what an owner tells with a proof of its ownership. An empty field
// leaves what is there.
type Report struct {
	// Gate is what its gate is doing: JSON, to be read as Owner.Gate.
	Gate json.RawMessage
	// Metrics is what it has measured, in Prometheus's text format, to be read
	// as Owner.Metrics.
	Metrics string
}

// EgressOwner returns the account's owner. ErrNotFound if it never had one.
func (l *Ledger) EgressOwner(ctx context.Context, account string) (Owner, error) {
	o, err := scanOwner(l.pool.QueryRowContext(ctx, `
		SELECT `+ownerColumns+` FROM egress_owners WHERE account = ?`, l.lockPrefix, account))
	if err := orNotFound(err); err != nil {
		return Owner{}, fmt.Errorf("reading the egress owner of %s: %w", account, err)
	}
	return o, nil
}

// EgressOwners returns the owner of every account that ever had one, by
// account.
func (l *Ledger) EgressOwners(ctx context.Context) ([]Owner, error) {
	owners, err := queryAll(ctx, l.pool, scanOwner, `
		SELECT `+ownerColumns+` FROM egress_owners ORDER BY account`, l.lockPrefix)
	if err != nil {
		return nil, fmt.Errorf("reading the egress owners: %w", err)
	}
	return owners, nil
}

// ownerColumns has one parameter, the lock prefix.
const ownerColumns = `account, epoch, holder, acquired_at, seen_at, released_at,
	(SELECT g.gate FROM egress_gates g WHERE g.account = egress_owners.account AND g.epoch = egress_owners.epoch),
	COALESCE((SELECT m.metrics FROM egress_metrics m WHERE m.account = egress_owners.account AND m.epoch = egress_owners.epoch), ''),
	IS_USED_LOCK(CONCAT(?, account)) IS NOT NULL`

func scanOwner(row scanner) (o Owner, err error) {
	err = row.Scan(&o.Account, &o.Epoch, &o.Holder, &o.AcquiredAt, &o.SeenAt, &o.ReleasedAt, (*[]byte)(&o.Gate), &o.Metrics, &o.Held)
	return o, err
}

// EgressLock is the right to send for one account: a named lock of the
// database server, held by one session that does nothing else, together with
// an epoch that grows with every owner. The server frees the lock when the
// session ends, and not before: a process that is stopped keeps it.
//
// It is safe for concurrent use; its session serves one caller at a time.
//
// A statement that is interrupted costs the session and with it the lock. So
// no caller's context reaches the session: a caller that gives up while it
// waits for its turn returns at once, and one whose transaction has begun is
// answered when it is over, some milliseconds later and within a bound of the
// lock's own. After any trouble with the session, and once that bound is
// reached, the lock is given up for good: every method returns ErrLockLost.
type EgressLock struct {
	ledger  *Ledger
	account string
	name    string
	epoch   int64

	turn chan struct{} // holds a token while someone uses what follows
	conn *sql.Conn
	over error // why the lock can't be used any more; nil while it can
}

// AcquireEgress takes the right to send for the account, without waiting.
// holder says who asks, in words that tell an operator where to look. If
// somebody else has it, the error is a *HeldError.
//
// An intent that an earlier owner commits is committed before AcquireEgress
// returns; none can be afterwards.
func (l *Ledger) AcquireEgress(ctx context.Context, account, holder string) (*EgressLock, error) {
	conn, err := l.sessions.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("opening the egress session of %s: %w", account, err)
	}
	k := &EgressLock{ledger: l, account: account, name: l.lockPrefix + account, turn: make(chan struct{}, 1), conn: conn}
	if err := k.acquire(ctx, holder); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("acquiring the egress of %s: %w", account, err)
	}
	return k, nil
}

func (k *EgressLock) acquire(ctx context.Context, holder string) error {
	var got sql.Null[int64]
	if err := k.conn.QueryRowContext(ctx, `SELECT GET_LOCK(?, 0)`, k.name).Scan(&got); err != nil {
		return fmt.Errorf("asking for the lock: %w", err)
	}
	switch {
	case !got.Valid:
		return errors.New("asking for the lock: the server failed to answer")
	case got.V == 0:
		owner, err := k.ledger.EgressOwner(ctx, k.account)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		// The row can lag behind: the holder writes it after taking the lock.
		owner.Account, owner.Held = k.account, true
		return &HeldError{Owner: owner}
	}
	return runTx(ctx, k.conn, rolledBack, func(tx *sql.Tx) error {
		now := k.ledger.now()
		holder := clip(holder, maxHolder)
		// An intent of an earlier owner holds a share lock on this row; it
		// commits first or is rolled back.
		_, err := tx.ExecContext(ctx, `
			INSERT INTO egress_owners (account, epoch, holder, acquired_at, seen_at) VALUES (?, 1, ?, ?, ?)
			ON DUPLICATE KEY UPDATE epoch = epoch + 1, holder = ?, acquired_at = ?, seen_at = ?, released_at = NULL`,
			k.account, holder, now, now, holder, now, now)
		if err != nil {
			return fmt.Errorf("beginning an epoch: %w", err)
		}
		if err := tx.QueryRowContext(ctx, `SELECT epoch FROM egress_owners WHERE account = ?`, k.account).Scan(&k.epoch); err != nil {
			return fmt.Errorf("reading the epoch: %w", err)
		}
		return nil
	})
}

// Epoch is the number of this ownership.
func (k *EgressLock) Epoch() int64 { return k.epoch }

// Verify proves on the session itself that the lock is still held, and notes
// the time as Owner.SeenAt. Any error means that it is not proven; ErrLockLost
// that it never will be.
func (k *EgressLock) Verify(ctx context.Context) error { return k.Report(ctx, Report{}) }

// Report does what Verify does and notes what the owner tells.
func (k *EgressLock) Report(ctx context.Context, r Report) error {
	return k.use(ctx, func(ctx context.Context) error {
		return runTx(ctx, k.conn, rolledBack, func(tx *sql.Tx) error {
			if err := k.prove(ctx, tx); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, `UPDATE egress_owners SET seen_at = ? WHERE account = ?`, k.ledger.now(), k.account)
			if err != nil {
				return fmt.Errorf("noting the proof: %w", err)
			}
			return k.note(ctx, tx, r)
		})
	})
}

// note writes the parts of a report that are there.
func (k *EgressLock) note(ctx context.Context, tx *sql.Tx, r Report) error {
	if gate := string(r.Gate); gate != "" {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO egress_gates (account, epoch, gate) VALUES (?, ?, ?)
			ON DUPLICATE KEY UPDATE epoch = ?, gate = ?`, k.account, k.epoch, gate, k.epoch, gate)
		if err != nil {
			return fmt.Errorf("noting the gate's state: %w", err)
		}
	}
	if r.Metrics != "" {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO egress_metrics (account, epoch, metrics) VALUES (?, ?, ?)
			ON DUPLICATE KEY UPDATE epoch = ?, metrics = ?`, k.account, k.epoch, r.Metrics, k.epoch, r.Metrics)
		if err != nil {
			return fmt.Errorf("noting the metrics: %w", err)
		}
	}
	return nil
}

// Release hands the egress back, also when ctx is over, as it is when a
// process stops. Afterwards the lock is of no use, whatever Release returns: an
// error only means that the hand-over may not be on record, as the end of the
// session frees the lock in any case.
func (k *EgressLock) Release(ctx context.Context) error {
	return k.use(context.WithoutCancel(ctx), func(ctx context.Context) error {
		defer k.end(errors.New("the egress lock was released"))
		_, err := k.conn.ExecContext(ctx, `
			UPDATE egress_owners SET released_at = ? WHERE account = ? AND epoch = ?`, k.ledger.now(), k.account, k.epoch)
		if err != nil {
			return fmt.Errorf("noting the release: %w", err)
		}
		// Closing the session would do, but not before this returns.
		if _, err := k.conn.ExecContext(ctx, `DO RELEASE_LOCK(?)`, k.name); err != nil {
			return fmt.Errorf("releasing the lock: %w", err)
		}
		return nil
	})
}

// prove fails with ErrLockLost unless this session holds the lock and the
// epoch is current, and keeps the epoch from changing until tx ends.
func (k *EgressLock) prove(ctx context.Context, tx *sql.Tx) error {
	var epoch int64
	var held bool
	err := tx.QueryRowContext(ctx, `
		SELECT epoch, COALESCE(IS_USED_LOCK(?) = CONNECTION_ID(), FALSE)
		FROM egress_owners WHERE account = ? LOCK IN SHARE MODE`, k.name, k.account).Scan(&epoch, &held)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: its record is gone", ErrLockLost)
	case err != nil:
		return fmt.Errorf("proving the egress lock: %w", err)
	case !held:
		return fmt.Errorf("%w: the session does not hold it", ErrLockLost)
	case epoch != k.epoch:
		return fmt.Errorf("%w: epoch %d has followed on %d", ErrLockLost, epoch, k.epoch)
	}
	return nil
}

// use runs fn on the session when it is the caller's turn, with a context that
// ends with the session's own time limit and nothing else.
func (k *EgressLock) use(ctx context.Context, fn func(ctx context.Context) error) error {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if k.over != nil {
		return fmt.Errorf("%w: %w", ErrLockLost, k.over)
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.ledger.sessionTimeout)
	defer cancel()
	err := fn(own)
	switch {
	case err == nil, sessionSurvives(err) && own.Err() == nil:
		return err
	case !errors.Is(err, ErrLockLost):
		// The cause as text only: a time-out in it is not the caller's.
		err = fmt.Errorf("%w: %s", ErrLockLost, err.Error())
	}
	k.end(err)
	return err
}

// end closes the session, once, and remembers why.
func (k *EgressLock) end(why error) {
	if k.over == nil {
		k.over = why
		_ = k.conn.Close()
	}
}

// sessionSurvives tells whether err is an answer: the database's, on a session
// that goes on, or the ledger's own refusal.
func sessionSurvives(err error) bool {
	var refused *RefusedError
	var answer *mysql.MySQLError
	return errors.As(err, &refused) ||
		errors.Is(err, ErrDuplicateCall) || errors.Is(err, ErrKeyTaken) || errors.Is(err, ErrNotFound) ||
		errors.As(err, &answer) && !connectionLost(err)
}
