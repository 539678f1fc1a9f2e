package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"refundgate/ledger"
	"refundgate/refund"
)

func newRefunds(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "refunds",
		Short: "Look at cases",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRefundsList(a), newRefundsShow(a))
	return cmd
}

func newRefundsList(a *app) *cobra.Command {
	var f ledger.Filter
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List cases, latest accepted first",
		Example: `  refundgate refunds list --status review
  refundgate refunds list --account acme --limit 20 -o json`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd)
	flags := cmd.Flags()
	flags.StringVar((*string)(&f.Status), "status", "", "only cases of this status")
	flags.StringVar(&f.Account, "account", "", "only cases of this account")
	flags.StringVar(&f.Owner, "owner", "", "only cases assigned to this person")
	addPaging(cmd, &f.Limit, &f.Cursor)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.Status != "" && !f.Status.Valid() {
			return usagef("there is no status %q; statuses are %v", f.Status, refund.Statuses)
		}
		return a.list(cmd, f.Limit, *out, printCases, func(l *ledger.Ledger) (ledger.Page, error) { return l.List(cmd.Context(), f) })
	}
	return cmd
}

// addPaging gives a list its flags --limit and --cursor.
func addPaging(cmd *cobra.Command, limit *int, cursor *string) {
	cmd.Flags().IntVar(limit, "limit", ledger.DefaultPageSize, fmt.Sprintf("cases on a page, at most %d", ledger.MaxPageSize))
	cmd.Flags().StringVar(cursor, "cursor", "", "continue after an earlier page")
}

// checkLimit refuses a --limit that is out of its range.
func checkLimit(limit, most int) error {
	if limit < 1 || limit > most {
		return usagef("--limit is from 1 to %d", most)
	}
	return nil
}

// list prints a page of cases, as text with the given function.
func (a *app) list(cmd *cobra.Command, limit int, out output, text func(io.Writer, ledger.Page) error, read func(*ledger.Ledger) (ledger.Page, error)) error {
	if err := checkLimit(limit, ledger.MaxPageSize); err != nil {
		return err
	}
	l, err := a.ledger(cmd.Context())
	if err != nil {
		return err
	}
	defer l.Close()
	page, err := read(l)
	if errors.Is(err, ledger.ErrBadCursor) {
		return usagef("--cursor is not one that an earlier page printed")
	}
	if err != nil {
		return err
	}
	if out == outputJSON {
		return printCasesJSON(cmd.OutOrStdout(), page)
	}
	return text(cmd.OutOrStdout(), page)
}

func printCases(w io.Writer, page ledger.Page) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "REFUND\tACCOUNT\tAMOUNT\tSTATUS\tATTEMPTS\tREASON\tOWNER\tACCEPTED")
	for _, c := range page.Cases {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", c.Refund.ID, c.Refund.Account, c.Refund.Amount, c.Status, c.Attempts,
			cmp.Or(string(c.ReviewReason), "-"), cmp.Or(c.Owner, "-"), stamp(c.AcceptedAt))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return printNext(w, page)
}

func printCasesJSON(w io.Writer, page ledger.Page) error {
	return printJSON(w, struct {
		Cases []refund.Case `json:"cases"`
		Next  string        `json:"next_cursor,omitempty"`
	}{append([]refund.Case{}, page.Cases...), page.Next}) // none is [], not null
}

// printNext tells how to go on after a page that isn't the last.
func printNext(w io.Writer, page ledger.Page) error {
	if page.Next == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "more: --cursor %s\n", page.Next)
	return err
}

func newRefundsShow(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show a case with its trail: every call, decision and notice",
		Example: `  refundgate refunds show r-20261201-17`,
		Args:    cobra.ExactArgs(1),
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id := args[0]
		if err := refund.ValidateID(id); err != nil {
			return usagef("the refund id %v", err)
		}
		l, err := a.ledger(cmd.Context())
		if err != nil {
			return err
		}
		defer l.Close()
		c, err := l.Case(cmd.Context(), id)
		if errors.Is(err, ledger.ErrNotFound) {
			return fmt.Errorf("there is no refund %q", id)
		}
		if err != nil {
			return err
		}
		events, err := l.Events(cmd.Context(), id)
		if err != nil {
			return err
		}
		if *out == outputJSON {
			return printJSON(cmd.OutOrStdout(), struct {
				refund.Case
				Events []refund.Event `json:"events"`
			}{c, events})
		}
		return printCase(cmd.OutOrStdout(), c, events)
	}
	return cmd
}

// trailLine is a call or an event of a case.
type trailLine struct {
	at             time.Time
	who, what, how string
}

func printCase(w io.Writer, c refund.Case, events []refund.Event) error {
	fmt.Fprintf(w, "Refund %s: %s\n", c.Refund.ID, c.Status)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(tw, "  %s\t%s\n", name, value)
		}
	}
	row("amount", c.Refund.Amount.String())
	row("payment", c.Refund.PaymentID)
	row("order", c.Refund.OrderID)
	row("account", c.Refund.Account)
	row("reason", fmt.Sprintf("%q, by %q", c.Refund.Reason, c.Refund.RequestedBy))
	row("review", string(c.ReviewReason))
	row("owner", c.Owner)
	row("provider's id", c.ProviderRefundID)
	row("attempts", fmt.Sprint(c.Attempts))
	if c.Generation > 1 {
		row("generation", fmt.Sprint(c.Generation))
	}
	row("version", fmt.Sprint(c.Version))
	row("accepted", stamp(c.AcceptedAt))
	row("deadline", stamp(c.DeadlineAt))
	if c.ClosedAt != nil {
		row("closed", stamp(*c.ClosedAt))
	}
	if err := tw.Flush(); err != nil {
		return err
	}

	var lines []trailLine
	for _, call := range c.Calls {
		at := call.IntentAt
		if call.StartedAt != nil {
			at = *call.StartedAt
		}
		lines = append(lines, trailLine{at, "call", nameOf(call), outcomeOf(call)})
	}
	for _, e := range events {
		lines = append(lines, trailLine{e.At, e.Actor, e.Action, e.Detail})
	}
	slices.SortStableFunc(lines, func(a, b trailLine) int { return a.at.Compare(b.at) })
	fmt.Fprintln(w, "Trail:")
	for _, l := range lines {
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", stamp(l.at), l.who, l.what, l.how)
	}
	return tw.Flush()
}

// nameOf says which call it is, and why it was made.
func nameOf(call refund.Call) string {
	if call.Key.Generation > 1 {
		return fmt.Sprintf("%s %d of generation %d (%s)", call.Key.Kind, call.Key.Seq, call.Key.Generation, call.Origin)
	}
	return fmt.Sprintf("%s %d (%s)", call.Key.Kind, call.Key.Seq, call.Origin)
}

// outcomeOf puts what became of a call into a few words.
func outcomeOf(call refund.Call) string {
	if !call.Done() {
		return "no outcome recorded"
	}
	r := call.Result
	s := string(r.Outcome)
	if r.Code != "" {
		s += " " + r.Code
	}
	if r.HTTPStatus != 0 {
		s += fmt.Sprintf(", HTTP %d", r.HTTPStatus)
	}
	if r.Budget != "" {
		s += fmt.Sprintf(", %s budget used up", r.Budget)
	}
	if call.StartedAt != nil && call.FinishedAt != nil {
		s += fmt.Sprintf(", %d ms, %d in flight", call.FinishedAt.Sub(*call.StartedAt).Milliseconds(), call.InFlight)
	}
	return s
}
