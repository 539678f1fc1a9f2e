package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/starter"
)

func newEgress(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "egress",
		Short: "Look at who may call the providers, and release a dead one",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEgressStatus(a), newEgressRelease(a))
	return cmd
}

// egressState is an account's egress as it is printed.
type egressState struct {
	Account string        `json:"account"`
	State   string        `json:"state"` // owned, free or never_owned
	Owner   *ledger.Owner `json:"owner,omitempty"`
	// PerSecond and MaxInFlight are the configured budget.
	PerSecond   float64 `json:"starts_per_second"`
	MaxInFlight int     `json:"max_in_flight"`
	// Calls is how long recent calls took; absent if there were none.
	Calls *starter.CallTimes `json:"calls,omitempty"`
}

func newEgressStatus(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each account's owner, breaker and budget, and how long its calls take",
		Long: `Shows who owns each account's egress, what its gate is doing, and how long the
latest calls took (of the last 24 h, at most 1000 of a kind), beside the budgets
that end them. A call takes from its first byte to the closed socket; one that
was ended by a budget is under TIMED OUT and in the percentiles.`,
		Example: `  refundgate egress status
  refundgate egress status -o json`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.config()
		if err != nil {
			return err
		}
		accounts, err := chooseAccounts(cfg, nil)
		if err != nil {
			return err
		}
		l, err := openLedger(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		defer l.Close()
		var all []egressState
		for _, acc := range accounts {
			s := egressState{Account: acc.Name, State: "never_owned", PerSecond: acc.StartsPerSecond, MaxInFlight: acc.MaxInFlight}
			owner, err := l.EgressOwner(cmd.Context(), acc.Name)
			switch {
			case errors.Is(err, ledger.ErrNotFound):
			case err != nil:
				return err
			case owner.Held:
				s.State, s.Owner = "owned", &owner
			default:
				s.State, s.Owner = "free", &owner
			}
			kinds, err := l.Latencies(cmd.Context(), acc.Name)
			if err != nil {
				return err
			}
			s.Calls = starter.NewCallTimes(acc, kinds)
			all = append(all, s)
		}
		if *out == outputJSON {
			return printJSON(cmd.OutOrStdout(), all)
		}
		if err := printOwners(cmd.OutOrStdout(), all); err != nil {
			return err
		}
		return printCallTimes(cmd.OutOrStdout(), all)
	}
	return cmd
}

func printOwners(out io.Writer, all []egressState) error {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ACCOUNT\tSTATE\tHOLDER\tEPOCH\tSINCE\tSEEN\tBREAKER\tIN FLIGHT\tWAITING\tBUDGET")
	for _, s := range all {
		holder, epoch, since, seen := "-", "-", "-", "-"
		if s.Owner != nil {
			holder, epoch = s.Owner.Holder, fmt.Sprint(s.Owner.Epoch)
			since, seen = stamp(s.Owner.AcquiredAt), stamp(s.Owner.SeenAt)
		}
		breaker, inFlight, waiting := gateColumns(s)
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%g/s, %d in flight\n",
			s.Account, s.State, holder, epoch, since, seen, breaker, inFlight, waiting, s.PerSecond, s.MaxInFlight)
	}
	return tw.Flush()
}

// printCallTimes prints how long calls took, if there were any.
func printCallTimes(out io.Writer, all []egressState) error {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	header := "\nACCOUNT\tKIND\tCALLS\tTIMED OUT\tP50\tP95\tP99\tMAX\tBUDGETS\tSINCE\n"
	for _, s := range all {
		if s.Calls == nil {
			continue
		}
		fmt.Fprint(tw, header)
		header = ""
		for _, k := range s.Calls.Kinds {
			fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\tconnect %d ms, call %d ms\t%s\n",
				s.Account, k.Kind, k.Calls, k.TimedOut, millis(k.P50), millis(k.P95), millis(k.P99), millis(k.Max),
				s.Calls.ConnectTimeoutMS, s.Calls.CallTimeoutMS, stamp(k.Since))
		}
	}
	return tw.Flush()
}

// millis is a duration for people: "12.3 ms", "1250 ms".
func millis(d time.Duration) string {
	if d < 100*time.Millisecond {
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
}

// gateColumns puts what an owner's gate is doing into words; without an owner
// it does nothing.
func gateColumns(s egressState) (breaker, inFlight, waiting string) {
	var gate limiter.Status
	if s.State != "owned" || len(s.Owner.Gate) == 0 || json.Unmarshal(s.Owner.Gate, &gate) != nil {
		return "-", "-", "-"
	}
	breaker = string(gate.Breaker)
	switch {
	case gate.Refusing != "":
		breaker = "refusing: " + gate.Refusing
	case !gate.PausedUntil.IsZero():
		breaker += ", paused until " + stamp(gate.PausedUntil)
	case !gate.OpenUntil.IsZero():
		breaker += " until " + stamp(gate.OpenUntil)
	}
	return breaker, fmt.Sprint(gate.InFlight), fmt.Sprintf("%d first, %d follow-up", gate.WaitingFirst, gate.WaitingFollowUp)
}

func newEgressRelease(a *app) *cobra.Command {
	var order ledger.Release
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Take an account's egress from a dead holder",
		Long: `Ends the database session that holds the account's egress, so that a standby
takes over. It is for a holder that is gone or hangs while its session lives on
(a stopped process, a host that is off the network). One that can be stopped in
order should be: it hands back what it holds.

Who ordered it and why is recorded. A holder that has proven itself within the
last ten seconds is alive and keeps the egress, unless --force is given.`,
		Example: `  refundgate egress release --account acme --by alice --reason "host-a is off the network"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			if _, err := cfg.Account(order.Account); err != nil {
				return usageError{err}
			}
			l, err := openLedger(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			defer l.Close()
			owner, err := l.ReleaseEgress(cmd.Context(), order)
			var alive *ledger.AliveError
			switch {
			case errors.As(err, &alive):
				return fmt.Errorf("%w; stop it in order (SIGTERM), or insist with --force", alive)
			case errors.Is(err, ledger.ErrNotHeld):
				return fmt.Errorf("the egress of account %s is held by nobody; there is nothing to release", order.Account)
			case err != nil:
				return err
			}
			telemetry.Event(cmd.Context(), a.logger(cmd), slog.LevelWarn, telemetry.EventReleased,
				slog.String(telemetry.KeyAccount, order.Account), slog.Int64("epoch", owner.Epoch), slog.String("by", order.By))
			fmt.Fprintf(cmd.OutOrStdout(), "account %s: released from %s (epoch %d, last seen %s)\n", order.Account, owner.Holder, owner.Epoch, stamp(owner.SeenAt))
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&order.Account, "account", "", "the account (required)")
	flags.StringVar(&order.By, "by", "", "your name (required)")
	flags.StringVar(&order.Reason, "reason", "", "why (required)")
	flags.BoolVar(&order.Force, "force", false, "also from a holder that seems alive")
	for _, name := range []string{"account", "by", "reason"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag was defined above
		}
	}
	return cmd
}

// stamp formats an instant for people: UTC, to the millisecond.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000Z") }
