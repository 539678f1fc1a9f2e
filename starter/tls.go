package starter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
)

// tlsLookInterval is how often handshakes look whether the files have changed.
const tlsLookInterval = 3 * time.Second

// NewTLS reads the files and returns what a Server's TLS is to be: TLS 1.2 or
// later, HTTP/1.1 and HTTP/2, and with a ClientCAFile only clients that present
// a certificate of one of its authorities. It returns nil where files names no
// certificate.
//
// A handshake reads the files again if none has done so for a few seconds. If
// they have changed, it and those after it use the new ones; connections that
// are open stay as they are. Files that can't be used are logged once, and the
// ones before stay in use. An error names the file, and holds nothing of it.
func NewTLS(files config.TLS, log *slog.Logger) (*tls.Config, error) {
	if !files.Enabled() {
		return nil, nil
	}
	return newKeyring(files, log, tlsLookInterval)
}

// keyring is what the server's TLS files hold.
type keyring struct {
	files    config.TLS
	log      *slog.Logger
	interval time.Duration // from one look at the files to the next

	current atomic.Pointer[tls.Config]

	mu     sync.Mutex // held by the one handshake that looks at the files
	looked time.Time
	seen   fingerprint // of what was found then, good or bad
}

// newKeyring returns the configuration of a server whose handshakes use what
// the keyring holds.
func newKeyring(files config.TLS, log *slog.Logger, interval time.Duration) (*tls.Config, error) {
	k := &keyring{files: files, log: log, interval: interval, looked: time.Now()}
	cfg, seen, err := loadTLS(files)
	if err != nil {
		return nil, err
	}
	k.seen = seen
	k.current.Store(cfg)
	server := cfg.Clone()
	server.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		k.look(hello.Context())
		return k.current.Load(), nil
	}
	return server, nil
}

// look reads the files again if it is time to. While one handshake does so, the
// others go on with what is there.
func (k *keyring) look(ctx context.Context) {
	if !k.mu.TryLock() {
		return
	}
	defer k.mu.Unlock()
	if time.Since(k.looked) < k.interval {
		return
	}
	k.looked = time.Now()
	cfg, found, err := loadTLS(k.files)
	if found == k.seen {
		return
	}
	k.seen = found
	if err != nil {
		telemetry.Event(ctx, k.log, slog.LevelError, telemetry.EventTLSReloadFailed, slog.Any("error", err))
		return
	}
	k.current.Store(cfg)
	leaf := cfg.Certificates[0].Leaf
	telemetry.Event(ctx, k.log, slog.LevelInfo, telemetry.EventTLSReloaded,
		slog.String("serial", leaf.SerialNumber.Text(16)), slog.Time("not_after", leaf.NotAfter))
}

// fingerprint tells one state of the files from another, those in which they
// can't be read included.
type fingerprint [sha256.Size]byte

// loadTLS reads the files. The fingerprint is valid in any case.
func loadTLS(files config.TLS) (*tls.Config, fingerprint, error) {
	var contents [3][]byte
	var sums []byte
	for i, file := range []struct{ key, path string }{
		{"cert_file", files.CertFile}, {"key_file", files.KeyFile}, {"client_ca_file", files.ClientCAFile},
	} {
		if file.path == "" {
			continue
		}
		content, err := os.ReadFile(file.path)
		if err != nil {
			err = fmt.Errorf("http.tls.%s: %w", file.key, err)
			return nil, sha256.Sum256([]byte(err.Error())), err
		}
		sum := sha256.Sum256(content)
		contents[i], sums = content, append(sums, sum[:]...)
	}
	cfg, err := parseTLS(files, contents[0], contents[1], contents[2])
	return cfg, sha256.Sum256(sums), err
}

// parseTLS makes a configuration of the files' contents.
func parseTLS(files config.TLS, cert, key, clientCAs []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("http.tls: cert_file %s with key_file %s: %w", files.CertFile, files.KeyFile, err)
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if files.ClientCAFile != "" {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		if cfg.ClientCAs, err = parseAuthorities(clientCAs); err != nil {
			return nil, fmt.Errorf("http.tls: client_ca_file %s: %w", files.ClientCAFile, err)
		}
	}
	return cfg, nil
}

// parseAuthorities reads certificates in PEM, every one of them: a file that is
// cut off would otherwise lock out some clients without a word.
func parseAuthorities(content []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	n := 0
	for {
		block, rest := pem.Decode(content)
		if block == nil {
			break
		}
		content = rest
		if block.Type != "CERTIFICATE" {
			return nil, errors.New("it must hold certificates only")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("its certificate %d: %w", n+1, err)
		}
		pool.AddCert(cert)
		n++
	}
	if n == 0 || bytes.Contains(content, []byte("-----BEGIN")) {
		return nil, errors.New("it holds no certificate in PEM, or an incomplete one")
	}
	return pool, nil
}
