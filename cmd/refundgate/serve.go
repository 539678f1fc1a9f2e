package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"

	"github.com/spf13/cobra"

	"refundgate/starter"
)

func newServe(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the intake API and the inbox, take notifications, and start and tell workflows",
		Long: `Serves the intake API (POST and GET /v1/refunds, the actions on a case, the
providers' notifications, /healthz, /readyz) at http.listen and /metrics there,
for Prometheus: its own, and those of the egress, wherever that runs.

It serves until it is told to stop; then it turns unready, finishes the requests
in work and ends. A refund or a notification is in the database before it is
answered for; its workflow is started, or told, as soon as Temporal is there.

It also accepts what order services put into the table refund_inbox; see
"refundgate inbox".

What waits for people is logged when it becomes more and every five minutes, as
the event review.digest.`,
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
			log := a.logger(cmd)
			secured, err := starter.NewTLS(cfg.HTTP.TLS, log)
			if err != nil {
				return err
			}
			p, err := connect(cmd.Context(), cfg, log)
			if err != nil {
				return err
			}
			defer p.close()
			ln, err := net.Listen("tcp", cfg.HTTP.Listen)
			if err != nil {
				return fmt.Errorf("listening at http.listen: %w", err)
			}
			if secured == nil && !isLoopback(ln.Addr()) {
				log.WarnContext(cmd.Context(), "tokens and refunds travel in clear to the intake unless something in front of it ends TLS; see http.tls in refundgate.example.yaml", "listen", ln.Addr().String())
			}
			fmt.Fprintf(cmd.OutOrStdout(), "intake: %s://%s\n", cfg.HTTP.Scheme(), ln.Addr())
			return p.serve(cmd.Context(), ln, secured)
		},
	}
}

// isLoopback tells whether only this machine reaches the address.
func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// serve runs the intake API on ln, over TLS if secured is not nil, and beside
// it what starts and tells workflows and reminds people, until ctx ends. Those
// outlive the API, so that what comes last is still passed on.
func (p *parts) serve(ctx context.Context, ln net.Listener, secured *tls.Config) error {
	relay := starter.NewRelay(p.ledger, p.temporal, p.log)
	teller := starter.NewTeller(p.ledger, p.temporal, p.log)
	digest := &starter.Digest{Waiting: p.ledger, Log: p.log}
	admission := starter.NewAdmission(p.ledger, p.cfg.Admission, p.cfg.Accounts, p.cfg.Policy.Deadline, p.log)
	inbox := starter.NewInbox(starter.InboxOptions{
		Store: p.ledger, Accounts: p.cfg.Accounts, Client: p.cfg.Inbox.Client, Deadline: p.cfg.Policy.Deadline,
		Admission: admission, Wake: relay.Wake, Log: p.log,
	})
	api, err := p.api(relay, teller, admission)
	if err != nil {
		_ = ln.Close() // the other error is the one to tell
		return err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, run := range []func(context.Context){relay.Run, teller.Run, digest.Run, admission.Run, inbox.Run} {
		running.Go(func() { run(background) })
	}
	server := &starter.Server{
		Handler: api, TLS: secured, MaxConnections: p.cfg.HTTP.MaxConnections,
		Drain: api.Drain, DrainDelay: p.cfg.HTTP.DrainDelay, Log: p.log,
	}
	err = server.Serve(ctx, ln)
	stop()
	running.Wait()
	return err
}

func (p *parts) api(relay *starter.Relay, teller *starter.Teller, admission *starter.Admission) (*starter.API, error) {
	readers, err := notifications(p.cfg)
	if err != nil {
		return nil, err
	}
	return starter.NewAPI(starter.Options{
		Ledger: p.ledger, Accounts: p.cfg.Accounts, Clients: p.cfg.Clients, Deadline: p.cfg.Policy.Deadline,
		Admission: admission, Wake: relay.Wake, Notifications: readers, WakeTeller: teller.Wake, Desk: p.desk(relay.Wake),
		WebUIURL: p.cfg.Temporal.WebUIURL, Namespace: p.cfg.Temporal.Namespace, Metrics: p.metrics, Log: p.log,
	})
}

// desk returns what carries out the actions of people. wake is called when a
// workflow is to be started; it may be nil.
func (p *parts) desk(wake func()) *starter.Desk {
	return &starter.Desk{Ledger: p.ledger, Temporal: p.temporal, Deadline: p.cfg.Policy.Deadline, Exponents: p.cfg.Exponents(), Wake: wake}
}
