package main

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"refundgate/starter"
)

func newServe(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the intake API and start the workflows of what was accepted",
		Long: `Serves the intake API (POST and GET /v1/refunds, /healthz, /readyz) at http.listen
and /metrics there, for Prometheus: its own, and those of the egress, wherever
that runs.

It serves until it is told to stop; then it turns unready, finishes the requests in work
and ends. A refund is in the database before it is answered for; its workflow
is started as soon as Temporal is there.`,
		Example: `  refundgate serve --config refundgate.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			if len(cfg.Accounts) == 0 || len(cfg.Clients) == 0 {
				return fmt.Errorf("serving needs at least one entry under accounts and one under clients; see refundgate.example.yaml")
			}
			p, err := connect(cmd.Context(), cfg, a.logger(cmd))
			if err != nil {
				return err
			}
			defer p.close()
			ln, err := net.Listen("tcp", cfg.HTTP.Listen)
			if err != nil {
				return fmt.Errorf("listening at http.listen: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "intake: http://%s\n", ln.Addr())
			return p.serve(cmd.Context(), ln)
		},
	}
}

// serve runs the intake API on ln, and the relay, until ctx ends. The relay
// outlives the API, so that what is accepted last is still started.
func (p *parts) serve(ctx context.Context, ln net.Listener) error {
	relay := starter.NewRelay(p.ledger, p.temporal, p.log)
	api, err := starter.NewAPI(starter.Options{
		Ledger: p.ledger, Accounts: p.cfg.Accounts, Clients: p.cfg.Clients, Deadline: p.cfg.Policy.Deadline,
		Wake: relay.Wake, WebUIURL: p.cfg.Temporal.WebUIURL, Namespace: p.cfg.Temporal.Namespace,
		Metrics: p.metrics, Log: p.log,
	})
	if err != nil {
		_ = ln.Close() // the other error is the one to tell
		return err
	}
	relaying, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		relay.Run(relaying)
	}()
	server := &starter.Server{Handler: api, Drain: api.Drain, DrainDelay: p.cfg.HTTP.DrainDelay, Log: p.log}
	err = server.Serve(ctx, ln)
	stop()
	<-done
	return err
}
