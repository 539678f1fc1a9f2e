package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"refundgate/internal/config"
	"refundgate/internal/telemetry/prom"
	"refundgate/ledger"
	"refundgate/starter"
	"refundgate/worker"
)

const (
	roleOrchestrator = "orchestrator"
	roleEgress       = "egress"
)

func newWorker(a *app) *cobra.Command {
	var roles, names []string
	var metricsListen string
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run workflows (orchestrator) and calls to providers (egress)",
		Long: `Runs until it is told to stop (SIGINT, SIGTERM), then finishes what it has begun.

orchestrator  workflows and bookkeeping; run as many as you like
egress        the calls of each account; start as many as you like, exactly one
              owns an account's egress and the others stand by

It prints "egress: owner" or "egress: standby (held by ...)" for each account
whenever that changes.`,
		Example: `  refundgate worker --roles orchestrator,egress
  refundgate worker --roles egress --account acme --metrics-listen 127.0.0.1:8481`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			chosen := map[string]bool{}
			for _, r := range roles {
				if r != roleOrchestrator && r != roleEgress {
					return usagef("there is no role %q; roles are %s and %s", r, roleOrchestrator, roleEgress)
				}
				chosen[r] = true
			}
			cfg, err := a.config()
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("metrics-listen") {
				cfg.Worker.MetricsListen = metricsListen
				if err := cfg.Validate(); err != nil {
					return usageError{err}
				}
			}
			accounts, err := chooseAccounts(cfg, names)
			if err != nil {
				return err
			}
			log := a.logger(cmd)
			p, err := connect(cmd.Context(), cfg, log)
			if err != nil {
				return err
			}
			defer p.close()
			ln, err := p.listenForMetrics(cmd.OutOrStdout())
			if err != nil {
				return err
			}
			g, ctx := errgroup.WithContext(cmd.Context())
			// The egress ends last, so that when it gives up the right to send
			// nothing but the exit is left to do.
			egress, stop := context.WithCancel(context.WithoutCancel(ctx))
			defer stop()
			if chosen[roleOrchestrator] {
				g.Go(func() error {
					defer stop()
					return p.orchestrate(ctx)
				})
			} else {
				context.AfterFunc(ctx, stop)
			}
			measured := prometheus.Gatherers{p.metrics}
			if chosen[roleEgress] {
				egresses, err := p.egress(egress, g, accounts, cmd.OutOrStdout())
				if err != nil {
					return err
				}
				measured = append(measured, egresses...)
			}
			if ln != nil {
				g.Go(func() error { return showMetrics(ctx, ln, measured, log) })
			}
			return g.Wait()
		},
	}
	cmd.Flags().StringSliceVar(&roles, "roles", []string{roleOrchestrator, roleEgress}, "what this process does")
	cmd.Flags().StringSliceVar(&names, "account", nil, "account of the egress, may be repeated (default all that are configured)")
	cmd.Flags().StringVar(&metricsListen, "metrics-listen", "", "address to show this process's own metrics at (default worker.metrics_listen)")
	return cmd
}

// parts are a long-running process's connections.
type parts struct {
	cfg      config.Config
	log      *slog.Logger
	ledger   *ledger.Ledger
	temporal client.Client
	metrics  *prometheus.Registry // of the process and of the Temporal SDK in it
}

func connect(ctx context.Context, cfg config.Config, log *slog.Logger) (*parts, error) {
	l, err := openLedger(ctx, cfg)
	if err != nil {
		return nil, err
	}
	metrics := prom.NewProcess()
	c, err := dialTemporal(cfg, log, prom.Temporal(metrics))
	if err != nil {
		_ = l.Close() // the other error is the one to tell
		return nil, err
	}
	return &parts{cfg: cfg, log: log, ledger: l, temporal: c, metrics: metrics}, nil
}

func (p *parts) close() {
	p.temporal.Close()
	if err := p.ledger.Close(); err != nil {
		p.log.Warn("closing the database", "error", err)
	}
}

func (p *parts) orchestrate(ctx context.Context) error {
	o := &worker.Orchestrator{Temporal: p.temporal, Ledger: p.ledger, Policies: policies(p.cfg), Exponents: p.cfg.Exponents(), Log: p.log}
	return o.Run(ctx)
}

// egress adds an egress for each account to the group and returns what they
// measure. Changes of ownership are printed to out.
func (p *parts) egress(ctx context.Context, g *errgroup.Group, accounts []config.Account, out io.Writer) (prometheus.Gatherers, error) {
	var mu sync.Mutex
	var measured prometheus.Gatherers
	var all []*worker.Egress
	for _, acc := range accounts {
		ad, err := adapter(acc)
		if err != nil {
			return nil, err
		}
		metrics := worker.NewMetrics(acc.Name, budgets(acc))
		measured = append(measured, metrics)
		all = append(all, &worker.Egress{
			Account: acc.Name, Holder: holder(), Temporal: p.temporal, Ledger: p.ledger, Adapter: ad,
			Gate: budgets(acc), WaitingRoom: acc.WaitingRoom, Metrics: metrics, Log: p.log,
			Announce: func(state string) {
				mu.Lock()
				defer mu.Unlock()
				line := []string{"egress: " + state}
				if len(accounts) > 1 {
					line = append(line, "account "+acc.Name)
				}
				fmt.Fprintln(out, strings.Join(line, ", "))
			},
		})
	}
	for _, e := range all {
		g.Go(func() error { return e.Run(ctx) })
	}
	return measured, nil
}

// listenForMetrics opens the door at which the process shows its own metrics,
// nil if it doesn't, and prints where that is.
func (p *parts) listenForMetrics(out io.Writer) (net.Listener, error) {
	if p.cfg.Worker.MetricsListen == "" {
		return nil, nil
	}
	ln, err := net.Listen("tcp", p.cfg.Worker.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("listening at worker.metrics_listen: %w", err)
	}
	fmt.Fprintf(out, "metrics: http://%s/metrics\n", ln.Addr())
	return ln, nil
}

// showMetrics serves what was measured until ctx ends.
func showMetrics(ctx context.Context, ln net.Listener, measured prometheus.Gatherer, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", prom.Handler(log, measured))
	server := &starter.Server{Handler: mux, Log: log}
	return server.Serve(ctx, ln)
}
