package report

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNiceSteps(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		span float64
		n    int
		want float64
	}{
		{10, 10, 1},
		{11, 10, 2},
		{240, 12, 20},
		{3600, 12, 500},
		{0.3, 3, 0.1},
		{1, 4, 0.5},
		{0, 5, 1},
		{-4, 5, 1},
		{math.NaN(), 5, 1},
		{math.Inf(1), 5, 1},
	} {
		require.InDelta(t, tt.want, niceStep(tt.span, tt.n), 1e-9, "%v in %d", tt.span, tt.n)
	}
	require.Equal(t, []float64{20, 25, 30}, scale{from: 18.8, to: 31}.ticks(3))
	require.InDelta(t, 15.0, niceTop(11, 4), 1e-9)
	require.InDelta(t, 1.0, niceTop(0, 4), 1e-9)
}

func TestScaleKeepsToThePlot(t *testing.T) {
	t.Parallel()
	s := scale{from: 0, to: 10, low: 100, high: 200}
	require.InDelta(t, 150.0, s.at(5), 1e-9)
	require.InDelta(t, 100.0, s.at(-5), 1e-9)
	require.InDelta(t, 200.0, s.at(1e300), 1e-9)
	require.InDelta(t, 7.0, scale{from: 3, to: 3, low: 7}.at(3), 1e-9)
}

func TestOutlineSkipsWhatIsNoPlace(t *testing.T) {
	t.Parallel()
	x, y := scale{0, 10, 0, 100}, scale{0, 10, 100, 0}
	points := []point{{math.NaN(), 1}, {1, 1}, {1.0001, 1}, {2, math.Inf(1)}, {3, 5}}
	require.Equal(t, "M10 90L30 50", outline(points, x, y))
	require.Empty(t, outline(nil, x, y))
}

// Windows may be short, next to each other, or at the right side: no label may
// cover another or leave the picture.
func TestLabelsDoNotOverlap(t *testing.T) {
	t.Parallel()
	windows := []span{
		{"1a", "the provider drops each answer after it has done the refund", 1, 6},
		{"1b", "recovery", 6, 6.1},
		{"1c", "drops again", 6.1, 6.2},
		{"1d", "and again", 6.1, 6.3},
		{"1e", "the last one has a long label too, longer than what is left on the right", 29, 30},
	}
	for _, width := range []float64{wide, narrow} {
		x := scale{0, 30, marginLeft, width - marginRight}
		labels, rows := placeLabels(windows, x, width == narrow)
		require.Len(t, labels, len(windows))
		for i, a := range labels {
			require.Less(t, a.row, rows)
			require.GreaterOrEqual(t, a.from, 0.0)
			require.LessOrEqual(t, a.to, width)
			for _, b := range labels[:i] {
				require.False(t, a.row == b.row && a.from < b.to && b.from < a.to, "%q covers %q", a.text, b.text)
			}
		}
	}
}

func TestLabelsThatHaveRoomShareARow(t *testing.T) {
	t.Parallel()
	x := scale{0, 30, marginLeft, wide - marginRight}
	_, rows := placeLabels([]span{{"1a", "paused", 1, 5}, {"1b", "paused", 10, 15}, {"1c", "paused", 20, 25}}, x, false)
	require.Equal(t, 1, rows)
}

func TestLetters(t *testing.T) {
	t.Parallel()
	for i, want := range map[int]string{0: "a", 25: "z", 26: "aa", 51: "az", 52: "ba"} {
		require.Equal(t, want, letters(i))
	}
}
