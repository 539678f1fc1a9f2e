package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// away is how a provider behaves whose answers get lost: it executes what is
// sent, and nobody here learns of it from an answer or from a check.
var away = []standin.Rule{
	sends(0, standin.Fault{Kind: standin.AcceptThenDrop}),
	checks(0, standin.Fault{Kind: standin.Drop}),
}

// What the provider says of itself, on the real parts: each case of CASES.md
// that is about notices has an account and a stand-in to itself.
func TestNoticesEndToEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, quickly, map[string]string{
		"case01": "", "case19": "", "case20": "", "case21": "", "case25ours": "", "case25theirs": "", "case26": "",
		"settlement": "", "otheramount": "", "corrected": "", "absent": "contract: {not_found_after: 500ms, not_found_checks: 2}",
	})
	b.run()

	// The provider commits, the answer is lost, and a notice settles the case.
	// Until then the amount is reserved, and afterwards it is used up.
	t.Run("Case01_AmountStaysReserved", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "case01")
		s.plan(away...)
		r := newRefund("case01", s.account)
		r.PaymentAmount = &refund.Money{Value: 2000, Currency: "TWD"}
		more := r
		more.ID, more.Amount.Value = "case01-more", 1000
		status, answer := s.request(http.MethodPost, "/v1/refunds", r)
		require.Equal(t, http.StatusAccepted, status, answer)
		s.becomes(r.ID, refund.StatusUnknown)
		tooMuch := func() {
			t.Helper()
			status, answer := s.request(http.MethodPost, "/v1/refunds", more)
			require.Equal(t, http.StatusUnprocessableEntity, status, answer)
			require.Contains(t, answer["type"], "payment-exceeded")
		}
		tooMuch()
		s.hook(standin.Webhooks{})
		s.tell(r.ID, "succeeded", "")
		c := s.becomes(r.ID, refund.StatusSucceeded)
		require.Len(t, c.Notices, 1)
		tooMuch()
		more.Amount.Value = 750
		status, answer = s.request(http.MethodPost, "/v1/refunds", more)
		require.Equal(t, http.StatusAccepted, status, answer)
		s.requireOneSend(r.ID)
	})

	// It fails long after it had succeeded, when its workflow has ended: a new
	// review, one filter away, and nothing is sent again by itself.
	t.Run("Case19_LateFailure", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "case19")
		s.hook(standin.Webhooks{})
		s.accept("case19")
		s.becomes("case19", refund.StatusSucceeded)
		s.ended("case19", "")
		s.tell("case19", "failed", "account_closed")
		c := s.becomes("case19", refund.StatusReview)
		require.Equal(t, refund.ReviewLateFailure, c.ReviewReason)
		s.parked("case19")
		s.eventually("the review in Temporal's list", func() bool {
			var listed []struct {
				Execution struct {
					WorkflowID string `json:"workflowId"`
				} `json:"execution"`
			}
			out := s.mustTool("temporal", "workflow", "list", "-o", "json", "--query",
				`RefundStatus = "review" AND RefundReviewReason = "late_failure" AND RefundAccount = "case19"`)
			return json.Unmarshal([]byte(out), &listed) == nil && len(listed) == 1 && listed[0].Execution.WorkflowID == "refund-case19"
		})
		s.acted("case19", refund.ActionSettle, map[string]any{"by": "mei", "reason": "paid by transfer", "status": "not_refunded", "evidence": "ticket 4711"})
		s.ended("case19", "")
		s.requireOneSend("case19")
		s.requireMatched("case19")
	})

	// The notice of success arrives before the answer, which then says pending.
	t.Run("Case20_NoticeBeatsTheAnswer", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "case20")
		s.hook(standin.Webhooks{})
		s.plan(sends(1, standin.Fault{Kind: standin.Pending, Status: http.StatusCreated, DelayMS: 2000, SettleMS: 200}))
		s.accept("case20")
		c := s.becomes("case20", refund.StatusSucceeded)
		s.ended("case20", "")
		require.Equal(t, refund.OutcomePending, c.Calls[0].Result.Outcome)
		require.Len(t, c.Notices, 2)
		require.Equal(t, refund.OutcomeSucceeded, c.Notices[1].Outcome)
		require.True(t, c.Notices[1].ReceivedAt.Before(*c.Calls[0].FinishedAt), "the notice did not come first")
		s.requireOneSend("case20")
		s.requireMatched("case20")
	})

	t.Run("Case21_NoNoticesAtAll", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "case21")
		s.plan(sends(1, standin.Fault{Kind: standin.Pending, Status: http.StatusAccepted, EmptyBody: true, SettleMS: 1000}))
		s.accept("case21")
		c := s.becomes("case21", refund.StatusSucceeded)
		require.Empty(t, c.Notices)
		require.NotEmpty(t, c.ProviderRefundID)
		s.requireOneSend("case21")
		s.requireMatched("case21")
	})

	// The notice has only our reference; the settlement report tells theirs.
	t.Run("Case25_OnlyOurReference", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "case25ours")
		s.hook(standin.Webhooks{Omit: []string{"id"}})
		s.plan(away...)
		s.accept("case25")
		c := s.becomes("case25", refund.StatusSucceeded)
		s.ended("case25", "")
		require.Empty(t, c.ProviderRefundID, "nobody told it")
		require.Equal(t, "case25", c.Notices[0].Reference)
		require.Contains(t, s.imported(s.report()), "1 applied")
		require.Equal(t, s.refundOf("case25").ID, s.caseOf("case25").ProviderRefundID)
		s.requireOneSend("case25")
	})

	// The notice has only their id, which we don't know yet: it is parked until
	// a check brings the id, and is then what settles the case.
	t.Run("Case25_OnlyTheirs", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "case25theirs")
		s.hook(standin.Webhooks{Omit: []string{"reference"}})
		s.plan(sends(1, standin.Fault{Kind: standin.Pending, Status: http.StatusAccepted, EmptyBody: true}), checks(0, standin.Fault{Kind: standin.Drop}))
		s.accept("case25t")
		s.becomes("case25t", refund.StatusPending)
		s.tell("case25t", "succeeded", "")
		parked := func() int {
			t.Helper()
			notices, err := s.ledger.Parked(t.Context(), s.account, 10)
			require.NoError(t, err)
			return len(notices)
		}
		s.eventually("two parked notices", func() bool { return parked() == 2 })
		require.Contains(t, s.done("notices", "list", "--account", s.account), s.refundOf("case25t").ID)
		require.Equal(t, refund.StatusPending, s.caseOf("case25t").Status)

		// Checks go on saying pending, but from now on with the id.
		pending := s.refundOf("case25t")
		pending.Status = "pending"
		body, err := json.Marshal(map[string]any{"data": []standin.Refund{pending}})
		require.NoError(t, err)
		byID, err := json.Marshal(pending)
		require.NoError(t, err)
		s.plan(checks(1, standin.Fault{Kind: standin.Answer, Status: http.StatusOK, Body: string(body)}),
			checks(0, standin.Fault{Kind: standin.Answer, Status: http.StatusOK, Body: string(byID)}))
		c := s.becomes("case25t", refund.StatusSucceeded)
		require.Zero(t, parked())
		require.Len(t, c.Notices, 2)
		require.Equal(t, pending.ID, c.ProviderRefundID)
		for _, call := range c.Calls {
			require.NotEqual(t, refund.OutcomeSucceeded, call.Result.Outcome)
		}
		s.requireOneSend("case25t")
		s.requireMatched("case25t")
	})

	// Every notice comes twice, and A's once more after B's.
	t.Run("Case26_RedeliveredAfterAnother", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "case26")
		s.hook(standin.Webhooks{Duplicate: true})
		var before []truth
		for _, id := range []string{"case26-a", "case26-b"} {
			s.accept(id)
			s.becomes(id, refund.StatusSucceeded)
			s.until(id, "its notice", func(c refund.Case) bool { return len(c.Notices) == 1 })
			s.ended(id, "")
		}
		deliveries := s.delivered(4)
		for _, id := range []string{"case26-a", "case26-b"} {
			before = append(before, s.truth(id))
		}
		require.NoError(t, s.control.Redeliver(t.Context(), deliveries[0].EventID))
		for _, d := range s.delivered(6) {
			require.Equal(t, http.StatusOK, d.Status)
		}
		require.Equal(t, before[0], s.truth("case26-a"))
		require.Equal(t, before[1], s.truth("case26-b"))
		s.requireOneSend("case26-a")
		s.requireOneSend("case26-b")
	})

	// A settlement report ends an unknown case; the same one again changes
	// nothing.
	t.Run("settlement", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "settlement")
		s.plan(away...)
		s.accept("settlement")
		s.becomes("settlement", refund.StatusUnknown)
		report := s.report()
		require.Contains(t, s.imported(report), "1 rows: 1 applied, 0 already known")
		c := s.becomes("settlement", refund.StatusSucceeded)
		require.Equal(t, refund.SourceSettlement, c.Notices[0].Source)
		s.ended("settlement", "")
		before, run := s.truth("settlement"), s.runID("settlement")
		require.Contains(t, s.imported(report), "1 rows: 0 applied, 1 already known")
		time.Sleep(1500 * time.Millisecond) // longer than a round of the teller
		require.Equal(t, before, s.truth("settlement"))
		require.Equal(t, run, s.runID("settlement"), "nobody had anything to be told")
		s.requireOneSend("settlement")
	})

	// A report with another amount is no fact about the refund, and people
	// have to look. Only they end it, whatever else comes.
	t.Run("settlement of another amount", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "otheramount")
		s.plan(away...)
		s.accept("other")
		s.becomes("other", refund.StatusUnknown)
		report := s.report()
		require.Contains(t, s.imported(strings.Replace(report, ",1250,", ",1000,", 1)), "1 contradicting their case")
		c := s.becomes("other", refund.StatusReview)
		require.Equal(t, refund.ReviewContradiction, c.ReviewReason)
		require.Contains(t, s.imported(report), "1 applied")
		s.parked("other")
		c = s.caseOf("other")
		require.Equal(t, refund.StatusReview, c.Status)
		require.Len(t, c.Notices, 2)
		s.done("review", "settle", "other", "--status", "succeeded", "--evidence", "line 88", "--by", "mei", "--reason", "a typo of theirs",
			"--version", fmt.Sprint(c.Version)) // she has seen both notices, whoever else was told
		s.ended("other", "")
		s.requireOneSend("other")
	})

	// The refund of the first generation has failed at the provider, under the
	// same reference. Neither a check by reference nor one more notice about it
	// says anything about the corrected one.
	t.Run("corrected and executed", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "corrected")
		first := s.correctedAfterFailure("corrected", sends(0, standin.Fault{Kind: standin.AcceptThenDrop}), checks(0, standin.Fault{Kind: standin.Drop}))
		s.becomes("corrected", refund.StatusUnknown)
		s.hook(standin.Webhooks{})
		require.NoError(t, s.control.SetStatus(t.Context(), first, "failed", "card_closed"))
		c := s.until("corrected", "the notice about the first generation", func(c refund.Case) bool { return len(c.Notices) == 1 })
		require.Equal(t, 1, c.Notices[0].Generation)
		s.plan()
		c = s.becomes("corrected", refund.StatusSucceeded)
		require.NotEqual(t, first, c.ProviderRefundID)
		require.Equal(t, []string{"refund-corrected", "refund-corrected.g2"}, s.keys())
		s.requirePaidOnce("corrected")
	})

	t.Run("corrected and not executed", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "absent")
		first := s.correctedAfterFailure("absent", sends(1, standin.Fault{Kind: standin.Drop}))
		c := s.becomes("absent", refund.StatusSucceeded)
		require.NotEqual(t, first, c.ProviderRefundID)
		require.Equal(t, []string{"refund-absent", "refund-absent.g2", "refund-absent.g2"}, s.keys())
		require.Equal(t, 2, c.Attempts)
		s.requirePaidOnce("absent")
	})
}

