package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// What every candidate works with: the product's own budgets, and a provider
// that answers after a while.
const (
	maxInFlight    = 10
	connectTimeout = time.Second
	callTimeout    = 3 * time.Second
	answerAfter    = 30 * time.Millisecond
)

// round is one run of one candidate: a server of its own, the way there, and
// the two places at which each call's start is noted.
type round struct {
	scenario
	target *url.URL
	tls    *tls.Config // of the client; nil over plain HTTP
	server *http.Server

	sent    starts // first Write on the client's TCP connection
	arrived starts // first Read of the request at the server

	delays []time.Duration // added to the i-th dial
	dials  atomic.Int64
}

// newRound starts the server of a round. The same seed gives the same sequence
// of dial times.
func newRound(s scenario, seed uint64) (*round, error) {
	r := &round{scenario: s, delays: make([]time.Duration, s.Calls)}
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range r.delays {
		r.delays[i] = s.Dials[random.IntN(len(s.Dials))]
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting the server: %w", err)
	}
	r.target = &url.URL{Scheme: "http", Host: l.Addr().String()}
	if s.TLS {
		cert, err := selfSigned()
		if err != nil {
			return nil, fmt.Errorf("making a certificate: %w", errors.Join(err, l.Close()))
		}
		r.target.Scheme = "https"
		r.tls = &tls.Config{RootCAs: x509.NewCertPool()}
		r.tls.RootCAs.AddCert(cert.Leaf)
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	r.server = &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(answerAfter) })}
	// Above TLS, for a handshake is no start. Serve returns with complete.
	go func() { _ = r.server.Serve(arrivals{l, &r.arrived}) }()
	return r, nil
}

// complete ends the round and makes sure that it counts: each call was sent
// once and arrived.
func (r *round) complete(err error) error {
	if err = errors.Join(err, r.server.Close()); err != nil {
		return err
	}
	if sent, arrived := len(r.sent.at), len(r.arrived.at); sent != r.Calls || arrived != r.Calls {
		return fmt.Errorf("%d calls, but %d were sent and %d arrived", r.Calls, sent, arrived)
	}
	return nil
}

// dial is the way to the server for every candidate.
func (r *round) dial(ctx context.Context, network, address string) (net.Conn, error) {
	i := int(r.dials.Add(1) - 1)
	select {
	case <-time.After(r.delays[i%r.Calls]):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &sendingConn{Conn: conn, start: sync.OnceFunc(r.sent.note)}, nil
}

// client returns an HTTP client as a careful user sets it up: a fresh
// connection for each call, and the same budgets as the gate's.
func (r *round) client() *http.Client {
	return &http.Client{
		Timeout: callTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, connectTimeout)
				defer cancel()
				return r.dial(ctx, network, address)
			},
		},
	}
}

// post makes one call.
func (r *round) post(ctx context.Context, do func(*http.Request) (*http.Response, error)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.target.String(), strings.NewReader(`{}`))
	if err != nil {
		return err
	}
	resp, err := do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}
