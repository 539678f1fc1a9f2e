package testenv

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"
)

// Logs collects the JSON lines of a logger. The zero value is ready for use,
// by any number of goroutines.
type Logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *Logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// String returns everything that was logged.
func (l *Logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Events returns the attributes of the lines that carry the event, in order.
func (l *Logs) Events(t testing.TB, name string) []map[string]any {
	t.Helper()
	var found []map[string]any
	for line := range strings.Lines(l.String()) {
		var attrs map[string]any
		if err := json.Unmarshal([]byte(line), &attrs); err != nil {
			t.Fatalf("a log line is no JSON: %v\n%s", err, line)
		}
		if attrs["event"] == name {
			found = append(found, attrs)
		}
	}
	return found
}
