package config

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

const examplePath = "../../refundgate.example.yaml"

func noEnv(string) string { return "" }

// TestExample holds the example file to the code: it lists every field, and
// its values are the defaults.
func TestExample(t *testing.T) {
	t.Parallel()
	cfg, err := Load(examplePath, noEnv)
	require.NoError(t, err)

	want := Default()
	sum := sha256.Sum256([]byte("example-token-never-use-this-one"))
	want.Clients = []Client{{Name: "orders", TokenSHA256: hex.EncodeToString(sum[:]), Scopes: []string{"refunds:write", "refunds:read"}}}
	want.Defaults.NotificationSecrets = []SecretSource{} // how the file says none
	want.Defaults.Exponents = refund.Exponents{}
	main := want.Defaults
	main.Name, main.BaseURL, main.APIKeyEnv = "main", "http://127.0.0.1:8490", "REFUNDGATE_MAIN_API_KEY"
	main.NotificationSecrets = []SecretSource{{Env: "REFUNDGATE_MAIN_NOTIFICATION_SECRET"}}
	want.Accounts = []Account{main}
	require.Equal(t, want, cfg)

	b, err := os.ReadFile(examplePath)
	require.NoError(t, err)
	file, err := parser.ParseBytes(b, 0)
	require.NoError(t, err)
	var missing []string
	missingKeys(&missing, "", reflect.TypeFor[document](), file.Docs[0].Body)
	require.Empty(t, missing, "fields that the example does not mention")
}

// missingKeys collects the fields of typ that the node does not mention.
func missingKeys(missing *[]string, path string, typ reflect.Type, n ast.Node) {
	switch typ.Kind() {
	case reflect.Slice:
		if values := n.(*ast.SequenceNode).Values; len(values) > 0 { // an empty list stands for its default
			missingKeys(missing, path+"[]", typ.Elem(), values[0])
		}
	case reflect.Struct:
		for i := range typ.NumField() {
			field := typ.Field(i)
			key := field.Tag.Get("yaml")
			if field.Anonymous {
				missingKeys(missing, path, field.Type, n)
				continue
			}
			if key == "-" || !field.IsExported() {
				continue
			}
			var value ast.Node
			for _, pair := range n.(*ast.MappingNode).Values {
				if pair.Key.String() == key {
					value = pair.Value
				}
			}
			if value == nil {
				*missing = append(*missing, join(path, key))
			} else {
				missingKeys(missing, join(path, key), field.Type, value)
			}
		}
	}
}

func TestAccountsInheritValueByValue(t *testing.T) {
	t.Parallel()
	cfg := load(t, `
accounts:
  slow:
    base_url: https://slow.example.com
    starts_per_second: 0.5
    contract:
      idempotent_resends: false
    endpoints: {submit: {starts_per_second: 0.3}}
    exponents: {KWD: 2}
  plain:
defaults:
  exponents: {TWD: 0}
  base_url: https://api.example.com
  call_timeout: 4s
  endpoints: {check: {max_in_flight: 2}}
`, noEnv)
	require.Equal(t, []string{"plain", "slow"}, cfg.AccountNames())

	plain, err := cfg.Account("plain")
	require.NoError(t, err)
	require.Equal(t, "https://api.example.com", plain.BaseURL)
	require.Equal(t, 4*time.Second, plain.CallTimeout)
	require.Equal(t, time.Second, plain.ConnectTimeout, "a default that the file does not mention")
	require.Equal(t, 200*time.Millisecond, plain.StartInterval())

	slow, err := cfg.Account("slow")
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, slow.StartInterval())
	require.Equal(t, 4*time.Second, slow.CallTimeout)
	require.Equal(t, refund.Contract{KeyLifetime: 24 * time.Hour, NotFoundAfter: time.Minute, NotFoundChecks: 3},
		refund.Contract(slow.Contract), "one contract value differs, the others are inherited")

	require.Equal(t, Endpoints{Check: Endpoint{MaxInFlight: 2}}, plain.Endpoints)
	require.Zero(t, plain.Endpoints.Check.StartInterval(), "no limit of its own")
	require.Equal(t, Endpoints{Submit: Endpoint{StartsPerSecond: 0.3}, Check: Endpoint{MaxInFlight: 2}}, slow.Endpoints)
	require.Equal(t, 3333333334*time.Nanosecond, slow.Endpoints.Submit.StartInterval(), "never more than the rate")

	require.Equal(t, map[string]refund.Exponents{"plain": {"TWD": 0}, "slow": {"KWD": 2}}, cfg.Exponents(), "a mapping as a whole")

	_, err = cfg.Account("other")
	require.EqualError(t, err, `account "other" is not in the configuration; there is plain, slow`)
}

