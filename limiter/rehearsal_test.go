package limiter_test

import (
	"context"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/limiter"
	"refundgate/refund"
)

// start is who started when.
type start struct {
	key      refund.CallKey
	at       time.Duration
	inFlight int
}

// rehearse plays the calls through and returns the starts. A call that the
// breaker sent away is gone.
func rehearse(t require.TestingT, cfg limiter.Config, calls []limiter.Call, at []time.Duration, answer func(start int) time.Duration, verdict limiter.Verdict) []start {
	r, err := limiter.NewRehearsal(cfg)
	require.NoError(t, err)
	type end struct {
		at time.Duration
		f  *limiter.Flight
	}
	var starts []start
	var ends []end
	now, gone := time.Duration(0), 0
	for entered := 0; len(starts)+gone < len(calls) || len(ends) > 0; {
		f, wait := r.Step(now)
		switch {
		case f != nil && f.NotSent != nil:
			gone++
			continue
		case f != nil:
			ends = append(ends, end{now + answer(len(starts)), f})
			starts = append(starts, start{f.Call.Key, now, f.InFlight})
			continue
		}
		next := now + min(wait, time.Hour)
		if entered < len(calls) {
			next = min(next, at[entered])
		}
		slices.SortStableFunc(ends, func(a, b end) int { return int(a.at - b.at) })
		if len(ends) > 0 {
			next = min(next, ends[0].at)
		}
		now = next
		for ; len(ends) > 0 && ends[0].at == now; ends = ends[1:] {
			r.End(ends[0].f, verdict, now)
		}
		for ; entered < len(calls) && at[entered] == now; entered++ {
			r.Enter(calls[entered])
		}
	}
	require.Zero(t, r.Waiting())
	return starts
}

// A rehearsal is the gate: for the same calls and answers the same calls start
// at the same instants, with as many in flight.
func TestPropertyRehearsalIsTheGate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		const interval = 200 * time.Millisecond
		n := rapid.IntRange(1, 60).Draw(rt, "calls")
		limit := rapid.IntRange(1, 10).Draw(rt, "limit")
		cfg := limiter.Config{
			Target: &url.URL{Scheme: "http", Host: "provider.test"}, MaxInFlight: limit,
			Endpoints: drawEndpoints(rt, interval, limit),
			Breaker:   limiter.BreakerConfig{OpenFor: 3 * time.Second, ProbeTimeout: 10 * time.Second},
		}
		verdict := rapid.SampledFrom([]limiter.Verdict{limiter.Healthy, limiter.Healthy, limiter.Failing}).Draw(rt, "verdict")
		var calls []limiter.Call
		var at, answers []time.Duration
		for i := range n {
			// Two things never happen in one instant, where their order would be
			// the scheduler's.
			odd := time.Duration(i+1) * time.Microsecond
			at = append(at, ms(1, 6000).Draw(rt, "at")+odd)
			answers = append(answers, ms(1, 2500).Draw(rt, "answer")+100*odd+odd/2)
		}
		slices.Sort(at)
		for i := range n {
			c := limiter.Call{
				Key:        key(i),
				Group:      rapid.SampledFrom([]refund.Group{refund.GroupFirst, refund.GroupFollowUp}).Draw(rt, "group"),
				AcceptedAt: time.Unix(int64(rapid.IntRange(0, 1000).Draw(rt, "accepted")), int64(i)),
			}
			if rapid.Bool().Draw(rt, "check") {
				c.Key.Kind = refund.KindCheck
			}
			calls = append(calls, c)
		}
		want := rehearse(rt, cfg, calls, at, func(i int) time.Duration { return answers[i] }, verdict)

		var got []start
		bubble(t, rt, func(t *bubbleT) {
			w := &world{clock: fakeClock{time.Now()}}
			var started atomic.Int64
			cfg := cfg
			cfg.Clock = w.clock
			cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				w.serving.Go(func() { w.serveBy(far, func() time.Duration { return answers[started.Add(1)-1] }) })
				return near, nil
			}
			var mu sync.Mutex
			cfg.Events.Started = func(c limiter.Call, p limiter.Passage) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, start{c.Key, p.StartedMono, p.InFlight})
			}
			g, err := limiter.New(cfg)
			require.NoError(t, err)
			var wg sync.WaitGroup
			for i, c := range calls {
				c.Intent = noIntent
				send := post(cfg.Target, nil)
				c.Send = func(ctx context.Context, tk *limiter.Ticket) {
					send(ctx, tk)
					tk.Judge(verdict)
				}
				wg.Go(func() {
					time.Sleep(at[i])
					_, _ = g.Do(t.Context(), c) // the breaker sends calls away, here as there
				})
			}
			wg.Wait()
			require.NoError(t, g.Close(context.Background()))
			w.serving.Wait()
		})
		require.Equal(rt, want, got)
	})
}

func TestRehearsalLeave(t *testing.T) {
	t.Parallel()
	r, err := limiter.NewRehearsal(limiter.Config{})
	require.NoError(t, err)
	for i := range 3 {
		r.Enter(limiter.Call{Key: key(i), Group: refund.GroupFirst, AcceptedAt: time.Unix(int64(i), 0)})
	}
	f, _ := r.Step(0)
	require.Equal(t, key(0), f.Call.Key)
	require.False(t, r.Leave(key(0)), "it has left already")

	// The next one is chosen half a slot ahead, and gives its turn back.
	f, wait := r.Step(150 * time.Millisecond)
	require.Nil(t, f)
	require.Equal(t, 50*time.Millisecond, wait)
	require.True(t, r.Leave(key(1)))
	require.False(t, r.Leave(key(1)))
	require.Equal(t, 1, r.Waiting())
	require.Equal(t, 200*time.Millisecond, r.Due())
	f, _ = r.Step(200 * time.Millisecond)
	require.Equal(t, key(2), f.Call.Key)
	require.Equal(t, 2, f.InFlight)
	require.False(t, r.Full())
}

func TestRehearsalRefusesBadBudgets(t *testing.T) {
	t.Parallel()
	for _, cfg := range []limiter.Config{
		{Interval: -1},
		{MaxInFlight: -1},
		{Breaker: limiter.BreakerConfig{Window: -1}},
		{Endpoints: map[refund.CallKind]limiter.EndpointLimit{refund.KindCheck: {Interval: time.Millisecond}}},
	} {
		_, err := limiter.NewRehearsal(cfg)
		require.Error(t, err)
	}
}