// The database is away while a notice arrives: it is answered as not stored,
// the provider sends it again, and then it settles the case.
func TestCase27_DatabaseAwayEndToEnd(t *testing.T) {
	t.Parallel()
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refundgate"))
	hostPort, ns := testenv.Temporal(t)
	b := newSystemOn(t, db.DSN("refundgate"), hostPort, ns).benched(quickly, map[string]string{"demo": ""})
	b.run()
	s := b.at(t, "demo")
	s.plan(away...)
	s.accept("r-1")
	s.becomes("r-1", refund.StatusUnknown)

	require.NoError(t, db.Kill())
	s.hook(standin.Webhooks{Tries: 100, RetryMS: 300})
	s.tell("r-1", "succeeded", "")
	for _, d := range s.delivered(2) {
		require.Equal(t, http.StatusServiceUnavailable, d.Status)
	}
	require.NoError(t, db.Start(t.Context()))
	c := s.until("r-1", "settled by the notice", func(c refund.Case) bool { return c.Status == refund.StatusSucceeded })
	require.Len(t, c.Notices, 1)
	deliveries := s.delivered(3)
	require.Equal(t, http.StatusOK, deliveries[len(deliveries)-1].Status)
	s.ended("r-1", "")
	s.requireOneSend("r-1")
}