func TestEmptyFilesAreTheDefaults(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "# nothing yet\n", "---\n", "policy:\naccounts:\n"} {
		require.Equal(t, Default(), load(t, content, noEnv), "%q", content)
	}
	cfg, err := Load("", noEnv)
	require.NoError(t, err)
	require.Equal(t, Default(), cfg)
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	path := write(t, "temporal: {address: file:1, namespace: file}\nmysql: {dsn: \"app@tcp(file:3306)/refunds\"}\n")
	env := map[string]string{
		"REFUNDGATE_CONFIG":        path,
		"REFUNDGATE_MYSQL_DSN":     "app:pw@tcp(env:3306)/refunds",
		"TEMPORAL_ADDRESS":         "env:7233",
		"TEMPORAL_NAMESPACE":       "refunds",
		"TEMPORAL_API_KEY":         "key",
		"TEMPORAL_TLS_SERVER_NAME": "temporal.internal",
	}
	cfg, err := Load("", func(k string) string { return env[k] })
	require.NoError(t, err)
	require.Equal(t, "app:pw@tcp(env:3306)/refunds", cfg.MySQL.DSN.Reveal())

	opts := cfg.Temporal.ClientOptions()
	require.Equal(t, "env:7233", opts.HostPort)
	require.Equal(t, "refunds", opts.Namespace)
	require.NotNil(t, opts.Credentials)
	require.Equal(t, "temporal.internal", opts.ConnectionOptions.TLS.ServerName)

	cfg.Temporal.Address = "elsewhere:7233"
	require.Equal(t, "elsewhere:7233", cfg.Temporal.ClientOptions().HostPort, "what is set later counts")

	delete(env, "TEMPORAL_ADDRESS")
	cfg, err = Load("", func(k string) string { return env[k] })
	require.NoError(t, err)
	require.Equal(t, "file:1", cfg.Temporal.Address)

	env["TEMPORAL_TLS_SERVER_CA_CERT_PATH"] = "/does/not/exist"
	_, err = Load("", func(k string) string { return env[k] })
	require.ErrorContains(t, err, "TEMPORAL_* environment variables")
}

func TestMySQLPassword(t *testing.T) {
	t.Parallel()
	passwordFile := write(t, "p/w:@ word\n")
	const want = "app:p/w:@ word@tcp(db:3306)/refunds?parseTime=true"
	env := func(k string) string { return map[string]string{"DB_PW": "p/w:@ word"}[k] }
	const dsn = `dsn: "app@tcp(db:3306)/refunds?parseTime=true"`

	require.Equal(t, want, load(t, "mysql: {"+dsn+", password_env: DB_PW}", env).MySQL.DSN.Reveal())
	require.Equal(t, want, load(t, "mysql: {"+dsn+", password_file: "+passwordFile+"}", env).MySQL.DSN.Reveal())
	require.Equal(t, "app@tcp(db:3306)/refunds?parseTime=true", load(t, "mysql: {"+dsn+"}", env).MySQL.DSN.Reveal())
}

