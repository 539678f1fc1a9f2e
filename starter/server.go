package starter

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

// limits is what a slow or hostile client can hold of the server.
type limits struct {
	readHeader  time.Duration // until a request's headers are there, the TLS handshake included
	read        time.Duration // until its body is there, from the beginning of the headers
	write       time.Duration // until its answer is written, from the end of the headers
	idle        time.Duration // between two requests of a connection
	headerBytes int           // of a request's headers; net/http adds 4 KiB to it
}

// defaultLimits: submissions are small, and the answer waits for the database
// at most.
var defaultLimits = limits{
	readHeader:  5 * time.Second,
	read:        15 * time.Second,
	write:       15*time.Second + ledgerTimeout + 5*time.Second,
	idle:        time.Minute,
	headerBytes: 16 << 10,
}

// Server serves HTTP until it is told to stop, and then stops in order.
type Server struct {
	Handler http.Handler
	// TLS makes it serve HTTPS; usually from NewTLS. Defaults to plain HTTP.
	TLS *tls.Config
	// MaxConnections is how many connections may be open at once; those over it
	// wait in the listener's queue. Defaults to no limit.
	MaxConnections int
	// Drain is called when the server begins to stop; usually API.Drain.
	// Defaults to nothing.
	Drain func()
	// DrainDelay is how long the server goes on serving after Drain, so that
	// load balancers see that it is not ready. Defaults to no delay.
	DrainDelay time.Duration
	Log        *slog.Logger

	limits limits // zero: defaultLimits; tests have shorter ones
}

// Serve serves on ln until ctx ends. Then readiness goes off, requests are
// served for DrainDelay more, the listener closes, and the requests in work
// are finished. It returns nil after a clean stop, and closes ln in any case.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := s.httpServer()
	if s.MaxConnections > 0 {
		ln = netutil.LimitListener(ln, s.MaxConnections)
	}
	failed := make(chan error, 1)
	go func() {
		if s.TLS != nil {
			failed <- srv.ServeTLS(ln, "", "")
		} else {
			failed <- srv.Serve(ln)
		}
	}()

	select {
	case err := <-failed:
		return fmt.Errorf("serving HTTP: %w", err)
	case <-ctx.Done():
	}
	if s.Drain != nil {
		s.Drain()
	}
	select {
	case err := <-failed:
		return fmt.Errorf("serving HTTP: %w", err)
	case <-time.After(s.DrainDelay):
	}
	// No request in work takes longer than the time-outs let it.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), srv.WriteTimeout)
	defer cancel()
	if err := srv.Shutdown(drain); err != nil {
		return fmt.Errorf("stopping the HTTP server: %w", errors.Join(err, srv.Close()))
	}
	return nil
}

func (s *Server) httpServer() *http.Server {
	l := s.limits
	if l == (limits{}) {
		l = defaultLimits
	}
	return &http.Server{
		Handler:           s.Handler,
		TLSConfig:         s.TLS,
		ReadHeaderTimeout: l.readHeader,
		ReadTimeout:       l.read,
		WriteTimeout:      l.write,
		IdleTimeout:       l.idle,
		MaxHeaderBytes:    l.headerBytes,
		// In HTTP/2, WriteTimeout ends a request, and this the connection of a
		// client that reads nothing.
		HTTP2:    &http.HTTP2Config{WriteByteTimeout: l.write},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
}
