package limiter_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/limiter"
	"refundgate/refund"
)

// fakeClock runs on a synctest bubble's time, where timers are exact and
// spinning would stand still.
type fakeClock struct{ origin time.Time }

func (c fakeClock) Now() time.Duration { return time.Since(c.origin) }

func (c fakeClock) WaitUntil(ctx context.Context, at time.Duration) error {
	select {
	case <-time.After(at - c.Now()):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// plan is one drawn call: when it comes and how its world behaves.
type plan struct {
	at, dial, intent, answer time.Duration
	followUp                 bool
	cancelAfter              time.Duration // 0: never
	dialFails, intentFails   bool
}

func ms(lo, hi int) *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.IntRange(lo, hi), func(n int) time.Duration { return time.Duration(n) * time.Millisecond })
}

func drawPlans(t *rapid.T) []plan {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) plan {
		p := plan{
			at:       ms(0, 3000).Draw(t, "at"),
			dial:     ms(0, 1200).Draw(t, "dial"),
			intent:   ms(0, 120).Draw(t, "intent"),
			answer:   ms(0, 4000).Draw(t, "answer"),
			followUp: rapid.Bool().Draw(t, "followUp"),
		}
		if rapid.IntRange(0, 3).Draw(t, "cancels") == 0 {
			p.cancelAfter = ms(1, 4000).Draw(t, "cancelAfter")
		}
		p.dialFails = rapid.IntRange(0, 9).Draw(t, "dialFails") == 0
		p.intentFails = rapid.IntRange(0, 9).Draw(t, "intentFails") == 0
		return p
	}), 1, 60).Draw(t, "plans")
}

// world is the network beyond the gate: pipes whose far end answers as drawn.
type world struct {
	mu       sync.Mutex
	writes   []time.Duration // first bytes as the far end saw them
	requests atomic.Int64
	serving  sync.WaitGroup
	clock    fakeClock
}

// connect returns the near end of a pipe that is served with the given delay.
func (w *world) connect(answer time.Duration) net.Conn {
	near, far := net.Pipe()
	w.serving.Go(func() { w.serve(far, answer) })
	return near
}

// serve reads one request from c, answers it after the given time, and notes
// when its first byte came.
func (w *world) serve(c net.Conn, answer time.Duration) {
	defer c.Close()
	br := bufio.NewReader(c)
	if _, err := br.Peek(1); err != nil {
		return
	}
	w.mu.Lock()
	w.writes = append(w.writes, w.clock.Now())
	w.mu.Unlock()
	w.requests.Add(1)
	if _, err := http.ReadRequest(br); err != nil {
		return
	}
	time.Sleep(answer)
	_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
}

