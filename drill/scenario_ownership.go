package drill

import (
	"context"
	"fmt"
	"slices"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/provider/standin"
)

var ownership = scenario{
	name: "ownership", requirement: "G4", title: "A new version starts while the old owner is stopped",
	story: `The owner of the egress is stopped with SIGSTOP while calls are in flight and others wait. A new
version is started beside it: it has to stand by and send nothing, however long that takes. After SIGCONT the
old one goes on, alone. Then it is ended in order, and the new one sends, after waiting out a whole call.`,
	full: 50 * time.Second, short: 35 * time.Second,
	run: runOwnership, checks: checkOwnership,
}

func runOwnership(ctx context.Context, s *stage) error {
	old := s.egress
	err := s.during(ctx, "0.8 s a call", func() error {
		if err := s.submit(ctx, "before", s.size(40, 20)); err != nil {
			return err
		}
		if err := s.received(ctx, "waiting for calls in flight", 8, anyRequest); err != nil {
			return err
		}
		from, err := old.pause()
		if err != nil {
			return err
		}
		if s.egress, err = s.startEgress(ctx); err != nil {
			return err
		}
		if _, err := s.egress.await(ctx, "egress: standby (held by "); err != nil {
			return err
		}
		if err := s.pause(ctx, "the owner is stopped, the new version stands by", s.wait(10*time.Second, 4*time.Second)); err != nil {
			return err
		}
		s.window("owner stopped, new version beside it", from, monotonic())
		if err := old.goOn(); err != nil {
			return err
		}
		return s.settle(ctx)
	}, standin.Rule{Fault: standin.Fault{Kind: standin.Delay, DelayMS: 800}})
	if err != nil {
		return err
	}
	s.say("ending the old owner in order")
	from := monotonic()
	if err := old.stop(); err != nil {
		return err
	}
	if err := s.submit(ctx, "after", s.size(10, 5)); err != nil {
		return err
	}
	if _, err := s.egress.await(ctx, "egress: owner"); err != nil {
		return err
	}
	s.window("hand-over", from, monotonic())
	return s.settle(ctx)
}

func anyRequest(standin.Request) bool { return true }

func checkOwnership(s *stage, r record.Record) []report.Check {
	w := s.windowOf("owner stopped, new version beside it")
	blocked := report.NewCheck("blocked", "while the owner is stopped nobody sends, and the new version says that it stands by")
	sent := startsIn(r, w.from, w.to)
	for _, st := range sent {
		blocked.Require(false, "%s of %s started %s into the stop", st.Key, st.Process, st.Mono-w.from)
	}
	standby := s.egress.printed("egress: standby (held by ")
	blocked.Require(len(standby) > 0, "%s never said that it stands by", s.egress.name)

	handed := report.NewCheck("handed-over", "before the end of the old owner only that one sends, and after it only the new one")
	var old, next int
	for _, st := range r.Starts {
		group := "before"
		if st.Process == s.egress.name {
			group = "after"
			next++
		} else {
			old++
		}
		handed.Require(slices.Contains(s.groups[group], st.Key.RefundID), "%s was sent by %s", st.Key, st.Process)
	}
	handed.Require(old > 0 && next > 0, "one of the two sent nothing")
	return []report.Check{
		blocked.Judged("%d starts in %.1f s", len(sent), (w.to - w.from).Seconds()),
		handed.Judged("%s", fmt.Sprintf("%d starts by the old one, %d by %s", old, next, s.egress.name)),
	}
}
