package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"refundgate/refund"
)

// adapters lists the adapters that an account can name.
var adapters = []string{"reference"}

// The range of starts_per_second: from one call in 100 seconds to one a
// millisecond, which is about as fine as the gate can space them.
const (
	minStartsPerSecond = 0.01
	maxStartsPerSecond = 1000
)

// Validate checks each value and the values against each other. The error has
// one sentence a line; each names the key and says what to do.
func (c Config) Validate() error {
	var v violations
	c.Temporal.validate(&v)
	c.HTTP.validate(&v)
	c.Worker.validate(&v)
	validateClients(&v, c.Clients)
	if c.Inbox.Client != "" && !slices.ContainsFunc(c.Clients, func(one Client) bool { return one.Name == c.Inbox.Client }) {
		v.add("inbox.client is %q, which is none of the clients; name one of them, or none", c.Inbox.Client)
	}
	c.Policy.validate(&v)
	c.Admission.validate(&v, c.Policy)
	seen := map[string]bool{}
	for _, a := range c.Accounts {
		path := "accounts." + a.Name
		if seen[a.Name] {
			v.add("%s is there twice; give each account a name of its own", path)
		}
		seen[a.Name] = true
		a.validate(&v, path, c.Policy)
	}
	return errors.Join(v...)
}

type violations []error

func (v *violations) add(format string, args ...any) { *v = append(*v, fmt.Errorf(format, args...)) }

func (v *violations) positive(key string, d time.Duration) {
	if d <= 0 {
		v.add("%s must be more than zero; it is %s", key, d)
	}
}

func (v *violations) notNegative(key string, d time.Duration) {
	if d < 0 {
		v.add("%s must not be negative; it is %s", key, d)
	}
}

func (v *violations) count(key string, n, highest int) {
	if n < 1 || n > highest {
		v.add("%s must be from 1 to %d; it is %d", key, highest, n)
	}
}

func (t Temporal) validate(v *violations) {
	if _, _, err := net.SplitHostPort(t.Address); err != nil {
		v.add("temporal.address must be host:port, such as 127.0.0.1:7233")
	}
	if t.Namespace == "" {
		v.add("temporal.namespace must not be empty; the usual one is default")
	}
	if t.WebUIURL != "" {
		v.url("temporal.web_ui_url", t.WebUIURL)
	}
}

func (h HTTP) validate(v *violations) {
	if _, _, err := net.SplitHostPort(h.Listen); err != nil {
		v.add("http.listen must be host:port, such as 127.0.0.1:8480")
	}
	v.notNegative("http.drain_delay", h.DrainDelay)
	v.count("http.max_connections", h.MaxConnections, 100_000)
	h.TLS.validate(v)
}

func (t TLS) validate(v *violations) {
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		v.add("http.tls.cert_file needs http.tls.key_file, its private key")
	case t.CertFile == "" && t.KeyFile != "":
		v.add("http.tls.key_file needs http.tls.cert_file, the certificate it belongs to")
	case t.CertFile == "" && t.ClientCAFile != "":
		v.add("http.tls.client_ca_file needs http.tls.cert_file and http.tls.key_file; without TLS no client has a certificate")
	}
}

func (w Worker) validate(v *violations) {
	if _, _, err := net.SplitHostPort(w.MetricsListen); w.MetricsListen != "" && err != nil {
		v.add("worker.metrics_listen must be host:port, such as 127.0.0.1:8481, or empty")
	}
}

// maxClientName is how many characters of a client's name the ledger keeps.
const maxClientName = 64

// maxClientRequests bounds a client's limits; what is above is no limit.
const maxClientRequests = 1_000_000

