package starter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRoundBackoff(t *testing.T) {
	t.Parallel()
	for failures, longest := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 4: 5 * time.Second, 1000: 5 * time.Second} {
		for range 100 {
			wait := roundBackoff(failures)
			require.LessOrEqual(t, wait, longest)
			require.Greater(t, wait, longest*3/4-1)
		}
	}
}
