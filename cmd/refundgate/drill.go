package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"refundgate/drill"
	"refundgate/drill/report"
	"refundgate/internal/config"
)

// drillFlags is what `refundgate drill` was asked.
type drillFlags struct {
	scenarios []string
	short     bool
	report    string
	sabotage  string
	selfTest  bool
	list      bool
	keep      string
	out       *output
}

func newDrill(a *app) *cobra.Command {
	var f drillFlags
	cmd := &cobra.Command{
		Use:   "drill",
		Short: "Prove on real parts that the promises hold, and write a report about it",
		Long: `Starts Temporal, a database, workers, the intake and the stand-in provider as
processes, makes the provider misbehave and processes stop and die, and holds
three records against each other and against what was promised: what the gate
logged at each first byte, what the ledger has, and what the provider received.
The exit status is 0 only if every check held.

Everything runs at the default budgets (5 starts/s, 200 ms, 10 in flight, 3 s a
call), on loopback, in processes of its own. A configured database (mysql.dsn,
REFUNDGATE_MYSQL_DSN) and a named Temporal (temporal.address, TEMPORAL_ADDRESS)
are used instead of private ones; the drill keeps to an account of its own there,
and leaves its refunds behind. Don't point it at production.

--sabotage breaks a promise on purpose: the drill has to fail and name it.
--self-test does so with each of them, and fails if the drill doesn't.`,
		Example: `  refundgate drill --report drill-report
  refundgate drill --short
  refundgate drill --scenario ownership --scenario crash
  refundgate drill --short --scenario kinds --sabotage second-client`,
		Args: cobra.NoArgs,
	}
	f.out = addOutput(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&f.scenarios, "scenario", nil, "carry out this one only, may be repeated (default all; see --list)")
	flags.BoolVar(&f.short, "short", false, "the same checks on less work")
	flags.StringVar(&f.report, "report", "", "directory for report.html and report.json (default: none are written)")
	flags.StringVar(&f.sabotage, "sabotage", "", "break a promise on purpose: "+strings.Join(sabotageNames(), ", "))
	flags.BoolVar(&f.selfTest, "self-test", false, "show that the drill fails for each sabotage")
	flags.BoolVar(&f.list, "list", false, "list the scenarios and end")
	flags.StringVar(&f.keep, "keep", "", "directory that keeps the logs and data of the run (default: a temporary one, removed at the end)")
	cmd.MarkFlagsMutuallyExclusive("self-test", "sabotage")
	cmd.MarkFlagsMutuallyExclusive("self-test", "scenario")
	cmd.MarkFlagsMutuallyExclusive("self-test", "report")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.list {
			return listScenarios(cmd.OutOrStdout())
		}
		opts, err := a.drillOptions(f)
		if err != nil {
			return err
		}
		if f.selfTest {
			return selfTest(cmd.Context(), opts, cmd.ErrOrStderr(), cmd.OutOrStdout())
		}
		rep, err := runDrill(cmd.Context(), opts, f.keep, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return f.tell(rep, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

func sabotageNames() []string {
	names := make([]string, len(drill.Sabotages))
	for i, s := range drill.Sabotages {
		names[i] = string(s)
	}
	return names
}

func listScenarios(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SCENARIO\tSHOWS\tWHAT HAPPENS")
	for _, s := range drill.Scenarios() {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", s.Name, s.Requirement, s.Title)
	}
	return tw.Flush()
}

// drillOptions turns flags and configuration into what the drill is told. The
// budgets are the defaults: the drill shows what is promised, not what this
// machine's accounts happen to be.
func (a *app) drillOptions(f drillFlags) (drill.Options, error) {
	cfg, err := a.config()
	if err != nil {
		return drill.Options{}, err
	}
	binary, err := os.Executable()
	if err != nil {
		return drill.Options{}, err
	}
	std := config.Default()
	account := std.Defaults
	account.Name = "drill"
	opts := drill.Options{
		Binary: binary, Scenarios: f.scenarios, Short: f.short, Sabotage: drill.Sabotage(f.sabotage),
		Gate:   budgets(account),
		Policy: policies(config.Config{Policy: std.Policy, Accounts: []config.Account{account}})[account.Name],
		DSN:    cfg.MySQL.DSN.Reveal(), Namespace: cfg.Temporal.Namespace,
	}
	if cfg.Temporal.Address != std.Temporal.Address || os.Getenv("TEMPORAL_ADDRESS") != "" {
		opts.Temporal = cfg.Temporal.Address
	}
	if err := opts.Validate(); err != nil {
		return drill.Options{}, usageError{err}
	}
	return opts, nil
}

// runDrill carries out a drill in a directory of its own and shows on w how
// far it is.
func runDrill(ctx context.Context, opts drill.Options, keep string, w io.Writer) (rep report.Report, err error) {
	opts.Dir = keep
	if opts.Dir == "" {
		if opts.Dir, err = os.MkdirTemp("", "refundgate-drill-"); err != nil {
			return rep, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(opts.Dir)) }()
	} else if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return rep, err
	}
	if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
		return rep, err
	}
	fmt.Fprintf(w, "the drill takes about %s\n", minutes(opts.Estimate()))
	line := &progressLine{w: w}
	opts.Progress = line.show
	rep, err = drill.Run(ctx, opts)
	line.end()
	return rep, err
}

