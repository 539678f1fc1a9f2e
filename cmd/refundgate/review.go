package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"refundgate/ledger"
	"refundgate/refund"
	"refundgate/starter"
)

func newReview(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "review",
		Short: "Decide about cases that people have to look at",
		Long: `The review desk. A case is in review when no automatic step is left or what is
known contradicts itself; "refunds show ID" tells why. Every action is recorded
with who did it and why, and goes through the case's workflow, so an orchestrator
must run.

With --version an action is refused if the case has moved on since you looked at
it. An action that got no answer can be repeated with the --action-id that the
message names; then it is done once at most.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newReviewList(a), newReviewAssign(a), newReviewNote(a), newReviewCheck(a),
		newReviewResend(a), newReviewSettle(a), newReviewCorrect(a),
	)
	return cmd
}

// order is what the flags of every action say.
type order struct {
	by, reason string
	version    int64
	id         string
	out        *output
}

// addOrder gives an action's command its flags.
func addOrder(cmd *cobra.Command) *order {
	o := &order{out: addOutput(cmd)}
	flags := cmd.Flags()
	flags.StringVar(&o.by, "by", "", "your name (required)")
	flags.StringVar(&o.reason, "reason", "", "why (required)")
	flags.Int64Var(&o.version, "version", 0, "refuse if the case is not at this version any more")
	flags.StringVar(&o.id, "action-id", "", "repeat the action of this id, which is done once at most")
	markRequired(cmd, "by", "reason")
	return o
}

// markRequired has cobra refuse the command without the flags.
func markRequired(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag was defined before
		}
	}
}

func newReviewAssign(a *app) *cobra.Command {
	var owner string
	var nobody bool
	cmd := &cobra.Command{
		Use:   "assign ID",
		Short: "Give an open case to somebody, or to nobody",
		Example: `  refundgate review assign r-17 --owner alice --by bob --reason "she knows the order"
  refundgate review assign r-17 --nobody --by alice --reason "on leave"`,
		Args: cobra.ExactArgs(1),
	}
	o := addOrder(cmd)
	cmd.Flags().StringVar(&owner, "owner", "", "who takes it")
	cmd.Flags().BoolVar(&nobody, "nobody", false, "take it from whoever has it")
	cmd.MarkFlagsMutuallyExclusive("owner", "nobody")
	cmd.MarkFlagsOneRequired("owner", "nobody")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if owner == "" && !nobody {
			return usagef("--owner is empty; to take the case from whoever has it, say --nobody")
		}
		return a.act(cmd, args[0], refund.ActionAssign, o, refund.ActionInput{Owner: owner, Nobody: nobody})
	}
	return cmd
}

func newReviewNote(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "note ID",
		Short:   "Add words to a case's trail, also to a closed one's",
		Example: `  refundgate review note r-17 --by alice --reason "asked the provider, ticket 4711"`,
		Args:    cobra.ExactArgs(1),
	}
	return a.plain(cmd, refund.ActionNote)
}

// plain completes the command of an action that takes nothing but who and why.
func (a *app) plain(cmd *cobra.Command, action refund.Action) *cobra.Command {
	o := addOrder(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.act(cmd, args[0], action, o, refund.ActionInput{})
	}
	return cmd
}

func newReviewCheck(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check ID",
		Short: "Ask the provider once more what became of an open case",
		Long: `Orders one result check. It waits its turn among the follow-ups of the account's
egress; what it finds is on the case's trail.`,
		Example: `  refundgate review check r-17 --by alice --reason "their outage is over"`,
		Args:    cobra.ExactArgs(1),
	}
	return a.plain(cmd, refund.ActionCheck)
}

func newReviewResend(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resend ID",
		Short: "Send a refund in review once more, with the same key and bytes",
		Long: `Orders one more send, with the idempotency key and the bytes of the first. It is
refused where the provider's contract doesn't make that safe. It waits its turn
among the follow-ups of the account's egress; what came of it is on the trail.`,
		Example: `  refundgate review resend r-17 --by alice --reason "they confirm that nothing arrived"`,
		Args:    cobra.ExactArgs(1),
	}
	return a.plain(cmd, refund.ActionResend)
}

