package main

import (
	"math"
	"slices"
	"time"
)

// spacing is what the instants of a candidate's starts say about it.
type spacing struct {
	Candidate string
	Interval  time.Duration // as demanded
	Starts    int
	// Used is the share of the budget that was used: the slots between the
	// first start and the last, divided by those that the time between them
	// had room for. Over 1 the calls were faster than allowed. Lowest and
	// Highest are those of single rounds.
	Used, Lowest, Highest float64
	// Mean, Smallest and P99 are of the gaps between one start and the next.
	Mean, Smallest, P99 time.Duration
	Gaps                int
	Short, ShortByOneMS int // gaps under the interval, and by over 1 ms
	// CPU is what the process, client and server together, used per call.
	CPU time.Duration
}

// measure evaluates the starts of one candidate, round by round: the time
// between two rounds is no gap.
func measure(candidate string, interval time.Duration, rounds []*starts) spacing {
	s := spacing{Candidate: candidate, Interval: interval, Lowest: math.Inf(1)}
	var gaps []time.Duration
	var span, cpu time.Duration
	for _, round := range rounds {
		at := slices.Clone(round.at)
		slices.SortFunc(at, time.Time.Compare)
		s.Starts += len(at)
		last := len(at) - 1
		for i := range last {
			gaps = append(gaps, at[i+1].Sub(at[i]))
		}
		length := at[last].Sub(at[0])
		span += length
		cpu += round.cpu[last] - round.cpu[0]
		used := share(time.Duration(last)*interval, length)
		s.Lowest, s.Highest = min(s.Lowest, used), max(s.Highest, used)
	}
	slices.Sort(gaps)
	for _, gap := range gaps {
		if gap < interval {
			s.Short++
		}
		if gap < interval-time.Millisecond {
			s.ShortByOneMS++
		}
	}
	s.Gaps = len(gaps)
	s.Used = share(time.Duration(s.Gaps)*interval, span)
	s.Mean = span / time.Duration(s.Gaps)
	s.CPU = cpu / time.Duration(s.Gaps)
	s.Smallest = gaps[0]
	s.P99 = percentile(gaps, 99)
	return s
}

// percentile returns the value at or under which p percent of the sorted values
// lie: the nearest rank.
func percentile(sorted []time.Duration, p int) time.Duration { return sorted[(len(sorted)*p+99)/100-1] }

func share(a, b time.Duration) float64 { return float64(a) / float64(b) }