// TestRefusals: each refusal is a sentence that names the key and its line
// where it is about the file's form.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const account = "accounts: {main: {base_url: http://x, "
	for content, want := range map[string]string{
		// the form
		"policy:\n  deadlin: 15m\n":                       ":2: policy.deadlin is not a known key; see refundgate.example.yaml",
		"accounts:\n  main:\n    rate: 5\n":               ":3: accounts.main.rate is not a known key; see refundgate.example.yaml",
		"mysql:\n  passwort: x\n":                         ":2: mysql.passwort is not a known key; see refundgate.example.yaml",
		"\"a\\nb\": 1\n":                                  `:1: "a\nb" is not a known key`,
		"policy: {deadline: 900}":                         ":1: policy.deadline must be a duration with a unit, such as 200ms, 3s or 15m",
		"policy: {deadline: soon}":                        ":1: policy.deadline must be a duration with a unit",
		"policy: {max_attempts: 2.5}":                     ":1: policy.max_attempts must be a whole number",
		"policy: {max_attempts: 1e40}":                    ":1: policy.max_attempts must be a whole number",
		"policy: {checks: 5}":                             ":1: policy.checks must be a mapping of keys to values",
		"policy: {backoff: 1s}":                           ":1: policy.backoff must be a list",
		"policy: {backoff: [{min: 1s}, {max: 1}]}":        ":1: policy.backoff[1].max must be a duration",
		"http: {listen: 8480}":                            ":1: http.listen must be a string",
		"http: &h {listen: \"x:1\"}":                      ":1: http must be a mapping of keys to values",
		"1: 2\n":                                          ":1: 1 must be a plain string as a key",
		"defaults: {contract: {idempotent_resends: yes}}": ":1: defaults.contract.idempotent_resends must be true or false",
		"defaults: {starts_per_second: fast}":             ":1: defaults.starts_per_second must be a number",
		"- a\n":                                           ":1: the file must be a mapping of keys to values",
		"policy: [":                                       ":1: sequence end token ']' not found",
		"accounts:\n  main: {base_url: http://x}\n  main: {base_url: http://y}\n": `:3: mapping key "main" already defined at [2:3]`,
		"http:\n---\nhttp:\n": ": holds 2 YAML documents; it must be one",

		// the values
		"temporal: {address: localhost}":                                     "temporal.address must be host:port, such as 127.0.0.1:7233",
		"temporal: {namespace: \"\"}":                                        "temporal.namespace must not be empty; the usual one is default",
		"temporal: {web_ui_url: \"localhost:8233\"}":                         "temporal.web_ui_url must be a URL such as https://api.example.com",
		"http: {listen: \"8480\"}":                                           "http.listen must be host:port, such as 127.0.0.1:8480",
		"worker: {metrics_listen: \"8481\"}":                                 "worker.metrics_listen must be host:port, such as 127.0.0.1:8481, or empty",
		"http: {max_connections: 0}":                                         "http.max_connections must be from 1 to 100000; it is 0",
		"http: {max_connections: 100001}":                                    "http.max_connections must be from 1 to 100000; it is 100001",
		"http: {tls: {cert: a}}":                                             ":1: http.tls.cert is not a known key; see refundgate.example.yaml",
		"http: {tls: {cert_file: a}}":                                        "http.tls.cert_file needs http.tls.key_file, its private key",
		"http: {tls: {key_file: a, client_ca_file: b}}":                      "http.tls.key_file needs http.tls.cert_file, the certificate it belongs to",
		"http: {tls: {client_ca_file: a}}":                                   "http.tls.client_ca_file needs http.tls.cert_file and http.tls.key_file; without TLS no client has a certificate",
		"http: {drain_delay: -1s}":                                           "http.drain_delay must not be negative; it is -1s",
		"mysql: {dsn: \"app:pw@tcp(db)/x\"}":                                 "mysql.dsn must not hold a password; put it where mysql.password_env or mysql.password_file says, or give the whole DSN in REFUNDGATE_MYSQL_DSN",
		"mysql: {dsn: nonsense}":                                             "mysql.dsn is not a DSN such as user@tcp(host:3306)/refundgate",
		"mysql: {dsn: \"app@tcp(db)/x\", password_env: NOT_SET}":             "mysql: reading the password: the environment variable NOT_SET is empty or not set",
		"mysql: {dsn: \"app@tcp(db)/x\", password_file: /no/such}":           "mysql: reading the password: open /no/such: no such file or directory",
		"mysql: {dsn: \"app@tcp(db)/x\", password_env: A, password_file: b}": "mysql.password_env and mysql.password_file are both set; keep one",
		"policy: {max_attempts: 0}":                                          "policy.max_attempts must be from 1 to 10; it is 0",
		"policy: {max_attempts: 4}":                                          "policy.backoff has 2 entries; 4 attempts need 3, one for each attempt after the first",
		"policy: {deadline: 0s}":                                             "policy.deadline must be more than zero; it is 0s",
		"policy: {backoff: [{min: 2s, max: 1s}, {min: -1s, max: 1s}]}":       "policy.backoff[0].max is 1s, which is less than min, 2s; swap them\npolicy.backoff[1].min must not be negative; it is -1s",
		"policy: {backoff: [{max: 1s}, {max: 20m}]}":                         "policy.backoff[1].max is 20m0s, but the whole case has 15m0s; make it shorter than policy.deadline",
		"policy: {checks: {max: 0}}":                                         "policy.checks.max must be from 1 to 1000; it is 0",
		"policy: {checks: {initial: 0s}}":                                    "policy.checks.initial must be more than zero; it is 0s",
		"policy: {checks: {cap: 1s}}":                                        "policy.checks.cap is 1s, which is less than initial, 2s; raise it",
		"policy: {checks: {factor: 0.5}}":                                    "policy.checks.factor must be from 1 to 10; it is 0.5",
		"policy: {checks: {factor: .nan}}":                                   "policy.checks.factor must be ",
		"policy: {checks: {jitter: 1}}":                                      "policy.checks.jitter must be from 0 to less than 1; it is 1",
		"policy: {not_sent: {initial: 1m}}":                                  "policy.not_sent.cap is 30s, which is less than initial, 1m0s; raise it",
		"accounts: {Main: {base_url: http://x}}":                             "accounts.Main: an account's name must be 1 to 32 characters of a-z 0-9 _ - and start with a letter or digit",
		"accounts: {main: {}}":                                               "accounts.main.base_url must be a URL such as https://api.example.com",
		"accounts: {main: {base_url: \"ftp://x\"}}":                          "accounts.main.base_url must be a URL such as https://api.example.com",
		"accounts: {main: {base_url: \"http://u:p@x\"}}":                     "accounts.main.base_url must have no user, query or fragment; credentials are configured on their own",
		account + "adapter: paypal}}":                                        `accounts.main.adapter is "paypal", which does not exist; there is reference`,
		account + "api_key_env: A, api_key_file: b}}":                        `accounts.main has api_key_env and api_key_file; keep one (an inherited one is removed with "")`,
		account + "notification_secrets: [{}]}}":                             "accounts.main.notification_secrets[0] must name where the secret is: env or file, one of the two",
		account + "notification_secrets: [{env: A, file: b}]}}":              "accounts.main.notification_secrets[0] must name where the secret is: env or file, one of the two",
		account + "notification_secrets: [{env: A}, {file: A}, {env: A}]}}":  "accounts.main.notification_secrets[2] is there twice; a rotation needs two different secrets",
		account + "notification_secrets: [hunter2]}}":                        ":1: accounts.main.notification_secrets[0] must be a mapping of keys to values",
		account + "exponents: {TWD: 4}}}":                                    "accounts.main.exponents.TWD must be from 0 to 3; it is 4",
		account + "exponents: {TWD: -1, twd: 0}}}":                           "accounts.main.exponents.TWD must be from 0 to 3; it is -1\naccounts.main.exponents has \"twd\", which is no active ISO 4217 code such as TWD",
		account + "exponents: {TWD: 0.5}}}":                                  ":1: accounts.main.exponents.TWD must be a whole number",
		account + "starts_per_second: 0}}":                                   "accounts.main.starts_per_second must be from 0.01 to 1000; it is 0",
		account + "starts_per_second: -5}}":                                  "accounts.main.starts_per_second must be from 0.01 to 1000; it is -5",
		account + "starts_per_second: .inf}}":                                "accounts.main.starts_per_second must be ",
		account + "endpoints: {submit: {starts_per_second: 6}}}}":            "accounts.main.endpoints.submit.starts_per_second is 6, but the whole account has 5; it is a limit under that one",
		account + "endpoints: {check: {starts_per_second: -1}}}}":            "accounts.main.endpoints.check.starts_per_second must be 0.01 or more, or 0 for no limit of its own; it is -1",
		account + "endpoints: {check: {starts_per_second: .nan}}}}":          "accounts.main.endpoints.check.starts_per_second must be ",
		account + "endpoints: {check: {max_in_flight: 11}}}}":                "accounts.main.endpoints.check.max_in_flight is 11, but the whole account has 10; it is a limit under that one",
		account + "endpoints: {check: {max_in_flight: -1}}}}":                "accounts.main.endpoints.check.max_in_flight must not be negative; it is -1",
		account + "endpoints: {refund: {}}}}":                                "accounts.main.endpoints.refund is not a known key",
		account + "max_in_flight: 0}}":                                       "accounts.main.max_in_flight must be from 1 to 1000; it is 0",
		account + "waiting_room: -1}}":                                       "accounts.main.waiting_room must be from 1 to 10000; it is -1",
		account + "connect_timeout: 0s}}":                                    "accounts.main.connect_timeout must be more than zero; it is 0s",
		account + "connect_timeout: 3s}}":                                    "accounts.main.connect_timeout is 3s, but the whole call has 3s; make it shorter than call_timeout",
		account + "call_timeout: 20m}}":                                      "accounts.main.call_timeout is 20m0s, but the whole case has 15m0s; make it shorter than policy.deadline",
		account + "breaker: {window: 0}}}":                                   "accounts.main.breaker.window must be from 1 to 1000; it is 0",
		account + "breaker: {failure_rate: 1.5}}}":                           "accounts.main.breaker.failure_rate must be more than 0 and at most 1; it is 1.5",
		account + "breaker: {open_for: 0s}}}":                                "accounts.main.breaker.open_for must be more than zero; it is 0s",
		account + "breaker: {probes: 0}}}":                                   "accounts.main.breaker.probes must be from 1 to 100; it is 0",
		account + "breaker: {probe_timeout: 3s}}}":                           "accounts.main.breaker.probe_timeout is 3s, but a probe may take 3s; make it longer than call_timeout",
		account + "contract: {key_lifetime: 0s}}}":                           "accounts.main.contract.key_lifetime must be more than zero where idempotent_resends is true; take it from the provider's documentation",
		account + "contract: {not_found_after: -1s}}}":                       "accounts.main.contract.not_found_after must not be negative; it is -1s",
		account + "contract: {not_found_checks: 21}}}":                       "accounts.main.contract.not_found_checks must be from 1 to 20; it is 21",
		"clients: [{token_sha256: abc, scopes: [admin]}]": "clients[0].name must not be empty; logs show it\n" +
			"clients[0].token_sha256 must be 64 hex digits, the SHA-256 of the token; see refundgate.example.yaml for how to make one\n" +
			`clients[0].scopes has the unknown scope "admin"; there is refunds:write, refunds:read, refunds:read-all, review`,
		"clients: [{name: " + strings.Repeat("x", 65) + ", token_sha256: \"" + strings.Repeat("0", 64) + "\", scopes: [review]}]":            "clients[0].name must have 64 characters at most",
		"clients: [{name: a, token_sha256: \"" + strings.Repeat("0", 64) + "\", scopes: [review], requests_per_second: -1, burst: 1000001}]": "clients[0].requests_per_second must be from 0 (the default) to 1000000; it is -1\nclients[0].burst must be from 0 (the default) to 1000000; it is 1000001",
		"inbox: {client: orders}":     "inbox.client is \"orders\", which is none of the clients; name one of them, or none",
		"admission: {max_wait: 15m}":  "admission.max_wait is 15m0s, but the whole case has 15m0s; make it shorter than policy.deadline",
		"admission: {max_wait: -1s}":  "admission.max_wait must not be negative; it is -1s",
		"admission: {max_backlog: 0}": "admission.max_backlog must be from 1 to 1000000; it is 0",
		twoClients:                    "clients[1].name is used twice; give each client a name of its own\nclients[1].token_sha256 belongs to another client already; give each client a token of its own\nclients[1].scopes must name what the client may do: refunds:write, refunds:read, refunds:read-all, review",
	} {
		path := write(t, content)
		_, err := Load(path, noEnv)
		require.Error(t, err, content)
		require.Contains(t, strings.ReplaceAll(err.Error(), path, ""), want, content)
	}
}

