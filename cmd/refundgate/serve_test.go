package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// change rewrites a part of the configuration file.
func (s *system) change(old, replacement string) {
	s.t.Helper()
	b, err := os.ReadFile(s.config)
	require.NoError(s.t, err)
	require.Contains(s.t, string(b), old)
	require.NoError(s.t, os.WriteFile(s.config, []byte(strings.Replace(string(b), old, replacement, 1)), 0o600))
}

// accepted returns the ids of all refunds in the database.
func (s *system) accepted() map[string]bool {
	s.t.Helper()
	rows, err := s.db.QueryContext(s.t.Context(), "SELECT refund_id FROM refunds")
	require.NoError(s.t, err)
	defer rows.Close()
	ids := map[string]bool{}
	for rows.Next() {
		var id string
		require.NoError(s.t, rows.Scan(&id))
		ids[id] = true
	}
	require.NoError(s.t, rows.Err())
	return ids
}

// submitOver posts a refund with that client. An error says that there was no
// answer, or with a status, not a whole one.
func (s *system) submitOver(ctx context.Context, client *http.Client, id string) (status int, err error) {
	content, err := json.Marshal(newRefund(id, "demo"))
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.intake+"/v1/refunds", bytes.NewReader(content))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+testToken)
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var answer map[string]any
	return res.StatusCode, json.NewDecoder(res.Body).Decode(&answer)
}

// submission is one attempt to submit a refund.
type submission struct {
	id    string
	begun time.Time
	cut   error // why there was no answer
}

// submitUntilCut submits refunds one after the other, over a connection that is
// kept alive, until there is no answer; that one is the last.
func (s *system) submitUntilCut(client int) (done []submission) {
	web := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	for n := range 10_000 {
		sub := submission{id: fmt.Sprintf("c%02d-%04d", client, n), begun: time.Now()}
		var status int
		status, sub.cut = s.submitOver(s.t.Context(), web, sub.id)
		if status != 0 && (status != http.StatusAccepted || sub.cut != nil) {
			s.t.Errorf("%s: %d, %v; it is 202 and whole, or nothing at all", sub.id, status, sub.cut)
		}
		done = append(done, sub)
		if sub.cut != nil {
			break
		}
		time.Sleep(80 * time.Millisecond) // together they stay below a client's limit
	}
	return done
}

// SIGTERM under load: the intake turns unready first and goes on accepting, then
// closes its door and exits. What it said yes to is in the database, and what it
// didn't answer can be sent again.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	const clients, delay = 20, 2 * time.Second
	s := newSystem(t)
	s.change("drain_delay: 100ms", "drain_delay: "+delay.String())
	p := s.start("serve")
	p.waitFor("intake: http://")

	var mu sync.Mutex
	var all []submission
	var running sync.WaitGroup
	for c := range clients {
		running.Go(func() {
			done := s.submitUntilCut(c)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, done...)
		})
	}
	require.Eventually(t, func() bool { return len(s.accepted()) > 2*clients }, 30*time.Second, 20*time.Millisecond)
	status, _ := s.request(http.MethodGet, "/readyz", nil)
	require.Equal(t, http.StatusOK, status)

	signalled := time.Now()
	p.signal(syscall.SIGTERM)
	for status != http.StatusServiceUnavailable { // a closed door would fail the request
		status, _ = s.request(http.MethodGet, "/readyz", nil)
	}
	unready := time.Now()
	require.Less(t, unready.Sub(signalled), delay, "it says so while it still serves")
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Fatal("it has not ended")
	}
	require.NoError(t, p.err)
	require.GreaterOrEqual(t, time.Since(signalled), delay)
	running.Wait()

	stored := s.accepted()
	var cut []string
	late := 0
	for _, sub := range all {
		if sub.cut != nil {
			cut = append(cut, sub.id)
			continue
		}
		require.True(t, stored[sub.id], "%s was answered for and is gone", sub.id)
		if sub.begun.After(unready) {
			late++
		}
	}
	require.Len(t, cut, clients)
	require.Greater(t, late, clients, "an intake that is unready accepts what still comes")

	s.start("serve").waitFor("intake:")
	for _, id := range cut {
		status, answer := s.request(http.MethodPost, "/v1/refunds", newRefund(id, "demo"))
		require.Contains(t, []int{http.StatusOK, http.StatusAccepted}, status, answer)
	}
	status, answer := s.request(http.MethodPost, "/v1/refunds", newRefund(all[0].id, "demo"))
	require.Equal(t, http.StatusOK, status, answer)
	require.Len(t, s.accepted(), len(all), "each of them once")
}

// Clients that are gone as soon as their request is sent: it is accepted.
func TestServeAcceptsOfClientsThatAreGone(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start("serve").waitFor("intake:")
	const clients = 20
	for n := range clients {
		content, err := json.Marshal(newRefund(fmt.Sprintf("gone-%02d", n), "demo"))
		require.NoError(t, err)
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.intake, "http://"))
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "POST /v1/refunds HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			testToken, len(content), content)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool { return len(s.accepted()) == clients }, 30*time.Second, 20*time.Millisecond)
}

const inClear = "travel in clear"

func TestServeSpeaksTLS(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	// The certificate of httptest's servers, which their clients trust.
	borrowed := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(borrowed.Close)
	pair := borrowed.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	certFile, keyFile := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))

	address := strings.TrimPrefix(s.intake, "http://")
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	s.change(fmt.Sprintf("listen: %q", address), fmt.Sprintf("listen: \"0.0.0.0:%s\"\n  tls: {cert_file: %q, key_file: %q}", port, certFile, keyFile))
	out, errs, code := refundgate(t, "", "serve", "--config", s.config)
	require.Equal(t, exitFailed, code, out)
	require.Empty(t, out)
	require.Contains(t, errs, "http.tls.key_file: open "+keyFile+": no such file or directory")

	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	p := s.start("serve")
	p.waitFor("intake: https://")
	s.intake = "https://" + address
	client := borrowed.Client()
	client.Timeout = time.Minute
	for path, want := range map[string]string{"/readyz": `"ready"`, "/healthz": `"ok"`, "/metrics": "refundgate_intake_requests_total"} {
		res, err := client.Get(s.intake + path)
		require.NoError(t, err)
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Contains(t, string(b), want)
	}
	status, err := s.submitOver(t.Context(), client, "over-tls")
	require.NoError(t, err)
	require.Equal(t, http.StatusAccepted, status)
	require.True(t, s.accepted()["over-tls"])
	require.NoError(t, p.stop())
	require.NotContains(t, p.log(), inClear)
	require.NotContains(t, p.log(), "PRIVATE KEY")
}

// What listens for other machines in plain HTTP says so, once.
func TestServeWarnsOfPlainHTTP(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start("serve")
	p.waitFor("intake: http://")
	require.NoError(t, p.stop())
	require.NotContains(t, p.log(), inClear)

	s.change(`listen: "127.0.0.1:`, `listen: "0.0.0.0:`)
	p = s.start("serve")
	p.waitFor("intake: http://")
	status, _ := s.request(http.MethodGet, "/readyz", nil)
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, p.stop())
	require.Equal(t, 1, strings.Count(p.log(), inClear), p.log())
	require.Contains(t, p.log(), `"level":"WARN"`)
}
