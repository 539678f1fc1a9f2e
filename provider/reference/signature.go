package reference

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"refundgate/provider"
)

const (
	signatureHeader = "Provider-Signature"
	// maxSignature bounds the header, in bytes: room for 50 signatures.
	maxSignature = 4 << 10
	// maxAge is how far the time in a signature may be from ours, either way.
	maxAge = 5 * time.Minute
)

// signature is the parsed header "t=<unix seconds>,v1=<hex>,v1=<hex>...".
type signature struct {
	stamp string // t as it came: what was signed begins with it
	at    time.Time
	macs  [][]byte
}

// verify returns nil if one of the secrets signed the body near now. The error
// is a provider.ErrSignature; only who knows a secret learns about the clocks.
func verify(header http.Header, body []byte, secrets []string, now time.Time) error {
	sig, err := parseSignature(header)
	if err != nil {
		return err
	}
	if !sig.signs(body, secrets) {
		return fmt.Errorf("%w: none of the secrets made it", provider.ErrSignature)
	}
	if age := now.Sub(sig.at); age.Abs() > maxAge {
		return fmt.Errorf("%w: it was made %v before our time", provider.ErrSignature, age.Round(time.Second))
	}
	return nil
}

func parseSignature(header http.Header) (signature, error) {
	values := header.Values(signatureHeader)
	if len(values) == 0 {
		return signature{}, fmt.Errorf("%w: there is none", provider.ErrSignature)
	}
	unreadable := fmt.Errorf("%w: the header can't be read", provider.ErrSignature)
	if len(values) > 1 || len(values[0]) > maxSignature {
		return signature{}, unreadable
	}
	var sig signature
	for part := range strings.SplitSeq(values[0], ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "t":
			seconds, err := strconv.ParseUint(value, 10, 62)
			if err != nil || sig.stamp != "" {
				return signature{}, unreadable
			}
			sig.stamp, sig.at = value, time.Unix(int64(seconds), 0)
		case "v1": // other versions may stand beside it
			mac, err := hex.DecodeString(value)
			if err != nil {
				return signature{}, unreadable
			}
			sig.macs = append(sig.macs, mac)
		}
	}
	if sig.stamp == "" {
		return signature{}, unreadable
	}
	return sig, nil
}

// signs tells whether one of the secrets made one of the signatures. How long
// it takes says nothing about a right one.
func (s signature) signs(body []byte, secrets []string) bool {
	for _, secret := range secrets {
		if secret == "" {
			continue // anybody can sign with nothing
		}
		h := hmac.New(sha256.New, []byte(secret))
		h.Write([]byte(s.stamp + "."))
		h.Write(body)
		want := h.Sum(nil)
		for _, mac := range s.macs {
			if hmac.Equal(mac, want) {
				return true
			}
		}
	}
	return false
}
