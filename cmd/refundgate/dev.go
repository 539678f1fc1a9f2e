package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"refundgate/internal/config"
	"refundgate/internal/devenv"
	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/provider/standin"
)

// devAccount is the account that dev makes up when none is configured.
const devAccount = "demo"

// devOptions are the flags of dev.
type devOptions struct {
	data    string
	samples bool
	once    bool
}

func newDev(a *app) *cobra.Command {
	var opts devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything at once, for trying out",
		Long: `Starts a Temporal dev server with its Web UI, a private MariaDB, the stand-in
provider, an orchestrator, an egress and the intake API, and prints where they
are. Ctrl-C stops all of it.

A database that is configured (mysql.dsn, REFUNDGATE_MYSQL_DSN) and a Temporal
that is named (temporal.address, TEMPORAL_ADDRESS) are used instead of private
ones; the search attributes must be registered there. Accounts and clients that
are configured are used as well. The intake API speaks plain HTTP here, whatever
http.tls says.

With --data the state is kept, and the other commands find this environment:
  refundgate refunds list --config DIR/refundgate.yaml`,
		Example: `  refundgate dev --samples
  refundgate dev --data .data`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.once && !opts.samples {
				return usagef("--once goes with --samples")
			}
			return a.dev(cmd, opts)
		},
	}
	cmd.Flags().StringVar(&opts.data, "data", "", "directory that keeps the state (default: a temporary one, removed at the end)")
	cmd.Flags().BoolVar(&opts.samples, "samples", false, "submit sample refunds with misbehaving answers and follow them")
	cmd.Flags().BoolVar(&opts.once, "once", false, "end when the samples are done; exit 1 if one ended otherwise than it should")
	return cmd
}

// devEnv is a running development environment.
type devEnv struct {
	parts   *parts
	standin *standin.Server
	token   string // of the intake API; empty if clients are configured
	intake  net.Listener
	file    string         // the configuration that other commands can use
	closes  []func() error // in the order of starting
}

func (a *app) dev(cmd *cobra.Command, opts devOptions) (err error) {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	out := cmd.OutOrStdout()
	dir := opts.data
	if dir == "" {
		if dir, err = os.MkdirTemp("", "refundgate-dev-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	env := &devEnv{}
	defer func() { err = errors.Join(err, env.close()) }()
	if err := a.startDev(ctx, cmd, env, dir); err != nil {
		if cmd.Context().Err() != nil {
			return nil // stopped while starting; what failed failed for that
		}
		return err
	}

	g, running := errgroup.WithContext(ctx)
	p := env.parts
	g.Go(func() error { return p.orchestrate(running) })
	if _, err := p.egress(running, g, p.cfg.Accounts, out); err != nil { // serve shows what they measure
		return err
	}
	g.Go(func() error { return p.serve(running, env.intake, nil) })
	env.print(out)
	if opts.samples {
		g.Go(func() error {
			err := followSamples(running, env, out)
			if opts.once || err != nil {
				cancel()
			} else if running.Err() == nil {
				fmt.Fprintln(out, "\nEverything goes on running; Ctrl-C stops it.")
			}
			return err
		})
	}
	err = g.Wait()
	if cmd.Context().Err() != nil {
		fmt.Fprintln(out, "\nstopped")
	}
	return err
}

// startDev starts the servers and fills in env. Whatever has been started is
// in env.closes, also on failure.
func (a *app) startDev(ctx context.Context, cmd *cobra.Command, env *devEnv, dir string) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	logFile, err := openLog(dir)
	if err != nil {
		return err
	}
	env.closes = append(env.closes, logFile.Close)
	log := telemetry.NewLogger(logFile, telemetry.FormatJSON, a.logLevel)
	out := cmd.OutOrStdout()

	if cfg.MySQL.DSN == "" {
		fmt.Fprintln(out, "starting MariaDB ...")
		db, err := devenv.StartMariaDB(ctx, devenv.MariaDBOptions{Dir: filepath.Join(dir, "mariadb"), Log: logFile})
		if err != nil {
			return err
		}
		env.closes = append(env.closes, db.Stop)
		if err := db.CreateDatabase(ctx, "refundgate"); err != nil {
			return err
		}
		cfg.MySQL.DSN = config.Secret(db.DSN("refundgate"))
	}
	if err := ledger.Migrate(ctx, cfg.MySQL.DSN.Reveal()); err != nil {
		return err
	}
	if cfg.Temporal.Address == config.Default().Temporal.Address && os.Getenv("TEMPORAL_ADDRESS") == "" {
		fmt.Fprintln(out, "starting Temporal ...")
		server, err := devenv.StartTemporal(ctx, devenv.TemporalOptions{
			DBFile: filepath.Join(dir, "temporal.db"), Port: freeOr(7233), UIPort: freeOr(8233), Log: logFile,
		})
		if err != nil {
			return err
		}
		env.closes = append(env.closes, server.Stop)
		cfg.Temporal.Address, cfg.Temporal.WebUIURL = server.HostPort(), server.UIURL()
	}
	if err := env.startStandin(dir); err != nil {
		return err
	}
	if len(cfg.Accounts) == 0 {
		acc := cfg.Defaults
		acc.Name, acc.BaseURL, acc.APIKeyFile = devAccount, env.standin.URL(), filepath.Join(dir, "provider-key")
		if err := os.WriteFile(acc.APIKeyFile, []byte("standin-accepts-any-key\n"), 0o600); err != nil {
			return err
		}
		cfg.Accounts = []config.Account{acc}
	}
	if len(cfg.Clients) == 0 {
		if env.token, err = devToken(dir); err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(env.token))
		cfg.Clients = []config.Client{{Name: "dev", TokenSHA256: hex.EncodeToString(sum[:]), Scopes: config.Scopes}}
	}
	if env.intake, err = listenNear(cfg.HTTP.Listen); err != nil {
		return err
	}
	cfg.HTTP.Listen = env.intake.Addr().String()
	cfg.HTTP.DrainDelay = 0 // nobody balances load here
	env.file = filepath.Join(dir, "refundgate.yaml")
	text, err := devConfig(cfg)
	if err != nil {
		return err
	}
	if err := os.WriteFile(env.file, []byte(text), 0o600); err != nil {
		return err
	}
	if env.parts, err = connect(ctx, cfg, log); err != nil {
		return err
	}
	env.closes = append(env.closes, func() error { env.parts.close(); return nil })
	return nil
}

