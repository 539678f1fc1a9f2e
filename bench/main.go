// Bench measures the gate side by side with other ways to space calls, what one
// pass through it costs, and the intake beside a bare handler, and writes the
// result as a Markdown page: docs/performance.md, by `make bench`. It is a module of its own, so that
// what it compares with is no dependency of the product. It is to be run in
// its own directory.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// plan says what is measured.
type plan struct {
	Scenarios []scenario
	TLS       scenario
	Benchtime string // for the cost of a pass, as `go test -benchtime` takes it
	// Intake is left out if it has no clients.
	Intake intakePlan
}

// fullPlan has the default rate of 5 starts/s; one at which the machine's timers
// begin to matter, on the same network and on one that does nothing; and the
// rate up to which dialling ahead must hide the dials.
var fullPlan = plan{
	Scenarios: []scenario{
		{Interval: 200 * time.Millisecond, Calls: 60, Rounds: 3, Dials: unevenDials},
		{Interval: 20 * time.Millisecond, Calls: 300, Rounds: 3, Dials: unevenDials},
		{Interval: 20 * time.Millisecond, Calls: 300, Rounds: 3, Dials: idealDials},
	},
	TLS:       scenario{Interval: 10 * time.Millisecond, Calls: 500, Rounds: 3, Dials: []time.Duration{50 * time.Millisecond}, TLS: true},
	Benchtime: "1s",
	Intake:    intakePlan{Clients: []int{1, 8, 64}, Rounds: 3, WarmUp: 500 * time.Millisecond, Time: 3 * time.Second},
}

// shortPlan shows within a minute that everything works; its figures mean
// little.
var shortPlan = plan{
	Scenarios: []scenario{{Interval: 20 * time.Millisecond, Calls: 50, Rounds: 1, Dials: unevenDials}},
	TLS:       scenario{Interval: 10 * time.Millisecond, Calls: 100, Rounds: 2, Dials: fullPlan.TLS.Dials, TLS: true},
	Benchtime: "100x",
	Intake:    intakePlan{Clients: []int{4}, Rounds: 1, WarmUp: 200 * time.Millisecond, Time: 500 * time.Millisecond},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := command(ctx, os.Args[1:], os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// errUsage is returned for wrong flags, which the flag package has explained.
var errUsage = errors.New("wrong usage")

func command(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		interval = flags.Duration("interval", 0, "compare at this time between starts, on the uneven network only, and leave the intake out")
		calls    = flags.Int("starts", 300, "with -interval: calls per candidate and round")
		rounds   = flags.Int("rounds", 3, "with -interval: rounds")
		intake   = flags.Bool("intake", false, "measure the intake only, and print its section; without -o, for the page is written as a whole")
		short    = flags.Bool("short", false, "take less than a minute to see that everything works; the figures mean little")
		output   = flags.String("o", "", "write the page to this `file` instead of standard output")
		cli      = flags.String("temporal", findTemporal(), "the temporal `CLI`")
	)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if *interval < 0 || *calls < 2 || *rounds < 1 || *intake && *output != "" || flags.NArg() > 0 {
		_, _ = fmt.Fprintln(stderr, "bench: -interval must not be negative, -starts be 2 or more and -rounds 1 or more; -intake goes without -o; there are no arguments")
		return errUsage
	}
	p := fullPlan
	if *short {
		p = shortPlan
	}
	if *interval > 0 {
		p.Scenarios = []scenario{{Interval: *interval, Calls: *calls, Rounds: *rounds, Dials: unevenDials}}
		p.Intake = intakePlan{}
	}

	if *intake {
		section, err := measureIntake(ctx, p.Intake, *cli, stderr)
		if err != nil {
			return err
		}
		return section.write(os.Stdout)
	}
	result, err := run(ctx, p, *cli, stderr)
	if err != nil {
		return err
	}
	var page bytes.Buffer
	if err := result.write(&page); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	if *output == "" {
		_, err = page.WriteTo(os.Stdout)
		return err
	}
	return os.WriteFile(*output, page.Bytes(), 0o644)
}

// run measures what the plan says.
func run(ctx context.Context, p plan, cli string, progress io.Writer) (*report, error) {
	r := &report{Machine: thisMachine(), Begin: time.Now(), Loads: []string{load()}}
	if err := r.spacing(ctx, p.Scenarios, cli, progress); err != nil {
		return nil, err
	}
	var err error
	if r.TLS, err = overTLS(ctx, p.TLS, progress); err != nil {
		return nil, err
	}
	if r.Passes, err = passes(ctx, p.Benchtime, progress); err != nil {
		return nil, err
	}
	// Last, for its load is that of a server: it would still be in the averages.
	if len(p.Intake.Clients) > 0 {
		if r.Intake, err = measureIntake(ctx, p.Intake, cli, progress); err != nil {
			return nil, err
		}
	}
	r.End = time.Now()
	return r, nil
}

// spacing compares the gate with the other candidates in each scenario.
func (r *report) spacing(ctx context.Context, scenarios []scenario, cli string, progress io.Writer) (err error) {
	server, err := startTemporal(ctx, cli)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if r.TemporalServer, err = server.version(ctx); err != nil {
		return err
	}
	r.Candidates = candidates(server)
	for _, s := range scenarios {
		c, err := compare(ctx, s, r.Candidates, progress)
		if err != nil {
			return err
		}
		r.Comparisons = append(r.Comparisons, c)
		r.Loads = append(r.Loads, load())
	}
	return nil
}
