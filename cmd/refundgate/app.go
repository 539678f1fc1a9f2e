package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/provider"
	"refundgate/provider/reference"
	"refundgate/refund"
)

// app is what the commands share: the global flags and the way from the
// configuration to its concrete parts.
type app struct {
	configPath string
	logFormat  telemetry.Format
	logLevel   slog.Level
}

func (a *app) logger(cmd *cobra.Command) *slog.Logger {
	return telemetry.NewLogger(cmd.ErrOrStderr(), a.logFormat, a.logLevel)
}

func (a *app) config() (config.Config, error) {
	return config.Load(a.configPath, os.Getenv)
}

// ledger loads the configuration and connects to its database.
func (a *app) ledger(ctx context.Context) (*ledger.Ledger, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	return openLedger(ctx, cfg)
}

// openLedger connects to the configured database.
func openLedger(ctx context.Context, cfg config.Config) (*ledger.Ledger, error) {
	if cfg.MySQL.DSN == "" {
		return nil, errors.New("no database is configured; set mysql.dsn in the configuration or REFUNDGATE_MYSQL_DSN (or try `refundgate dev`)")
	}
	return ledger.Open(ctx, cfg.MySQL.DSN.Reveal(), ledger.Options{})
}

// dialTemporal returns a client that connects when it is first used, so that a
// process can start before Temporal does.
func dialTemporal(cfg config.Config, log *slog.Logger, metrics client.MetricsHandler) (client.Client, error) {
	opts := cfg.Temporal.ClientOptions()
	opts.Logger = telemetry.TemporalLogger(log)
	opts.MetricsHandler = metrics
	opts.Identity = holder()
	c, err := client.NewLazyClient(opts)
	if err != nil {
		return nil, fmt.Errorf("setting up the Temporal client: %w", err)
	}
	return c, nil
}

// holder names this process for people: who holds an egress, who did what.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// policies turns the configuration into each account's policy.
func policies(cfg config.Config) map[string]refund.Policy {
	all := make(map[string]refund.Policy, len(cfg.Accounts))
	for _, acc := range cfg.Accounts {
		p := cfg.Policy
		policy := refund.Policy{
			MaxAttempts: p.MaxAttempts,
			Deadline:    p.Deadline,
			Checks: refund.Checks{
				Max: p.Checks.Max, Initial: p.Checks.Initial, Factor: p.Checks.Factor,
				Cap: p.Checks.Cap, Jitter: p.Checks.Jitter,
			},
			NotSentInitial: p.NotSent.Initial,
			NotSentMax:     p.NotSent.Cap,
			CallBudget:     acc.CallTimeout,
			Contract:       refund.Contract(acc.Contract),
		}
		for _, w := range p.Backoff {
			policy.Backoff = append(policy.Backoff, refund.Range(w))
		}
		all[acc.Name] = policy
	}
	return all
}

// adapter returns the account's adapter with its credentials.
func adapter(acc config.Account) (provider.Adapter, error) {
	key, err := acc.APIKey(os.Getenv)
	if err != nil {
		return nil, err
	}
	switch acc.Adapter {
	case "reference":
		return reference.New(reference.Config{BaseURL: acc.BaseURL, APIKey: key.Reveal, Exponents: acc.Exponents})
	default:
		return nil, fmt.Errorf("accounts.%s: there is no adapter %q", acc.Name, acc.Adapter)
	}
}

// budgets returns the account's gate configuration.
func budgets(acc config.Account) limiter.Config {
	return limiter.Config{
		Interval:       acc.StartInterval(),
		MaxInFlight:    acc.MaxInFlight,
		ConnectTimeout: acc.ConnectTimeout,
		CallTimeout:    acc.CallTimeout,
		Endpoints: map[refund.CallKind]limiter.EndpointLimit{
			refund.KindSubmit: endpointLimit(acc.Endpoints.Submit),
			refund.KindCheck:  endpointLimit(acc.Endpoints.Check),
		},
		Breaker: limiter.BreakerConfig(acc.Breaker),
	}
}

func endpointLimit(e config.Endpoint) limiter.EndpointLimit {
	return limiter.EndpointLimit{Interval: e.StartInterval(), MaxInFlight: e.MaxInFlight}
}

// chooseAccounts returns the accounts of the given names, or all of them.
func chooseAccounts(cfg config.Config, names []string) ([]config.Account, error) {
	if len(cfg.Accounts) == 0 {
		return nil, errors.New("no accounts are configured; see accounts in refundgate.example.yaml")
	}
	if len(names) == 0 {
		return cfg.Accounts, nil
	}
	var chosen []config.Account
	for _, name := range names {
		acc, err := cfg.Account(name)
		if err != nil {
			return nil, usageError{err}
		}
		chosen = append(chosen, acc)
	}
	return chosen, nil
}

// output is the value of the flag -o.
type output string

const (
	outputText output = "text"
	outputJSON output = "json"
)

func (o *output) Set(s string) error {
	switch output(s) {
	case outputText, outputJSON:
		*o = output(s)
		return nil
	}
	return fmt.Errorf("the output is text or json, not %q", s)
}

func (o output) String() string { return string(o) }

// Type names the flag's kind of value in a command's help.
func (output) Type() string { return "text|json" }

// addOutput gives the command the flag -o.
func addOutput(cmd *cobra.Command) *output {
	o := outputText
	cmd.Flags().VarP(&o, "output", "o", "print text or json")
	return &o
}

// printJSON writes v, indented, and a newline.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
