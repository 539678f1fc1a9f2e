// Package config reads refundgate's configuration: one YAML file, a few
// environment variables that override it, and secrets that are only ever
// named in the file, never written there.
//
// Every field is documented, with its default, in refundgate.example.yaml at
// the root of the repository; a test holds that file to this package.
package config

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"refundgate/refund"
)

// Config is the whole configuration. Default gives the values that hold where
// the file says nothing.
type Config struct {
	MySQL    MySQL    `yaml:"mysql"`
	Temporal Temporal `yaml:"temporal"`
	HTTP     HTTP     `yaml:"http"`
	Worker   Worker   `yaml:"worker"`
	// Clients are the callers of the intake API.
	Clients []Client `yaml:"clients"`
	Inbox   Inbox    `yaml:"inbox"`
	// Admission limits what may wait.
	Admission Admission `yaml:"admission"`
	Policy    Policy    `yaml:"policy"`
	// Defaults holds what every account inherits, value by value.
	Defaults Account `yaml:"defaults"`
	// Accounts are the provider accounts, by name, with the defaults already
	// merged in. In the file they are a mapping from name to overrides.
	Accounts []Account `yaml:"-"`
}

// MySQL is where the ledger lives.
type MySQL struct {
	// DSN is in the form of go-sql-driver/mysql. In the file it must not hold
	// a password; after Load it does, so it is a Secret. Empty means that no
	// database is configured. Defaults to empty.
	DSN Secret `yaml:"dsn"`
	// PasswordEnv or PasswordFile names where the password is; at most one.
	PasswordEnv  string `yaml:"password_env"`
	PasswordFile string `yaml:"password_file"`
}

// HTTP is the intake API's server.
type HTTP struct {
	// Listen is the address to listen on. Defaults to 127.0.0.1:8480.
	Listen string `yaml:"listen"`
	// DrainDelay is how long a stopping server says "not ready" and still
	// serves, so that load balancers move away first. Defaults to 1s.
	DrainDelay time.Duration `yaml:"drain_delay"`
	// MaxConnections is how many connections may be open at once, idle ones
	// too; those over it wait to be accepted until one closes. Each is a file
	// descriptor. From 1 to 100000. Defaults to 1024.
	MaxConnections int `yaml:"max_connections"`
	// TLS makes the server speak HTTPS.
	TLS TLS `yaml:"tls"`
}

// Scheme is what the server's URLs begin with: https or http.
func (h HTTP) Scheme() string {
	if h.TLS.Enabled() {
		return "https"
	}
	return "http"
}

// TLS names the PEM files of a server that speaks TLS, 1.2 or later. All of
// them are read again when they change, without a restart.
type TLS struct {
	// CertFile holds the server's certificate, followed by the intermediate
	// ones. Defaults to empty: the server speaks plain HTTP.
	CertFile string `yaml:"cert_file"`
	// KeyFile holds the certificate's private key, not encrypted. It goes with
	// CertFile.
	KeyFile string `yaml:"key_file"`
	// ClientCAFile holds the authorities of which every client must present a
	// certificate, beside its token. Defaults to empty: no client has to.
	ClientCAFile string `yaml:"client_ca_file"`
}

// Enabled tells whether the server speaks TLS.
func (t TLS) Enabled() bool { return t.CertFile != "" }

// Worker is the worker process.
type Worker struct {
	// MetricsListen is the address at which a worker shows its own metrics.
	// Those of its egress are on the intake API's /metrics as well. Defaults to
	// empty: it doesn't listen.
	MetricsListen string `yaml:"metrics_listen"`
}

// Client is one caller of the intake API.
type Client struct {
	// Name appears in logs and in the cases that the client submitted; at most
	// 64 characters. A client of another name doesn't see those cases.
	Name string `yaml:"name"`
	// TokenSHA256 is the SHA-256 of the client's bearer token, in hex. The
	// token must be random (32 bytes from a generator), so that the hash of a
	// guess never matches.
	TokenSHA256 string `yaml:"token_sha256"`
	// Scopes are what the client may do; at least one of the scopes below.
	Scopes []string `yaml:"scopes"`
	// RequestsPerSecond is how many requests it may make per second in the long
	// run. 0 means DefaultRequestsPerSecond. Defaults to 0.
	RequestsPerSecond float64 `yaml:"requests_per_second"`
	// Burst is how many it may make at once after a while of none. 0 means
	// DefaultBurst. Defaults to 0.
	Burst int `yaml:"burst"`
}

