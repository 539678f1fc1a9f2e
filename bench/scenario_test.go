package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRoundIsTakenAgainWhenACallFails(t *testing.T) {
	t.Parallel()
	c := comparison{scenario: scenario{Interval: time.Millisecond, Calls: 2, Rounds: 1, Dials: idealDials}}
	stalls := errors.New("a stall")
	tries := 0
	r, err := c.round(t.Context(), 0, "x", func(ctx context.Context, r *round) error {
		if tries++; tries == 1 {
			return errors.Join(r.post(ctx, r.client().Do), stalls)
		}
		return throughGate(ctx, r)
	}, t.Output())
	require.NoError(t, err)
	require.Equal(t, 1, c.Repeated)
	require.Len(t, r.sent.at, 2, "nothing is left of the failed try")
	require.Len(t, r.arrived.at, 2)

	_, err = c.round(t.Context(), 0, "x", func(context.Context, *round) error { return stalls }, t.Output())
	require.ErrorIs(t, err, stalls)
}

func TestRoundMustHaveMadeItsCalls(t *testing.T) {
	t.Parallel()
	r, err := newRound(scenario{Interval: time.Millisecond, Calls: 2, Dials: idealDials}, 0)
	require.NoError(t, err)
	err = r.complete(r.post(t.Context(), r.client().Do))
	require.ErrorContains(t, err, "2 calls, but 1 were sent and 1 arrived")
}
