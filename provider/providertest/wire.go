package providertest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// request is what reached the socket.
type request struct {
	method string
	path   string
	proto  string
	header http.Header
	body   []byte
}

// peer is a server on a raw socket: it counts every request that arrives, on
// whichever connection and path, and answers with what a script writes.
type peer struct {
	listener net.Listener
	answer   func(net.Conn, request)
	wg       sync.WaitGroup

	mu       sync.Mutex
	requests []request
	conns    map[net.Conn]bool
}

// newPeer listens on loopback until the test is over. answer may close the
// connection; if it doesn't, the next request on it is read.
func newPeer(t *testing.T, answer func(net.Conn, request)) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &peer{listener: l, answer: answer, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *peer) url() string { return "http://" + p.listener.Addr().String() }

func (p *peer) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		p.wg.Go(func() { p.serve(c) })
	}
}

func (p *peer) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return // the client has gone
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		got := request{req.Method, req.URL.RequestURI(), req.Proto, req.Header, body}
		p.mu.Lock()
		p.requests = append(p.requests, got)
		p.mu.Unlock()
		p.answer(c, got)
	}
}

func (p *peer) seen() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// close ends every connection and waits for the scripts.
func (p *peer) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// ticket is a round tripper for one call: a plain transport with a connection
// of its own. Unlike the egress gate's it lets a second request through, so
// that the socket can count it.
type ticket struct {
	transport *http.Transport

	mu     sync.Mutex
	calls  int
	bodies []*body
}

func newTicket() *ticket {
	var http1 http.Protocols
	http1.SetHTTP1(true)
	return &ticket{transport: &http.Transport{DisableKeepAlives: true, Protocols: &http1}}
}

func (k *ticket) RoundTrip(req *http.Request) (*http.Response, error) {
	k.mu.Lock()
	k.calls++
	k.mu.Unlock()
	resp, err := k.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	b := &body{ReadCloser: resp.Body}
	k.mu.Lock()
	k.bodies = append(k.bodies, b)
	k.mu.Unlock()
	resp.Body = b
	return resp, nil
}

// requireClosed checks that every answer's body was closed: an open one keeps
// its in-flight place for good.
func (k *ticket) requireClosed(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range k.bodies {
		require.True(t, b.isClosed(), "the answer's body was left open")
	}
}

type body struct {
	io.ReadCloser
	mu     sync.Mutex
	closed bool
}

func (b *body) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.ReadCloser.Close()
}

func (b *body) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// script returns an answer that writes the text and closes.
func script(text string) func(net.Conn, request) {
	return func(c net.Conn, _ request) {
		_, _ = io.WriteString(c, text) // the client may have gone
		_ = c.Close()
	}
}

// reset returns an answer that writes the text and then sends RST.
func reset(text string) func(net.Conn, request) {
	return func(c net.Conn, _ request) {
		if text != "" {
			_, _ = io.WriteString(c, text)
			time.Sleep(20 * time.Millisecond) // RST throws away what is unread
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}