// refundOf is the newest refund that the provider has under the reference.
func (s *seat) refundOf(id string) standin.Refund {
	s.t.Helper()
	refunds, err := s.control.Refunds(s.t.Context())
	require.NoError(s.t, err)
	var found standin.Refund
	for _, r := range refunds {
		if r.Reference == id {
			found = r
		}
	}
	require.NotEmpty(s.t, found.ID, "the provider has no refund %s", id)
	return found
}

// tell moves the refund to a status at the provider, which tells of it.
func (s *seat) tell(id, status, code string) {
	s.t.Helper()
	require.NoError(s.t, s.control.SetStatus(s.t.Context(), s.refundOf(id).ID, status, code))
}

// delivered waits until the provider has tried n deliveries or more.
func (s *seat) delivered(n int) []standin.Delivery {
	s.t.Helper()
	var all []standin.Delivery
	s.eventually(fmt.Sprintf("%d deliveries", n), func() bool {
		var err error
		all, err = s.control.Deliveries(s.t.Context())
		require.NoError(s.t, err)
		return len(all) >= n
	})
	return all
}

// report is the provider's settlement report.
func (s *seat) report() string {
	s.t.Helper()
	report, err := s.control.Settlement(s.t.Context())
	require.NoError(s.t, err)
	return string(report)
}

