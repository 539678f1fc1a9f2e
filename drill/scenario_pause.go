package drill

import (
	"context"
	"fmt"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
)

var pausedSender = scenario{
	name: "pause", requirement: "G2", title: "A batch falls due while the sender is paused",
	story: `The process that sends is stopped with SIGSTOP, and a batch of refunds is accepted meanwhile. Then
it goes on. What was missed is not made up for: one call leaves every interval, the first ones included.`,
	full: 18 * time.Second, short: 10 * time.Second,
	run: runPause, checks: checkPause,
}

func runPause(ctx context.Context, s *stage) error {
	from, err := s.egress.pause()
	if err != nil {
		return err
	}
	if err := s.submit(ctx, "batch", s.size(30, 15)); err != nil {
		return err
	}
	if err := s.pause(ctx, "the sender is stopped", s.wait(6*time.Second, 3*time.Second)); err != nil {
		return err
	}
	s.window(stoppedLabel, from, monotonic())
	if err := s.egress.goOn(); err != nil {
		return err
	}
	return s.settle(ctx)
}

// stoppedLabel marks the window in which the sender is stopped.
const stoppedLabel = "sender stopped"

func checkPause(s *stage, r record.Record) []report.Check {
	w := s.windowOf(stoppedLabel)
	silent := report.NewCheck("silence", "nothing starts while the sender is stopped")
	early := startsIn(r, w.from, w.to)
	for _, st := range early {
		silent.Require(false, "%s started %s into the stop", st.Key, st.Mono-w.from)
	}
	batch := s.groups["batch"]
	least := time.Duration(len(batch)-1) * s.limits().Interval
	spread := report.NewCheck("not-made-up", fmt.Sprintf("the %d calls that were due take at least %s", len(batch), least))
	var took time.Duration
	if n := len(r.Starts); n > 0 {
		took = r.Starts[n-1].Mono - r.Starts[0].Mono
	}
	spread.Require(len(r.Starts) == len(batch), "%d calls started", len(r.Starts))
	spread.Require(took >= least, "they took %s", took)
	s.figure("batch took", took.Seconds(), "s")
	s.figure("stopped for", (w.to - w.from).Seconds(), "s")
	return []report.Check{
		silent.Judged("%d starts in %.1f s", len(early), (w.to - w.from).Seconds()),
		spread.Judged("%d calls in %.3f s", len(r.Starts), took.Seconds()),
	}
}
