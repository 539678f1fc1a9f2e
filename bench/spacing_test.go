package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startsAt returns starts at the given milliseconds, each of which cost 1 ms.
func startsAt(ms ...int) *starts {
	var s starts
	for i, at := range ms {
		s.at = append(s.at, time.Unix(0, 0).Add(time.Duration(at)*time.Millisecond))
		s.cpu = append(s.cpu, time.Duration(i)*time.Millisecond)
	}
	return &s
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	s := measure("x", 20*time.Millisecond, []*starts{
		startsAt(0, 20, 60, 80),    // a slot was missed
		startsAt(1045, 1000, 1026), // noted out of order; 26 and 19
		startsAt(2000, 2005, 2025), // 5 and 20: faster than allowed
	})
	require.Equal(t, 10, s.Starts)
	require.Equal(t, 7, s.Gaps, "the time between rounds is no gap")
	require.Equal(t, 2, s.Short)
	require.Equal(t, 1, s.ShortByOneMS, "19 ms is exactly 1 ms short")
	require.Equal(t, 5*time.Millisecond, s.Smallest)
	require.Equal(t, 40*time.Millisecond, s.P99)
	require.Equal(t, 150*time.Millisecond/7, s.Mean)
	require.InDelta(t, 140.0/150, s.Used, 1e-9)
	require.InDelta(t, 60.0/80, s.Lowest, 1e-9)
	require.InDelta(t, 40.0/25, s.Highest, 1e-9)
	require.Equal(t, time.Millisecond, s.CPU)
}

func TestP99IsTheNearestRank(t *testing.T) {
	t.Parallel()
	var s starts
	at := time.Unix(0, 0)
	for i := range 101 { // gaps of 0, 1, ... 99 ms
		at = at.Add(time.Duration(max(i-1, 0)) * time.Millisecond)
		s.at, s.cpu = append(s.at, at), append(s.cpu, 0)
	}
	require.Equal(t, 98*time.Millisecond, measure("x", time.Millisecond, []*starts{&s}).P99)
}
