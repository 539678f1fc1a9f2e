package drill

import (
	"context"
	"net/http"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/provider/standin"
	"refundgate/refund"
)

var crash = scenario{
	name: "crash", requirement: "G5", title: "The sender is killed between the provider's acceptance and its own record",
	story: `The provider carries refunds out and takes its time to answer. Right then the process that sent them is
killed with SIGKILL: nobody has recorded what became of them. The next owner keeps them as unknown, asks the
provider, and settles them. None is sent again.`,
	full: 25 * time.Second, short: 22 * time.Second,
	run: runCrash, checks: checkCrash,
}

func runCrash(ctx context.Context, s *stage) error {
	n := s.size(6, 3)
	err := s.during(ctx, "done, answers late", func() error {
		if err := s.submit(ctx, "cut", n); err != nil {
			return err
		}
		ids := s.groups["cut"]
		err := s.until(ctx, "waiting until the provider has carried them out", func() (bool, error) {
			done, err := s.provider.Executions(ctx)
			for _, id := range ids {
				if done[id] == 0 {
					return false, err
				}
			}
			return true, err
		})
		if err != nil {
			return err
		}
		return s.egress.kill()
	}, standin.Rule{Match: s.match("cut", http.MethodPost), Fault: standin.Fault{Kind: standin.Delay, DelayMS: 2500}})
	if err != nil {
		return err
	}
	from := monotonic()
	s.say("the sender is killed; starting the next one")
	if err := s.ownEgress(ctx); err != nil {
		return err
	}
	s.window("killed, next owner", from, monotonic())
	if err := s.submit(ctx, "after", s.size(8, 4)); err != nil {
		return err
	}
	return s.settle(ctx)
}

func checkCrash(s *stage, r record.Record) []report.Check {
	recovered := report.NewCheck("recovered", "what the killed process had sent was unknown, was asked for, succeeded, and was not sent again")
	lost := 0
	for _, c := range s.cases(r, "cut") {
		id := c.Refund.ID
		sends, checks, wasLost := 0, 0, false
		for _, call := range c.Calls {
			if call.Key.Kind == refund.KindCheck {
				checks++
				continue
			}
			sends++
			if call.Result.Code == refund.CodeLost {
				wasLost = true
				recovered.Require(call.Result.Outcome == refund.OutcomeUnknown, "%s: the lost call counts as %s", id, call.Result.Outcome)
			}
		}
		if wasLost {
			lost++
			recovered.Require(checks > 0, "%s was not asked for", id)
		}
		recovered.Require(sends == 1, "%s was sent %d times", id, sends)
		recovered.Require(c.Status == refund.StatusSucceeded, "%s is %s", id, c.Status)
		recovered.Require(r.Executions[id] == 1, "%s was carried out %d times", id, r.Executions[id])
	}
	recovered.Require(lost > 0, "the kill caught no call between acceptance and record")
	return []report.Check{recovered.Judged("%d calls were cut off, all of their refunds settled by asking", lost)}
}
