package limiter_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
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

// bubble runs body on fake time and hands its first failure to rt, which then
// looks for the simplest case that fails; a failure of t itself would end the
// search.
func bubble(t *testing.T, rt *rapid.T, body func(t *bubbleT)) {
	var failures []string
	synctest.Test(t, func(t *testing.T) {
		b := &bubbleT{TB: t}
		done := make(chan struct{})
		go func() { // so that FailNow ends body and not the bubble
			defer close(done)
			body(b)
		}()
		<-done
		failures = b.failures
	})
	if len(failures) > 0 {
		rt.Fatal(failures[0])
	}
}

type bubbleT struct {
	testing.TB
	mu       sync.Mutex
	failures []string
}

func (b *bubbleT) Errorf(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = append(b.failures, fmt.Sprintf(format, args...))
}

func (b *bubbleT) FailNow() { runtime.Goexit() }

// plan is one drawn call: when it comes and how its world behaves.
type plan struct {
	at, dial, intent, answer time.Duration
	followUp, check          bool
	cancelAfter              time.Duration // 0: never
	stall                    time.Duration // between the stamp and the system call, as a stopped process has it
	retryAfter               time.Duration // that the answer asks the whole account for; 0: it does not
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
			check:    rapid.Bool().Draw(t, "check"),
		}
		if rapid.IntRange(0, 3).Draw(t, "cancels") == 0 {
			p.cancelAfter = ms(1, 4000).Draw(t, "cancelAfter")
		}
		switch rapid.IntRange(0, 9).Draw(t, "trouble") {
		case 0:
			p.intent = ms(900, 1500).Draw(t, "slowIntent") // about as old as an intent may be
		case 1:
			p.stall = ms(1, 1500).Draw(t, "stall")
		case 2:
			p.retryAfter = ms(1, 1500).Draw(t, "retryAfter")
		}
		p.dialFails = rapid.IntRange(0, 9).Draw(t, "dialFails") == 0
		p.intentFails = rapid.IntRange(0, 9).Draw(t, "intentFails") == 0
		return p
	}), 1, 60).Draw(t, "plans")
}

// drawEndpoints draws limits per kind under an account's interval and limit.
func drawEndpoints(t *rapid.T, interval time.Duration, limit int) map[refund.CallKind]limiter.EndpointLimit {
	own := map[refund.CallKind]limiter.EndpointLimit{}
	for _, k := range []refund.CallKind{refund.KindSubmit, refund.KindCheck} {
		var l limiter.EndpointLimit
		if rapid.Bool().Draw(t, "spaced") {
			l.Interval = interval + ms(0, 1000).Draw(t, "beyond")
		}
		if rapid.Bool().Draw(t, "bounded") {
			l.MaxInFlight = rapid.IntRange(1, limit).Draw(t, "places")
		}
		own[k] = l
	}
	return own
}

// span is a time in which nothing may start.
type span struct{ from, until time.Duration }