// What a client may do where nothing else is said: twenty times what one
// account's default budget can send, and a batch at once.
const (
	DefaultRequestsPerSecond = 100
	DefaultBurst             = 1000
)

// Inbox is about the refunds that come as rows of refund_inbox.
type Inbox struct {
	// Client is the name of the client whose cases they become, and who sees
	// them. Defaults to nobody's: those see them who may see all.
	Client string `yaml:"client"`
}

// Admission says how much may wait in each account before new refunds are
// refused. What is accepted is never dropped.
type Admission struct {
	// MaxWait is how long a new refund may have to wait, by what waits already
	// and how quickly it is worked off. Shorter than the policy's deadline, or
	// the promise is broken when it is made. 0 means two thirds of it. Defaults
	// to 0.
	MaxWait time.Duration `yaml:"max_wait"`
	// MaxBacklog is how many cases may be open, those with people aside.
	// Defaults to 10000.
	MaxBacklog int `yaml:"max_backlog"`
}

// WaitLimit is MaxWait or its default under the policy's deadline.
func (a Admission) WaitLimit(deadline time.Duration) time.Duration {
	if a.MaxWait == 0 {
		return deadline * 2 / 3
	}
	return a.MaxWait
}

// What a client can be allowed to do.
const (
	ScopeWrite   = "refunds:write"    // submit refunds
	ScopeRead    = "refunds:read"     // look up the cases that it submitted itself
	ScopeReadAll = "refunds:read-all" // look up all cases
	ScopeReview  = "review"           // look up all cases and act on them
)

// Scopes lists every scope.
var Scopes = []string{ScopeWrite, ScopeRead, ScopeReadAll, ScopeReview}

// Policy says how long and how often a refund is tried before people take it.
type Policy struct {
	// MaxAttempts is how many automatic sends of a refund may have reached
	// the provider. Defaults to 3.
	MaxAttempts int `yaml:"max_attempts"`
	// Deadline is how long after acceptance a case without a final result
	// goes to review. Defaults to 15m.
	Deadline time.Duration `yaml:"deadline"`
	// Backoff holds the wait before the second attempt, the third, and so on:
	// at least MaxAttempts-1 entries. Defaults to 1s..2s, 1s..4s.
	Backoff []Wait `yaml:"backoff"`
	// Checks is the schedule of result checks.
	Checks Checks `yaml:"checks"`
	// NotSent is the schedule after a send that provably did not leave.
	NotSent NotSent `yaml:"not_sent"`
}

// Wait is a span from which a wait is drawn uniformly.
type Wait struct {
	Min time.Duration `yaml:"min"`
	Max time.Duration `yaml:"max"`
}

// Checks is how the result of an unfinished refund is asked for.
type Checks struct {
	// Max is how many checks are made at most. Defaults to 20.
	Max int `yaml:"max"`
	// Initial is the wait before the first check. Defaults to 2s.
	Initial time.Duration `yaml:"initial"`
	// Factor is what each wait is multiplied with to get the next; 1 or more.
	// Defaults to 2.
	Factor float64 `yaml:"factor"`
	// Cap is the longest wait; it holds after jitter. Defaults to 60s.
	Cap time.Duration `yaml:"cap"`
	// Jitter is the share of the wait by which it varies either way, from 0
	// to less than 1. Defaults to 0.5.
	Jitter float64 `yaml:"jitter"`
}

// NotSent is how a send that used up no attempt is tried again.
type NotSent struct {
	// Initial is the first wait; it doubles from there. Defaults to 1s.
	Initial time.Duration `yaml:"initial"`
	// Cap is the longest wait. Defaults to 30s.
	Cap time.Duration `yaml:"cap"`
}

