package drill

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/provider/standin"
	"refundgate/refund"
)

var sequence = scenario{
	name: "sequence", requirement: "G1", title: "A provider that misbehaves in one way after the other",
	story: `The provider answers at once, then so slowly that the places in flight run out, then later than
the call's budget, then it carries refunds out and drops the connection instead of answering, then it rejects,
and at last it is well again. Every start at the gate has to be one request at the provider. Time-outs and lost
answers are unknown, and are settled by asking, not by sending again.`,
	full: 100 * time.Second, short: 40 * time.Second,
	run: runSequence, checks: checkSequence,
}

func runSequence(ctx context.Context, s *stage) error {
	post := func(group string, f standin.Fault) standin.Rule {
		return standin.Rule{Match: s.match(group, http.MethodPost), Fault: f}
	}
	once := func(r standin.Rule) standin.Rule {
		r.Times, r.PerReference = 1, true
		return r
	}
	budget := s.limits().CallTimeout
	// Between two kinds of failures the provider is well for a moment.
	well := s.size(8, 8)
	for _, phase := range []struct {
		group, label string
		n            int
		rules        []standin.Rule
	}{
		{"fast", "fast", s.size(15, 8), nil},
		{"slow", "2.8 s a call", s.size(25, 14), []standin.Rule{post("slow", standin.Fault{Kind: standin.Delay, DelayMS: (budget - 200*time.Millisecond).Milliseconds()})}},
		// With as many time-outs as the breaker looks at, it opens: in the long form.
		{"timeout", "answers after our 3 s", s.size(12, 4), []standin.Rule{post("timeout", standin.Fault{Kind: standin.Delay, DelayMS: (budget + 500*time.Millisecond).Milliseconds()})}},
		{"well", "well", well, nil},
		{"dropped", "done, answer dropped", s.size(12, 4), []standin.Rule{once(post("dropped", standin.Fault{Kind: standin.AcceptThenDrop}))}},
		{"well", "well", well, nil},
		{"rejected", "rejects", s.size(8, 4), []standin.Rule{post("rejected", standin.Fault{Kind: standin.Reject, Code: "refund_window_closed"})}},
		{"recovered", "well again", s.size(15, 6), nil},
	} {
		err := s.during(ctx, phase.label, func() error {
			if err := s.submit(ctx, phase.group, phase.n); err != nil {
				return err
			}
			return s.settle(ctx)
		}, phase.rules...)
		if err != nil {
			return err
		}
	}
	return nil
}

func checkSequence(s *stage, r record.Record) []report.Check {
	limit := s.limits().MaxInFlight
	full := report.NewCheck("places-used", fmt.Sprintf("calls of nearly 3 s fill all %d places, so that the limit is what holds them", limit))
	highest := 0
	for _, st := range r.Starts {
		highest = max(highest, st.InFlight)
	}
	full.Require(highest == limit, "at most %d calls were in flight at once", highest)

	outcome := report.NewCheck("outcomes", "rejects are final at once; everything else succeeds, what was unknown by asking and without a second send")
	unknown := 0
	for group := range s.groups {
		for _, c := range s.cases(r, group) {
			want := refund.StatusSucceeded
			if group == "rejected" {
				want = refund.StatusRejected
			}
			outcome.Require(c.Status == want, "%s is %s, not %s", c.Refund.ID, c.Status, want)
			outcome.Require(c.Attempts == 1, "%s was sent %d times", c.Refund.ID, c.Attempts)
			if group == "timeout" || group == "dropped" {
				first := c.Calls[0].Result
				outcome.Require(first.Outcome == refund.OutcomeUnknown, "%s: its first send counts as %s", c.Refund.ID, first.Outcome)
				unknown++
			}
		}
	}
	return []report.Check{
		full.Judged("at most %d in flight", highest),
		outcome.Judged("%d refunds, %d of them were unknown for a while", len(r.Cases), unknown),
	}
}
