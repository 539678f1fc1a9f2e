package reference

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"refundgate/provider"
	"refundgate/refund"
)

// columns are the settlement report's, in their order.
var columns = []string{"refund_id", "reference", "payment_id", "amount", "currency", "status", "settled_at"}

// maxRow bounds a line of the report, in bytes with its end. A right one has
// a tenth of that.
const maxRow = 4 << 10

// errLongRow is what a line over maxRow gives.
var errLongRow = fmt.Errorf("the row is over %d bytes", maxRow)

// Settlement reads a settlement report. Each line is read by itself: no column
// holds line ends, so a stray quotation mark costs one row and not the rest of
// the file.
func (n *Notices) Settlement(r io.Reader) iter.Seq2[refund.Notice, error] {
	return func(yield func(refund.Notice, error) bool) {
		lines := bufio.NewReaderSize(r, maxRow)
		if err := readHeader(lines); err != nil {
			yield(refund.Notice{}, err)
			return
		}
		for number := 2; ; number++ {
			line, err := nextLine(lines)
			switch {
			case errors.Is(err, io.EOF):
				return
			case errors.Is(err, errLongRow):
				err = &provider.RowError{Line: number, Err: err}
			case err != nil:
				yield(refund.Notice{}, fmt.Errorf("reading the report: %w", err))
				return
			case line == "":
				continue
			}
			var notice refund.Notice
			if err == nil {
				notice, err = n.row(line, number)
			}
			if !yield(notice, err) {
				return
			}
		}
	}
}

// readHeader reads the first line, which must be the contract's: a column that
// is missing, added or in another place would give amounts another meaning.
func readHeader(lines *bufio.Reader) error {
	line, err := nextLine(lines)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errLongRow) {
		return fmt.Errorf("reading the report: %w", err)
	}
	header, _ := fields(strings.TrimPrefix(line, "\uFEFF")) // what can't be read lacks every column
	if slices.Equal(header, columns) {
		return nil
	}
	missing := slices.DeleteFunc(slices.Clone(columns), func(c string) bool { return slices.Contains(header, c) })
	message := "the first line must be " + strings.Join(columns, ",")
	if len(missing) > 0 {
		message += "; it lacks " + strings.Join(missing, ", ")
	}
	return &provider.MalformedError{Message: message}
}

// nextLine returns the next line without its end. The last one needs none.
func nextLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = errLongRow
		}
		return "", err
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return string(bytes.TrimRight(line, "\r\n")), err
}

// row reads a line of the report; the error is a *provider.RowError.
func (n *Notices) row(line string, number int) (refund.Notice, error) {
	row, err := fields(line)
	if err == nil && len(row) != len(columns) {
		err = fmt.Errorf("the row has %d columns instead of %d", len(row), len(columns))
	}
	if err != nil {
		return refund.Notice{}, &provider.RowError{Line: number, Err: err}
	}
	notice, err := statement{
		id: row[0], reference: row[1], paymentID: row[2], amount: row[3], currency: row[4], status: row[5], at: row[6],
	}.notice(nil, n.exponents)
	if err != nil {
		return refund.Notice{}, &provider.RowError{Line: number, Err: err}
	}
	notice.Account, notice.Source, notice.EventID = n.account, refund.SourceSettlement, rowID(row)
	return notice, nil
}

// fields splits a line into its columns.
func fields(line string) ([]string, error) {
	r := csv.NewReader(strings.NewReader(line))
	r.FieldsPerRecord = -1 // counted by the caller
	row, err := r.Read()
	if err != nil {
		return nil, errors.New("a quotation mark is out of place")
	}
	return row, nil
}

// rowID names a row by its content, however it is quoted: the same row again,
// in this file or in the next, is the same notice. Stored; never change it.
func rowID(row []string) string {
	h := sha256.New()
	for _, field := range row {
		fmt.Fprintf(h, "%d:%s,", len(field), field)
	}
	return hex.EncodeToString(h.Sum(nil))
}
