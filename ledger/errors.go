package ledger

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"github.com/go-sql-driver/mysql"

	"refundgate/refund"
)

var (
	// ErrNotFound says that there is no such refund, call or owner.
	ErrNotFound = errors.New("not found")
	// ErrConflict says that the refund id was accepted before with other content.
	ErrConflict = errors.New("the refund id was accepted with other content")
	// ErrBadCursor says that the cursor was not handed out by List.
	ErrBadCursor = errors.New("bad cursor")
	// ErrClosed says that the case has another final status.
	ErrClosed = errors.New("the case is closed")
	// ErrDuplicateCall says that the call key has an intent or an outcome already.
	ErrDuplicateCall = errors.New("the call key was used before")
	// ErrKeyTaken says that the idempotency key belongs to another request, or
	// that the generation's first request has another key. It is a defect of
	// ours, or comes of a refund id that reads like a later generation of
	// another one ("r-1.g2").
	ErrKeyTaken = errors.New("the idempotency key belongs to another request")
	// ErrLockLost says that the right to send can't be proven any more, and
	// never will be again through this lock.
	ErrLockLost = errors.New("the egress lock is lost")
	// ErrMayBeRecorded says that an intent that failed may be recorded all the
	// same: the database could not be asked.
	ErrMayBeRecorded = errors.New("the intent may be recorded")
)

// PaymentExceededError refuses a refund that would bring a payment's refunds
// above the payment.
type PaymentExceededError struct {
	PaymentID string
	Limit     refund.Money // the payment's amount
	Reserved  refund.Money // its refunds so far that are not definitely rejected
}

func (e *PaymentExceededError) Error() string {
	return fmt.Sprintf("refunds of payment %s would exceed it: %s of %s is reserved or refunded", e.PaymentID, e.Reserved, e.Limit)
}

// PaymentMismatchError refuses a refund that contradicts what is known about
// its payment: another payment_amount, or another currency.
type PaymentMismatchError struct {
	PaymentID string
	Known     refund.Money // the payment's amount as it was first stated
	Stated    refund.Money // what the refund says
}

func (e *PaymentMismatchError) Error() string {
	return fmt.Sprintf("payment %s is known as %s, the refund says %s", e.PaymentID, e.Known, e.Stated)
}

// RefusedError says that a call may not be sent.
type RefusedError struct {
	Code string // one of the refund.Code constants
}

func (e *RefusedError) Error() string { return "the call may not be sent: " + e.Code }

// HeldError says that somebody else owns the account's egress.
type HeldError struct {
	Owner Owner
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("the egress of account %s is held by %q (epoch %d)", e.Owner.Account, e.Owner.Holder, e.Owner.Epoch)
}

// Numbers of MySQL errors that the ledger decides on.
const (
	errnoServerShutdown  = 1053
	errnoDuplicateKey    = 1062
	errnoRecordChanged   = 1020 // newer MariaDB: the row changed under the snapshot
	errnoDeadlock        = 1213
	errnoConnKilled      = 1927 // MariaDB
	errnoSessionKilled   = 3169 // MySQL
	errnoClientIdleClose = 4031 // MySQL
)

func errno(err error) uint16 {
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		return my.Number
	}
	return 0
}

// rolledBack tells whether the server gave up the whole transaction and says
// to run it again. A lock wait that timed out (1205) is not of the kind: the
// transaction lives on and the row is still held by someone else.
func rolledBack(err error) bool {
	n := errno(err)
	return n == errnoDeadlock || n == errnoRecordChanged
}

// connectionLost tells whether the connection died under a statement, which
// may or may not have been executed.
func connectionLost(err error) bool {
	switch errno(err) {
	case errnoServerShutdown, errnoConnKilled, errnoSessionKilled, errnoClientIdleClose:
		return true
	}
	return errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF)
}
