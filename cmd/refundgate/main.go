// Command refundgate is the refund orchestrator: worker, intake API, database
// schema, stand-in provider, and the operators' tools, one subcommand each.
// This is the only package that knows every other one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"refundgate/internal/telemetry"
)

// Exit codes of every command.
const (
	exitDone   = 0
	exitFailed = 1 // it was understood and did not work
	exitUsage  = 2 // it was not understood: flags, arguments, input
)

// usageError is an error of the one who typed the command.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() {
	// The first signal asks for an orderly end; a second one ends at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	// net/http writes what a peer sent out of turn to the standard log. All of
	// our own lines go through slog, and a provider's bytes belong in neither.
	log.SetOutput(io.Discard)
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(root.ErrOrStderr(), "refundgate: %v\n", err)
	if isUsage(err) {
		fmt.Fprintf(root.ErrOrStderr(), "Try '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// isUsage recognises our own usage errors and cobra's, which have no type.
func isUsage(err error) bool {
	var usage usageError
	if errors.As(err, &usage) {
		return true
	}
	for _, prefix := range []string{"unknown command", "required flag(s)", "accepts ", "requires at least", "if any flags in the group", "at least one of the flags"} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}

func newRoot() *cobra.Command {
	a := &app{logFormat: defaultLogFormat(), logLevel: slog.LevelInfo}
	root := &cobra.Command{
		Use:   "refundgate",
		Short: "Refunds through one egress: never more calls than the provider takes, never a refund sent twice",
		Long: `refundgate accepts refunds, owns each one as a Temporal workflow, and sends them
to the payment provider through one gate per account. A time-out is "unknown",
never "failed", until the provider, a notice or a person has settled it.

To try it on this machine:  refundgate dev --samples`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := root.PersistentFlags()
	flags.StringVar(&a.configPath, "config", "", "configuration file (default $REFUNDGATE_CONFIG; see refundgate.example.yaml)")
	flags.Var(&a.logFormat, "log-format", "log lines on stderr as json or text")
	flags.TextVar(&a.logLevel, "log-level", slog.LevelInfo, "least level that is logged: debug, info, warn, error")
	root.AddCommand(
		newDev(a), newWorker(a), newServe(a), newMigrate(a),
		newSubmit(a), newRefunds(a), newReview(a), newInbox(a), newNotices(a), newSettlement(a), newEgress(a), newPlan(a), newDrill(a), newStandin(),
	)
	return root
}

// defaultLogFormat is text for a person's terminal and JSON for everyone else.
func defaultLogFormat() telemetry.Format {
	if isTerminal(os.Stderr) {
		return telemetry.FormatText
	}
	return telemetry.FormatJSON
}

// isTerminal tells whether f is a character device, which is near enough to
// "somebody is looking" to choose a format by.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}