func validateClients(v *violations, clients []Client) {
	names, tokens := map[string]bool{}, map[string]bool{}
	for i, c := range clients {
		key := fmt.Sprintf("clients[%d]", i)
		switch {
		case c.Name == "":
			v.add("%s.name must not be empty; logs show it", key)
		case utf8.RuneCountInString(c.Name) > maxClientName:
			v.add("%s.name must have %d characters at most", key, maxClientName)
		case names[c.Name]:
			v.add("%s.name is used twice; give each client a name of its own", key)
		}
		names[c.Name] = true
		switch sum, err := hex.DecodeString(c.TokenSHA256); {
		case err != nil || len(sum) != 32:
			v.add("%s.token_sha256 must be 64 hex digits, the SHA-256 of the token; see refundgate.example.yaml for how to make one", key)
		case tokens[string(sum)]:
			v.add("%s.token_sha256 belongs to another client already; give each client a token of its own", key)
		default:
			tokens[string(sum)] = true
		}
		if !(c.RequestsPerSecond >= 0 && c.RequestsPerSecond <= maxClientRequests) {
			v.add("%s.requests_per_second must be from 0 (the default) to %d; it is %v", key, maxClientRequests, c.RequestsPerSecond)
		}
		if c.Burst < 0 || c.Burst > maxClientRequests {
			v.add("%s.burst must be from 0 (the default) to %d; it is %d", key, maxClientRequests, c.Burst)
		}
		if len(c.Scopes) == 0 {
			v.add("%s.scopes must name what the client may do: %s", key, strings.Join(Scopes, ", "))
		}
		for _, s := range c.Scopes {
			if !slices.Contains(Scopes, s) {
				v.add("%s.scopes has the unknown scope %q; there is %s", key, s, strings.Join(Scopes, ", "))
			}
		}
	}
}

func (a Admission) validate(v *violations, p Policy) {
	v.notNegative("admission.max_wait", a.MaxWait)
	if a.MaxWait >= p.Deadline {
		v.add("admission.max_wait is %s, but the whole case has %s; make it shorter than policy.deadline", a.MaxWait, p.Deadline)
	}
	v.count("admission.max_backlog", a.MaxBacklog, 1_000_000)
}

func (p Policy) validate(v *violations) {
	v.count("policy.max_attempts", p.MaxAttempts, 10)
	v.positive("policy.deadline", p.Deadline)
	if len(p.Backoff) < p.MaxAttempts-1 {
		v.add("policy.backoff has %d entries; %d attempts need %d, one for each attempt after the first", len(p.Backoff), p.MaxAttempts, p.MaxAttempts-1)
	}
	for i, w := range p.Backoff {
		key := fmt.Sprintf("policy.backoff[%d]", i)
		v.notNegative(key+".min", w.Min)
		if w.Max < w.Min {
			v.add("%s.max is %s, which is less than min, %s; swap them", key, w.Max, w.Min)
		}
		if w.Max >= p.Deadline && p.Deadline > 0 {
			v.add("%s.max is %s, but the whole case has %s; make it shorter than policy.deadline", key, w.Max, p.Deadline)
		}
	}
	p.Checks.validate(v)
	v.positive("policy.not_sent.initial", p.NotSent.Initial)
	if p.NotSent.Cap < p.NotSent.Initial {
		v.add("policy.not_sent.cap is %s, which is less than initial, %s; raise it", p.NotSent.Cap, p.NotSent.Initial)
	}
}

func (c Checks) validate(v *violations) {
	v.count("policy.checks.max", c.Max, 1000)
	v.positive("policy.checks.initial", c.Initial)
	if c.Cap < c.Initial {
		v.add("policy.checks.cap is %s, which is less than initial, %s; raise it", c.Cap, c.Initial)
	}
	if !(c.Factor >= 1 && c.Factor <= 10) { // this way round, NaN is refused
		v.add("policy.checks.factor must be from 1 to 10; it is %v", c.Factor)
	}
	if !(c.Jitter >= 0 && c.Jitter < 1) {
		v.add("policy.checks.jitter must be from 0 to less than 1; it is %v", c.Jitter)
	}
}