// Account is one account with a payment provider. Each has its own queue,
// gate and owner.
type Account struct {
	// Name is the account's key in the file.
	Name string `yaml:"-"`
	// Adapter speaks the provider's protocol. Defaults to reference.
	Adapter string `yaml:"adapter"`
	// BaseURL is where the provider's API is: scheme, host, optional path.
	BaseURL string `yaml:"base_url"`
	// APIKeyEnv or APIKeyFile names where the provider's API key is; see
	// APIKey. Only the process that owns the egress needs it.
	APIKeyEnv  string `yaml:"api_key_env"`
	APIKeyFile string `yaml:"api_key_file"`
	// NotificationSecrets name where the secrets are with which the provider
	// signs its notifications: one, or for the time of a rotation the old and
	// the new one. Only the processes that serve need them. Defaults to none:
	// notifications for the account are not taken.
	NotificationSecrets []SecretSource `yaml:"notification_secrets"`
	// Exponents are the decimal places in which the provider counts amounts, by
	// currency, where they are not those of ISO 4217; from 0 to
	// refund.MaxExponent. An amount that it can't be asked for is refused before
	// it is accepted. Defaults to none.
	Exponents refund.Exponents `yaml:"exponents"`
	// StartsPerSecond is how many calls may start per second, evenly spaced.
	// Defaults to 5.
	StartsPerSecond float64 `yaml:"starts_per_second"`
	// MaxInFlight is how many calls may be under way at once. Defaults to 10.
	MaxInFlight int `yaml:"max_in_flight"`
	// ConnectTimeout is the budget for DNS, TCP and TLS. Defaults to 1s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// CallTimeout is the budget for a whole call, connecting included; waiting
	// for a slot is not part of it. Defaults to 3s.
	CallTimeout time.Duration `yaml:"call_timeout"`
	// WaitingRoom is how many calls wait in the egress for their slot; what
	// does not fit stays in Temporal. Defaults to 32.
	WaitingRoom int `yaml:"waiting_room"`
	// Endpoints limits calls of one kind further, under the account's budget.
	Endpoints Endpoints `yaml:"endpoints"`
	// Breaker stops calls while the provider fails.
	Breaker Breaker `yaml:"breaker"`
	// Contract is what the provider promises.
	Contract Contract `yaml:"contract"`
}

// SecretSource names where a secret is: one of the two.
type SecretSource struct {
	Env  string `yaml:"env"`  // name of an environment variable
	File string `yaml:"file"` // path of a file; its trailing newline doesn't count
}

// Endpoints are the limits that a provider sets for one of its endpoints.
type Endpoints struct {
	// Submit limits the calls that send refunds.
	Submit Endpoint `yaml:"submit"`
	// Check limits the calls that ask for a refund's result.
	Check Endpoint `yaml:"check"`
}

// Endpoint is a limit under the account's. Zero values mean none.
type Endpoint struct {
	// StartsPerSecond is at most the account's.
	StartsPerSecond float64 `yaml:"starts_per_second"`
	// MaxInFlight is at most the account's.
	MaxInFlight int `yaml:"max_in_flight"`
}

// Breaker is an account's circuit breaker.
type Breaker struct {
	// Window is how many of the latest results are looked at. Defaults to 10.
	Window int `yaml:"window"`
	// FailureRate is the share of failures among them, once that many are in,
	// from which on calls wait. Defaults to 0.5.
	FailureRate float64 `yaml:"failure_rate"`
	// OpenFor is how long they wait before a few are let out to see. Defaults
	// to 30s.
	OpenFor time.Duration `yaml:"open_for"`
	// Probes is how many those are. Fewer than half failing ends the wait.
	// Defaults to 3.
	Probes int `yaml:"probes"`
	// ProbeTimeout is how long their results are waited for; what is missing
	// then has failed. Longer than call_timeout. Defaults to 30s.
	ProbeTimeout time.Duration `yaml:"probe_timeout"`
}

// Contract has the fields of refund.Contract and converts to it.
type Contract struct {
	// IdempotentResends: a second send with the same key and bytes has no
	// second effect. Defaults to true, which the reference provider promises.
	IdempotentResends bool `yaml:"idempotent_resends"`
	// KeyLifetime is how long after first use the key does so. Defaults to 24h.
	KeyLifetime time.Duration `yaml:"key_lifetime"`
	// NotFoundAfter is how long after the last possible send "not found" may
	// count; 0 means never. Defaults to 60s.
	NotFoundAfter time.Duration `yaml:"not_found_after"`
	// NotFoundChecks is how many checks in a row must find nothing. Defaults
	// to 3.
	NotFoundChecks int `yaml:"not_found_checks"`
}

