package starter

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
)

// authority is a certificate authority of the tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: t.Name()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	der, a.key = a.sign(template, template)
	var err error
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// sign signs a certificate for a new key; a template that is its own parent
// signs itself.
func (a *authority) sign(template, parent *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	return der, key
}

// issue returns a certificate and its key in PEM, for servers on loopback and
// for clients.
func (a *authority) issue(serial int64) (cert, key []byte) {
	a.t.Helper()
	der, private := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "leaf"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// clientCert is issue for a client's configuration.
func (a *authority) clientCert(serial int64) []tls.Certificate {
	a.t.Helper()
	pair, err := tls.X509KeyPair(a.issue(serial))
	require.NoError(a.t, err)
	return []tls.Certificate{pair}
}

// secureServer is a server that speaks TLS on a real socket and says "here".
type secureServer struct {
	t     *testing.T
	addr  string
	files config.TLS
	ca    *authority // of the server's own certificate
	logs  *testenv.Logs
}

// newSecureServer starts a server whose handshakes look at the files each time.
func newSecureServer(t *testing.T, clients *authority) *secureServer {
	t.Helper()
	dir := t.TempDir()
	s := &secureServer{t: t, ca: newAuthority(t), logs: &testenv.Logs{}}
	s.files = config.TLS{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	s.replace(1)
	if clients != nil {
		s.files.ClientCAFile = filepath.Join(dir, "clients.pem")
		s.write(s.files.ClientCAFile, clients.pem)
	}
	log := telemetry.NewLogger(s.logs, telemetry.FormatJSON, slog.LevelInfo)
	secured, err := newKeyring(s.files, log, 0)
	require.NoError(t, err)
	s.addr = serve(t, &Server{TLS: secured, Log: log, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("here, " + r.Proto))
	})})
	t.Cleanup(func() { require.NotContains(t, s.logs.String(), "PRIVATE") })
	return s
}

// replace gives the server a new certificate.
func (s *secureServer) replace(serial int64) {
	s.t.Helper()
	cert, key := s.ca.issue(serial)
	s.write(s.files.CertFile, cert)
	s.write(s.files.KeyFile, key)
}

func (s *secureServer) write(path string, content []byte) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(path, content, 0o600))
}

// client returns the configuration of a client that trusts the server.
func (s *secureServer) client() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(s.ca.cert)
	return &tls.Config{RootCAs: pool}
}

// get makes a request on a connection of its own and returns the serial of the
// server's certificate.
func (s *secureServer) get(cfg *tls.Config) (serial int64, resumed bool, err error) {
	s.t.Helper()
	transport := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
	res, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Get("https://" + s.addr)
	if err != nil {
		return 0, false, err
	}
	defer res.Body.Close()
	line, err := bufio.NewReader(res.Body).ReadString(0)
	require.Equal(s.t, "here, HTTP/1.1", line, "%v", err)
	return res.TLS.PeerCertificates[0].SerialNumber.Int64(), res.TLS.DidResume, nil
}

// serving returns the serial of the certificate that new connections get.
func (s *secureServer) serving() int64 {
	s.t.Helper()
	serial, _, err := s.get(s.client())
	require.NoError(s.t, err)
	return serial
}

// serve runs the server on loopback until the test ends, and returns where.
func serve(t *testing.T, s *Server) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context(), ln) }()
	t.Cleanup(func() { require.NoError(t, <-done) }) // the test's context has ended
	return ln.Addr().String()
}

func TestTLSFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	s := newSecureServer(t, nil)
	require.EqualValues(t, 1, s.serving())
	require.EqualValues(t, 1, s.serving())
	require.Empty(t, s.logs.Events(t, telemetry.EventTLSReloaded))

	s.replace(0x2a)
	require.EqualValues(t, 0x2a, s.serving())
	require.EqualValues(t, 0x2a, s.serving())
	reloads := s.logs.Events(t, telemetry.EventTLSReloaded)
	require.Len(t, reloads, 1, "logged once")
	require.Equal(t, "INFO", reloads[0]["level"])
	require.Equal(t, "2a", reloads[0]["serial"])
	require.Contains(t, reloads[0], "not_after")
}

// TestTLSLooksNowAndThen: not every handshake reads the files.
func TestTLSLooksNowAndThen(t *testing.T) {
	t.Parallel()
	s := newSecureServer(t, nil)
	k := &keyring{files: s.files, log: discard, interval: time.Hour, looked: time.Now()}
	s.replace(2)
	k.look(t.Context())
	require.Nil(t, k.current.Load(), "too soon")
	k.looked = time.Now().Add(-2 * time.Hour)
	k.mu.Lock()
	k.look(t.Context())
	require.Nil(t, k.current.Load(), "another handshake looks, and this one doesn't wait for it")
	k.mu.Unlock()
	k.look(t.Context())
	require.EqualValues(t, 2, k.current.Load().Certificates[0].Leaf.SerialNumber.Int64())
}

