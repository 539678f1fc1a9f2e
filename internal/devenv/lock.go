package devenv

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockWait is how long a start waits for the lock: a server whose
// parent was killed needs a moment to die.
const lockWait = 3 * time.Second

// lockFile takes the exclusive lock that guards a server's data. It belongs to
// the open file, so a child that inherits the file holds it too, and the lock is free
// only when both are gone.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(20 * time.Millisecond) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			break
		}
	}
	if err == nil {
		err = writePID(f)
	} else if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := os.ReadFile(path) // only to name it
		err = fmt.Errorf("%w by process %s; stop that or choose another place", ErrInUse, strings.TrimSpace(string(holder)))
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("writing the lock file: %w", err)
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("writing the lock file: %w", err)
	}
	return nil
}
