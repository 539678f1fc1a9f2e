package limiter_test

import (
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/limiter"
	"refundgate/refund"
)

// A provider that fails: after ten results no call starts for 30 s, then
// exactly three probes go out, checks before sends; while they fail it goes on
// like that, and when they work everything that waited goes out. What waited
// was not sent and came back to nobody.
func TestBreakerAtTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{clock: fakeClock{time.Now()}}
		var seen starts
		var broken atomic.Bool
		broken.Store(true)
		var changes []limiter.BreakerState
		g, err := limiter.New(limiter.Config{
			Target: &url.URL{Scheme: "http", Host: "provider.test"}, Clock: w.clock,
			Dial: func(context.Context, string, string) (net.Conn, error) { return w.connect(time.Millisecond), nil },
			Events: limiter.Events{
				Started: seen.add,
				Breaker: func(_, to limiter.BreakerState) { changes = append(changes, to) },
			},
		})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 40 {
			call := limiter.Call{
				Key: key(i), Group: refund.GroupFirst, AcceptedAt: w.clock.origin.Add(time.Duration(i)), Intent: noIntent,
				Send: func(ctx context.Context, tk *limiter.Ticket) {
					post(&url.URL{Scheme: "http", Host: "provider.test"}, nil)(ctx, tk)
					if broken.Load() {
						tk.Judge(limiter.Failing)
					} else {
						tk.Judge(limiter.Healthy)
					}
				},
			}
			if i >= 30 { // the latest ten are checks
				call.Group, call.Key.Kind = refund.GroupFollowUp, refund.KindCheck
			}
			if i < 10 || i >= 30 {
				wg.Go(func() {
					if i >= 30 {
						time.Sleep(10 * time.Second) // when it is open already
					}
					_, err := g.Do(t.Context(), call)
					require.NoError(t, err)
				})
			} else {
				wg.Go(func() {
					time.Sleep(5 * time.Second)
					_, err := g.Do(t.Context(), call)
					require.NoError(t, err)
				})
			}
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		list, _ := seen.soFar()
		require.Len(t, list, 10)
		status := g.Status()
		require.Equal(t, limiter.BreakerOpen, status.Breaker)
		require.Equal(t, 30, status.WaitingFirst+status.WaitingFollowUp)
		require.InDelta(t, 12, time.Until(status.OpenUntil).Seconds(), 1)

		time.Sleep(20 * time.Second)
		synctest.Wait()
		list, keys := seen.soFar()
		require.Len(t, list, 13, "three probes and no more")
		for _, k := range keys[10:] {
			require.Equal(t, refund.KindCheck, k.Kind, "a send as a probe while checks wait")
		}
		require.GreaterOrEqual(t, list[10].StartedMono-list[9].StartedMono, 30*time.Second)

		broken.Store(false)
		wg.Wait()
		require.Len(t, seen.list, 40)
		require.Equal(t, []limiter.BreakerState{
			limiter.BreakerOpen, limiter.BreakerHalfOpen, limiter.BreakerOpen, limiter.BreakerHalfOpen, limiter.BreakerClosed,
		}, changes)
		seen.requireSpaced(t, 200*time.Millisecond, 10)
		require.NoError(t, g.Close(context.Background()))
		w.serving.Wait()
	})
}

// A dial that fails tells as much about the provider as a call.
func TestBreakerCountsFailedDials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		g, err := limiter.New(limiter.Config{
			Target: &url.URL{Scheme: "http", Host: "provider.test"}, Clock: fakeClock{time.Now()},
			Dial: func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1)
				return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				_, err := g.Do(ctx, limiter.Call{Key: key(i), Group: refund.GroupFirst, Intent: noIntent, Send: post(&url.URL{Scheme: "http", Host: "provider.test"}, nil)})
				require.Error(t, err)
			})
		}
		time.Sleep(19 * time.Second)
		synctest.Wait()
		require.Equal(t, limiter.BreakerOpen, g.Status().Breaker)
		require.LessOrEqual(t, dials.Load(), int64(10+8))
		wg.Wait()
		require.NoError(t, g.Close(context.Background()))
	})
}
