package report

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJSONRoundTrip(t *testing.T) {
	t.Parallel()
	for _, r := range []Report{sample(), failedSample()} {
		dir := t.TempDir()
		require.NoError(t, r.WriteFiles(dir))
		content, err := os.ReadFile(filepath.Join(dir, JSONFile))
		require.NoError(t, err)
		var read Report
		require.NoError(t, json.Unmarshal(content, &read))
		require.Equal(t, r.withLists(), read)

		var again strings.Builder
		require.NoError(t, read.WriteJSON(&again))
		require.Equal(t, string(content), again.String(), "the same report gives the same bytes")
	}
}

func TestJSONHasNoNullLists(t *testing.T) {
	t.Parallel()
	for _, r := range []Report{{}, {Scenarios: []Scenario{{Name: "broken", Problem: "no database"}}}} {
		var w strings.Builder
		require.NoError(t, r.WriteJSON(&w))
		require.NotContains(t, w.String(), "null")
	}
}

func TestFilesReplaceThoseOfTheLastRun(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "folder")
	require.NoError(t, failedSample().WriteFiles(dir))
	require.NoError(t, sample().WriteFiles(dir))

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "nothing is left beside the two files")
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o644), info.Mode())
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		require.NotContains(t, string(content), "137.250")
	}
}

func TestWriteFilesSaysWhatItCouldNotDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, sample().WriteFiles(file), "making the report's folder")

	// A folder has the page's name: the other file is still written, and
	// nothing half-done is left.
	taken := filepath.Join(dir, "taken")
	require.NoError(t, os.MkdirAll(filepath.Join(taken, HTMLFile), 0o755))
	require.ErrorContains(t, sample().WriteFiles(taken), HTMLFile)
	require.FileExists(t, filepath.Join(taken, JSONFile))
	entries, err := os.ReadDir(taken)
	require.NoError(t, err)
	require.Len(t, entries, 2)

	// JSON has no NaN; people still get their page.
	r := sample()
	r.Scenarios[0].Figures[0].Value = math.NaN()
	odd := filepath.Join(dir, "odd")
	require.ErrorContains(t, r.WriteFiles(odd), JSONFile)
	require.FileExists(t, filepath.Join(odd, HTMLFile))
	require.NoFileExists(t, filepath.Join(odd, JSONFile))
}
