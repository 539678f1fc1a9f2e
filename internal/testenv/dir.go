package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

const (
	dirPrefix = "refundgate-test-"
	lockName  = "lock"
)

// dir is the process's own temporary directory. Main removes it; what a
// process left that panicked or was killed, the next one removes.
var dir = sync.OnceValues(func() (string, error) {
	path, lock, err := createDir()
	if err != nil {
		return "", fmt.Errorf("creating a directory for the tests: %w", err)
	}
	atEnd(func() error { return errors.Join(os.RemoveAll(path), lock.Close()) })
	removeAbandonedDirs()
	return path, nil
})

// createDir creates a directory with a lock file that is locked for as long as
// it is open. The file appears under its name only once it is locked.
func createDir() (path string, lock *os.File, err error) {
	if path, err = os.MkdirTemp("", dirPrefix); err != nil {
		return "", nil, err
	}
	if lock, err = os.Create(filepath.Join(path, lockName+".new")); err != nil {
		return "", nil, err
	}
	if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err == nil {
		err = os.Rename(lock.Name(), filepath.Join(path, lockName))
	}
	if err != nil {
		return "", nil, errors.Join(err, lock.Close())
	}
	return path, lock, nil
}

// removeAbandonedDirs removes what processes that are gone left behind. It is
// a courtesy: what it can't remove stays.
func removeAbandonedDirs() {
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*", lockName))
	if err != nil {
		return
	}
	for _, path := range locks {
		lock, err := os.Open(path)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		_ = lock.Close()
	}
}
