package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/provider/standin"
)

var budget = scenario{
	name: "budget", requirement: "G8", title: "What the provider received for each refund",
	story: `A provider at its worst: busy every time, or done and silent and then without a trace for a while, or
hanging until the deadline. What it received for each refund may not be more than attempts, checks and deadline
allow. Then the whole drill is looked at as one record: every call of every scenario, by every process.`,
	full: 60 * time.Second, short: 45 * time.Second,
	run: runBudget, checks: checkBudget,
}

func runBudget(ctx context.Context, s *stage) error {
	n := s.size(6, 3)
	empty := standin.Fault{Kind: standin.Answer, Status: http.StatusOK, Body: `{"data":[]}`}
	err := s.during(ctx, "busy, silent, or hangs", func() error {
		for _, id := range s.ids("mute", n) {
			if err := s.system.submit(ctx, s.late, id); err != nil {
				return err
			}
		}
		for _, group := range []string{"fine", "silent", "fine", "busy"} {
			if err := s.submit(ctx, group, n); err != nil {
				return err
			}
		}
		return errors.Join(s.besides(ctx, "silent"), s.besides(ctx, "busy"), s.besides(ctx, "mute"))
	},
		standin.Rule{Match: s.match("mute", ""), Fault: standin.Fault{Kind: standin.Hang}},
		standin.Rule{Match: s.match("busy", http.MethodPost), Fault: standin.Fault{Kind: standin.Busy}},
		standin.Rule{Match: s.match("silent", http.MethodPost), Times: 1, PerReference: true, Fault: standin.Fault{Kind: standin.AcceptThenDrop}},
		standin.Rule{Match: s.match("silent", http.MethodGet), Times: 2, PerReference: true, Fault: empty},
	)
	if err != nil {
		return err
	}
	s.whole, err = s.record(ctx, append(s.before, s.all...))
	return err
}

func checkBudget(s *stage, r record.Record) []report.Check {
	attempts := s.limits().MaxAttempts
	used := report.NewCheck("used-up", fmt.Sprintf("a provider that is always busy gets all %d sends, and not one more", attempts))
	sends := map[string]int{}
	for _, q := range r.Wire {
		if q.Method == http.MethodPost {
			sends[q.Reference]++
		}
	}
	for _, id := range s.groups["busy"] {
		used.Require(sends[id] == attempts, "%s was sent %d times", id, sends[id])
	}
	asked := report.NewCheck("asked", "a refund that was carried out in silence, and not found at first, is sent once and asked for until it is found")
	for _, c := range s.cases(r, "silent") {
		asked.Require(sends[c.Refund.ID] == 1, "%s was sent %d times", c.Refund.ID, sends[c.Refund.ID])
		asked.Require(c.Status == "succeeded", "%s is %s", c.Refund.ID, c.Status)
	}
	whole := report.NewCheck("whole-drill", "everything above holds for all calls of the drill as one record")
	for _, c := range record.Promises(s.whole, s.limits()) {
		for _, problem := range c.Problems {
			whole.Require(false, "%s: %s", c.Name, problem)
		}
	}
	most := map[string]int{}
	for _, q := range s.whole.Wire {
		most[q.Reference]++
	}
	counts := map[int]int{} // refunds by how many requests they took
	for _, n := range most {
		counts[n]++
	}
	for n := 1; n <= 25; n++ {
		if counts[n] > 0 {
			s.figure(fmt.Sprintf("refunds with %d requests", n), float64(counts[n]), "")
		}
	}
	return []report.Check{
		used.Judged("%d sends for %d refunds", attempts*len(s.groups["busy"]), len(s.groups["busy"])),
		asked.Judged("%d refunds", len(s.groups["silent"])),
		whole.Judged("%d refunds, %d requests, %d starts", len(s.whole.Cases), len(s.whole.Wire), len(s.whole.Starts)),
	}
}
