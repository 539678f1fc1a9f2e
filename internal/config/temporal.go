package config

import (
	"fmt"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
)

// Temporal is the cluster that the refunds' workflows live on. API keys and
// TLS come from the TEMPORAL_* environment variables of the SDK's envconfig.
type Temporal struct {
	// Address is the frontend's host:port. TEMPORAL_ADDRESS overrides it.
	// Defaults to 127.0.0.1:7233.
	Address string `yaml:"address"`
	// Namespace must exist. TEMPORAL_NAMESPACE overrides it. Defaults to
	// default.
	Namespace string `yaml:"namespace"`
	// WebUIURL is where people's browsers find the Temporal Web UI; links to
	// workflows start with it. Empty leaves the links out. Defaults to
	// http://127.0.0.1:8233.
	WebUIURL string `yaml:"web_ui_url"`

	// fromEnv holds the credentials and TLS settings that Load found.
	fromEnv client.Options
}

// ClientOptions returns what the Temporal client needs to connect. The caller
// adds its logger and metrics.
func (t Temporal) ClientOptions() client.Options {
	opts := t.fromEnv
	opts.HostPort = t.Address
	opts.Namespace = t.Namespace
	return opts
}

// applyEnv overrides the file's values with the TEMPORAL_* variables, and
// reads the certificates that they name.
func (t *Temporal) applyEnv(env func(string) string) error {
	profile := envconfig.ClientConfigProfile{Address: t.Address, Namespace: t.Namespace}
	if err := profile.ApplyEnvVars(lookup(env)); err != nil {
		return fmt.Errorf("reading the TEMPORAL_* environment variables: %w", err)
	}
	opts, err := profile.ToClientOptions(envconfig.ToClientOptionsRequest{})
	if err != nil {
		return fmt.Errorf("reading the TEMPORAL_* environment variables: %w", err)
	}
	opts.HostPort, opts.Namespace = "", "" // ClientOptions sets them
	t.Address, t.Namespace, t.fromEnv = profile.Address, profile.Namespace, opts
	return nil
}

// lookup adapts a Getenv-like function; a variable that is empty counts as
// not set. It can't enumerate, so TEMPORAL_GRPC_META_* is not supported.
type lookup func(string) string

func (l lookup) LookupEnv(key string) (string, bool) {
	v := l(key)
	return v, v != ""
}

func (l lookup) Environ() []string { return nil }
