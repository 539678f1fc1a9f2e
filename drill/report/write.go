package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// The files that WriteFiles writes.
const (
	JSONFile = "report.json"
	HTMLFile = "report.html"
)

// WriteFiles writes report.json and report.html into dir, which is made if it
// is missing. Each file is there whole or not at all; one that was there before
// is replaced. If one can't be written, the other still is.
func (r Report) WriteFiles(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the report's folder: %w", err)
	}
	return errors.Join(
		writeFile(filepath.Join(dir, JSONFile), r.WriteJSON),
		writeFile(filepath.Join(dir, HTMLFile), r.WriteHTML),
	)
}

// WriteJSON writes the report for programs. Lists without entries are empty
// lists, not null.
func (r Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r.withLists()); err != nil {
		return fmt.Errorf("writing the report as JSON: %w", err)
	}
	return nil
}

// withLists returns a copy in which no list is nil.
func (r Report) withLists() Report {
	scenarios := make([]Scenario, len(r.Scenarios))
	for i, s := range r.Scenarios {
		s.Checks = orEmpty(s.Checks)
		s.Figures = orEmpty(s.Figures)
		s.Windows = orEmpty(s.Windows)
		s.Starts = orEmpty(s.Starts)
		s.Settled = orEmpty(s.Settled)
		s.Oldest = orEmpty(s.Oldest)
		scenarios[i] = s
	}
	r.Scenarios = scenarios
	return r
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// writeFile writes beside path first, and moves the whole file into place.
func writeFile(path string, write func(io.Writer) error) (err error) {
	var content bytes.Buffer
	if err := write(&content); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("writing %s: %w", path, err), os.Remove(temp.Name()))
		}
	}()
	_, err = temp.Write(content.Bytes())
	// CreateTemp lets nobody else read it, but a report is there to be read.
	err = errors.Join(err, temp.Chmod(0o644), temp.Close())
	if err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
