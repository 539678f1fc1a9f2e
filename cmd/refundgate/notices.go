package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"refundgate/internal/config"
	"refundgate/provider"
	"refundgate/provider/reference"
	"refundgate/refund"
	"refundgate/starter"
)

// noticesOf returns what reads the account's notices. secrets sign its
// notifications; settlement reports need none.
func noticesOf(acc config.Account, secrets []config.Secret) (provider.Notices, error) {
	revealed := func() []string {
		values := make([]string, len(secrets))
		for i, s := range secrets {
			values[i] = s.Reveal()
		}
		return values
	}
	switch acc.Adapter {
	case "reference":
		return reference.NewNotices(acc.Name, acc.Exponents, revealed), nil
	default:
		return nil, fmt.Errorf("accounts.%s: there is no adapter %q", acc.Name, acc.Adapter)
	}
}

// notifications returns the readers of those accounts that take notifications.
func notifications(cfg config.Config) (map[string]starter.NotificationReader, error) {
	readers := map[string]starter.NotificationReader{}
	for _, acc := range cfg.Accounts {
		secrets, err := acc.ReadNotificationSecrets(os.Getenv)
		if err != nil {
			return nil, err
		}
		if len(secrets) == 0 {
			continue
		}
		if readers[acc.Name], err = noticesOf(acc, secrets); err != nil {
			return nil, err
		}
	}
	return readers, nil
}

func newNotices(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notices",
		Short: "Look at what providers said of themselves",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNoticesList(a))
	return cmd
}

func newNoticesList(a *app) *cobra.Command {
	var account string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the notices that wait for a case they belong to",
		Long: `Lists the parked notices, the oldest first: those whose reference and id are of no
case (yet), or of two. "serve" tries them again every few seconds. A notice that
belongs to a case is on its trail: see "refunds show ID".`,
		Example: `  refundgate notices list --account acme
  refundgate notices list -o json`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd)
	cmd.Flags().StringVar(&account, "account", "", "only those of this account")
	cmd.Flags().IntVar(&limit, "limit", defaultNotices, fmt.Sprintf("how many, at most %d", maxNotices))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkLimit(limit, maxNotices); err != nil {
			return err
		}
		l, err := a.ledger(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		// One more than asked for tells whether there are more.
		parked, err := l.Parked(cmd.Context(), account, limit+1)
		if err != nil {
			return err
		}
		more := len(parked) > limit
		parked = parked[:min(len(parked), limit)]
		if *out == outputJSON {
			return printJSON(cmd.OutOrStdout(), struct {
				Notices []refund.Notice `json:"notices"`
				More    bool            `json:"more"`
			}{append([]refund.Notice{}, parked...), more})
		}
		return printNotices(cmd.OutOrStdout(), parked, more)
	}
	return cmd
}

// How many notices are listed.
const (
	defaultNotices = 50
	maxNotices     = 1000
)

func printNotices(w io.Writer, notices []refund.Notice, more bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "RECEIVED\tACCOUNT\tSOURCE\tEVENT\tREFERENCE\tPROVIDER'S ID\tAMOUNT\tSAYS\tPROBLEM")
	for _, n := range notices {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", stamp(n.ReceivedAt), n.Account, n.Source, n.EventID,
			cmp.Or(n.Reference, "-"), cmp.Or(n.ProviderRefundID, "-"), n.Amount, n.Outcome, n.Problem)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if more {
		fmt.Fprintln(w, "there are more; see --limit")
	}
	return nil
}
