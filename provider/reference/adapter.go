// Package reference is the adapter for the reference provider: a small HTTP
// API that takes a refund by POST with an idempotency key and answers
// questions about it by GET. It is also the pattern for other adapters.
//
// The calls: this file sends, encode.go makes the request's body, answers.go
// says what every possible answer means. What the provider says of itself:
// notices.go and the files that it names.
package reference

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"refundgate/provider"
	"refundgate/refund"
)

// Config says where one account's API is and how to sign in.
type Config struct {
	// BaseURL is the root of the API, such as "https://api.example.com". A
	// path in it is kept as a prefix. Required.
	BaseURL string
	// APIKey returns the account's secret. It is asked for each call, so a key
	// can be changed while running, and being a func it never shows when a
	// Config is printed. Required.
	APIKey func() string
	// Exponents are the decimal places in which the account counts amounts,
	// where they aren't those of ISO 4217, which the contract promises.
	// Defaults to none.
	Exponents refund.Exponents
	// Now is the clock that a Retry-After is read against.
	// Defaults to time.Now.
	Now func() time.Time
}

// Adapter implements provider.Adapter for the reference provider.
type Adapter struct {
	base      *url.URL
	apiKey    func() string
	exponents refund.Exponents
	now       func() time.Time
}

var _ provider.Adapter = (*Adapter)(nil)

// New returns the adapter for one account, or an error that says which part
// of the configuration can't work.
func New(cfg Config) (*Adapter, error) {
	base, err := url.Parse(cfg.BaseURL)
	switch {
	case err != nil:
		return nil, errors.New("base URL is not a URL") // the text could hold a password
	case base.Scheme != "http" && base.Scheme != "https":
		return nil, errors.New("base URL must start with http:// or https://")
	case base.Hostname() == "":
		return nil, errors.New("base URL names no host")
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, errors.New("base URL must be only scheme, host and path")
	case cfg.APIKey == nil:
		return nil, errors.New("API key is required")
	}
	if err := checkKey(cfg.APIKey()); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if base.Path == "" {
		base.Path = "/" // JoinPath would make the request's path relative
	}
	return &Adapter{base: base, apiKey: cfg.APIKey, exponents: cfg.Exponents, now: cfg.Now}, nil
}

func checkKey(key string) error {
	if key == "" {
		return errors.New("API key is empty")
	}
	if strings.ContainsFunc(key, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return errors.New("API key contains a space, a line end or a control character")
	}
	return nil
}

// Target returns the scheme and host of the API.
func (a *Adapter) Target() *url.URL {
	return &url.URL{Scheme: a.base.Scheme, Host: a.base.Host}
}

// Contract returns the reference provider's documented promises.
func (a *Adapter) Contract() provider.Contract {
	return provider.Contract{
		IdempotentResends: true,
		KeyLifetime:       24 * time.Hour,
		NotFoundAfter:     60 * time.Second,
		NotFoundChecks:    3,
	}
}

// Submit sends the refund once.
func (a *Adapter) Submit(ctx context.Context, rt http.RoundTripper, s provider.Submission) refund.Result {
	req := a.request(ctx, http.MethodPost, a.base.JoinPath("v1", "refunds"))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", s.Key)
	// GetBody stays nil: with it net/http could send the body a second time.
	req.Body = io.NopCloser(bytes.NewReader(s.Body))
	req.ContentLength = int64(len(s.Body))
	return a.send(rt, req).submitted(s.Refund)
}

// Check asks once what became of the refund: by the provider's id if one is
// known that can be one, otherwise by our reference.
func (a *Adapter) Check(ctx context.Context, rt http.RoundTripper, q provider.Query) refund.Result {
	u := a.base.JoinPath("v1", "refunds")
	if providerID.MatchString(q.ProviderRefundID) {
		u = u.JoinPath(q.ProviderRefundID)
		return a.send(rt, a.request(ctx, http.MethodGet, u)).checkedByID(q)
	}
	u.RawQuery = url.Values{"reference": {q.Refund.ID}}.Encode()
	return a.send(rt, a.request(ctx, http.MethodGet, u)).checkedByReference(q)
}

func (a *Adapter) request(ctx context.Context, method string, u *url.URL) *http.Request {
	req := &http.Request{
		Method: method,
		URL:    u,
		Host:   u.Host,
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{
			"Authorization": {"Bearer " + a.apiKey()},
			"Accept":        {"application/json"},
			// Stops the transport from unpacking behind our back: what is
			// bounded and judged are the bytes that came.
			"Accept-Encoding": {"identity"},
			"User-Agent":      {"refundgate"},
		},
	}
	return req.WithContext(ctx)
}

// send makes the one request, straight on the round tripper: an http.Client
// would follow redirects. The body is read here, within the call's budget.
func (a *Adapter) send(rt http.RoundTripper, req *http.Request) answer {
	secret := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return answer{err: fmt.Errorf("waiting for the answer: %w", err), secret: secret, exponents: a.exponents}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		err = fmt.Errorf("reading the answer: %w", err)
	}
	return answer{
		status: resp.StatusCode,
		header: resp.Header,
		body:   body,
		err:    err,
		now:    a.now(),
		secret: secret,

		exponents: a.exponents,
	}
}