// Whatever arrives, fails, hangs, pauses and is given up: starts are spaced at
// the wire, never more than the limit are in flight, one ticket is at most one
// request, every call comes back, and who is said to be not sent was not.
func TestGateKeepsItsPromises(t *testing.T) {
	t.Parallel()
	const interval = 200 * time.Millisecond
	rapid.Check(t, func(rt *rapid.T) {
		plans := drawPlans(rt)
		limit := rapid.IntRange(1, 10).Draw(rt, "limit")
		pauseAt, pauseFor := ms(0, 3000).Draw(rt, "pauseAt"), ms(0, 2000).Draw(rt, "pauseFor")
		synctest.Test(t, func(t *testing.T) {
			w := &world{clock: fakeClock{time.Now()}}
			var seen starts
			// The gate dials whose turn is near; what the dial meets is drawn by
			// the order of dials, which is as arbitrary as by call.
			var dials atomic.Int64
			g, err := limiter.New(limiter.Config{
				Target: &url.URL{Scheme: "http", Host: "provider.test"}, MaxInFlight: limit, Clock: w.clock, Events: limiter.Events{Started: seen.add},
				Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
					p := plans[int(dials.Add(1)-1)%len(plans)]
					select {
					case <-time.After(p.dial):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					if p.dialFails {
						return nil, errors.New("refused")
					}
					return w.connect(p.answer), nil
				},
			})
			require.NoError(t, err)
			pause := time.AfterFunc(pauseAt, func() { g.Pause(time.Now().Add(pauseFor), "drawn") })
			defer pause.Stop()

			var sent atomic.Int64
			var wg sync.WaitGroup
			for i, p := range plans {
				wg.Go(func() {
					time.Sleep(p.at)
					ctx := t.Context()
					if p.cancelAfter > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, p.cancelAfter)
						defer cancel()
					}
					group := refund.GroupFirst
					if p.followUp {
						group = refund.GroupFollowUp
					}
					tries := 0
					passage, err := g.Do(ctx, limiter.Call{
						Key: key(i), Group: group, AcceptedAt: w.clock.origin.Add(p.at),
						Intent: func(context.Context) error {
							time.Sleep(p.intent)
							if p.intentFails {
								return errors.New("no")
							}
							return nil
						},
						Send: func(ctx context.Context, tk *limiter.Ticket) {
							for range 2 {
								req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://provider.test/", strings.NewReader("{}"))
								require.NoError(t, err)
								if _, err = tk.RoundTrip(req); !errors.Is(err, limiter.ErrTicketUsed) {
									tries++
								}
							}
						},
					})
					require.LessOrEqual(t, tries, 1)
					require.Equal(t, err == nil, passage.Sent())
					if passage.Sent() {
						sent.Add(1)
						require.LessOrEqual(t, passage.Connect+passage.Duration, 3*time.Second)
					}
				})
			}
			wg.Wait()
			require.NoError(t, g.Close(context.Background()))
			w.serving.Wait()
			require.Equal(t, sent.Load(), w.requests.Load(), "requests on the wire and calls said to be sent")
			seen.requireSpaced(t, interval, limit)
			for i := 1; i < len(w.writes); i++ {
				require.GreaterOrEqual(t, w.writes[i]-w.writes[i-1], interval)
			}
			require.Zero(t, g.Status().InFlight)
		})
	})
}

// While both groups wait they take turns, inside a group the earliest accepted
// goes first, and no slot is lost.
func TestTurnsAndOrder(t *testing.T) {
	t.Parallel()
	const interval = 200 * time.Millisecond
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}).Draw(rt, "ranks")
		groups := rapid.SliceOfN(rapid.Bool(), len(ranks), len(ranks)).Draw(rt, "followUp")
		synctest.Test(t, func(t *testing.T) {
			w := &world{clock: fakeClock{time.Now()}}
			var seen starts
			g, err := limiter.New(limiter.Config{
				Target: &url.URL{Scheme: "http", Host: "provider.test"}, Clock: w.clock, Events: limiter.Events{Started: seen.add},
				Dial: func(context.Context, string, string) (net.Conn, error) {
					return w.connect(time.Millisecond), nil
				},
			})
			require.NoError(t, err)
			g.Pause(time.Now().Add(time.Second), "until all have arrived")
			accepted := map[refund.CallKey]int{}
			followUp := map[refund.CallKey]bool{}
			var wg sync.WaitGroup
			for i, rank := range ranks {
				accepted[key(i)], followUp[key(i)] = rank, groups[i]
				group := refund.GroupFirst
				if groups[i] {
					group = refund.GroupFollowUp
				}
				wg.Go(func() {
					_, err := g.Do(t.Context(), limiter.Call{
						Key: key(i), Group: group, AcceptedAt: w.clock.origin.Add(time.Duration(rank)),
						Intent: noIntent, Send: post(&url.URL{Scheme: "http", Host: "provider.test"}, nil),
					})
					require.NoError(t, err)
				})
			}
			wg.Wait()
			require.NoError(t, g.Close(context.Background()))
			w.serving.Wait()

			left := map[bool]int{}
			for _, f := range groups {
				left[f]++
			}
			last := map[bool]int{true: -1, false: -1}
			for i, k := range seen.keys {
				f := followUp[k]
				require.Greater(t, accepted[k], last[f], "oldest first")
				last[f] = accepted[k]
				if i > 0 {
					require.Equal(t, interval, seen.list[i].StartedMono-seen.list[i-1].StartedMono, "no slot lost, none early")
					if left[!f] > 0 {
						require.NotEqual(t, followUp[seen.keys[i-1]], f, "the groups take turns")
					}
				}
				left[f]--
			}
		})
	})
}