// TestTLSBrokenFilesChangeNothing: whatever is wrong with the new files, the old
// ones stay in use, one line says what is wrong, and the next good ones are
// taken.
func TestTLSBrokenFilesChangeNothing(t *testing.T) {
	t.Parallel()
	clients := newAuthority(t)
	s := newSecureServer(t, clients)
	mine := s.client()
	mine.Certificates = clients.clientCert(7)
	serving := func() int64 {
		t.Helper()
		serial, _, err := s.get(mine)
		require.NoError(t, err)
		return serial
	}
	require.EqualValues(t, 1, serving())
	good := int64(1)
	otherCert, otherKey := s.ca.issue(99)
	cert, err := os.ReadFile(s.files.CertFile)
	require.NoError(t, err)

	for i, tt := range []struct {
		name, file string
		content    []byte // nil: the file is gone
		says       string
	}{
		{"certificate is gone", s.files.CertFile, nil, "http.tls.cert_file: open " + s.files.CertFile + ": no such file"},
		{"certificate is empty", s.files.CertFile, []byte{}, "failed to find any PEM data in certificate input"},
		{"certificate of another key", s.files.CertFile, otherCert, "private key does not match public key"},
		{"key is gone", s.files.KeyFile, nil, "http.tls.key_file: open " + s.files.KeyFile + ": no such file"},
		{"key of another certificate", s.files.KeyFile, otherKey, "private key does not match public key"},
		{"key is cut off", s.files.KeyFile, otherKey[:len(otherKey)/2], "failed to find any PEM data in key input"},
		{"certificate for a key", s.files.KeyFile, cert, "found a certificate rather than a key"},
		{"authorities are gone", s.files.ClientCAFile, nil, "http.tls.client_ca_file: open " + s.files.ClientCAFile + ": no such file"},
		{"no authorities", s.files.ClientCAFile, []byte("none\n"), "it holds no certificate in PEM"},
		{"authorities are cut off", s.files.ClientCAFile, append([]byte(string(clients.pem)), clients.pem[:100]...), "or an incomplete one"},
		{"a key for an authority", s.files.ClientCAFile, otherKey, "it must hold certificates only"},
		{"an authority is no certificate", s.files.ClientCAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), "its certificate 1: x509:"},
	} {
		require.NoError(t, os.Remove(tt.file))
		if tt.content != nil {
			s.write(tt.file, tt.content)
		}
		require.Equal(t, good, serving(), tt.name)
		require.Equal(t, good, serving(), tt.name)
		failures := s.logs.Events(t, telemetry.EventTLSReloadFailed)
		require.Len(t, failures, i+1, "%s: once a state of the files", tt.name)
		require.Equal(t, "ERROR", failures[i]["level"])
		require.Contains(t, failures[i]["error"], tt.says)
		require.Contains(t, failures[i]["error"], tt.file)

		// At the start the same is an error, and says the same.
		none, err := NewTLS(s.files, discard)
		require.Nil(t, none)
		require.EqualError(t, err, failures[i]["error"].(string))

		good++
		s.write(s.files.ClientCAFile, clients.pem)
		s.replace(good)
		require.Equal(t, good, serving(), "after: %s", tt.name)
	}
}

func TestTLSOff(t *testing.T) {
	t.Parallel()
	off, err := NewTLS(config.TLS{}, discard)
	require.NoError(t, err)
	require.Nil(t, off)
}

func TestTLSClientsPresentACertificate(t *testing.T) {
	t.Parallel()
	clients, others := newAuthority(t), newAuthority(t)
	s := newSecureServer(t, clients)

	_, _, err := s.get(s.client())
	require.ErrorContains(t, err, "certificate required")

	stranger := s.client()
	stranger.Certificates = others.clientCert(2)
	_, _, err = s.get(stranger)
	require.Error(t, err, "Go's client doesn't even present one of another authority")
	stranger.Certificates = nil
	stranger.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &others.clientCert(3)[0], nil
	}
	_, _, err = s.get(stranger)
	require.ErrorContains(t, err, "unknown certificate authority")

	known := s.client()
	known.Certificates = clients.clientCert(4)
	known.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	_, _, err = s.get(known)
	require.NoError(t, err)
	_, resumed, err := s.get(known)
	require.NoError(t, err)
	require.True(t, resumed)

	// An authority that is taken away is taken away from resumed sessions too.
	s.write(s.files.ClientCAFile, others.pem)
	_, _, err = s.get(known)
	require.Error(t, err)
	_, _, err = s.get(stranger)
	require.NoError(t, err)
}

func TestTLSVersions(t *testing.T) {
	t.Parallel()
	s := newSecureServer(t, nil)
	for version, wanted := range map[uint16]bool{
		tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true,
	} {
		cfg := s.client()
		cfg.MinVersion, cfg.MaxVersion = version, version
		_, _, err := s.get(cfg)
		if wanted {
			require.NoError(t, err, tls.VersionName(version))
		} else {
			require.ErrorContains(t, err, "protocol version not supported", tls.VersionName(version))
		}
	}
}

func TestTLSSpeaksHTTP2(t *testing.T) {
	t.Parallel()
	s := newSecureServer(t, nil)
	s.replace(2) // what is read again speaks it too
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.client(), ForceAttemptHTTP2: true}, Timeout: 30 * time.Second}
	res, err := client.Get("https://" + s.addr)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, "HTTP/2.0", res.Proto)
}

// TestTLSAnswersPlainHTTP: who forgets the s is told.
func TestTLSAnswersPlainHTTP(t *testing.T) {
	t.Parallel()
	s := newSecureServer(t, nil)
	res, err := http.Get("http://" + s.addr)
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, res.Write(&b))
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
	require.Contains(t, b.String(), "Client sent an HTTP request to an HTTPS server")
}
