package limiter_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"refundgate/limiter"
	"refundgate/refund"
)

func key(n int) refund.CallKey {
	return refund.CallKey{RefundID: fmt.Sprintf("r-%d", n), Generation: 1, Kind: refund.KindSubmit, Seq: 1}
}

// post is the simplest Send: one POST over the ticket.
func post(target *url.URL, got *error) func(context.Context, *limiter.Ticket) {
	return func(ctx context.Context, t *limiter.Ticket) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String()+"/v1/refunds", strings.NewReader(`{}`))
		if err == nil {
			req.Header.Set("Idempotency-Key", "k")
			_, err = t.RoundTrip(req)
		}
		if got != nil {
			*got = err
		}
	}
}

func noIntent(context.Context) error { return nil }

func newGate(t *testing.T, cfg limiter.Config) *limiter.Gate {
	t.Helper()
	g, err := limiter.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, g.Close(ctx))
	})
	return g
}

func parse(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	require.NoError(t, err)
	return u
}

// rawServer answers every connection with serve.
func rawServer(t *testing.T, serve func(c net.Conn)) *url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return parse(t, "http://"+l.Addr().String())
}

// starts collects the passages of started calls in the order of their starts.
type starts struct {
	mu   sync.Mutex
	list []limiter.Passage
	keys []refund.CallKey
}

func (s *starts) add(c limiter.Call, p limiter.Passage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, p)
	s.keys = append(s.keys, c.Key)
}

// soFar returns copies of what was seen until now.
func (s *starts) soFar() ([]limiter.Passage, []refund.CallKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list), slices.Clone(s.keys)
}

func (s *starts) requireSpaced(t testing.TB, interval time.Duration, maxInFlight int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.list {
		require.LessOrEqual(t, p.InFlight, maxInFlight)
		if i > 0 {
			require.GreaterOrEqual(t, p.StartedMono-s.list[i-1].StartedMono, interval, "start %d", i)
		}
	}
}

func TestTenInFlightAndNoMore(t *testing.T) {
	t.Parallel()
	var now, peak atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peak.Store(max(peak.Load(), now.Add(1)))
		time.Sleep(200 * time.Millisecond)
		now.Add(-1)
	}))
	defer srv.Close()
	target := parse(t, srv.URL)
	var seen starts
	g := newGate(t, limiter.Config{Target: target, Interval: 2 * time.Millisecond, MaxInFlight: 10, Events: limiter.Events{Started: seen.add}})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			_, err := g.Do(t.Context(), limiter.Call{Key: key(i), Group: refund.GroupFirst, Intent: noIntent, Send: post(target, nil)})
			require.NoError(t, err)
		})
	}
	wg.Wait()
	seen.requireSpaced(t, 2*time.Millisecond, 10)
	require.Equal(t, 10, slices.MaxFunc(seen.list, func(a, b limiter.Passage) int { return a.InFlight - b.InFlight }).InFlight)
	require.LessOrEqual(t, peak.Load(), int64(11)) // the server's handler ends a moment after the client has read the answer
}

// CASE 7, 9: a connection that dies after the request, a redirect and a client
// that retries by itself all end with one request on the wire.
func TestCase07OneRequestPerTicket(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(net.Conn){
		"reset after the request": func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_ = c.(*peeked).SetLinger(0)
		},
		"closed after the request": func(c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) },
		"redirect with the body": func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
		},
		"redirect as GET": func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
		},
		// Somebody on the way has dropped "Connection: close": the server means
		// to keep the connection, and resets it when the next request is due.
		"kept alive, then reset": func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n")
			_, _ = c.Read(make([]byte, 1))
			_ = c.(*peeked).SetLinger(0)
		},
		"500": func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			target := rawServer(t, func(c net.Conn) {
				br := bufio.NewReader(c)
				if _, err := br.Peek(1); err == nil {
					requests.Add(1)
					serve(&peeked{c.(*net.TCPConn), br})
				}
			})
			var blocked atomic.Int64
			g := newGate(t, limiter.Config{Target: target, Interval: time.Millisecond, Events: limiter.Events{
				HiddenRetry: func(limiter.Call) { blocked.Add(1) },
			}})
			p, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: func(ctx context.Context, tk *limiter.Ticket) {
				client := &http.Client{Transport: tk} // follows redirects
				for range 3 {                         // and retries by hand
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String()+"/", strings.NewReader("{}"))
					require.NoError(t, err)
					req.Header.Set("Idempotency-Key", "k")
					if resp, err := client.Do(req); err == nil {
						_ = resp.Body.Close()
					}
				}
			}})
			require.NoError(t, err)
			require.True(t, p.Sent())
			require.True(t, p.HiddenRetry)
			require.GreaterOrEqual(t, blocked.Load(), int64(2))
			require.Equal(t, int64(1), requests.Load())
		})
	}
}

