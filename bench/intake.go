package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// intakePlan says how much load the intake is measured under.
type intakePlan struct {
	Clients []int // how many make requests at once; each is a comparison
	Rounds  int
	WarmUp  time.Duration // of each round, whose requests don't count
	Time    time.Duration // of those that do
}

// intakeCandidate is a kind of request to one of the two programs.
type intakeCandidate struct {
	Name   string
	Note   string // what is asked of what
	status int    // what each answer must be
	bare   bool   // of the bare handler, not of refundgate
	// temporal is whether there is a Temporal, in which refundgate's relay starts
	// the workflows of what is accepted meanwhile.
	temporal bool
	// known refunds are accepted before the clients begin. With again, these are
	// submitted again instead of new ones; with full, the account's backlog is
	// full with them.
	known       int
	again, full bool
}

// intakeCandidates returns what is compared, the bare handler first.
func intakeCandidates() []intakeCandidate {
	return []intakeCandidate{
		{
			Name: "bare handler", status: http.StatusAccepted, bare: true,
			Note: "program `bench/bare`: decodes the JSON, inserts one row, answers 202",
		},
		{
			Name: "accepted", status: http.StatusAccepted,
			Note: "`refundgate serve`, new refunds, 202; Temporal is away and their workflows start later",
		},
		{
			Name: "accepted, started", status: http.StatusAccepted, temporal: true,
			Note: "the same with a Temporal dev server, in which the relay starts the workflows meanwhile",
		},
		{
			Name: "repeated", status: http.StatusOK, known: 200, again: true,
			Note: "`refundgate serve`, the same 200 refunds again and again, 200",
		},
		{
			Name: "refused", status: http.StatusServiceUnavailable, known: 1, full: true,
			Note: "`refundgate serve`, new refunds for an account whose backlog is full, 503",
		},
	}
}

// intakeReport is what the page says about the intake.
type intakeReport struct {
	intakePlan
	Database    databaseSettings
	Flush       time.Duration // the median time of a write and fsync beside the database
	BodySize    int           // bytes of a request's body; a few more for later ids
	Candidates  []intakeCandidate
	Comparisons []intakeComparison
	Repeated    int // rounds that were taken again
}

// intakeComparison has one row per candidate.
type intakeComparison struct {
	Clients int
	Rows    []throughput
}

// measureIntake compares the candidates at every number of clients, in
// interleaved rounds as compare does.
func measureIntake(ctx context.Context, p intakePlan, cli string, progress io.Writer) (_ *intakeReport, err error) {
	all := intakeCandidates()
	r := &intakeReport{intakePlan: p, Candidates: all, BodySize: len(submission(0))}
	_, _ = fmt.Fprintln(progress, "intake: building the programs, starting MariaDB")
	l, err := newLab(ctx, cli)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if r.Flush, err = l.flushTime(); err != nil {
		return nil, err
	}
	if r.Database, err = l.settings(ctx); err != nil {
		return nil, err
	}
	for _, clients := range p.Clients {
		rounds := make([][]intakeRound, len(all))
		for n := range p.Rounds {
			for i := range all {
				i = (i + n) % len(all)
				what := fmt.Sprintf("intake, clients: %d, round %d of %d: %s", clients, n+1, p.Rounds, all[i].Name)
				round, err := r.round(ctx, what, func() (intakeRound, error) { return l.round(ctx, p, all[i], clients) }, progress)
				if err != nil {
					return nil, err
				}
				rounds[i] = append(rounds[i], round)
			}
		}
		c := intakeComparison{Clients: clients}
		for i, candidate := range all {
			c.Rows = append(c.Rows, summarize(candidate.Name, rounds[i]))
		}
		r.Comparisons = append(r.Comparisons, c)
	}
	return r, nil
}

// round takes a round, and once more if a request fails.
func (r *intakeReport) round(ctx context.Context, what string, take func() (intakeRound, error), progress io.Writer) (intakeRound, error) {
	for try := 1; ; try++ {
		_, _ = fmt.Fprintln(progress, what)
		round, err := take()
		if err == nil {
			return round, nil
		}
		err = fmt.Errorf("%s: %w", what, err)
		if try == roundTries || ctx.Err() != nil || errors.Is(err, errLost) {
			return intakeRound{}, err
		}
		_, _ = fmt.Fprintf(progress, "once more, for a request failed: %v\n", err)
		r.Repeated++
	}
}
