package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"refundgate/ledger"
)

func newInbox(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "Look at what order services put into refund_inbox and can't be accepted",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newInboxList(a), newInboxRetry(a))
	return cmd
}

func newInboxList(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the rows that are set aside, with the reason",
		Long: `Lists the rows of refund_inbox that could not be accepted, the oldest first. The
others are accepted by "serve" within a second, or wait while their account has no
room; how many do is counted below the list.`,
		Example: `  refundgate inbox list
  refundgate inbox list -o json`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd)
	cmd.Flags().IntVar(&limit, "limit", defaultInboxRows, fmt.Sprintf("how many, at most %d", maxInboxRows))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkLimit(limit, maxInboxRows); err != nil {
			return err
		}
		l, err := a.ledger(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		load, err := l.InboxLoad(cmd.Context())
		if err != nil {
			return err
		}
		rows, err := l.RefusedInbox(cmd.Context(), limit)
		if err != nil {
			return err
		}
		if *out == outputJSON {
			return printJSON(cmd.OutOrStdout(), struct {
				Rows    []ledger.InboxRow `json:"rows"`
				Refused int               `json:"refused"`
				Waiting int               `json:"waiting"`
			}{rows, load.Refused, load.Waiting})
		}
		return printInbox(cmd.OutOrStdout(), rows, load)
	}
	return cmd
}

// How many rows are listed.
const (
	defaultInboxRows = 50
	maxInboxRows     = 1000
)

func printInbox(w io.Writer, rows []ledger.InboxRow, load ledger.InboxLoad) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ROW\tREFUND\tWRITTEN\tREFUSED\tWHY")
	for _, r := range rows {
		fmt.Fprintf(tw, "%d\t%q\t%s\t%s\t%s\n", r.ID, r.RefundID, stamp(r.CreatedAt), stamp(*r.RefusedAt), r.Refusal)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if more := load.Refused - len(rows); more > 0 {
		fmt.Fprintf(w, "there are %d more; see --limit\n", more)
	}
	_, err := fmt.Fprintf(w, "%d set aside, %d waiting to be accepted\n", load.Refused, load.Waiting)
	return err
}

func newInboxRetry(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "retry ROW...",
		Short: "Try rows again that are set aside",
		Long: `Hands rows back to "serve", which takes them within a second: after the payload
was corrected in the table, or the account configured. A row that still can't be
accepted is set aside again.`,
		Example: `  refundgate inbox retry 17 18`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids := make([]int64, len(args))
			for i, arg := range args {
				id, err := strconv.ParseInt(arg, 10, 64)
				if err != nil || id < 1 {
					return usagef("%q is not the number of a row; see refundgate inbox list", arg)
				}
				ids[i] = id
			}
			l, err := a.ledger(cmd.Context())
			if err != nil {
				return err
			}
			defer l.Close()
			var failed []error
			for _, id := range ids {
				switch err := l.RetryInbox(cmd.Context(), id); {
				case errors.Is(err, ledger.ErrNotFound):
					failed = append(failed, fmt.Errorf("row %d is not set aside; see refundgate inbox list", id))
				case err != nil:
					return err
				default:
					fmt.Fprintf(cmd.OutOrStdout(), "row %d is tried again\n", id)
				}
			}
			return errors.Join(failed...)
		},
	}
}
