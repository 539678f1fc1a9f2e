package limiter_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/limiter"
	"refundgate/refund"
)

func TestEndpointLimitsAreRefusedAboveTheAccounts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind  refund.CallKind
		limit limiter.EndpointLimit
		want  string
	}{
		"faster than the account":     {refund.KindCheck, limiter.EndpointLimit{Interval: 199 * time.Millisecond}, `the limit of kind "check" is above the account's`},
		"more in flight":              {refund.KindSubmit, limiter.EndpointLimit{MaxInFlight: 11}, `the limit of kind "submit" is above the account's`},
		"negative interval":           {refund.KindCheck, limiter.EndpointLimit{Interval: -1}, "must be positive"},
		"negative in flight":          {refund.KindCheck, limiter.EndpointLimit{MaxInFlight: -1}, "must be positive"},
		"a kind that does not exist":  {"refund", limiter.EndpointLimit{}, `no endpoint for calls of kind "refund"`},
		"as the account's, and lower": {refund.KindCheck, limiter.EndpointLimit{Interval: 200 * time.Millisecond, MaxInFlight: 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := limiter.New(limiter.Config{
				Target:    &url.URL{Scheme: "http", Host: "provider.test"},
				Endpoints: map[refund.CallKind]limiter.EndpointLimit{tc.kind: tc.limit},
			})
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			require.NoError(t, g.Close(t.Context()))
		})
	}
}

// waitingCall is what the model below knows of a call.
type waitingCall struct {
	kind     refund.CallKind
	followUp bool
	rank     int // earliest accepted first
}

// turns says which of the calls starts when, by the rules alone: the groups
// take turns, inside a group the earliest goes first, a kind that has used up
// its own limit is passed over, and a slot that nobody else can use waits up
// to 25 ms for it.
func turns(calls []waitingCall, interval time.Duration, own map[refund.CallKind]limiter.EndpointLimit) (order []int, at []time.Duration) {
	const grace = 25 * time.Millisecond
	next := map[refund.CallKind]time.Duration{}
	started := make([]bool, len(calls))
	lastFollowUp := true
	pick := func(slot time.Duration) int {
		for _, followUp := range []bool{!lastFollowUp, lastFollowUp} {
			best := -1
			for i, c := range calls {
				if !started[i] && c.followUp == followUp && next[c.kind] <= slot && (best < 0 || c.rank < calls[best].rank) {
					best = i
				}
			}
			if best >= 0 {
				return best
			}
		}
		return -1
	}
	for slot := time.Duration(0); len(order) < len(calls); {
		i := pick(slot)
		if i < 0 {
			i = pick(slot + grace)
		}
		if i < 0 {
			first := time.Duration(-1)
			for j, c := range calls {
				if !started[j] && (first < 0 || next[c.kind] < first) {
					first = next[c.kind]
				}
			}
			i = pick(first)
		}
		c := calls[i]
		start := max(slot, next[c.kind])
		order, at = append(order, i), append(at, start)
		started[i], lastFollowUp = true, c.followUp
		next[c.kind] = start + own[c.kind].Interval
		slot = start + interval
	}
	return order, at
}

// With limits per kind under the account's, calls start exactly in the order
// and at the times that the rules give: no limit exceeded, no slot lost to a
// kind that can't use it.
func TestPropertyEndpointLimitsLoseNoSlot(t *testing.T) {
	t.Parallel()
	const interval = 200 * time.Millisecond
	rapid.Check(t, func(rt *rapid.T) {
		kinds := []refund.CallKind{refund.KindSubmit, refund.KindCheck}
		own := map[refund.CallKind]limiter.EndpointLimit{}
		for _, k := range kinds {
			if rapid.Bool().Draw(rt, "limited") {
				// The odd microseconds keep a prepared connection from growing too
				// old in the very instant of its turn, when it would go to another.
				own[k] = limiter.EndpointLimit{Interval: ms(200, 1500).Draw(rt, "interval") + 137*time.Microsecond}
			}
		}
		ranks := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}).Draw(rt, "ranks")
		calls := make([]waitingCall, len(ranks))
		for i := range calls {
			calls[i] = waitingCall{rapid.SampledFrom(kinds).Draw(rt, "kind"), rapid.Bool().Draw(rt, "followUp"), ranks[i]}
		}
		order, at := turns(calls, interval, own)
		bubble(t, rt, func(t *bubbleT) {
			w := &world{clock: fakeClock{time.Now()}}
			var seen starts
			target := &url.URL{Scheme: "http", Host: "provider.test"}
			g, err := limiter.New(limiter.Config{
				Target: target, Clock: w.clock, Endpoints: own, Events: limiter.Events{Started: seen.add},
				Dial: func(context.Context, string, string) (net.Conn, error) { return w.connect(time.Millisecond), nil },
			})
			require.NoError(t, err)
			const allHere = 2 * time.Second
			g.Pause(time.Now().Add(allHere), "until all have arrived")
			var wg sync.WaitGroup
			for i, c := range calls {
				wg.Go(func() {
					k := key(i)
					k.Kind = c.kind
					group := refund.GroupFirst
					if c.followUp {
						group = refund.GroupFollowUp
					}
					_, err := g.Do(t.Context(), limiter.Call{
						Key: k, Group: group, AcceptedAt: w.clock.origin.Add(time.Duration(c.rank)),
						Intent: noIntent, Send: post(target, nil),
					})
					require.NoError(t, err)
				})
			}
			wg.Wait()
			require.NoError(t, g.Close(context.Background()))
			w.serving.Wait()
			for n, i := range order {
				require.Equal(t, fmt.Sprintf("r-%d", i), seen.keys[n].RefundID, "start %d", n)
				require.Equal(t, allHere+at[n], seen.list[n].StartedMono, "start %d", n)
			}
		})
	})
}