// imported imports a report on the command line and returns what it says.
func (s *seat) imported(report string) string {
	s.t.Helper()
	out, errs, code := s.cli(report, "settlement", "import", "-", "--account", s.account)
	require.Zero(s.t, code, errs)
	return out
}

// keys are the idempotency keys of the sends, in the order of their arrival.
func (s *seat) keys() []string {
	s.t.Helper()
	record, err := s.control.Record(s.t.Context())
	require.NoError(s.t, err)
	var keys []string
	for _, r := range record {
		if r.Method == http.MethodPost {
			keys = append(keys, r.Key)
		}
	}
	return keys
}

// requireOneSend holds the money to one send and one execution.
func (s *seat) requireOneSend(id string) {
	s.t.Helper()
	tr := s.truth(id)
	require.Equal(s.t, 1, tr.count(http.MethodPost), "sends of %s", id)
	require.Equal(s.t, 1, tr.Executions, "executions of %s", id)
	require.Equal(s.t, 1, tr.Case.Attempts)
}

// requirePaidOnce holds the money to one refund that didn't fail.
func (s *seat) requirePaidOnce(id string) {
	s.t.Helper()
	refunds, err := s.control.Refunds(s.t.Context())
	require.NoError(s.t, err)
	var paid []string
	for _, r := range refunds {
		if r.Reference == id && r.Status != "failed" {
			paid = append(paid, r.ID)
		}
	}
	require.Equal(s.t, []string{s.caseOf(id).ProviderRefundID}, paid, "%+v", refunds)
}

// correctedAfterFailure has a refund accepted by the provider and fail there,
// corrects it, and returns the provider's id of the failed one. rules are what
// goes wrong from then on.
func (s *seat) correctedAfterFailure(id string, rules ...standin.Rule) (first string) {
	s.t.Helper()
	s.plan(sends(1, standin.Fault{Kind: standin.Pending, Status: http.StatusCreated, SettleMS: 300, SettleTo: "failed"}))
	s.accept(id)
	c := s.becomes(id, refund.StatusRejected)
	s.ended(id, "")
	require.NotEmpty(s.t, c.ProviderRefundID)
	s.plan(rules...)
	s.done("review", "correct", id, "--payment", "pay-2", "--by", "mei", "--reason", "a typo")
	require.Equal(s.t, 2, s.caseOf(id).Generation)
	return c.ProviderRefundID
}