func (e *devEnv) startStandin(dir string) error {
	s, err := standin.New(standin.Options{StateFile: filepath.Join(dir, "standin.jsonl")})
	if err != nil {
		return err
	}
	e.standin = s
	e.closes = append(e.closes, s.Close)
	return s.Start("127.0.0.1:0")
}

// close stops what was started, the last first.
func (e *devEnv) close() error {
	var errs []error
	for i := len(e.closes) - 1; i >= 0; i-- {
		errs = append(errs, e.closes[i]())
	}
	return errors.Join(errs...)
}

// print tells where everything is.
func (e *devEnv) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw)
	fmt.Fprintf(tw, "  Temporal Web UI\t%s\n", e.parts.cfg.Temporal.WebUIURL)
	fmt.Fprintf(tw, "  Temporal\t%s\n", e.parts.cfg.Temporal.Address)
	fmt.Fprintf(tw, "  intake API\thttp://%s\n", e.intake.Addr())
	fmt.Fprintf(tw, "  metrics\thttp://%s/metrics\n", e.intake.Addr())
	if e.token != "" {
		fmt.Fprintf(tw, "  token\t%s\n", e.token)
	}
	fmt.Fprintf(tw, "  stand-in provider\t%s\n", e.standin.URL())
	fmt.Fprintf(tw, "  configuration\t%s\n", e.file)
	fmt.Fprintf(tw, "  log\t%s\n", filepath.Join(filepath.Dir(e.file), logName))
	_ = tw.Flush() // a terminal that is gone is no reason to stop
	fmt.Fprintln(w)
}

const logName = "refundgate.log"

// openLog opens the file that all parts log to; the terminal is for people.
func openLog(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// devToken returns the directory's token for the intake API, made on first
// use.
func devToken(dir string) (string, error) {
	file := filepath.Join(dir, "token")
	b, err := os.ReadFile(file)
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	token := rand.Text()
	return token, os.WriteFile(file, []byte(token+"\n"), 0o600)
}

// devConfig is a configuration file for the other commands. It holds no secret:
// the private database has none, and those that are configured come from where
// they came from before.
func devConfig(cfg config.Config) (string, error) {
	var b strings.Builder
	b.WriteString("# Written by refundgate dev for the commands beside it.\n")
	if os.Getenv(config.EnvDSN) == "" {
		passwordFile, err := absolute(cfg.MySQL.PasswordFile)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "mysql:\n  dsn: %q\n  password_env: %q\n  password_file: %q\n", cfg.MySQL.WithoutPassword(), cfg.MySQL.PasswordEnv, passwordFile)
	}
	fmt.Fprintf(&b, "temporal:\n  address: %q\n  namespace: %q\n  web_ui_url: %q\n", cfg.Temporal.Address, cfg.Temporal.Namespace, cfg.Temporal.WebUIURL)
	fmt.Fprintf(&b, "http:\n  listen: %q\n", cfg.HTTP.Listen)
	b.WriteString("clients:\n")
	for _, c := range cfg.Clients {
		fmt.Fprintf(&b, "  - name: %q\n    token_sha256: %q\n    scopes: [%s]\n", c.Name, c.TokenSHA256, strings.Join(c.Scopes, ", "))
	}
	b.WriteString("accounts:\n")
	for _, acc := range cfg.Accounts {
		keyFile, err := absolute(acc.APIKeyFile)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "  %s:\n    base_url: %q\n    api_key_env: %q\n    api_key_file: %q\n", acc.Name, acc.BaseURL, acc.APIKeyEnv, keyFile)
		b.WriteString("    exponents:\n")
		for _, currency := range slices.Sorted(maps.Keys(acc.Exponents)) {
			fmt.Fprintf(&b, "      %s: %d\n", currency, acc.Exponents[currency])
		}
	}
	return b.String(), nil
}

// absolute is the path for those who are started elsewhere; an empty one stays.
func absolute(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	return filepath.Abs(path)
}

// freeOr returns the port if it is free on loopback, and 0 (any) if not.
func freeOr(port int) int {
	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return 0
	}
	_ = ln.Close() // it was only asked for
	return port
}

// listenNear listens at the address, or on a free port of the same host if
// another program has it.
func listenNear(address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err == nil {
		return ln, nil
	}
	host, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return nil, err
	}
	return net.Listen("tcp", net.JoinHostPort(host, "0"))
}

// settleWait is how long the samples are followed at most: their deadline.
const settleWait = 15 * time.Minute