// CASE 9: an HTTP client library that retries by itself, constant errors and
// dropped connections: one request, and every further one is refused.
func TestCase09RetryingClientLibrary(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"500":     "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
		"dropped": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests, blocked atomic.Int64
			target := rawServer(t, func(c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					requests.Add(1)
					_, _ = io.WriteString(c, answer)
				}
			})
			g := newGate(t, limiter.Config{Target: target, Interval: time.Millisecond, Events: limiter.Events{
				HiddenRetry: func(limiter.Call) { blocked.Add(1) },
			}})
			p, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: func(ctx context.Context, tk *limiter.Ticket) {
				client := retryablehttp.NewClient()
				client.HTTPClient = &http.Client{Transport: tk}
				client.RetryMax, client.RetryWaitMin, client.RetryWaitMax, client.Logger = 4, time.Millisecond, time.Millisecond, nil
				req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodPost, target.String()+"/", []byte("{}"))
				require.NoError(t, err)
				req.Header.Set("Idempotency-Key", "k")
				_, err = client.Do(req)
				require.Error(t, err)
			}})
			require.NoError(t, err)
			require.True(t, p.HiddenRetry)
			require.Equal(t, int64(1), requests.Load())
			require.Equal(t, int64(4), blocked.Load())
		})
	}
}

// peeked is a TCP connection read through a buffer.
type peeked struct {
	*net.TCPConn
	br *bufio.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.br.Read(b) }
func (p *peeked) SetLinger(sec int) error    { return p.TCPConn.SetLinger(sec) }

// CASE 37: the provider never answers. The call's budget ends it, whatever its
// caller's time-out is, and its place in flight is held until the socket is
// closed: with one place, the next call can't start before that.
func TestCase37_PlaceIsHeldUntilTheSocketIsClosed(t *testing.T) {
	t.Parallel()
	const budget = 300 * time.Millisecond
	silent := rawServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	var seen starts
	g := newGate(t, limiter.Config{
		Target: silent, Interval: time.Millisecond, MaxInFlight: 1, CallTimeout: budget, Events: limiter.Events{Started: seen.add},
	})
	var calls sync.WaitGroup
	ends := make([]time.Duration, 2)
	for i := range ends {
		calls.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, err := g.Do(ctx, limiter.Call{
				Key: key(i), Group: refund.GroupFirst, AcceptedAt: time.Unix(int64(i), 0), Intent: noIntent,
				Send: func(ctx context.Context, tk *limiter.Ticket) {
					time.AfterFunc(budget/3, cancel) // the caller gives up; what is sent goes on
					post(silent, nil)(ctx, tk)
				},
			})
			require.NoError(t, err)
			require.Equal(t, refund.BudgetOverall, p.Budget)
			require.GreaterOrEqual(t, p.Connect+p.Duration, budget)
			ends[i] = p.StartedMono + p.Duration
		})
	}
	calls.Wait()
	passages, keys := seen.soFar()
	require.Len(t, passages, 2)
	first := slices.IndexFunc([]refund.CallKey{key(0), key(1)}, func(k refund.CallKey) bool { return k == keys[0] })
	require.GreaterOrEqual(t, passages[1].StartedMono, ends[first], "it started while the one before held the place")
	require.Zero(t, g.Status().InFlight)
}

func TestNotSentIsProvenByZeroBytes(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	refusing := parse(t, "http://"+l.Addr().String())
	require.NoError(t, l.Close())
	g := newGate(t, limiter.Config{Target: refusing})
	p, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: func(context.Context) error {
		t.Error("an intent was recorded without a connection")
		return nil
	}, Send: post(refusing, nil)})
	var notSent *limiter.NotSentError
	require.ErrorAs(t, err, &notSent)
	require.Equal(t, refund.CodeConnect, notSent.Code)
	require.False(t, p.Sent())
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	silent := rawServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })

	t.Run("overall", func(t *testing.T) {
		t.Parallel()
		g := newGate(t, limiter.Config{Target: silent, CallTimeout: 150 * time.Millisecond})
		var sendErr error
		p, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: post(silent, &sendErr)})
		require.NoError(t, err)
		require.True(t, p.Sent())
		require.Equal(t, refund.BudgetOverall, p.Budget)
		require.ErrorIs(t, sendErr, context.DeadlineExceeded)
		require.GreaterOrEqual(t, p.Duration+p.Connect, 150*time.Millisecond)
		require.Less(t, p.Duration, 2*time.Second)
	})
	t.Run("the deadline ends a call in flight", func(t *testing.T) {
		t.Parallel()
		g := newGate(t, limiter.Config{Target: silent})
		p, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Deadline: time.Now().Add(300 * time.Millisecond), Intent: noIntent, Send: post(silent, nil)})
		require.NoError(t, err)
		require.Equal(t, refund.BudgetDeadline, p.Budget)
	})
	t.Run("the deadline ends a call that waits", func(t *testing.T) {
		t.Parallel()
		g := newGate(t, limiter.Config{Target: silent})
		g.Pause(time.Now().Add(time.Minute), "test")
		_, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Deadline: time.Now().Add(50 * time.Millisecond), Intent: noIntent, Send: post(silent, nil)})
		var notSent *limiter.NotSentError
		require.ErrorAs(t, err, &notSent)
		require.Equal(t, refund.BudgetDeadline, notSent.Budget)
	})
	t.Run("connect", func(t *testing.T) {
		t.Parallel()
		hang := func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		g := newGate(t, limiter.Config{Target: silent, ConnectTimeout: 50 * time.Millisecond, Dial: hang})
		_, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: post(silent, nil)})
		var notSent *limiter.NotSentError
		require.ErrorAs(t, err, &notSent)
		require.Equal(t, refund.BudgetConnect, notSent.Budget)
	})
}

// CASE 4: cancelled while it waits, a call is "not sent" and costs no slot.
func TestCase04CancelledWhileWaiting(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	target := parse(t, srv.URL)
	var seen starts
	const interval = 20 * time.Millisecond
	g := newGate(t, limiter.Config{Target: target, Interval: interval, Events: limiter.Events{Started: seen.add}})
	g.Pause(time.Now().Add(300*time.Millisecond), "so that all wait")

	var wg sync.WaitGroup
	var notSent atomic.Int64
	for i := range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wg.Go(func() {
			_, err := g.Do(ctx, limiter.Call{Key: key(i), Group: refund.GroupFirst, Intent: noIntent, Send: post(target, nil)})
			if err != nil {
				var ns *limiter.NotSentError
				require.ErrorAs(t, err, &ns)
				require.Equal(t, refund.CodeCancelled, ns.Code)
				notSent.Add(1)
			}
		})
		if i%2 == 1 {
			time.AfterFunc(100*time.Millisecond, cancel)
		}
	}
	wg.Wait()
	require.Equal(t, int64(50), notSent.Load())
	require.Len(t, seen.list, 50)
	seen.requireSpaced(t, interval, 10)
	span := seen.list[49].StartedMono - seen.list[0].StartedMono
	require.Less(t, span, 49*interval*7/4, "cancelled calls cost slots")
}

func TestRefusedIntentIsNotSent(t *testing.T) {
	t.Parallel()
	target := rawServer(t, func(c net.Conn) {
		b, _ := io.ReadAll(c)
		if len(b) > 0 {
			t.Errorf("bytes left without an intent: %q", b)
		}
	})
	g := newGate(t, limiter.Config{Target: target, Interval: time.Millisecond})
	_, err := g.Do(t.Context(), limiter.Call{
		Key: key(1), Group: refund.GroupFirst,
		Intent: func(context.Context) error { return errors.New("database is away") },
		Send:   func(context.Context, *limiter.Ticket) { t.Error("sent without an intent") },
	})
	var notSent *limiter.NotSentError
	require.ErrorAs(t, err, &notSent)
	require.Equal(t, refund.CodeStorage, notSent.Code)
}

func TestStaleIntentIsNotSent(t *testing.T) {
	t.Parallel()
	target := rawServer(t, func(c net.Conn) {
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("a stale call was sent")
		}
	})
	g := newGate(t, limiter.Config{Target: target, Interval: time.Millisecond, IntentMaxAge: 30 * time.Millisecond})
	_, err := g.Do(t.Context(), limiter.Call{
		Key: key(1), Group: refund.GroupFirst, Send: post(target, nil),
		Intent: func(context.Context) error { time.Sleep(60 * time.Millisecond); return nil },
	})
	var notSent *limiter.NotSentError
	require.ErrorAs(t, err, &notSent)
	require.Equal(t, refund.CodeStale, notSent.Code)
}

func TestRefuseStopsBeforeTheNextByteAndLetsFlightsEnd(t *testing.T) {
	t.Parallel()
	inside := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(inside)
		time.Sleep(200 * time.Millisecond)
		_, _ = io.WriteString(w, "done")
	}))
	defer srv.Close()
	target := parse(t, srv.URL)
	g := newGate(t, limiter.Config{Target: target, Interval: time.Second})
	flying := make(chan error, 1)
	go func() {
		var sendErr error
		_, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: post(target, &sendErr)})
		flying <- errors.Join(err, sendErr)
	}()
	<-inside
	waiting := make(chan error, 1)
	go func() {
		_, err := g.Do(t.Context(), limiter.Call{Key: key(2), Group: refund.GroupFirst, Intent: noIntent, Send: post(target, nil)})
		waiting <- err
	}()
	require.Eventually(t, func() bool { _, ok := g.Ahead(key(2)); return ok || len(waiting) > 0 }, time.Second, time.Millisecond)
	g.Refuse(refund.CodeNotOwner, errors.New("session died"))
	var notSent *limiter.NotSentError
	require.ErrorAs(t, <-waiting, &notSent)
	require.Equal(t, refund.CodeNotOwner, notSent.Code)
	require.NoError(t, <-flying)
	_, err := g.Do(t.Context(), limiter.Call{Key: key(3), Group: refund.GroupFirst, Intent: noIntent, Send: post(target, nil)})
	require.ErrorAs(t, err, &notSent)
}

func TestAnswersAreBoundedAndForTheTargetOnly(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 2000))
	}))
	defer srv.Close()
	target := parse(t, srv.URL)
	g := newGate(t, limiter.Config{Target: target, Interval: time.Millisecond, MaxBody: 1000})
	var sendErr error
	p, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: post(target, &sendErr)})
	require.NoError(t, err)
	require.True(t, p.Sent())
	var tooLong *http.MaxBytesError
	require.ErrorAs(t, sendErr, &tooLong)

	p, err = g.Do(t.Context(), limiter.Call{Key: key(2), Group: refund.GroupFirst, Intent: noIntent, Send: post(parse(t, "http://127.0.0.1:1"), &sendErr)})
	require.Error(t, err)
	require.ErrorIs(t, sendErr, limiter.ErrWrongTarget)
	require.False(t, p.Sent())
}

