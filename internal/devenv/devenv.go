// Package devenv starts private copies of the servers that refundgate stands
// on, MariaDB and Temporal, for `refundgate dev` and for the tests. Each runs
// as a child process on a socket or on ports of its own, keeps its data where
// it is told to, and never outlives the process that started it.
//
// Nothing here is meant for production.
package devenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNotInstalled is wrapped by the errors that say which program is missing
// and how to install it.
var ErrNotInstalled = errors.New("not installed")

// ErrInUse is wrapped when another process already runs a server on the same
// directory.
var ErrInUse = errors.New("in use")

// findProgram returns the path of the first of the names found on PATH or in
// one of the further directories.
func findProgram(names []string, dirs ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("finding %s: %w", names[0], ErrNotInstalled)
}
