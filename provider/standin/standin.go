package standin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Options configures a Server. The zero value is a provider that keeps
// everything in memory.
type Options struct {
	// StateFile keeps what was executed across restarts. Empty: memory only.
	StateFile string
	// APIKey is the only bearer token that is let in. Empty: any token is.
	APIKey string
	// KeyLifetime is how long an idempotency key is remembered.
	// Defaults to 24 hours.
	KeyLifetime time.Duration
	// AllowRemote permits listening on addresses other than loopback. The
	// control API has no password, so it is off by default.
	AllowRemote bool
}

// Server is the stand-in provider. Its methods are safe for concurrent use.
type Server struct {
	options Options
	refunds *refunds
	plan    *plan
	record  *record
	hooks   *notifier
	control http.Handler
	http    *http.Server
	url     string

	ctx  context.Context // ends with Close
	stop context.CancelFunc

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // handlers and background work
}

// New returns a provider that remembers what its state file holds. Close it
// even if it was never started.
func New(o Options) (*Server, error) {
	o.KeyLifetime = cmp.Or(o.KeyLifetime, 24*time.Hour)
	s := &Server{options: o, plan: &plan{}, record: newRecord()}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.hooks = newNotifier(s.goRun)
	s.refunds = &refunds{
		keyLifetime: o.KeyLifetime,
		changed:     s.hooks.notify,
		settleLater: s.settleLater,
		byID:        map[string]*refundState{},
		keys:        map[string]*keyState{},
		payments:    map[string]Payment{},
	}
	if o.StateFile != "" {
		file, err := openState(o.StateFile, s.refunds.load)
		if err != nil {
			s.stop()
			return nil, err
		}
		s.refunds.file = file
	}
	for _, r := range s.refunds.list(func(refundState) bool { return true }) {
		s.settleLater(r.ID, r)
	}
	s.control = s.controlRoutes()
	s.http = &http.Server{
		Handler: s,
		// Long: the egress dials ahead and may hold a connection for a while.
		ReadHeaderTimeout: 5 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		ConnContext:       withConn,
	}
	return s, nil
}

// Start listens on a TCP address such as "127.0.0.1:0" and serves until
// Close. It returns once connections are accepted. Call it once.
func (s *Server) Start(listen string) error {
	if err := s.mayListen(listen); err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("starting the stand-in: %w", err)
	}
	s.url = "http://" + l.Addr().String()
	s.goRun(func(context.Context) {
		_ = s.http.Serve(&listener{Listener: l}) // returns when Close closes l
	})
	return nil
}

func (s *Server) mayListen(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("listen address: %w", err)
	}
	ip, err := netip.ParseAddr(host)
	if s.options.AllowRemote || host == "localhost" || err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen address %s is not loopback, and the control API has no password", listen)
}

// URL returns the root of the provider, such as "http://127.0.0.1:43210".
func (s *Server) URL() string { return s.url }

// Close drops the connections, ends what runs in the background and returns
// when all of it is over. What was executed is in the state file.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.stop()
	err := s.http.Close()
	s.work.Wait()
	return errors.Join(err, s.refunds.file.close())
}

// begin registers work that Close waits for; false after Close.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Add(1)
	return true
}

func (s *Server) goRun(f func(context.Context)) {
	if !s.begin() {
		return
	}
	go func() {
		defer s.work.Done()
		f(s.ctx)
	}()
}

// settleLater ends a pending refund when its time has come.
func (s *Server) settleLater(id string, r refundState) {
	if r.SettleAt.IsZero() {
		return
	}
	s.goRun(func(ctx context.Context) {
		if sleep(ctx, time.Until(r.SettleAt)) {
			// A full disk leaves it pending, which a provider may do.
			_ = s.refunds.settle(id, r)
		}
	})
}

// ServeHTTP routes to the provider's API or to the control API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(http.ErrAbortHandler) // closing: just drop the connection
	}
	defer s.work.Done()
	if strings.HasPrefix(r.URL.Path, "/control/") {
		connOf(r.Context()).ended()
		s.control.ServeHTTP(w, r)
		return
	}
	s.serveAPI(w, r)
}
