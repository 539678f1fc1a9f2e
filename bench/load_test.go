package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// intake is an intake whose answer a test chooses by what it has taken so far.
type intake struct {
	target
	mu  sync.Mutex
	ids []string
}

func newIntake(t *testing.T, status func(taken int) int) *intake {
	in := &intake{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var r refund.Refund
		if err != nil || json.Unmarshal(body, &r) != nil || r.Validate() != nil || req.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		w.WriteHeader(status(len(in.ids)))
		in.ids = append(in.ids, r.ID)
	}))
	t.Cleanup(server.Close)
	in.target = target{url: server.URL, token: "secret"}
	return in
}

var briefly = intakePlan{WarmUp: 50 * time.Millisecond, Time: 100 * time.Millisecond}

func TestLoadSubmitsDistinctRefunds(t *testing.T) {
	t.Parallel()
	in := newIntake(t, func(int) int { return http.StatusAccepted })
	require.NoError(t, in.first(t.Context(), 3))
	got, err := in.load(t.Context(), 4, briefly, http.StatusAccepted, func(n int) int { return 3 + n })
	require.NoError(t, err)
	require.Len(t, in.ids, 3+got.all)
	require.Equal(t, []string{"r-0", "r-1", "r-2"}, in.ids[:3])
	slices.Sort(in.ids)
	require.Len(t, slices.Compact(in.ids), 3+got.all, "each id once")
	require.NotEmpty(t, got.times)
	require.Less(t, len(got.times), got.all, "the warm-up doesn't count")
	require.GreaterOrEqual(t, got.ran, got.took+briefly.WarmUp)
}

func TestLoadFailsWithOneWrongAnswer(t *testing.T) {
	t.Parallel()
	in := newIntake(t, func(taken int) int {
		if taken == 5 {
			return http.StatusServiceUnavailable
		}
		return http.StatusAccepted
	})
	_, err := in.load(t.Context(), 2, briefly, http.StatusAccepted, func(n int) int { return n })
	require.ErrorContains(t, err, "status 503 instead of 202")
}

func TestLoadFailsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	in := newIntake(t, func(int) int { panic(http.ErrAbortHandler) })
	_, err := in.load(t.Context(), 2, briefly, http.StatusAccepted, func(n int) int { return n })
	require.Error(t, err)
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	var slow, quick []time.Duration
	for i := range 50 {
		slow = append(slow, time.Duration(100-i)*time.Millisecond)
		quick = append(quick, time.Duration(50-i)*time.Millisecond)
	}
	got := summarize("x", []intakeRound{
		{answers: answers{all: 60, times: slow, took: time.Second, ran: 2 * time.Second}, started: 30, statements: 600},
		{answers: answers{all: 70, times: quick, took: 500 * time.Millisecond, ran: time.Second}, started: 60, statements: 50},
	})
	require.Equal(t, throughput{
		Candidate: "x", Requests: 100,
		Rate: 100 / 1.5, Lowest: 50, Highest: 100,
		P50: 50 * time.Millisecond, P99: 99 * time.Millisecond,
		Started: 30, Statements: 5,
	}, got)
}
