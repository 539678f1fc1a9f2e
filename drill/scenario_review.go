package drill

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/ledger"
	"refundgate/provider/standin"
	"refundgate/refund"
)

var review = scenario{
	name: "review", requirement: "G6", title: "What is over its budget goes to people, with its trail",
	story: `Some refunds are answered busy until their attempts are used up; others, with a short deadline, hang at
the provider until their time is over. All of them have to be in the review list with the reason and the whole
trail, and no other. One of them is then settled by a person, with evidence.`,
	full: 60 * time.Second, short: 50 * time.Second,
	run: runReview, checks: checkReview,
}

func runReview(ctx context.Context, s *stage) error {
	n := s.size(4, 3)
	err := s.during(ctx, "busy, or hangs", func() error {
		for _, id := range s.ids("late", n) {
			if err := s.system.submit(ctx, s.late, id); err != nil {
				return err
			}
		}
		if err := s.submit(ctx, "fine", 2*n); err != nil {
			return err
		}
		if err := s.submit(ctx, "busy", n); err != nil {
			return err
		}
		return errors.Join(s.besides(ctx, "busy"), s.besides(ctx, "late"))
	},
		standin.Rule{Match: s.match("late", ""), Fault: standin.Fault{Kind: standin.Hang}},
		standin.Rule{Match: s.match("busy", http.MethodPost), Fault: standin.Fault{Kind: standin.Busy}},
	)
	if err != nil {
		return err
	}
	if s.listed, err = s.reviewList(ctx); err != nil {
		return err
	}
	s.trails = map[string]trail{}
	for id := range s.listed {
		var t trail
		if err := s.call(ctx, http.MethodGet, s.intake+"/v1/refunds/"+id, nil, &t, http.StatusOK); err != nil {
			return err
		}
		s.trails[id] = t
	}
	settled := s.groups["late"][0]
	return s.act(ctx, settled, refund.ActionSettle, refund.ActionInput{Status: refund.StatusNotRefunded, Evidence: "the stand-in never carried it out"})
}

// trail is a case as the intake API shows it.
type trail struct {
	refund.Case
	Events []refund.Event `json:"events"`
}

// reviewList returns the cases of this scenario that are in the list of those
// with people.
func (s *stage) reviewList(ctx context.Context) (map[string]refund.Case, error) {
	s.say("reading the review list")
	listed := map[string]refund.Case{}
	for cursor := ""; ; {
		var page struct {
			Cases []refund.Case `json:"cases"`
			Next  string        `json:"next_cursor"`
		}
		query := url.Values{"status": {string(refund.StatusReview)}, "cursor": {cursor}}
		if cursor == "" {
			query.Del("cursor")
		}
		if err := s.call(ctx, http.MethodGet, s.intake+"/v1/refunds?"+query.Encode(), nil, &page, http.StatusOK); err != nil {
			return nil, err
		}
		for _, c := range page.Cases {
			if slices.Contains(s.all, c.Refund.ID) {
				listed[c.Refund.ID] = c
			}
		}
		if cursor = page.Next; cursor == "" {
			return listed, nil
		}
	}
}

func checkReview(s *stage, r record.Record) []report.Check {
	list := report.NewCheck("review-list", "the refunds that ran out of attempts or time are in the review list with the reason, and no others")
	trails := report.NewCheck("trail", "each of them shows every call, when it was accepted and why it is with people")
	for id, c := range s.listed {
		list.Require(slices.Contains(s.groups["late"], id) || slices.Contains(s.groups["busy"], id), "%s is in the list", id)
		list.Require(c.ReviewReason != "", "%s has no reason", id)
	}
	calls := 0
	for _, c := range r.Cases {
		id := c.Refund.ID
		if slices.Contains(s.groups["fine"], id) {
			continue
		}
		_, ok := s.listed[id]
		list.Require(ok, "%s is not in the list", id)
		t := s.trails[id]
		calls += len(t.Calls)
		trails.Require(len(t.Calls) == len(c.Calls) && len(c.Calls) > 0, "%s shows %d of its %d calls", id, len(t.Calls), len(c.Calls))
		trails.Require(hasEvent(t.Events, ledger.ActionAccepted) && hasEvent(t.Events, eventReview), "%s doesn't tell when it was accepted and when it went to people", id)
		if slices.Contains(s.groups["late"], id) {
			list.Require(!r.Handed[id].Before(c.DeadlineAt), "%s was handed over before its deadline", id)
		}
	}
	settled := report.NewCheck("settled-by-hand", "what a person settles with evidence is final, and says who and why")
	c := s.cases(r, "late")[0]
	settled.Require(c.Status == refund.StatusNotRefunded, "it is %s", c.Status)
	n := len(c.Decisions)
	settled.Require(n == 1 && c.Decisions[0].By == "drill" && c.Decisions[0].Evidence != "", "its decisions are %+v", c.Decisions)
	return []report.Check{
		list.Judged("%d in the list", len(s.listed)),
		trails.Judged("%d calls in %d trails", calls, len(s.trails)),
		settled.Judged("%s is %s", c.Refund.ID, c.Status),
	}
}

// eventReview is the trail's entry about the hand-over to people.
const eventReview = "status." + string(refund.StatusReview)

func hasEvent(events []refund.Event, action string) bool {
	for _, e := range events {
		if e.Action == action {
			return true
		}
	}
	return false
}
