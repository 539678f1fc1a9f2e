package main

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// proxy stands between a process and one of its servers, which the test can
// take away from it. It listens at addr.
type proxy struct {
	addr            string
	network, server string
	listener        net.Listener
	// relay returns how the two directions of a new connection are passed on.
	relay func() (up, down copier)

	mu    sync.Mutex
	state line
	conns map[net.Conn]bool // of both sides, those that are open
}

// line is the state of a proxy's connections.
type line int

const (
	lineOpen   line = iota
	lineSilent      // nothing passes, and neither side notices
	lineAway        // connections break, and there are no new ones
)

// copier passes on one direction of a connection until that ends.
type copier func(dst io.Writer, src io.Reader)

// newProxy returns an open proxy. relay may be nil.
func newProxy(t *testing.T, network, server string, relay func() (up, down copier)) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if relay == nil {
		relay = func() (up, down copier) { return pass, pass }
	}
	p := &proxy{
		addr: ln.Addr().String(), network: network, server: server, listener: ln, relay: relay, conns: map[net.Conn]bool{},
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		p.set(lineAway)
		serving.Wait()
	})
	return p
}

func pass(dst io.Writer, src io.Reader) { _, _ = io.Copy(dst, src) }

// set changes the state. Connections that lost bytes, or are to break, end.
func (p *proxy) set(state line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state == lineAway || p.state == lineSilent && state != lineSilent {
		for conn := range p.conns {
			_ = conn.Close()
		}
	}
	p.state = state
}

// serve passes on one connection.
func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial(p.network, p.server)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.enter(client, server) {
		return
	}
	defer p.leave(client, server)

	up, down := p.relay()
	var passing sync.WaitGroup
	passing.Go(func() {
		up(&sender{p, server}, client)
		_ = server.Close() // so that the other direction ends too
	})
	down(&sender{p, client}, server)
	_ = client.Close()
	passing.Wait()
}

func (p *proxy) enter(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == lineAway {
		return false
	}
	for _, c := range conns {
		p.conns[c] = true
	}
	return true
}

func (p *proxy) leave(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

// sender sends to one side, unless the line is silent.
type sender struct {
	proxy *proxy
	conn  net.Conn
}

func (s *sender) Write(b []byte) (int, error) {
	s.proxy.mu.Lock()
	silent := s.proxy.state == lineSilent
	s.proxy.mu.Unlock()
	if silent {
		return len(b), nil
	}
	return s.conn.Write(b)
}

// ledgerWatch reads along on one connection to the ledger's database, and tells
// which step of a call is being reached: before what belongs to it is passed
// on, or, where the process is to know of it, right after.
type ledgerWatch struct {
	reached func(kind refund.CallKind, at step)

	mu       sync.Mutex
	kind     refund.CallKind
	written  step // reached once the transaction is committed; 0 if none
	awaiting step // the same, once the commit is on its way
}

// up reads the statements. The protocol's packets have a header of three bytes
// for the length and one for the number.
func (w *ledgerWatch) up(server io.Writer, client io.Reader) {
	var header [4]byte
	for {
		if _, err := io.ReadFull(client, header[:]); err != nil {
			return
		}
		size := binary.LittleEndian.Uint32(header[:]) & 0xffffff
		packet := append(header[:], make([]byte, size)...)
		if _, err := io.ReadFull(client, packet[4:]); err != nil {
			return
		}
		const query = "\x03"
		if statement, ok := strings.CutPrefix(string(packet[4:]), query); ok {
			w.statement(statement)
		}
		if _, err := server.Write(packet); err != nil {
			return
		}
	}
}

func (w *ledgerWatch) statement(s string) {
	kind := refund.KindSubmit
	if strings.Contains(s, "'"+string(refund.KindCheck)+"'") {
		kind = refund.KindCheck
	}
	switch {
	case strings.Contains(s, "INSERT INTO provider_calls"):
		w.writes(kind, intentUnheard)
		w.reached(kind, beforeIntent)
	case strings.Contains(s, "UPDATE provider_calls SET started_at"):
		w.writes(kind, afterRecord)
		w.reached(kind, afterAnswer)
	case s == "COMMIT":
		w.mu.Lock()
		w.awaiting, w.written = w.written, 0
		w.mu.Unlock()
	case s == "ROLLBACK":
		w.writes("", 0)
	}
}

func (w *ledgerWatch) writes(kind refund.CallKind, at step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kind, w.written = kind, at
}

// down waits for the answers to the commits.
func (w *ledgerWatch) down(client io.Writer, server io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		kind, committed := w.kind, w.awaiting
		w.awaiting = 0
		w.mu.Unlock()
		if committed != 0 {
			w.reached(kind, committed)
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
		if committed != 0 {
			w.reached(kind, committed+1) // now the process knows
		}
	}
}
