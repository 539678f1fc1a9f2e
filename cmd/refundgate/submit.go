package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/api/serviceerror"

	"refundgate/ledger"
	"refundgate/refund"
	"refundgate/starter"
)

// maxInput bounds a refund read from a file, in bytes.
const maxInput = 64 << 10

func newSubmit(a *app) *cobra.Command {
	var file string
	var r refund.Refund
	var paymentAmount int64
	cmd := &cobra.Command{
		Use:   "submit",
		Short: "Submit one refund",
		Long: `Accepts one refund, from flags or from a JSON file of the intake API's form, and
starts its workflow. Submitting the same again changes nothing; the same id
with other content is refused.`,
		Example: `  refundgate submit --id r-17 --account demo --order o-9 --payment pay_1 --amount 1250 --currency TWD --reason "damaged" --by alice
  refundgate submit -f refund.json
  echo '{"refund_id":"r-17", ...}' | refundgate submit -f -`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&file, "file", "f", "", "read the refund from this JSON file; - is standard input")
	flags.StringVar(&r.ID, "id", "", "refund id")
	flags.StringVar(&r.Account, "account", "", "provider account")
	flags.StringVar(&r.OrderID, "order", "", "order id")
	flags.StringVar(&r.PaymentID, "payment", "", "payment id at the provider")
	flags.Int64Var(&r.Amount.Value, "amount", 0, "amount in minor units, such as 1250 for 12.50")
	flags.StringVar(&r.Amount.Currency, "currency", "", "ISO 4217 code")
	flags.Int64Var(&paymentAmount, "payment-amount", 0, "amount of the whole payment in minor units, if known")
	flags.StringVar(&r.Reason, "reason", "", "why, for people")
	flags.StringVar(&r.RequestedBy, "by", "", "who asks for it")
	cmd.MarkFlagsMutuallyExclusive("file", "id")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file != "" {
			var err error
			if r, err = readRefund(file, cmd.InOrStdin()); err != nil {
				return usageError{err}
			}
		} else if paymentAmount != 0 {
			r.PaymentAmount = &refund.Money{Value: paymentAmount, Currency: r.Amount.Currency}
		}
		if err := r.Validate(); err != nil {
			return usageError{err}
		}
		return a.submit(cmd, r, *out)
	}
	return cmd
}

func readRefund(file string, stdin io.Reader) (refund.Refund, error) {
	var r refund.Refund
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return r, fmt.Errorf("reading the refund: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return r, fmt.Errorf("reading the refund: %w", err)
	}
	if len(b) > maxInput {
		return r, fmt.Errorf("the refund is longer than %d bytes", maxInput)
	}
	return starter.DecodeRefund(b)
}

func (a *app) submit(cmd *cobra.Command, r refund.Refund, out output) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	acc, err := cfg.Account(r.Account)
	if err == nil {
		err = acc.Exponents.Validate(r)
	}
	if err != nil {
		return usageError{err}
	}
	ctx, log := cmd.Context(), a.logger(cmd)
	p, err := connect(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer p.close()
	c, created, err := p.ledger.Accept(ctx, ledger.Submission{Refund: r, Deadline: cfg.Policy.Deadline})
	if errors.Is(err, ledger.ErrConflict) {
		return fmt.Errorf("refund %s was accepted before with other content; see `refundgate refunds show %s`", r.ID, r.ID)
	}
	if err != nil {
		return err
	}
	if started := p.startNow(ctx, c); started != nil {
		log.WarnContext(ctx, "the refund is accepted; its workflow will be started by `refundgate serve` once Temporal is there", "error", started)
	}
	if out == outputJSON {
		if c, err = p.ledger.Case(ctx, r.ID); err != nil {
			return err
		}
		return printJSON(cmd.OutOrStdout(), c)
	}
	word := "accepted"
	if !created {
		word = "known already"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, %s, deadline %s\n", r.ID, word, c.Status, stamp(c.DeadlineAt))
	return nil
}

// startNow starts the workflow of an open case, unless one runs.
func (p *parts) startNow(ctx context.Context, c refund.Case) error {
	if !c.Open() {
		return nil
	}
	r := c.Refund
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := p.temporal.ExecuteWorkflow(ctx, starter.StartOptions(r), refund.WorkflowType, r)
	var there *serviceerror.WorkflowExecutionAlreadyStarted
	switch {
	case errors.As(err, &there):
		return nil
	case err != nil:
		return fmt.Errorf("starting the workflow: %w", err)
	}
	return p.ledger.MarkStarted(ctx, r.ID)
}
