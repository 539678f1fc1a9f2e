package starter

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
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

// TestServerLimitsHeaders: an endless header is not read.
func TestServerLimitsHeaders(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := Server{Handler: http.NotFoundHandler(), Log: discard}
	go func() { _ = server.Serve(t.Context(), ln) }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ln.Addr().String(), nil)
	require.NoError(t, err)
	req.Header.Set("X-Long", strings.Repeat("x", 4*defaultLimits.headerBytes))
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, res.StatusCode)
}
