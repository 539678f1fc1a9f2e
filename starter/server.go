package starter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Limits on what a slow or hostile client can hold of the server. Submissions
// are small; the answer waits for the database at most.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = readTimeout + ledgerTimeout + 5*time.Second
	idleTimeout       = time.Minute
	maxHeaderBytes    = 16 << 10
	// drainTimeout is how long a stopping server waits for the requests in
	// work; none takes longer than its own time-outs.
	drainTimeout = writeTimeout
)

// Server serves HTTP until it is told to stop, and then stops in order.
type Server struct {
	Handler http.Handler
	// Drain is called when the server begins to stop; usually API.Drain.
	// Defaults to nothing.
	Drain func()
	// DrainDelay is how long the server goes on serving after Drain, so that
	// load balancers see that it is not ready. Defaults to no delay.
	DrainDelay time.Duration
	Log        *slog.Logger
}

// Serve serves on ln until ctx ends. Then readiness goes off, requests are
// served for DrainDelay more, the listener closes, and the requests in work
// are finished. It returns nil after a clean stop, and closes ln in any case.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler:           s.Handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()

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
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := srv.Shutdown(drain); err != nil {
		return fmt.Errorf("stopping the HTTP server: %w", errors.Join(err, srv.Close()))
	}
	return nil
}
