package starter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/refund"
)

// tellerBatch is how many notices a teller reads, and how many parked ones it
// tries, at a time.
const tellerBatch = 100

const (
	// overdueAfter is how long after its deadline a case whose workflow has not
	// handed it to people counts as one whose workflow is gone.
	overdueAfter = time.Minute
	// overdueEvery is how often such cases are looked for.
	overdueEvery = 10 * time.Second
	// overdueAgain is how long a case that stays overdue is left alone: no
	// orchestrator runs, and each signal is an event in its history.
	overdueAgain = 10 * time.Minute
	// overdueBatch is how many of them are looked at.
	overdueBatch = 1000
)

// NoticeBacklog is what providers have said and no workflow was told of. See
// ledger.Ledger.
type NoticeBacklog interface {
	MatchParked(ctx context.Context, limit int) (matched int, err error)
	Untold(ctx context.Context, limit int) ([]ledger.News, error)
	MarkTold(ctx context.Context, n ledger.News) error
	Overdue(ctx context.Context, before time.Time, limit int) ([]refund.Refund, error)
}

// Signaller signals workflows and starts those that don't run; a Temporal
// client.
type Signaller interface {
	SignalWithStartWorkflow(ctx context.Context, workflowID, signal string, arg any, opts client.StartWorkflowOptions, workflow any, args ...any) (client.WorkflowRun, error)
}

// Teller tells workflows that the ledger has a notice for their case. It also
// looks again for the cases of parked notices: the id that one names may have
// become known since.
//
// The signal carries nothing, and one too many changes nothing: the workflow
// reads the ledger. So what is told and can't be marked is told again, and any
// number of tellers may run. A case that was closed gets a new run, which looks
// whether the notice contradicts how it ended.
//
// It also tells the workflows of cases whose deadline has passed without
// anything happening: somebody terminated the run, and a new one has to hand
// the case to people.
type Teller struct {
	backlog  NoticeBacklog
	temporal Signaller
	log      *slog.Logger
	rounds   *rounds

	looked time.Time            // for overdue cases
	told   map[string]time.Time // overdue cases and when they were told, by refund id
}

// NewTeller returns a teller. It does nothing until Run.
func NewTeller(backlog NoticeBacklog, temporal Signaller, log *slog.Logger) *Teller {
	t := &Teller{backlog: backlog, temporal: temporal, log: log, told: map[string]time.Time{}}
	t.rounds = newRounds("workflows can't be told of notices", t.round, log)
	return t
}

// Wake tells the teller that there is a notice. It never blocks.
func (t *Teller) Wake() { t.rounds.awake() }

// Run tells until ctx ends. It goes on through any outage of Temporal or the
// database.
func (t *Teller) Run(ctx context.Context) { t.rounds.run(ctx) }

// round tries the parked notices that are due and tells of everything that is
// untold, the oldest first. It ends early when Temporal or the database is
// away. A case that Temporal refuses does not hold up those behind it.
func (t *Teller) round(ctx context.Context) error {
	if _, err := t.backlog.MatchParked(ctx, tellerBatch); err != nil {
		return fmt.Errorf("matching parked notices: %w", err)
	}
	if err := t.tellOverdue(ctx, time.Now()); err != nil {
		return err
	}
	for {
		batch, err := t.backlog.Untold(ctx, tellerBatch)
		if err != nil {
			return fmt.Errorf("reading what is to be told: %w", err)
		}
		var refused []error
		read := 0
		for _, news := range batch {
			read += len(news.Notices)
			err := t.tell(ctx, news)
			var invalid *serviceerror.InvalidArgument
			switch {
			case errors.As(err, &invalid):
				refused = append(refused, err)
			case err != nil:
				return err
			}
		}
		if len(refused) > 0 {
			return errors.Join(refused...)
		}
		if read < tellerBatch {
			return nil
		}
	}
}

// tellOverdue has the workflows of overdue cases look at them, and starts those
// that are gone.
func (t *Teller) tellOverdue(ctx context.Context, now time.Time) error {
	if now.Sub(t.looked) < overdueEvery {
		return nil
	}
	overdue, err := t.backlog.Overdue(ctx, now.Add(-overdueAfter), overdueBatch)
	if err != nil {
		return fmt.Errorf("looking for overdue cases: %w", err)
	}
	maps.DeleteFunc(t.told, func(_ string, at time.Time) bool { return now.Sub(at) >= overdueAgain })
	for _, rf := range overdue {
		if _, ok := t.told[rf.ID]; ok {
			continue
		}
		if err := t.signal(ctx, rf); err != nil {
			return err
		}
		t.told[rf.ID] = now
		t.log.WarnContext(ctx, "a case is past its deadline and nothing happens; its workflow is told, and started if it is gone",
			telemetry.KeyRefundID, rf.ID, telemetry.KeyAccount, rf.Account)
	}
	t.looked = now
	return nil
}

// signal has a case's workflow read the ledger.
func (t *Teller) signal(ctx context.Context, rf refund.Refund) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	_, err := t.temporal.SignalWithStartWorkflow(ctx, refund.WorkflowID(rf.ID), refund.SignalNotice, nil, restartOptions(rf), refund.WorkflowType, rf)
	if err != nil {
		return fmt.Errorf("telling the workflow of refund %s: %w", rf.ID, err)
	}
	return nil
}

// tell has a case's workflow read its notices.
func (t *Teller) tell(ctx context.Context, news ledger.News) error {
	rf := news.Refund
	if err := t.signal(ctx, rf); err != nil {
		return err
	}
	if err := t.backlog.MarkTold(ctx, news); err != nil {
		return fmt.Errorf("marking the notices of refund %s as told: %w", rf.ID, err)
	}
	t.log.DebugContext(ctx, "workflow told of notices", telemetry.KeyRefundID, rf.ID, telemetry.KeyAccount, rf.Account, "notices", len(news.Notices))
	return nil
}