func newReviewSettle(a *app) *cobra.Command {
	var in refund.ActionInput
	cmd := &cobra.Command{
		Use:   "settle ID",
		Short: "End a case in review on the strength of evidence",
		Example: `  refundgate review settle r-17 --status succeeded --evidence "statement of 2 March, line 88" --by alice --reason "the money arrived"
  refundgate review settle r-17 --status not_refunded --evidence "provider's ticket 4711" --by alice --reason "they never executed it" --version 12`,
		Args: cobra.ExactArgs(1),
	}
	o := addOrder(cmd)
	cmd.Flags().StringVar((*string)(&in.Status), "status", "", fmt.Sprintf("%s or %s (required)", refund.StatusSucceeded, refund.StatusNotRefunded))
	cmd.Flags().StringVar(&in.Evidence, "evidence", "", "what shows it: a statement's line, a ticket (required)")
	markRequired(cmd, "status", "evidence")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.act(cmd, args[0], refund.ActionSettle, o, in)
	}
	return cmd
}

func newReviewCorrect(a *app) *cobra.Command {
	var c refund.Correction
	var amount, paymentAmount int64
	var currency string
	cmd := &cobra.Command{
		Use:   "correct ID",
		Short: "Submit a rejected refund again with corrected data",
		Long: `Starts the next generation of a rejected refund: what the flags name is replaced,
the rest stays, and it is sent under a key of its own with a new deadline.`,
		Example: `  refundgate review correct r-17 --payment pay_2 --by alice --reason "wrong payment"
  refundgate review correct r-17 --amount 1200 --currency TWD --by alice --reason "50 was refunded before"`,
		Args: cobra.ExactArgs(1),
	}
	o := addOrder(cmd)
	flags := cmd.Flags()
	flags.StringVar(&c.PaymentID, "payment", "", "the payment's id at the provider")
	flags.Int64Var(&amount, "amount", 0, "amount in minor units, such as 1250 for 12.50")
	flags.Int64Var(&paymentAmount, "payment-amount", 0, "amount of the whole payment in minor units")
	flags.StringVar(&currency, "currency", "", "ISO 4217 code of the amounts")
	flags.StringVar(&c.RefundReason, "refund-reason", "", "why the money is given back, for the provider")
	cmd.MarkFlagsOneRequired("payment", "amount", "payment-amount", "refund-reason")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		changed := cmd.Flags().Changed
		if (changed("amount") || changed("payment-amount")) != changed("currency") {
			return usagef("--amount and --payment-amount go with --currency")
		}
		if changed("amount") {
			c.Amount = &refund.Money{Value: amount, Currency: currency}
		}
		if changed("payment-amount") {
			c.PaymentAmount = &refund.Money{Value: paymentAmount, Currency: currency}
		}
		return a.correct(cmd, args[0], o, c)
	}
	return cmd
}

func newReviewList(a *app) *cobra.Command {
	var f ledger.ReviewFilter
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the cases in review, those first that wait longest",
		Example: `  refundgate review list --unassigned
  refundgate review list --owner alice -o json
  refundgate review list --account acme --reason deadline_unknown --limit 20`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.Owner, "owner", "", "only cases assigned to this person")
	flags.BoolVar(&f.Unassigned, "unassigned", false, "only cases assigned to nobody")
	flags.StringVar(&f.Account, "account", "", "only cases of this account")
	flags.StringVar((*string)(&f.Reason), "reason", "", "only cases in review for this reason, such as deadline_unknown")
	addPaging(cmd, &f.Limit, &f.Cursor)
	cmd.MarkFlagsMutuallyExclusive("owner", "unassigned")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.Reason != "" && !slices.Contains(refund.ReviewReasons, f.Reason) {
			return usagef("there is no reason %q; reasons are %v", f.Reason, refund.ReviewReasons)
		}
		return a.list(cmd, f.Limit, *out, printReviews, func(l *ledger.Ledger) (ledger.Page, error) { return l.Reviews(cmd.Context(), f) })
	}
	return cmd
}

