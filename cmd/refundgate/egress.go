package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"refundgate/ledger"
)

func newEgress(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "egress",
		Short: "Look at who may call the providers",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEgressStatus(a))
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
}

func newEgressStatus(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each account's owner and budget",
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
			all = append(all, s)
		}
		if *out == outputJSON {
			return printJSON(cmd.OutOrStdout(), all)
		}
		tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "ACCOUNT\tSTATE\tHOLDER\tEPOCH\tSINCE\tSEEN\tBUDGET")
		for _, s := range all {
			holder, epoch, since, seen := "-", "-", "-", "-"
			if s.Owner != nil {
				holder, epoch = s.Owner.Holder, fmt.Sprint(s.Owner.Epoch)
				since, seen = stamp(s.Owner.AcquiredAt), stamp(s.Owner.SeenAt)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%g/s, %d in flight\n", s.Account, s.State, holder, epoch, since, seen, s.PerSecond, s.MaxInFlight)
		}
		return tw.Flush()
	}
	return cmd
}

// stamp formats an instant for people: UTC, to the millisecond.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000Z") }
