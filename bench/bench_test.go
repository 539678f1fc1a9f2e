package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The short run takes every figure of the full one, and even it must not show
// the gate with a gap under the interval.
func TestShortRun(t *testing.T) {
	t.Parallel()
	r, err := run(t.Context(), shortPlan, findTemporal(), t.Output())
	require.NoError(t, err)

	require.Len(t, r.Comparisons, len(shortPlan.Scenarios))
	for i, c := range r.Comparisons {
		s := shortPlan.Scenarios[i]
		require.Len(t, c.Sent, 6)
		require.Len(t, c.Arrived, 6)
		for j, candidate := range r.Candidates {
			for _, m := range []spacing{c.Sent[j], c.Arrived[j]} {
				require.Equal(t, candidate.Name, m.Candidate)
				require.Equal(t, s.Calls*s.Rounds, m.Starts)
				require.Equal(t, (s.Calls-1)*s.Rounds, m.Gaps)
			}
		}
		requireGate(t, c)
	}
	require.Len(t, r.TLS.Sent, 1)
	require.Equal(t, shortPlan.TLS.Calls*shortPlan.TLS.Rounds, r.TLS.Arrived[0].Starts)
	requireGate(t, r.TLS)

	type benchmark struct {
		name    string
		waiting int
	}
	var measured []benchmark
	for _, p := range r.Passes {
		measured = append(measured, benchmark{p.Benchmark, p.Waiting})
		require.Positive(t, p.Time)
		require.Positive(t, p.Allocs)
		require.Positive(t, p.Bytes)
	}
	require.Equal(t, []benchmark{{"Pass", 1}, {"Pass", 1_000}, {"Pass", 1_000_000}, {"Do", 1}, {"Do", 1_000}}, measured)

	require.Len(t, r.Intake.Comparisons, len(shortPlan.Intake.Clients))
	require.Equal(t, shortPlan.Intake.Clients[0], r.Intake.Comparisons[0].Clients)
	require.Len(t, r.Intake.Comparisons[0].Rows, len(r.Intake.Candidates))
	for i, row := range r.Intake.Comparisons[0].Rows {
		c := r.Intake.Candidates[i]
		require.Equal(t, c.Name, row.Candidate)
		require.Positive(t, row.Requests)
		require.Positive(t, row.Rate)
		require.Positive(t, row.P50)
		require.Equal(t, c.temporal, row.Started > 0, "the relay starts workflows where there is a Temporal: %s", c.Name)
	}

	var page bytes.Buffer
	require.NoError(t, r.write(&page))
	for _, c := range r.Candidates {
		// how it is used, sent, arrived, CPU
		require.Equal(t, 4, strings.Count(page.String(), "\n| "+c.Name+" |"), c.Name)
	}
	for _, c := range r.Intake.Candidates {
		// what it is, and its figures
		require.Equal(t, 2, strings.Count(page.String(), "\n| "+c.Name+" |"), c.Name)
	}
	require.Contains(t, page.String(), "\n## Intake\n")
	r.Intake = nil
	page.Reset()
	require.NoError(t, r.write(&page))
	require.NotContains(t, page.String(), "Intake")
}

// requireGate checks the first row, which is the gate: never too early where
// the request leaves, and more of the budget used than if one call dialled after
// the other, however busy the machine is.
func requireGate(t *testing.T, c comparison) {
	t.Helper()
	gate := c.Sent[0]
	require.Equal(t, "the gate", gate.Candidate)
	require.Zero(t, gate.Short)
	require.GreaterOrEqual(t, gate.Smallest, c.Interval)
	require.Greater(t, gate.Used, 1.0/3)
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-nonsense"}, {"-starts", "1"}, {"-interval", "-1s"}, {"-rounds", "0"}, {"argument"}, {"-intake", "-o", "page.md"}} {
		args = append([]string{"-temporal", "none"}, args...) // nothing can run by mistake
		require.ErrorIs(t, command(t.Context(), args, io.Discard), errUsage, "%v", args)
	}
}
