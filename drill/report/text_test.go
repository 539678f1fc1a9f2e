package report

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func text(t *testing.T, r Report) string {
	t.Helper()
	var w strings.Builder
	require.NoError(t, r.WriteText(&w))
	return w.String()
}

func TestTextOfAFailedDrill(t *testing.T) {
	t.Parallel()
	r := failedSample()
	r.Scenarios = append(r.Scenarios[2:3], r.Scenarios[7])
	require.Equal(t, `VERDICT  SCENARIO  TOOK    STARTS  SETTLED  SMALLEST GAP  IN FLIGHT  FIRST  RETRY  CHECK  MANUAL
FAILED   drop      22.0 s  40      40       137.250 ms    11         15     0      25     0
FAILED   killed    16.0 s  20      20       200.030 ms    2          13     0      7      0

drop, gap: two consecutive starts are at least 200 ms apart
  measured: 3 of 39 gaps under 200 ms, the smallest 137.250 ms
  - drop-013/1/submit/1 left 137.250 ms after the call before it
  - drop-014/1/submit/1 left 137.250 ms after the call before it
  - drop-015/1/submit/1 left 137.250 ms after the call before it

drop, in-flight: at most 10 calls are in flight
  measured: 11 in flight
  - drop-013/1/submit/1 was the eleventh

killed could not be carried out as planned: waiting for the new owner: no process took the egress within 30s: context
deadline exceeded

The promise "gap" was broken on purpose, to see whether the drill notices. It noticed: 2 checks failed, as at least one
had to.
FAILED in 4 min. 4 checks in 2 scenarios: 2 checks failed; 2 of 2 scenarios did not pass.
`, text(t, r))
}

func TestTextOfAPassedDrill(t *testing.T) {
	t.Parallel()
	lines := strings.Split(strings.TrimSpace(text(t, sample())), "\n")
	require.Equal(t, "PASSED in 4 min. 36 checks in 9 scenarios: every one held.", lines[len(lines)-1])
	require.Len(t, lines, 1+9+2)
}

func TestTextOfNothing(t *testing.T) {
	t.Parallel()
	require.Equal(t, "FAILED in 0.0 s. No scenario was run, so nothing is shown.\n", text(t, Report{}))
}

func TestTextKeepsToTheWidth(t *testing.T) {
	t.Parallel()
	for _, long := range []string{strings.Repeat("word ", 100), strings.Repeat("x", 1000), strings.Repeat("ö", 1000)} {
		for line := range strings.Lines(text(t, hostile(long))) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), textColumns, line)
		}
	}
}

// What a provider answers must not steer the terminal.
func TestTextIsPlain(t *testing.T) {
	t.Parallel()
	out := text(t, hostile("red\x1b[31m\r\nbell\a right\u202eto left\tend"))
	require.NotContains(t, out, "\x1b")
	require.NotContains(t, out, "\r")
	require.NotContains(t, out, "\a")
	require.NotContains(t, out, "\u202e")
	require.Contains(t, out, "red\ufffd[31m bell\ufffd right\ufffdto left end")
}

func TestTextSaysThatItCouldNotBeWritten(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, sample().WriteText(brokenWriter{}), errBroken)
}

var errBroken = errors.New("broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }
