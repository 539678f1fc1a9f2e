package starter

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
)

// TestServerDrains: a stopping server first says that it is not ready while it
// still serves, then closes the door, and finishes what it has begun.
func TestServerDrains(t *testing.T) {
	t.Parallel()
	slow := newSlowLedger(newLedger(t, testenv.MariaDB(t)))
	i := newIntake(t, slow, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	i.url = "http://" + ln.Addr().String()

	const delay = time.Second
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	server := Server{Handler: i.api, Drain: i.api.Drain, DrainDelay: delay, Log: discard}
	go func() { done <- server.Serve(ctx, ln) }()

	posted := make(chan answer, 1)
	go func() { posted <- i.post(body(nil)) }()
	<-slow.entered
	require.Equal(t, 200, i.get("/readyz").status)

	stopped := time.Now()
	stop()
	for i.get("/readyz").status != 503 { // a closed door would end this with an error
		require.False(t, t.Failed())
	}
	require.Equal(t, 200, i.get("/healthz").status, "still served")
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 5*time.Second, time.Millisecond)
	require.GreaterOrEqual(t, time.Since(stopped), delay)

	select {
	case err := <-done:
		t.Fatalf("a request was still in work: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(slow.release)
	require.Equal(t, 202, (<-posted).status)
	require.NoError(t, <-done)
}

func TestServerFails(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	server := Server{Handler: http.NotFoundHandler(), Log: discard}
	require.ErrorContains(t, server.Serve(t.Context(), ln), "serving HTTP: ")
}

// TestServerLimitsByDefault: nothing is without a limit, and an answer has the
// time that the ledger may take after the slowest body.
func TestServerLimitsByDefault(t *testing.T) {
	t.Parallel()
	srv := (&Server{Log: discard}).httpServer()
	require.Positive(t, srv.ReadHeaderTimeout)
	require.GreaterOrEqual(t, srv.ReadTimeout, srv.ReadHeaderTimeout)
	require.Greater(t, srv.WriteTimeout, srv.ReadTimeout+ledgerTimeout)
	require.Positive(t, srv.IdleTimeout)
	require.Positive(t, srv.MaxHeaderBytes)
	require.Positive(t, srv.HTTP2.WriteByteTimeout)
}

// testLimits are longer than any test; each test shortens one of them.
func testLimits(change func(*limits)) limits {
	l := limits{readHeader: time.Minute, read: time.Minute, write: time.Minute, idle: time.Minute, headerBytes: defaultLimits.headerBytes}
	change(&l)
	return l
}

// soon is when what a short limit ends must have ended on a busy machine.
const soon = 20 * time.Second

// peer is a client that speaks to a server in bytes.
type peer struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func connectTo(t *testing.T, addr string) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	return &peer{t: t, conn: conn, in: bufio.NewReader(conn)}
}

func (p *peer) send(raw string) {
	p.t.Helper()
	_, err := io.WriteString(p.conn, raw)
	require.NoError(p.t, err)
}

// drip sends a byte every 20 ms until the server closes the connection or
// everything is sent.
func (p *peer) drip(raw string) {
	for i := range len(raw) {
		if _, err := io.WriteString(p.conn, raw[i:i+1]); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// answer reads the next answer.
func (p *peer) answer() answer {
	p.t.Helper()
	res, err := http.ReadResponse(p.in, nil)
	require.NoError(p.t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(p.t, err)
	return answer{res.StatusCode, res.Header, b}
}

// closed requires that the server closes the connection without a further word.
func (p *peer) closed() {
	p.t.Helper()
	b, err := io.ReadAll(p.in)
	require.NotErrorIs(p.t, err, os.ErrDeadlineExceeded, "the connection is still open")
	require.Empty(p.t, string(b))
}

// head is the beginning of a submission, with more headers.
func head(headers ...string) string {
	return "POST /v1/refunds HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer " + ordersToken + "\r\n" +
		strings.Join(append(headers, "", ""), "\r\n")
}

// submission is a whole request for a refund of that id.
func submission(id string) string {
	content := refundBody(id)
	return head(fmt.Sprintf("Content-Length: %d", len(content))) + content
}

func refundBody(id string) string {
	return body(map[string]string{"refund_id": strconv.Quote(id), "payment_id": strconv.Quote("pay-" + id)})
}

// chunk is a piece of a body in chunked encoding.
func chunk(content string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(content), content) }

// socketIntake is an intake API behind a Server on a real socket.
type socketIntake struct {
	*intake
	addr   string
	ledger *ledger.Ledger
}

func newSocketIntake(t *testing.T, l limits) *socketIntake {
	t.Helper()
	s := &socketIntake{ledger: newLedger(t, testenv.MariaDB(t))}
	s.intake = newIntake(t, s.ledger, nil)
	s.addr = serve(t, &Server{Handler: s.api, Log: discard, limits: l})
	s.url = "http://" + s.addr
	return s
}

// stored returns the ids of all refunds that were accepted.
func (s *socketIntake) stored() []string {
	s.t.Helper()
	page, err := s.ledger.List(s.t.Context(), ledger.Filter{Limit: 200})
	require.NoError(s.t, err)
	ids := []string{}
	for _, c := range page.Cases {
		ids = append(ids, c.Refund.ID)
	}
	slices.Sort(ids)
	return ids
}

func TestServerCutsOffSlowHeaders(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	s := newSocketIntake(t, testLimits(func(l *limits) { l.readHeader = limit }))
	begun := time.Now()
	p := connectTo(t, s.addr)
	go p.drip(head("X-Slow: " + strings.Repeat("x", 5000)))
	require.Equal(t, 400, p.answer().status)
	p.closed()
	require.GreaterOrEqual(t, time.Since(begun), limit)
	require.Less(t, time.Since(begun), soon)
}

func TestServerCutsOffSlowHandshakes(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	secured := newSecureServer(t, nil)
	tlsConfig, err := NewTLS(secured.files, discard)
	require.NoError(t, err)
	addr := serve(t, &Server{Handler: http.NotFoundHandler(), TLS: tlsConfig, Log: discard, limits: testLimits(func(l *limits) { l.readHeader = limit })})
	begun := time.Now()
	p := connectTo(t, addr)
	go p.drip("\x16\x03\x01\x40\x00\x01" + strings.Repeat("\x00", 5000)) // a long hello
	p.closed()
	require.GreaterOrEqual(t, time.Since(begun), limit)
	require.Less(t, time.Since(begun), soon)
}

func TestServerCutsOffSlowBodies(t *testing.T) {
	t.Parallel()
	const limit = 600 * time.Millisecond
	s := newSocketIntake(t, testLimits(func(l *limits) { l.read = limit }))
	for _, request := range []string{
		head("Content-Length: 60000") + refundBody("slow"),
		head("Transfer-Encoding: chunked") + chunk(refundBody("slow")),
	} {
		begun := time.Now()
		p := connectTo(t, s.addr)
		p.send(request)
		go p.drip(strings.Repeat(" ", 5000))
		p.answer().problem(t, 408, "body-timeout")
		require.GreaterOrEqual(t, time.Since(begun), limit)
		require.Less(t, time.Since(begun), soon)
		p.closed()
	}
	refused := s.events(telemetry.EventIntakeRefused)
	require.Len(t, refused, 2)
	require.Equal(t, "body-timeout", refused[1]["problem"])

	// A notification that dribbles in, and a submission that ends too early,
	// which is no matter of time.
	p := connectTo(t, s.addr)
	p.send("POST /v1/providers/main/notifications HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{")
	go p.drip(strings.Repeat(" ", 5000))
	p.answer().problem(t, 408, "body-timeout")
	p.closed()
	p = connectTo(t, s.addr)
	p.send(head("Content-Length: 60000") + refundBody("slow"))
	require.NoError(t, p.conn.(*net.TCPConn).CloseWrite())
	p.answer().problem(t, 400, "malformed-body")
	require.Empty(t, s.stored())
}

// TestServerCutsOffSlowBodies_HTTP2: the stream is answered in the same way.
func TestServerCutsOffSlowBodies_HTTP2(t *testing.T) {
	t.Parallel()
	const limit = 600 * time.Millisecond
	secured := newSecureServer(t, nil)
	tlsConfig, err := NewTLS(secured.files, discard)
	require.NoError(t, err)
	i := newIntake(t, newLedger(t, testenv.MariaDB(t)), nil)
	addr := serve(t, &Server{Handler: i.api, TLS: tlsConfig, Log: discard, limits: testLimits(func(l *limits) { l.read = limit })})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: secured.client(), ForceAttemptHTTP2: true}, Timeout: 30 * time.Second}
	slow, end := io.Pipe()
	t.Cleanup(func() { _ = end.Close() })
	go func() { _, _ = io.WriteString(end, refundBody("slow")) }() // and then nothing
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+addr+"/v1/refunds", slow)
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+ordersToken)
	begun := time.Now()
	res, err := client.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, 2, res.ProtoMajor)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	answer{res.StatusCode, res.Header, text}.problem(t, 408, "body-timeout")
	require.Less(t, time.Since(begun), soon)
}

// TestServerLimitsHeaders: an endless header is not read.
func TestServerLimitsHeaders(t *testing.T) {
	t.Parallel()
	s := newSocketIntake(t, limits{})
	p := connectTo(t, s.addr)
	go func() {
		_, _ = io.WriteString(p.conn, head("X-Long: "+strings.Repeat("x", 4*defaultLimits.headerBytes)))
	}()
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, p.answer().status)
	p = connectTo(t, s.addr)
	go func() {
		_, _ = io.WriteString(p.conn, head(slices.Repeat([]string{"X-Short: x"}, 4*defaultLimits.headerBytes/10)...))
	}()
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, p.answer().status)
	require.Empty(t, s.stored())
}

// TestServerLimitsBodies: a body that doesn't say how long it is has the same
// limit as one that does, and the rest of it is not read.
func TestServerLimitsBodies(t *testing.T) {
	t.Parallel()
	s := newSocketIntake(t, limits{})
	p := connectTo(t, s.addr)
	p.send(head("Transfer-Encoding: chunked"))
	p.send(chunk(refundBody("large")))
	for range maxBody / 1024 {
		p.send(chunk(strings.Repeat(" ", 1024)))
	}
	p.answer().problem(t, 413, "too-large") // though the last chunk was never sent
	require.Empty(t, s.stored())
}

// TestServerLetsGoOfClientsThatDoNotRead: an answer that nobody takes ends.
func TestServerLetsGoOfClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	ended := make(chan error, 1)
	addr := serve(t, &Server{Handler: endless(ended), Log: discard, limits: testLimits(func(l *limits) { l.write = limit })})
	begun := time.Now()
	p := connectTo(t, addr)
	p.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-ended:
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	case <-time.After(soon):
		t.Fatal("the answer is still being written")
	}
	require.GreaterOrEqual(t, time.Since(begun), limit)
}

// endless answers until it can't, and tells why then.
func endless(ended chan<- error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				ended <- err
				return
			}
		}
	})
}

func TestServerClosesIdleConnections(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	s := newSocketIntake(t, testLimits(func(l *limits) { l.idle = limit }))
	p := connectTo(t, s.addr)
	idle := time.Now()
	for _, id := range []string{"a", "b"} { // a connection may be used again
		idle = time.Now()
		p.send(submission(id))
		require.Equal(t, 202, p.answer().status)
	}
	p.closed()
	require.GreaterOrEqual(t, time.Since(idle), limit)
	require.Less(t, time.Since(idle), soon)
}

// TestServerAnswersInOrder: requests that don't wait for answers get theirs in
// the order of the requests.
func TestServerAnswersInOrder(t *testing.T) {
	t.Parallel()
	s := newSocketIntake(t, limits{})
	p := connectTo(t, s.addr)
	p.send(submission("a") + submission("b") + submission("a") + "GET /v1/refunds/b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + ordersToken + "\r\n\r\n")
	for i, want := range []struct {
		status int
		id     string
	}{{202, "a"}, {202, "b"}, {200, "a"}, {200, "b"}} {
		got := p.answer()
		require.Equal(t, want.status, got.status, "%d: %s", i, got.body)
		require.Equal(t, want.id, got.object(t)["refund"].(map[string]any)["refund_id"])
	}
	require.Equal(t, []string{"a", "b"}, s.stored())
}

// TestServerAgreesOnWhereARequestEnds: what could be read in two ways is refused
// and the connection closed, or read in the one way of RFC 9112. No second
// request comes out of a body.
func TestServerAgreesOnWhereARequestEnds(t *testing.T) {
	t.Parallel()
	s := newSocketIntake(t, limits{})
	hidden := submission("hidden")
	for name, tt := range map[string]struct {
		request string
		status  int
	}{
		"two lengths":            {head("Content-Length: 5", fmt.Sprintf("Content-Length: %d", len(hidden))) + hidden, 400},
		"negative length":        {head("Content-Length: -1") + hidden, 400},
		"signed length":          {head("Content-Length: +5") + hidden, 400},
		"length in words":        {head("Content-Length: five") + hidden, 400},
		"a list of lengths":      {head("Content-Length: 5, 5") + hidden, 400},
		"huge length":            {head("Content-Length: 99999999999999999999") + hidden, 400},
		"unknown encoding":       {head("Transfer-Encoding: gzip, chunked") + hidden, 501},
		"disguised encoding":     {head("Transfer-Encoding: xchunked", "Content-Length: 5") + hidden, 501},
		"two encodings":          {head("Transfer-Encoding: chunked", "Transfer-Encoding: identity") + hidden, 501},
		"space before the colon": {head("Content-Length : 5") + hidden, 400},
		"folded length":          {head("Content-Length: 5\r\n 5") + hidden, 400},
		"chunk that is no chunk": {head("Transfer-Encoding: chunked") + "zz\r\n" + hidden, 400},
		"chunk that is too long": {head("Transfer-Encoding: chunked") + "fffffffffffffffff\r\n" + hidden, 400},
		"chunk without its end":  {head("Transfer-Encoding: chunked") + "5\r\n12345x\r\n" + hidden, 400},
		"no host":                {strings.Replace(hidden, "Host: x\r\n", "", 1) + hidden, 400},
		"two hosts":              {strings.Replace(hidden, "Host: x\r\n", "Host: x\r\nHost: y\r\n", 1) + hidden, 400},
	} {
		p := connectTo(t, s.addr)
		p.send(tt.request)
		require.Equal(t, tt.status, p.answer().status, name)
		p.closed()
	}
	require.Empty(t, s.stored())

	// With both, the encoding counts: the length would make a request of the
	// body's rest.
	p := connectTo(t, s.addr)
	content := refundBody("both") + strings.Repeat(" ", 100)
	p.send(head("Content-Length: 0", "Transfer-Encoding: chunked") + chunk(content) + "0\r\n\r\n" + submission("next"))
	require.Equal(t, 202, p.answer().status)
	require.Equal(t, 202, p.answer().status)
	require.Equal(t, []string{"both", "next"}, s.stored())
	require.Equal(t, 200, s.get("/readyz").status)
}

// TestSlowClientsDelayNobody: many clients that are slow in every way are still
// there when those that aren't have their answers.
func TestSlowClientsDelayNobody(t *testing.T) {
	t.Parallel()
	s := newSocketIntake(t, testLimits(func(*limits) {}))
	var slow []*peer
	for range 50 {
		for _, begin := range []string{
			"",                                  // says nothing
			"POST /v1/refunds HTTP/1.1\r\nHost", // stops in its headers
			head("Content-Length: 1000") + "{",  // stops in its body
			submission("slow"),                  // doesn't read its answer
		} {
			p := connectTo(t, s.addr)
			p.send(begin)
			slow = append(slow, p)
		}
	}
	begun := time.Now()
	for n := range 20 {
		require.Equal(t, 202, s.post(refundBody(fmt.Sprintf("quick-%d", n))).status)
	}
	require.Less(t, time.Since(begun), soon)
	for _, p := range slow {
		p.send("x") // none of them was cut off
	}
}

func TestServerLimitsConnections(t *testing.T) {
	t.Parallel()
	addr := serve(t, &Server{Handler: http.NotFoundHandler(), MaxConnections: 2, Log: discard})
	const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	var open []*peer
	for range 2 {
		p := connectTo(t, addr)
		p.send(request)
		require.Equal(t, 404, p.answer().status)
		open = append(open, p)
	}
	third := connectTo(t, addr)
	third.send(request)
	require.NoError(t, third.conn.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	_, err := third.in.Peek(1)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it waits")

	require.NoError(t, third.conn.SetReadDeadline(time.Now().Add(soon)))
	open[1].send(request)
	require.Equal(t, 404, open[1].answer().status, "those that are open are served")
	require.NoError(t, open[0].conn.Close())
	require.Equal(t, 404, third.answer().status, "its turn has come")
}

// TestServerKeepsNothingOfSlowClients: when they are cut off, no goroutine of
// theirs is left. (Not parallel: it
// looks at all goroutines.)
func TestServerKeepsNothingOfSlowClients(t *testing.T) {
	secured := newSecureServer(t, nil)
	tlsConfig, err := NewTLS(secured.files, discard)
	require.NoError(t, err)
	const limit = 2 * time.Second // all of them have begun by then
	short := limits{readHeader: limit, read: limit, write: limit, idle: limit, headerBytes: 4096}
	ended := make(chan error, 1000)
	handler := http.NewServeMux()
	handler.HandleFunc("/v1/refunds", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) })
	handler.Handle("/", endless(ended))
	plain := serve(t, &Server{Handler: handler, Log: discard, limits: short})
	secure := serve(t, &Server{Handler: handler, TLS: tlsConfig, Log: discard, limits: short})

	for range 20 {
		for _, begin := range []string{"", "POST /", head("Content-Length: 1000") + "{", submission("x"), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"} {
			connectTo(t, plain).send(begin)
		}
		connectTo(t, secure).send("\x16\x03\x01\x40")
		for _, protocol := range []string{"http/1.1", "h2"} {
			cfg := secured.client()
			cfg.NextProtos, cfg.ServerName = []string{protocol}, "127.0.0.1"
			conn := tls.Client(connectTo(t, secure).conn, cfg)
			require.NoError(t, conn.HandshakeContext(t.Context()))
			require.Equal(t, protocol, conn.ConnectionState().NegotiatedProtocol)
			_, err := io.WriteString(conn, map[string]string{
				"http/1.1": "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
				"h2":       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x40\x00\x01", // settings, half a header
			}[protocol])
			require.NoError(t, err)
		}
	}
	require.NotEmpty(t, serverGoroutines())
	require.EventuallyWithT(t, func(c *assert.CollectT) { require.Empty(c, serverGoroutines()) }, 2*soon, 20*time.Millisecond)
	require.Len(t, ended, 40)
}

// serverGoroutines returns the stacks of the goroutines that serve connections.
func serverGoroutines() (serving []string) {
	buf := make([]byte, 4<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, code := range []string{"net/http.(*conn).serve", "net/http.(*connReader)", "net/http.(*http2serverConn)"} {
			if strings.Contains(stack, code) {
				serving = append(serving, stack)
				break
			}
		}
	}
	return serving
}
