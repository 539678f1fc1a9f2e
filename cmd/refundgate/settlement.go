package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"refundgate/provider"
	"refundgate/refund"
)

func newSettlement(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "settlement",
		Short: "Apply a provider's settlement reports",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSettlementImport(a))
	return cmd
}

func newSettlementImport(a *app) *cobra.Command {
	var account string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Apply a settlement report; - is standard input",
		Long: `Stores every row of an account's settlement report as a notice of the provider;
"serve" has the cases look at theirs within a second. A row that was imported
before changes nothing, so a file can be imported again at any time. A row that
can't be read is told with its line, and the others count.

Exit status: 0 all rows are stored, 1 some are not, 2 this is no such report.`,
		Example: `  refundgate settlement import march.csv --account acme
  curl -s https://provider.example/report.csv | refundgate settlement import - --account acme -o json`,
		Args: cobra.ExactArgs(1),
	}
	out := addOutput(cmd)
	cmd.Flags().StringVar(&account, "account", "", "the account that the report is of (required)")
	markRequired(cmd, "account")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := a.config()
		if err != nil {
			return err
		}
		acc, err := cfg.Account(account)
		if err != nil {
			return usageError{err}
		}
		reader, err := noticesOf(acc, nil)
		if err != nil {
			return err
		}
		report := cmd.InOrStdin()
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return usagef("reading the report: %w", err)
			}
			defer f.Close()
			report = f
		}
		l, err := openLedger(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		defer l.Close()
		sum, err := importSettlement(cmd.Context(), reader, l, report)
		if err != nil {
			return err
		}
		if *out == outputJSON {
			err = printJSON(cmd.OutOrStdout(), sum)
		} else {
			err = sum.print(cmd.OutOrStdout())
		}
		if err == nil && len(sum.Bad) > 0 {
			err = fmt.Errorf("%d of %d rows could not be read; the others are stored", len(sum.Bad), sum.rows())
		}
		return err
	}
	return cmd
}

// noticeStore is what an import needs of the ledger.
type noticeStore interface {
	AddNotice(ctx context.Context, n refund.Notice) (stored refund.Notice, isNew bool, err error)
}

// settlementSum says what became of a report's rows.
type settlementSum struct {
	Applied int `json:"applied"`       // new, and facts about a case
	Known   int `json:"already_known"` // imported before
	Parked  int `json:"parked"`        // new, and of no case (yet)
	// Contradicting rows are new and don't fit the case that they name, by
	// amount, currency or payment: people have to look.
	Contradicting int      `json:"contradicting"`
	Bad           []badRow `json:"bad"`
}

type badRow struct {
	Line    int    `json:"line"`
	Message string `json:"message"`
}

func (s settlementSum) rows() int {
	return s.Applied + s.Known + s.Parked + s.Contradicting + len(s.Bad)
}

// importSettlement stores a report's rows. The error is a usageError if it is
// no such report.
func importSettlement(ctx context.Context, reader provider.Notices, store noticeStore, report io.Reader) (settlementSum, error) {
	sum := settlementSum{Bad: []badRow{}}
	for n, err := range reader.Settlement(report) {
		var row *provider.RowError
		var malformed *provider.MalformedError
		switch {
		case errors.As(err, &row):
			sum.Bad = append(sum.Bad, badRow{row.Line, row.Err.Error()})
			continue
		case errors.As(err, &malformed):
			return sum, usagef("this is no settlement report: %w", malformed)
		case err != nil:
			return sum, fmt.Errorf("reading the report: %w", err)
		}
		stored, isNew, err := store.AddNotice(ctx, n)
		switch {
		case err != nil:
			return sum, fmt.Errorf("after %d rows: %w; importing the file again is safe", sum.rows(), err)
		case !isNew:
			sum.Known++
		case stored.Parked():
			sum.Parked++
		case stored.Problem != "":
			sum.Contradicting++
		default:
			sum.Applied++
		}
	}
	return sum, nil
}

func (s settlementSum) print(w io.Writer) error {
	fmt.Fprintf(w, "%d rows: %d applied, %d already known, %d parked, %d contradicting their case, %d bad\n",
		s.rows(), s.Applied, s.Known, s.Parked, s.Contradicting, len(s.Bad))
	for _, bad := range s.Bad {
		fmt.Fprintf(w, "line %d: %s\n", bad.Line, bad.Message)
	}
	if s.Parked > 0 {
		_, err := fmt.Fprintln(w, "see `refundgate notices list` for what is parked")
		return err
	}
	return nil
}