func printReviews(w io.Writer, page ledger.Page) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "REFUND\tACCOUNT\tAMOUNT\tREASON\tOWNER\tATTEMPTS\tVERSION\tACCEPTED\tDEADLINE")
	for _, c := range page.Cases {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", c.Refund.ID, c.Refund.Account, c.Refund.Amount, c.ReviewReason,
			cmp.Or(c.Owner, "-"), c.Attempts, c.Version, stamp(c.AcceptedAt), stamp(c.DeadlineAt))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return printNext(w, page)
}

// act carries out an action on an open case, or a note on any.
func (a *app) act(cmd *cobra.Command, refundID string, action refund.Action, o *order, in refund.ActionInput) error {
	in.By, in.Reason, in.Version = o.by, o.reason, o.version
	if err := in.Validate(action); err != nil {
		return usageError{err}
	}
	return a.atDesk(cmd, refundID, action, o, func(p *parts, desk *starter.Desk) (refund.Case, error) {
		return desk.Act(cmd.Context(), refundID, o.id, action, in)
	})
}

// correct corrects a rejected case and starts its workflow.
func (a *app) correct(cmd *cobra.Command, refundID string, o *order, c refund.Correction) error {
	c.By, c.Reason, c.Version = o.by, o.reason, o.version
	return a.atDesk(cmd, refundID, refund.ActionCorrect, o, func(p *parts, desk *starter.Desk) (refund.Case, error) {
		ctx := cmd.Context()
		corrected, err := desk.Correct(ctx, refundID, o.id, c)
		if err != nil {
			return corrected, err
		}
		if err := p.startNow(ctx, corrected); err != nil {
			p.log.WarnContext(ctx, "the correction is recorded; its workflow will be started by `refundgate serve` once Temporal is there", "error", err)
		}
		return corrected, nil
	})
}

// atDesk lets do work at the desk, and prints the case after it or says what
// to do about the error.
func (a *app) atDesk(cmd *cobra.Command, refundID string, action refund.Action, o *order, do func(*parts, *starter.Desk) (refund.Case, error)) error {
	if err := refund.ValidateID(refundID); err != nil {
		return usagef("the refund id %v", err)
	}
	if o.id == "" {
		o.id = starter.NewActionID()
	} else if err := refund.ValidateID(o.id); err != nil {
		return usagef("--action-id %v", err)
	}
	cfg, err := a.config()
	if err != nil {
		return err
	}
	p, err := connect(cmd.Context(), cfg, a.logger(cmd))
	if err != nil {
		return err
	}
	defer p.close()
	c, err := do(p, p.desk(nil))
	if err != nil {
		return deskError(refundID, action, o.id, err)
	}
	if *o.out == outputJSON {
		return printJSON(cmd.OutOrStdout(), c)
	}
	line := fmt.Sprintf("%s: %s recorded; %s", refundID, action, c.Status)
	if c.ReviewReason != "" {
		line += fmt.Sprintf(" (%s)", c.ReviewReason)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s, owner %s, version %d\n", line, cmp.Or(c.Owner, "nobody"), c.Version)
	return err
}

// deskError says what to do about an action that was not carried out.
func deskError(refundID string, action refund.Action, id string, err error) error {
	var invalid *refund.InvalidError
	var refused *ledger.ActionRefusedError
	var uncertain *starter.UncertainError
	switch {
	case errors.As(err, &invalid):
		return usageError{invalid}
	case errors.Is(err, ledger.ErrNotFound):
		return fmt.Errorf("there is no refund %q", refundID)
	case errors.As(err, &refused):
		return fmt.Errorf("%s is refused: %s; see `refundgate refunds show %s`", action, refused.Why, refundID)
	case errors.As(err, &uncertain):
		return fmt.Errorf("%w; when Temporal and an orchestrator run, repeat the command with --action-id %s", err, id)
	}
	return err
}