func (a Account) validate(v *violations, path string, p Policy) {
	if err := refund.ValidateAccount(a.Name); err != nil {
		v.add("%s: an account's name %w", path, err)
	}
	if !slices.Contains(adapters, a.Adapter) {
		v.add("%s.adapter is %q, which does not exist; there is %s", path, a.Adapter, strings.Join(adapters, ", "))
	}
	v.url(path+".base_url", a.BaseURL)
	if a.APIKeyEnv != "" && a.APIKeyFile != "" {
		v.add("%s has api_key_env and api_key_file; keep one (an inherited one is removed with \"\")", path)
	}
	validateSecrets(v, path+".notification_secrets", a.NotificationSecrets)
	validateExponents(v, path+".exponents", a.Exponents)
	if !(a.StartsPerSecond >= minStartsPerSecond && a.StartsPerSecond <= maxStartsPerSecond) {
		v.add("%s.starts_per_second must be from %v to %v; it is %v", path, minStartsPerSecond, maxStartsPerSecond, a.StartsPerSecond)
	}
	v.count(path+".max_in_flight", a.MaxInFlight, 1000)
	v.count(path+".waiting_room", a.WaitingRoom, 10000)
	v.positive(path+".connect_timeout", a.ConnectTimeout)
	v.positive(path+".call_timeout", a.CallTimeout)
	if a.ConnectTimeout >= a.CallTimeout {
		v.add("%s.connect_timeout is %s, but the whole call has %s; make it shorter than call_timeout", path, a.ConnectTimeout, a.CallTimeout)
	}
	if a.CallTimeout >= p.Deadline {
		v.add("%s.call_timeout is %s, but the whole case has %s; make it shorter than policy.deadline", path, a.CallTimeout, p.Deadline)
	}
	a.Endpoints.Submit.validate(v, path+".endpoints.submit", a)
	a.Endpoints.Check.validate(v, path+".endpoints.check", a)
	a.Breaker.validate(v, path+".breaker", a)
	a.Contract.validate(v, path+".contract", p)
}

func validateSecrets(v *violations, path string, sources []SecretSource) {
	seen := map[SecretSource]bool{}
	for i, source := range sources {
		key := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case (source.Env == "") == (source.File == ""):
			v.add("%s must name where the secret is: env or file, one of the two", key)
		case seen[source]:
			v.add("%s is there twice; a rotation needs two different secrets", key)
		}
		seen[source] = true
	}
}

func validateExponents(v *violations, path string, exponents refund.Exponents) {
	for _, currency := range slices.Sorted(maps.Keys(exponents)) {
		if _, ok := refund.Exponent(currency); !ok {
			v.add("%s has %q, which is no active ISO 4217 code such as TWD", path, currency)
		}
		if e := exponents[currency]; e < 0 || e > refund.MaxExponent {
			v.add("%s.%s must be from 0 to %d; it is %d", path, currency, refund.MaxExponent, e)
		}
	}
}

func (e Endpoint) validate(v *violations, path string, a Account) {
	switch rate := e.StartsPerSecond; {
	case rate == 0: // no limit of its own
	case !(rate >= minStartsPerSecond):
		v.add("%s.starts_per_second must be %v or more, or 0 for no limit of its own; it is %v", path, minStartsPerSecond, rate)
	case rate > a.StartsPerSecond:
		v.add("%s.starts_per_second is %v, but the whole account has %v; it is a limit under that one", path, rate, a.StartsPerSecond)
	}
	switch {
	case e.MaxInFlight < 0:
		v.add("%s.max_in_flight must not be negative; it is %d", path, e.MaxInFlight)
	case e.MaxInFlight > a.MaxInFlight:
		v.add("%s.max_in_flight is %d, but the whole account has %d; it is a limit under that one", path, e.MaxInFlight, a.MaxInFlight)
	}
}

func (b Breaker) validate(v *violations, path string, a Account) {
	v.count(path+".window", b.Window, 1000)
	if !(b.FailureRate > 0 && b.FailureRate <= 1) {
		v.add("%s.failure_rate must be more than 0 and at most 1; it is %v", path, b.FailureRate)
	}
	v.positive(path+".open_for", b.OpenFor)
	v.count(path+".probes", b.Probes, 100)
	if b.ProbeTimeout <= a.CallTimeout {
		v.add("%s.probe_timeout is %s, but a probe may take %s; make it longer than call_timeout", path, b.ProbeTimeout, a.CallTimeout)
	}
}

func (c Contract) validate(v *violations, path string, p Policy) {
	v.notNegative(path+".key_lifetime", c.KeyLifetime)
	if c.IdempotentResends && c.KeyLifetime <= 0 {
		v.add("%s.key_lifetime must be more than zero where idempotent_resends is true; take it from the provider's documentation", path)
	}
	v.notNegative(path+".not_found_after", c.NotFoundAfter)
	if c.NotFoundAfter > 0 {
		v.count(path+".not_found_checks", c.NotFoundChecks, max(p.Checks.Max, 1))
	}
}

// url checks an absolute http or https URL without anything that could hold a
// secret or get lost when a path is added.
func (v *violations) url(key, s string) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		v.add("%s must be a URL such as https://api.example.com", key)
		return
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		v.add("%s must have no user, query or fragment; credentials are configured on their own", key)
	}
}
