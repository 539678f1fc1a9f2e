package limiter

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// preparation is a connection opened ahead of a call's turn.
type preparation struct {
	cancel context.CancelFunc // ends a dial that is under way
	// Set together when the dial has succeeded:
	conn    *guardedConn
	client  *http.ClientConn
	took    time.Duration // DNS, TCP and TLS; part of the call's overall budget
	readyAt time.Duration
}

// close ends the connection or the dial; it may be called again.
func (p *preparation) close() {
	p.cancel()
	if p.client != nil {
		// The answer has been read or given up; what closing has to say about
		// the connection changes nothing.
		_ = p.client.Close()
		_ = p.conn.Close()
	}
}

// dropPreparation gives up the waiter's connection before its turn.
func (w *waiter) dropPreparation() {
	if w.prep != nil {
		// In the background, for closing TLS writes to the peer.
		go w.prep.close()
		w.prep = nil
	}
}

// connect opens a connection that carries exactly one HTTP/1.1 request.
// HTTP/2 would let the library send a request again on its own, a proxy from
// the environment would put one between the gate and the provider, and a
// reused connection that the server has just closed would turn a certain "not
// sent" into an unknown.
func (g *Gate) connect(ctx context.Context) (*guardedConn, *http.ClientConn, error) {
	var conn *guardedConn
	transport := &http.Transport{
		Proxy:                  nil,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		Protocols:              new(http.Protocols),
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := g.cfg.Dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			conn = &guardedConn{Conn: raw}
			return conn, nil
		},
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := g.cfg.Dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			cfg := &tls.Config{MinVersion: tls.VersionTLS12}
			if g.cfg.TLS != nil {
				cfg = g.cfg.TLS.Clone()
			}
			if cfg.ServerName == "" {
				cfg.ServerName = g.cfg.Target.Hostname()
			}
			cfg.NextProtos = []string{"http/1.1"}
			secure := tls.Client(raw, cfg)
			if err := secure.HandshakeContext(ctx); err != nil {
				_ = raw.Close() // the handshake's error says it all
				return nil, err
			}
			conn = &guardedConn{Conn: secure}
			return conn, nil
		},
	}
	transport.Protocols.SetHTTP1(true)
	port := g.cfg.Target.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[g.cfg.Target.Scheme]
	}
	client, err := transport.NewClientConn(ctx, g.cfg.Target.Scheme, net.JoinHostPort(g.cfg.Target.Hostname(), port))
	if err != nil {
		return nil, nil, err
	}
	return conn, client, nil
}

var errNoTicket = errors.New("limiter: write without a ticket")

// guardedConn is the connection as net/http sees it. It sits above TLS, so
// what it counts is the request; without a ticket nothing can be written.
type guardedConn struct {
	net.Conn
	ticket atomic.Pointer[Ticket]
}

func (c *guardedConn) Write(b []byte) (int, error) {
	t := c.ticket.Load()
	if t == nil {
		return 0, errNoTicket
	}
	return t.write(c.Conn, b)
}