// A panic in an adapter gives back the place in flight.
func TestPanicGivesBackThePlace(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	target := parse(t, srv.URL)
	g := newGate(t, limiter.Config{Target: target, Interval: time.Millisecond, MaxInFlight: 1})
	require.Panics(t, func() {
		_, _ = g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: func(ctx context.Context, tk *limiter.Ticket) {
			post(target, nil)(ctx, tk)
			panic("adapter")
		}})
	})
	_, err := g.Do(t.Context(), limiter.Call{Key: key(2), Group: refund.GroupFirst, Intent: noIntent, Send: post(target, nil)})
	require.NoError(t, err)
	require.Zero(t, g.Status().InFlight)
}

// A ticket is worthless after Send has returned.
func TestTicketCannotBeKept(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a kept ticket was used") }))
	defer srv.Close()
	target := parse(t, srv.URL)
	g := newGate(t, limiter.Config{Target: target, Interval: time.Millisecond})
	var kept *limiter.Ticket
	_, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: func(_ context.Context, tk *limiter.Ticket) { kept = tk }})
	var notSent *limiter.NotSentError
	require.ErrorAs(t, err, &notSent)
	require.Equal(t, refund.CodeNoRequest, notSent.Code)
	req, err := http.NewRequest(http.MethodGet, target.String(), nil)
	require.NoError(t, err)
	_, err = kept.RoundTrip(req)
	require.ErrorIs(t, err, limiter.ErrTicketUsed)
}

// The provider takes no connections: what waits fails at the pace of starts,
// not as fast as the network says no.
func TestRefusedConnectionsArePaced(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	refuse := func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		return nil, errors.New("connection refused")
	}
	g := newGate(t, limiter.Config{Target: parse(t, "http://127.0.0.1:1"), Interval: 50 * time.Millisecond, Dial: refuse})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			_, _ = g.Do(ctx, limiter.Call{Key: key(i), Group: refund.GroupFirst, Intent: noIntent, Send: post(parse(t, "http://127.0.0.1:1"), nil)})
		})
	}
	wg.Wait()
	require.LessOrEqual(t, dials.Load(), int64(8+10+1), "one window ahead, then one per interval")
}

// TLS is dialled ahead, verified, and speaks HTTP/1.1 also with a server that
// offers HTTP/2 (CASE 8); a proxy from the environment is not used.
func TestCase08TLSIsHTTP1(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	var protos atomic.Value
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protos.Store(r.Proto)
		_, _ = io.WriteString(w, "hello")
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	target := parse(t, srv.URL)

	g := newGate(t, limiter.Config{Target: target, Interval: time.Millisecond, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	p, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: func(ctx context.Context, tk *limiter.Ticket) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), strings.NewReader("{}"))
		require.NoError(t, err)
		resp, err := tk.RoundTrip(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "hello", string(body))
	}})
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1", protos.Load())
	require.Positive(t, p.Connect)
	require.Less(t, p.Bytes, int64(400), "bytes are counted above TLS")

	// A certificate that can't be verified: no connection, nothing sent.
	g = newGate(t, limiter.Config{Target: target, Interval: time.Millisecond})
	_, err = g.Do(t.Context(), limiter.Call{Key: key(2), Group: refund.GroupFirst, Intent: noIntent, Send: post(target, nil)})
	var notSent *limiter.NotSentError
	require.ErrorAs(t, err, &notSent)
	require.Equal(t, refund.CodeConnect, notSent.Code)
}

// A provider that closes idle connections while calls wait is dialled anew;
// what dies before its turn was not sent.
func TestConnectionsThatDieBeforeTheirTurn(t *testing.T) {
	t.Parallel()
	var accepted atomic.Int64
	target := rawServer(t, func(c net.Conn) {
		if accepted.Add(1) <= 2 {
			return // closed at once
		}
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	g := newGate(t, limiter.Config{Target: target, Interval: 20 * time.Millisecond})
	g.Pause(time.Now().Add(300*time.Millisecond), "so that connections wait")
	var sendErr error
	p, err := g.Do(t.Context(), limiter.Call{Key: key(1), Group: refund.GroupFirst, Intent: noIntent, Send: post(target, &sendErr)})
	require.NoError(t, err)
	require.NoError(t, sendErr)
	require.True(t, p.Sent())
	require.GreaterOrEqual(t, accepted.Load(), int64(3))
}
