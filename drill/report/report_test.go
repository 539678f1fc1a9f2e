package report

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var saveSamples = flag.String("save-samples", "", "a folder to write sample reports into, to look at them")

// samples are the reports that every form has to be able to show.
func samples() map[string]Report {
	return map[string]Report{
		"passed":  sample(),
		"failed":  failedSample(),
		"long":    longSample(),
		"empty":   {},
		"hostile": hostile(`"><script>alert(1)</script>`),
	}
}

func TestSamplesCanBeWritten(t *testing.T) {
	t.Parallel()
	dir := *saveSamples
	if dir == "" {
		dir = t.TempDir()
	}
	for name, r := range samples() {
		require.NoError(t, r.WriteFiles(filepath.Join(dir, name)), name)
		require.FileExists(t, filepath.Join(dir, name, JSONFile))
		require.FileExists(t, filepath.Join(dir, name, HTMLFile))
	}
}

// hostile returns a report with text in each string that it has.
func hostile(text string) Report {
	return Report{
		Sabotage:    text,
		Environment: Environment{System: text, Go: text, Refundgate: text, Database: text, Temporal: text},
		Budget:      Budget{IntervalMS: 200, MaxInFlight: 10, CallMS: 3000},
		Scenarios: []Scenario{{
			Name: text, Requirement: text, Title: text, Story: text, Problem: text, Ended: 3,
			Checks:  []Check{{Name: text, Promise: text, Measured: text, Problems: []string{text}}},
			Figures: []Figure{{Name: text, Value: 1, Unit: text}},
			Windows: []Window{{Label: text, From: 1, To: 2}},
			Starts: []Start{
				{At: 0.5, RefundID: text, Kind: text, Origin: text, Process: text, Outcome: text, Code: text},
				{At: 0.6, GapMS: 100, RefundID: text, Kind: text, Origin: text, Process: text, Outcome: text, Code: text},
			},
		}},
	}
}
