package drill

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/provider/standin"
	"refundgate/refund"
)

var kinds = scenario{
	name: "kinds", requirement: "G3", title: "First attempts, retries, checks and manual resends at once",
	story: `Some refunds are rejected as busy until their attempts are used up and people have them. Then new
refunds, refunds that need a retry, refunds whose answers are lost, and the people's resends all come at the
same moment. All four kinds have to pass the one gate, on one record, within one budget.`,
	full: 35 * time.Second, short: 25 * time.Second,
	run: runKinds, checks: checkKinds,
}

func runKinds(ctx context.Context, s *stage) error {
	busy := func(group string, times int) standin.Rule {
		return standin.Rule{Match: s.match(group, http.MethodPost), Times: times, PerReference: true, Fault: standin.Fault{Kind: standin.Busy}}
	}
	attempts := s.limits().MaxAttempts
	err := s.during(ctx, "busy until people have them", func() error {
		for range s.size(4, 3) {
			for _, group := range []string{"fine", "resent", "fine"} {
				if err := s.submit(ctx, group, 1); err != nil {
					return err
				}
			}
		}
		return s.besides(ctx, "resent")
	}, busy("resent", attempts))
	if err != nil {
		return err
	}
	lost := standin.Rule{Match: s.match("lost", http.MethodPost), Times: 1, PerReference: true, Fault: standin.Fault{Kind: standin.AcceptThenDrop}}
	return s.during(ctx, "busy once, answers lost once", func() error {
		for i := range s.size(8, 4) {
			for _, group := range []string{"busy", "fine", "lost", "fine", "fine"} {
				if err := s.submit(ctx, group, 1); err != nil {
					return err
				}
			}
			if resent := s.groups["resent"]; i < len(resent) {
				if err := s.act(ctx, resent[i], refund.ActionResend, refund.ActionInput{}); err != nil {
					return err
				}
			}
		}
		return s.settle(ctx)
	}, busy("busy", 1), lost)
}

// act carries out an action of the review desk over the API.
func (s *stage) act(ctx context.Context, id string, action refund.Action, in refund.ActionInput) error {
	s.say(fmt.Sprintf("%s of %s", action, id))
	in.By, in.Reason = "drill", "to see what comes of it"
	return s.call(ctx, http.MethodPost, s.intake+"/v1/refunds/"+id+"/actions/"+string(action), in, nil, http.StatusOK)
}

func checkKinds(s *stage, r record.Record) []report.Check {
	return []report.Check{allKinds(r), manualResends(s, r)}
}

// origins are the kinds of calls, in the words of the report.
var origins = []refund.Origin{refund.OriginFirst, refund.OriginRetry, refund.OriginCheck, refund.OriginManual}

func allKinds(r record.Record) report.Check {
	all := report.NewCheck("kinds", "first attempts, retries, checks and manual resends are all on the gate's one record")
	counts := map[refund.Origin]int{}
	for _, st := range r.Starts {
		counts[st.Origin]++
	}
	var parts []string
	for _, o := range origins {
		all.Require(counts[o] > 0, "there is no %s", o)
		parts = append(parts, fmt.Sprintf("%d %s", counts[o], o))
	}
	return all.Judged("%s", strings.Join(parts, ", "))
}

func manualResends(s *stage, r record.Record) report.Check {
	resent := report.NewCheck("resends", "what people send again goes out once each, under the refund's own key, and succeeds")
	n := 0
	for _, c := range s.cases(r, "resent") {
		manual := slices.DeleteFunc(slices.Clone(c.Calls), func(call refund.Call) bool { return call.Origin != refund.OriginManual })
		n += len(manual)
		resent.Require(len(manual) == 1, "%s was sent again %d times", c.Refund.ID, len(manual))
		resent.Require(c.Status == refund.StatusSucceeded, "%s is %s", c.Refund.ID, c.Status)
	}
	return resent.Judged("%d resends of %d refunds", n, len(s.groups["resent"]))
}