// requireOwnLimit checks the passages of one kind against its own limit.
func requireOwnLimit(t testing.TB, own limiter.EndpointLimit, flown []limiter.Passage) {
	t.Helper()
	slices.SortFunc(flown, func(a, b limiter.Passage) int { return int(a.StartedMono - b.StartedMono) })
	for i, p := range flown {
		inFlight := 1
		for _, before := range flown[:i] {
			require.GreaterOrEqual(t, p.StartedMono-before.StartedMono, own.Interval)
			if before.StartedMono+before.Duration > p.StartedMono {
				inFlight++
			}
		}
		if own.MaxInFlight > 0 {
			require.LessOrEqual(t, inFlight, own.MaxInFlight)
		}
	}
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

// stallingConn takes its time before it writes.
type stallingConn struct {
	net.Conn
	stall time.Duration
}

func (c stallingConn) Write(b []byte) (int, error) {
	time.Sleep(c.stall)
	return c.Conn.Write(b)
}

// serve reads one request from c, answers it after the given time, and notes
// when its first byte came.
func (w *world) serve(c net.Conn, answer time.Duration) {
	w.serveBy(c, func() time.Duration { return answer })
}

// serveBy is serve with a delay that is asked for once the first byte is there.
func (w *world) serveBy(c net.Conn, answer func() time.Duration) {
	defer c.Close()
	br := bufio.NewReader(c)
	if _, err := br.Peek(1); err != nil {
		return
	}
	w.mu.Lock()
	w.writes = append(w.writes, w.clock.Now())
	w.mu.Unlock()
	w.requests.Add(1)
	delay := answer()
	if _, err := http.ReadRequest(br); err != nil {
		return
	}
	time.Sleep(delay)
	_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
}

// Whatever arrives, fails, hangs, pauses and is given up: starts are spaced at
// the wire, never more than the limit are in flight, one ticket is at most one
// request, every call comes back, and who is said to be not sent was not.
func TestPropertyGateKeepsItsPromises(t *testing.T) {
	t.Parallel()
	const interval = 200 * time.Millisecond
	rapid.Check(t, func(rt *rapid.T) {
		plans := drawPlans(rt)
		limit := rapid.IntRange(1, 10).Draw(rt, "limit")
		own := drawEndpoints(rt, interval, limit)
		pauseAt, pauseFor := ms(0, 3000).Draw(rt, "pauseAt"), ms(0, 2000).Draw(rt, "pauseFor")
		bubble(t, rt, func(t *bubbleT) {
			w := &world{clock: fakeClock{time.Now()}}
			var seen starts
			// The gate dials whose turn is near; what the dial meets is drawn by
			// the order of dials, which is as arbitrary as by call.
			var dials atomic.Int64
			g, err := limiter.New(limiter.Config{
				Target: &url.URL{Scheme: "http", Host: "provider.test"}, MaxInFlight: limit, Endpoints: own, Clock: w.clock,
				Events: limiter.Events{Started: seen.add},
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
					return stallingConn{w.connect(p.answer), p.stall}, nil
				},
			})
			require.NoError(t, err)
			var mu sync.Mutex // guards the following
			var pauses []span
			flown := map[refund.CallKind][]limiter.Passage{}
			pauseNow := func(d time.Duration) {
				g.Pause(time.Now().Add(d), "drawn")
				mu.Lock()
				defer mu.Unlock()
				pauses = append(pauses, span{w.clock.Now(), w.clock.Now() + d})
			}
			pause := time.AfterFunc(pauseAt, func() { pauseNow(pauseFor) })
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
					var intentAt time.Duration
					k := key(i)
					if p.check {
						k.Kind = refund.KindCheck
					}
					passage, err := g.Do(ctx, limiter.Call{
						Key: k, Group: group, AcceptedAt: w.clock.origin.Add(p.at),
						Intent: func(context.Context) error {
							intentAt = w.clock.Now()
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
							if p.retryAfter > 0 {
								pauseNow(p.retryAfter)
							}
						},
					})
					require.LessOrEqual(t, tries, 1)
					require.Equal(t, err == nil, passage.Sent())
					if passage.Sent() {
						sent.Add(1)
						mu.Lock()
						flown[k.Kind] = append(flown[k.Kind], passage)
						mu.Unlock()
						require.LessOrEqual(t, passage.StartedMono-intentAt, time.Second, "a stale intent was sent")
						require.LessOrEqual(t, passage.Connect+passage.Duration, 3*time.Second+p.stall)
					}
				})
			}
			wg.Wait()
			require.NoError(t, g.Close(context.Background()))
			w.serving.Wait()
			require.Equal(t, sent.Load(), w.requests.Load(), "requests on the wire and calls said to be sent")
			seen.requireSpaced(t, interval, limit)
			for kind, passages := range flown {
				requireOwnLimit(t, own[kind], passages)
			}
			mu.Lock() // a pause may be beginning that nobody waits for any more
			defer mu.Unlock()
			for _, p := range seen.list {
				for _, s := range pauses {
					require.False(t, s.from < p.StartedMono && p.StartedMono < s.until, "a start at %s in the pause %v", p.StartedMono, s)
				}
			}
			for i := 1; i < len(w.writes); i++ {
				require.GreaterOrEqual(t, w.writes[i]-w.writes[i-1], interval)
			}
			require.Zero(t, g.Status().InFlight)
		})
	})
}

// While both groups wait they take turns, inside a group the earliest accepted
// goes first, and no slot is lost, neither to calls that were given up nor to
// slow dials. (A call whose dial is slow lets others go first.)
func TestPropertyTurnsAndOrder(t *testing.T) {
	t.Parallel()
	const interval = 200 * time.Millisecond
	rapid.Check(t, func(rt *rapid.T) {
		ranks := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}).Draw(rt, "ranks")
		slowest := rapid.SampledFrom([]int{0, 0, 10, 900}).Draw(rt, "slowestDial")
		dials := rapid.SliceOfN(ms(0, slowest), len(ranks), len(ranks)).Draw(rt, "dials")
		givenUp := rapid.SliceOfN(rapid.Bool(), len(ranks), len(ranks)).Draw(rt, "givenUp")
		groups := rapid.SliceOfN(rapid.Bool(), len(ranks), len(ranks)).Draw(rt, "followUp")
		bubble(t, rt, func(t *bubbleT) {
			w := &world{clock: fakeClock{time.Now()}}
			var seen starts
			var dialled atomic.Int64
			g, err := limiter.New(limiter.Config{
				Target: &url.URL{Scheme: "http", Host: "provider.test"}, Clock: w.clock, Events: limiter.Events{Started: seen.add},
				Dial: func(context.Context, string, string) (net.Conn, error) {
					time.Sleep(dials[int(dialled.Add(1)-1)%len(dials)])
					return w.connect(time.Millisecond), nil
				},
			})
			require.NoError(t, err)
			const allHere = 2 * time.Second
			g.Pause(time.Now().Add(allHere), "until all have arrived")
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
					ctx := t.Context()
					if givenUp[i] {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, allHere/2)
						defer cancel()
					}
					_, err := g.Do(ctx, limiter.Call{
						Key: key(i), Group: group, AcceptedAt: w.clock.origin.Add(time.Duration(rank)),
						Intent: noIntent, Send: post(&url.URL{Scheme: "http", Host: "provider.test"}, nil),
					})
					require.Equal(t, givenUp[i], err != nil)
				})
			}
			wg.Wait()
			require.NoError(t, g.Close(context.Background()))
			w.serving.Wait()

			left := map[bool]int{}
			for i, f := range groups {
				if !givenUp[i] {
					left[f]++
				}
			}
			last := map[bool]int{true: -1, false: -1}
			for i, k := range seen.keys {
				require.Equal(t, allHere+time.Duration(i)*interval, seen.list[i].StartedMono, "no slot lost, none early")
				f := followUp[k]
				if slowest == 0 {
					require.Greater(t, accepted[k], last[f], "oldest first")
					last[f] = accepted[k]
					if i > 0 && left[!f] > 0 {
						require.NotEqual(t, followUp[seen.keys[i-1]], f, "the groups take turns")
					}
				}
				left[f]--
			}
		})
	})
}