// tell writes the report's files and prints the verdict.
func (f drillFlags) tell(rep report.Report, out, notes io.Writer) error {
	if f.report != "" {
		if err := rep.WriteFiles(f.report); err != nil {
			return err
		}
		fmt.Fprintf(notes, "the report is %s\n", filepath.Join(f.report, "report.html"))
	}
	var err error
	if *f.out == outputJSON {
		err = printJSON(out, rep)
	} else {
		err = rep.WriteText(out)
	}
	if err == nil && !rep.Passed {
		err = errors.New("the drill failed")
	}
	return err
}

// selfTest breaks each promise on purpose, and fails if the drill doesn't
// notice.
func selfTest(ctx context.Context, opts drill.Options, notes, out io.Writer) error {
	opts.Short, opts.Scenarios = true, []string{"pause"}
	var missed []error
	for _, s := range drill.Sabotages {
		fmt.Fprintf(notes, "sabotage: %s\n", s)
		opts.Sabotage = s
		if err := opts.Validate(); err != nil {
			return usageError{err}
		}
		rep, err := runDrill(ctx, opts, "", notes)
		if err != nil {
			return err
		}
		failed := failedChecks(rep)
		verdict := "noticed"
		if !slices.Contains(failed, s.Breaks()) {
			verdict = "MISSED"
			missed = append(missed, fmt.Errorf("%s breaks %s, and the drill didn't notice", s, s.Breaks()))
		}
		fmt.Fprintf(out, "%-14s  %s: failed checks %s\n", s, verdict, strings.Join(failed, ", "))
	}
	return errors.Join(missed...)
}

// failedChecks returns the names of the checks that failed, each once.
func failedChecks(rep report.Report) []string {
	var names []string
	for _, s := range rep.Scenarios {
		for _, c := range s.Checks {
			if !c.Passed && !slices.Contains(names, c.Name) {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

// progressLine shows how far a drill is: on a terminal one line that changes,
// elsewhere a line whenever something else is being done.
type progressLine struct {
	w    io.Writer
	last string
	live bool
}

func (l *progressLine) show(p drill.Progress) {
	f, ok := l.w.(*os.File)
	l.live = ok && isTerminal(f)
	text := fmt.Sprintf("%d/%d %-9s  %s", p.Number, p.Of, p.Scenario, p.Doing)
	if !l.live {
		if text != l.last {
			fmt.Fprintf(l.w, "%s  %s\n", clock(p.Elapsed), text)
		}
		l.last = text
		return
	}
	fmt.Fprintf(l.w, "\r\033[K%s  %s  %d starts, %.1f/s, %s left", clock(p.Elapsed), text, p.Starts, p.StartsPerSecond, minutes(p.Left))
}

// end leaves the line for good.
func (l *progressLine) end() {
	if l.live {
		fmt.Fprintln(l.w)
	}
}

// clock formats a time as 03:25.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}

// minutes formats a time roughly.
func minutes(d time.Duration) string {
	if d < 90*time.Second {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}
