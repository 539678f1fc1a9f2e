package limiter

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// BenchmarkPass measures what the gate does under its lock for one call: it
// enters, the dispatcher looks at the front of every line and makes one call
// the next, which leaves. Meanwhile as many calls wait as the name says, in the
// order of their acceptance, as a backlog does.
func BenchmarkPass(b *testing.B) {
	for _, waiting := range []int{1, 1_000, 1_000_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			g := &Gate{
				cfg:     Config{Clock: MonotonicClock()}.WithDefaults(),
				kick:    make(chan struct{}, 1),
				breaker: newBreaker(BreakerConfig{}, nil),
			}
			g.room.init(&g.endpoints)
			prep := standingConnection(b)
			accepted := time.Now()
			enter := func(call Call) {
				accepted = accepted.Add(1)
				call.AcceptedAt = accepted
				w := &waiter{call: call, prep: prep, turn: make(chan struct{}), failed: make(chan struct{})}
				if err := g.enter(w); err != nil {
					b.Fatal(err)
				}
			}
			for i := range waiting {
				enter(benchCall(i))
			}
			b.ReportAllocs()
			for b.Loop() {
				g.step()
				w := g.next
				<-w.turn
				g.leave(w)
				enter(w.call) // the next one under the same key
			}
		})
	}
}

// BenchmarkDo measures a call's whole way through the gate, as fast as it goes:
// no interval, and a provider in the same memory that answers at once. So many
// calls are inside the gate at any time.
func BenchmarkDo(b *testing.B) {
	for _, waiting := range []int{1, 1_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			g, err := New(Config{
				Target:   &url.URL{Scheme: "http", Host: "provider"},
				Interval: time.Nanosecond,
				Dial:     answering,
			})
			require.NoError(b, err)
			b.ReportAllocs()
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var callers sync.WaitGroup
			for i := range waiting {
				callers.Go(func() {
					call := benchCall(i)
					call.Intent = func(context.Context) error { return nil }
					call.Send = func(ctx context.Context, t *Ticket) {
						req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://provider/", nil)
						if err == nil {
							_, err = t.RoundTrip(req)
						}
						if err != nil {
							b.Error(err)
						}
					}
					for left.Add(-1) >= 0 {
						if _, err := g.Do(b.Context(), call); err != nil {
							b.Error(err)
						}
					}
				})
			}
			callers.Wait()
			b.StopTimer()
			require.NoError(b, g.Close(context.Background()))
		})
	}
}

// benchCall returns the i-th call of a mix: half of them first attempts, a
// quarter checks, a quarter resends.
func benchCall(i int) Call {
	key := refund.CallKey{RefundID: fmt.Sprintf("r-%d", i), Generation: 1, Kind: refund.KindSubmit, Seq: 1}
	group := refund.GroupFirst
	if i%2 == 1 {
		group = refund.GroupFollowUp
	}
	if i%4 == 1 {
		key.Kind = refund.KindCheck
	}
	return Call{Key: key, Group: group}
}

// answering connects to a provider that answers one request.
func answering(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		request := make([]byte, 4096)
		if _, err := server.Read(request); err == nil {
			_, _ = server.Write([]byte("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")) // the client sees a failure
		}
	}()
	return client, nil
}

// standingConnection returns a preparation that neither dies nor grows old.
func standingConnection(b *testing.B) *preparation {
	b.Helper()
	g := &Gate{cfg: Config{Target: &url.URL{Scheme: "http", Host: "provider"}, Dial: answering}}
	conn, client, err := g.connect(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { _ = client.Close() })
	return &preparation{cancel: func() {}, conn: conn, client: client, readyAt: never - maxIdleConn}
}
