package testenv

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// DependOnSources makes the cached result of this test package depend on every
// file of the module. The go command can't see it when a test hands the sources
// to another process, such as a build, and would repeat an outdated "ok".
func DependOnSources(t testing.TB) {
	t.Helper()
	if err := dependOnSources(); err != nil {
		t.Fatal(err)
	}
}

func dependOnSources() error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	// Reading a directory is noted by the testing package, and the go command
	// then compares names, sizes and times of what is in it.
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
}

// moduleRoot returns the directory of the go.mod that the tests run under.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding go.mod: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("finding go.mod: there is none above the tests")
		}
		dir = parent
	}
}