// Default returns the configuration that holds without a file: no database,
// no accounts and no clients, and for the rest the documented defaults.
func Default() Config {
	return Config{
		Temporal: Temporal{
			Address:   "127.0.0.1:7233",
			Namespace: "default",
			WebUIURL:  "http://127.0.0.1:8233",
		},
		HTTP: HTTP{
			Listen:         "127.0.0.1:8480",
			DrainDelay:     time.Second,
			MaxConnections: 1024,
		},
		Admission: Admission{MaxBacklog: 10_000},
		Policy: Policy{
			MaxAttempts: 3,
			Deadline:    15 * time.Minute,
			Backoff: []Wait{
				{Min: 1 * time.Second, Max: 2 * time.Second},
				{Min: 1 * time.Second, Max: 4 * time.Second},
			},
			Checks:  Checks{Max: 20, Initial: 2 * time.Second, Factor: 2, Cap: time.Minute, Jitter: 0.5},
			NotSent: NotSent{Initial: time.Second, Cap: 30 * time.Second},
		},
		Defaults: Account{
			Adapter:         "reference",
			StartsPerSecond: 5,
			MaxInFlight:     10,
			ConnectTimeout:  1 * time.Second,
			CallTimeout:     3 * time.Second,
			WaitingRoom:     32,
			Breaker: Breaker{
				Window: 10, FailureRate: 0.5, OpenFor: 30 * time.Second,
				Probes: 3, ProbeTimeout: 30 * time.Second,
			},
			Contract: Contract{
				IdempotentResends: true,
				KeyLifetime:       24 * time.Hour,
				NotFoundAfter:     time.Minute,
				NotFoundChecks:    3,
			},
		},
	}
}

// Account returns the account of that name. The error of an unknown name
// lists the known ones.
func (c Config) Account(name string) (Account, error) {
	i := slices.IndexFunc(c.Accounts, func(a Account) bool { return a.Name == name })
	if i < 0 {
		known := "there are none"
		if len(c.Accounts) > 0 {
			known = "there is " + strings.Join(c.AccountNames(), ", ")
		}
		return Account{}, fmt.Errorf("account %q is not in the configuration; %s", name, known)
	}
	return c.Accounts[i], nil
}

// AccountNames returns the names of the accounts in alphabetical order.
func (c Config) AccountNames() []string {
	names := make([]string, len(c.Accounts))
	for i, a := range c.Accounts {
		names[i] = a.Name
	}
	slices.Sort(names)
	return names
}

// Exponents returns each account's.
func (c Config) Exponents() map[string]refund.Exponents {
	all := make(map[string]refund.Exponents, len(c.Accounts))
	for _, a := range c.Accounts {
		all[a.Name] = a.Exponents
	}
	return all
}

// StartInterval is the time between two call starts: 200 ms at 5 per second.
func (a Account) StartInterval() time.Duration { return interval(a.StartsPerSecond) }

// StartInterval is the time between two call starts at this endpoint; 0 where
// it has no limit of its own.
func (e Endpoint) StartInterval() time.Duration {
	if e.StartsPerSecond == 0 {
		return 0
	}
	return interval(e.StartsPerSecond)
}

// interval never comes out shorter than the rate allows.
func interval(perSecond float64) time.Duration {
	return time.Duration(math.Ceil(float64(time.Second) / perSecond))
}

// APIKey reads the account's API key from where the configuration says it is.
func (a Account) APIKey(env func(string) string) (Secret, error) {
	key, err := readSecret(a.APIKeyEnv, a.APIKeyFile, env)
	if err != nil {
		return "", fmt.Errorf("accounts.%s: reading the API key: %w", a.Name, err)
	}
	if key == "" {
		return "", fmt.Errorf("accounts.%s has no API key; set api_key_env or api_key_file", a.Name)
	}
	return key, nil
}

// ReadNotificationSecrets reads the account's notification secrets from where
// the configuration says they are; nil if it names none.
func (a Account) ReadNotificationSecrets(env func(string) string) ([]Secret, error) {
	var secrets []Secret
	for i, source := range a.NotificationSecrets {
		secret, err := readSecret(source.Env, source.File, env)
		if err != nil {
			return nil, fmt.Errorf("accounts.%s.notification_secrets[%d]: %w", a.Name, i, err)
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}
