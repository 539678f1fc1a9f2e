package standin

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// stateFile keeps what the provider must not forget: one JSON object a line,
// written with one call before the answer leaves. The kernel has the line
// then, so kill -9 of the process loses nothing; a power cut may.
type stateFile struct{ f *os.File }

// stateLine is one change. Later lines replace earlier ones of the same id.
type stateLine struct {
	Key       *keyState    `json:"key,omitempty"`
	Refund    *refundState `json:"refund,omitempty"`
	PaymentID string       `json:"payment_id,omitempty"`
	Payment   *Payment     `json:"payment,omitempty"`
}

// openState opens or creates the file, gives each line to load, and cuts off
// a last line that a kill left unfinished. The file is locked: two providers
// on one file would forget each other's refunds.
func openState(path string, load func(stateLine)) (*stateFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the state file: %w", err)
	}
	s := &stateFile{f: f}
	if err := s.read(load); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("reading the state file %s: %w", path, err)
	}
	return s, nil
}

func (s *stateFile) read(load func(stateLine)) error {
	if err := unix.Flock(int(s.f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another stand-in uses it: %w", err)
	}
	r := bufio.NewReader(s.f)
	var end int64
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // a line without its end was never answered
		}
		if err != nil {
			return err
		}
		var l stateLine
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		load(l)
		end += int64(len(line))
	}
	if err := s.f.Truncate(end); err != nil {
		return err
	}
	_, err := s.f.Seek(end, io.SeekStart)
	return err
}

// append writes one change. A nil file keeps nothing.
func (s *stateFile) append(l stateLine) error {
	if s == nil {
		return nil
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = s.f.Write(append(b, '\n'))
	return err
}

func (s *stateFile) close() error {
	if s == nil {
		return nil
	}
	// Closing alone would leave the lock with any child process that is just
	// being forked and still shares the descriptor.
	err := unix.Flock(int(s.f.Fd()), unix.LOCK_UN)
	return errors.Join(err, s.f.Close())
}