var twoClients = `clients:
  - {name: a, token_sha256: "` + strings.Repeat("0", 64) + `", scopes: [review]}
  - {name: a, token_sha256: "` + strings.Repeat("0", 64) + `"}
`

func TestEveryProblemIsReported(t *testing.T) {
	t.Parallel()
	path := write(t, "a: 1\npolicy:\n  b: 2\n  deadline: 3\n")
	_, err := Load(path, noEnv)
	require.EqualError(t, err, path+":1: a is not a known key; see refundgate.example.yaml\n"+
		path+":3: policy.b is not a known key; see refundgate.example.yaml\n"+
		path+":4: policy.deadline must be a duration with a unit, such as 200ms, 3s or 15m")
}

func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[Secret]string{
		"app:p:w@tcp(db:3306)/refunds?tls=true": "app@tcp(db:3306)/refunds?tls=true",
		"app@unix(/run/s.sock)/refunds":         "app@unix(/run/s.sock)/refunds",
		"app:pw@nowhere":                        "",
	} {
		require.Equal(t, want, MySQL{DSN: dsn}.WithoutPassword())
	}
}

func TestAccountTwice(t *testing.T) {
	t.Parallel()
	cfg := Default()
	main := cfg.Defaults
	main.Name, main.BaseURL = "main", "http://127.0.0.1"
	cfg.Accounts = []Account{main, main}
	require.EqualError(t, cfg.Validate(), "accounts.main is there twice; give each account a name of its own")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	plain := load(t, "", noEnv).HTTP
	require.False(t, plain.TLS.Enabled())
	require.Equal(t, "http", plain.Scheme())
	secure := load(t, "http: {tls: {cert_file: a.pem, key_file: b.pem, client_ca_file: c.pem}}", noEnv).HTTP
	require.Equal(t, TLS{CertFile: "a.pem", KeyFile: "b.pem", ClientCAFile: "c.pem"}, secure.TLS)
	require.True(t, secure.TLS.Enabled())
	require.Equal(t, "https", secure.Scheme())
}

func TestMissingFile(t *testing.T) {
	t.Parallel()
	_, err := Load(filepath.Join(t.TempDir(), "no.yaml"), noEnv)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "reading the configuration")
}

// FuzzDecode: whatever is in the file, decoding ends with a configuration or
// with sentences, and what it accepts it accepts again.
func FuzzDecode(f *testing.F) {
	example, err := os.ReadFile(examplePath)
	require.NoError(f, err)
	for _, s := range []string{string(example), "", "a", "policy: {deadline: 1s}", "accounts: {a: {}, b: }", "clients: [{scopes: [x]}]", "policy: &a\n  checks: *a\n", "? a\n: b\n", "<<: {}\n", "!!binary a: b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, content string) {
		cfg, err := decode("f.yaml", []byte(content))
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		again, err := decode("f.yaml", []byte(content))
		require.NoError(t, err)
		require.Equal(t, cfg.AccountNames(), again.AccountNames())
		_ = cfg.Validate()
	})
}

func load(t *testing.T, content string, env func(string) string) Config {
	t.Helper()
	cfg, err := Load(write(t, content), env)
	require.NoError(t, err)
	return cfg
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "refundgate.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
