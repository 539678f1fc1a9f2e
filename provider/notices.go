package provider

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"refundgate/refund"
)

// MaxNotification bounds the body of a notification, in bytes.
const MaxNotification = 64 << 10

// Notices reads what one account's provider says without being asked. It is
// used by many goroutines at once and keeps nothing between calls.
//
// The notices it returns hold what the provider said: the fields of
// refund.Notice down to SaidAt. At least one of ProviderRefundID and Reference
// is set, and the amount is one that a refund can have. EventID and
// ProviderRefundID have at most 128 bytes, the other texts 64, and all but Code
// are ASCII. A Reference or PaymentID that can't be one of ours is changed so
// that it equals none. A status that isn't in the contract has the outcome
// unknown: the notice is kept and proves nothing.
type Notices interface {
	// Notification reads a message that came to our endpoint: its header and
	// its raw body, of which no more than one byte past MaxNotification need
	// be read. now is the time of its arrival; the signature's must be near
	// it. The error is a *MalformedError for a body that is too long, then
	// ErrSignature before anything of it is read, then a *MalformedError for
	// what a signed one lacks.
	Notification(header http.Header, body []byte, now time.Time) (refund.Notice, error)
	// Settlement reads a settlement report, row by row. A *RowError stands for
	// one row that can't be read, and the rows after it follow. Any other
	// error is the last thing it yields: a *MalformedError for what is no such
	// report, or the reader's error. A row that was read before has the same
	// EventID again, so a report can be read twice.
	Settlement(r io.Reader) iter.Seq2[refund.Notice, error]
}

// ErrSignature is returned for a notification that isn't signed by the
// provider, or was signed too long before or after it came. The text around it
// says which, for the log; a sender is told no more than this.
var ErrSignature = errors.New("the signature is not a valid one")

// MalformedError says what is wrong with a notification or a report as a
// whole. The message is meant for whoever sent it and quotes nothing of it.
type MalformedError struct{ Message string }

func (e *MalformedError) Error() string { return e.Message }

// RowError says what is wrong with one row of a settlement report.
type RowError struct {
	Line int   // in the file, from 1; the header is a line too
	Err  error // quotes nothing of the row
}

func (e *RowError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns what is wrong with the row.
func (e *RowError) Unwrap() error { return e.Err }
