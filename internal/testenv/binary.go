package testenv

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Race tells whether the tests and Binary's program have the race detector, with
// which a process takes several times the memory and the time.
const Race = raceEnabled

// Binary returns the path of the refundgate program, built once per test
// process, with the race detector if the tests have it.
func Binary(t testing.TB) string {
	t.Helper()
	return get(t, binary)
}

var binary = sync.OnceValues(func() (string, error) {
	if err := dependOnSources(); err != nil {
		return "", err
	}
	dir, err := dir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "refundgate")
	args := []string{"build", "-o", path}
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "refundgate/cmd/refundgate")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building refundgate: %w\n%s", err, out)
	}
	return path, nil
})
