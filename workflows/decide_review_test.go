package workflows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/refund"
	"refundgate/workflows"
)

// notice adds what the provider says of itself.
func (s *story) notice(o refund.Outcome) *story {
	return s.noticeOf(refund.Notice{Outcome: o, ProviderRefundID: "re_1"})
}

func (s *story) noticeOf(n refund.Notice) *story {
	n.Source, n.EventID = refund.SourceNotification, fmt.Sprintf("evt_%d", len(s.c.Notices))
	n.RefundID, n.ReceivedAt = s.c.Refund.ID, s.now
	if n.Generation == 0 {
		n.Generation = s.c.Generation
	}
	s.c.Notices = append(s.c.Notices, n)
	return s.after(time.Millisecond)
}

// decide adds what a person does.
func (s *story) decide(a refund.Action) *story {
	s.c.Decisions = append(s.c.Decisions, refund.Decision{
		ID: fmt.Sprintf("d-%d", len(s.c.Decisions)), Generation: s.c.Generation, Action: a, By: "mei", Reason: "why not", At: s.now,
	})
	return s.after(time.Millisecond)
}

// settle is the decision of a person that closes the case.
func (s *story) settle(as refund.Status) *story { return s.decide(refund.ActionSettle).closed(as) }

func (s *story) closed(as refund.Status) *story {
	s.c.Status, s.c.ReviewReason = as, ""
	return s
}

func (s *story) inReview(reason refund.ReviewReason) *story {
	s.c.Status, s.c.ReviewReason = refund.StatusReview, reason
	return s
}

// served adds the call that the last decision ordered.
func (s *story) served(kind refund.CallKind, o refund.Outcome) *story {
	s.call(kind, refund.OriginManual, refund.Result{Outcome: o})
	s.c.Calls[len(s.c.Calls)-1].DecisionID = s.c.Decisions[len(s.c.Decisions)-1].ID
	return s
}

func TestDecideWithNoticesAndPeople(t *testing.T) {
	t.Parallel()
	const (
		late    = refund.ReviewLateFailure
		contra  = refund.ReviewContradiction
		pastDue = refund.ReviewDeadlineUnknown
	)
	for _, tt := range []struct {
		name   string
		story  *story
		kind   workflows.StepKind
		status refund.Status
		reason refund.ReviewReason
	}{
		{"CASE 1 the answer is lost, a notice settles", newStory().send(unknown).notice(ok), toClose, isOK, noReason},
		{"CASE 20 the notice beats the answer", newStory().notice(ok).send(pending), toClose, isOK, noReason},
		{"a notice of failure settles too", newStory().send(unknown).notice(rejected), toClose, isReject, noReason},
		{"a notice of pending is a trace", newStory().send(unknown).notice(pending), toCheck, isPending, noReason},
		{"a trace is no step towards absence", newStory().send(unknown).after(2 * time.Second).check(notFound).after(10 * time.Second).check(notFound).
			noticeOf(refund.Notice{Outcome: unknown, Code: "on_hold"}).after(55 * time.Second).check(notFound), toCheck, isUnknown, noReason},
		{"the same notice twice is one", newStory().send(unknown).notice(ok).notice(ok), toClose, isOK, noReason},
		{"an old pending comes late", newStory().send(unknown).notice(ok).notice(pending), toClose, isOK, noReason},
		{"CASE 19 success, then failure", newStory().send(unknown).notice(ok).notice(rejected), toReview, isReview, late},
		{"CASE 19 failure first, the success overtaken", newStory().send(unknown).notice(rejected).notice(ok), toReview, isReview, late},
		{"refused, and yet a refund", newStory().send(busy).send(rejected).notice(ok), toReview, isReview, contra},
		{"CASE 17 another amount under our reference", newStory().send(unknown).noticeOf(refund.Notice{Outcome: ok, Problem: refund.ProblemContent}), toReview, isReview, contra},
		{"two refunds for one", newStory().send(unknown).notice(ok).noticeOf(refund.Notice{Outcome: ok, ProviderRefundID: "re_2"}), toReview, isReview, contra},
		{"a notice about an earlier generation", func() *story {
			s := newStory().send(rejected)
			s.c.Generation, s.c.Attempts = 2, 0
			return s.noticeOf(refund.Notice{Outcome: rejected, ProviderRefundID: "re_1", Generation: 1})
		}(), toSubmit, isQueued, noReason},

		{"review: a definite fact ends it", newStory().send(unknown).inReview(pastDue).notice(ok), toClose, isOK, noReason},
		{"review: a trace doesn't", newStory().send(unknown).inReview(pastDue).notice(pending), toReview, isReview, pastDue},
		{"review: a contradiction changes its reason", newStory().send(unknown).inReview(pastDue).notice(ok).notice(rejected), toReview, isReview, late},
		{"review: a contradiction stays with people", newStory().send(unknown).notice(rejected).notice(ok).inReview(contra).notice(ok), toReview, isReview, contra},

		{"C10 failure after the case was closed", newStory().send(ok).closed(isOK).notice(rejected), toReview, isReview, late},
		{"C10 money moved after a reject", newStory().send(rejected).closed(isReject).notice(ok), toReview, isReview, contra},
		{"C10 another amount after the case was closed", newStory().send(ok).closed(isOK).noticeOf(refund.Notice{Outcome: ok, Problem: refund.ProblemContent}), toReview, isReview, contra},
		{"the same fact again changes nothing", newStory().send(ok).closed(isOK).notice(ok).notice(pending), toClose, isOK, noReason},
		{"settled with all of it known", newStory().send(unknown).notice(rejected).notice(ok).inReview(late).settle(isOK), toClose, isOK, noReason},
		{"settled in spite of another amount", newStory().send(unknown).noticeOf(refund.Notice{Outcome: ok, Problem: refund.ProblemContent}).inReview(contra).settle(isOK), toClose, isOK, noReason},
		{"settled in spite of two refunds", newStory().send(unknown).notice(ok).noticeOf(refund.Notice{Outcome: ok, ProviderRefundID: "re_2"}).inReview(contra).settle(isOK), toClose, isOK, noReason},
		{"settled, and the same comes again", newStory().send(unknown).notice(ok).notice(rejected).inReview(late).settle(isOK).notice(ok), toClose, isOK, noReason},
		{"settled as not made, and then money moved", newStory().send(unknown).inReview(pastDue).settle(refund.StatusNotRefunded).notice(ok), toReview, isReview, contra},
		{"settled as made, and then it failed", newStory().send(unknown).inReview(pastDue).settle(isOK).notice(rejected), toReview, isReview, late},
		{"CASE 45 settled while a call is in flight that succeeds", newStory().send(unknown).inReview(pastDue).decide(refund.ActionResend).
			settle(refund.StatusNotRefunded).served(refund.KindSubmit, ok), toReview, isReview, contra},

		{"an order to check", newStory().send(unknown).inReview(pastDue).decide(refund.ActionCheck), toCheck, isReview, pastDue},
		{"an order to resend", newStory().send(unknown).inReview(pastDue).decide(refund.ActionResend), toSubmit, isReview, pastDue},
		{"CASE 2 two time-outs, a person resends", newStory().send(unknown).absent().send(unknown).inReview(pastDue).decide(refund.ActionResend), toSubmit, isReview, pastDue},
		{"an order is carried out once", newStory().send(unknown).inReview(pastDue).decide(refund.ActionResend).served(refund.KindSubmit, unknown), toReview, isReview, pastDue},
		{"an order whose call was not sent stands", newStory().send(unknown).inReview(pastDue).decide(refund.ActionResend).served(refund.KindSubmit, notSent), toSubmit, isReview, pastDue},
		{"an order has its time", newStory().send(unknown).inReview(pastDue).decide(refund.ActionResend).after(refund.ManualWindow), toReview, isReview, pastDue},
		{"an order and then the answer", newStory().send(unknown).inReview(pastDue).decide(refund.ActionCheck).notice(ok), toClose, isOK, noReason},
		{"an order from before a correction", func() *story {
			s := newStory().send(busy).inReview(refund.ReviewAttempts).decide(refund.ActionResend)
			s.c.Generation = 2
			return s
		}(), toReview, isReview, refund.ReviewAttempts},
		{"contradictions can be checked", newStory().send(unknown).notice(rejected).notice(ok).inReview(contra).decide(refund.ActionCheck), toCheck, isReview, contra},
		{"but not resent", newStory().send(unknown).notice(rejected).notice(ok).inReview(contra).decide(refund.ActionResend), toReview, isReview, contra},
		{"CASE 18 what the provider works on is not resent", newStory().send(pending).inReview(refund.ReviewDeadlinePending).decide(refund.ActionResend), toReview, isReview, refund.ReviewDeadlinePending},
		{"CASE 12 a mismatch is never resent", newStory().sendResult(refund.Result{Outcome: unknown, NeverResend: true}).inReview(refund.ReviewMismatch).decide(refund.ActionResend), toReview, isReview, refund.ReviewMismatch},
		{"CASE 14 past the key's life", newStory().send(unknown).inReview(pastDue).after(24 * time.Hour).decide(refund.ActionResend), toReview, isReview, pastDue},
		{"CASE 14 past the key's life, absence proven", newStory().send(unknown).absent().inReview(pastDue).after(24 * time.Hour).decide(refund.ActionResend), toSubmit, isReview, pastDue},
		{"past the key's life, nothing was accepted", newStory().send(busy).inReview(refund.ReviewDeadlineBusy).after(24 * time.Hour).decide(refund.ActionResend), toSubmit, isReview, refund.ReviewDeadlineBusy},
		{"an order to check doesn't wait for the next one that is due", newStory().send(unknown).decide(refund.ActionCheck), toCheck, isUnknown, noReason},
		{"a resend is for review", newStory().send(unknown).decide(refund.ActionResend), toCheck, isUnknown, noReason},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			step := tt.story.next()
			require.Equal(t, tt.kind, step.Kind, "%+v", step)
			require.Equal(t, tt.status, step.Status, "%+v", step)
			require.Equal(t, tt.reason, step.Reason, "%+v", step)
			require.NotEmpty(t, step.Why)
		})
	}
}

// What a person orders is marked as theirs, is due at once, waits out what the
// provider asked for, and ends with its window or the key's life.
func TestOrderedCalls(t *testing.T) {
	t.Parallel()
	s := newStory().send(unknown).inReview(refund.ReviewDeadlineUnknown)
	ordered := s.now
	step := s.decide(refund.ActionResend).next()
	require.Equal(t, refund.OriginManual, step.Origin)
	require.Equal(t, "d-0", step.DecisionID)
	require.Equal(t, ordered, step.At)
	require.Equal(t, ordered.Add(refund.ManualWindow), step.Until)
	require.Equal(t, "resend ordered by mei", step.Why)

	firstUse := s.c.Calls[0].IntentAt
	s = newStory().send(unknown).inReview(refund.ReviewDeadlineUnknown).after(24*time.Hour - time.Minute)
	step = s.decide(refund.ActionResend).next()
	require.Equal(t, firstUse.Add(24*time.Hour), step.Until, "the key's life ends before the window")

	p := policy
	p.Contract.IdempotentResends = false
	s = newStory().send(unknown).inReview(refund.ReviewNoSafeResend).decide(refund.ActionResend)
	require.Equal(t, toReview, workflows.Decide(s.c, p, s.now).Kind, "the contract doesn't make it safe")

	retryAt := accepted.Add(10 * time.Minute)
	s = newStory().sendResult(refund.Result{Outcome: busy, RetryAt: &retryAt}).inReview(refund.ReviewDeadlineBusy)
	require.Equal(t, retryAt, s.decide(refund.ActionResend).next().At)

	s = newStory().send(unknown).inReview(refund.ReviewDeadlineUnknown).decide(refund.ActionCheck).served(refund.KindCheck, notSent)
	require.Equal(t, s.c.Calls[1].FinishedAt.Add(policy.NotSentInitial), s.next().At, "trying again at once would only turn the wheel")
}

// Whatever notices come and whatever people order and settle, in whatever
// order: no call without an order, at most one per order that may have
// reached, none after its window, no resend that isn't safe, a closed case
// stays as it is unless a fact contradicts it, and then people get it.
func TestPropertyReview(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newStory()
		for range rapid.IntRange(0, 3).Draw(t, "sends") {
			s.sendResult(drawResult(t, s.now))
		}
		s.inReview(rapid.SampledFrom([]refund.ReviewReason{refund.ReviewDeadlineUnknown, refund.ReviewAttempts, refund.ReviewLateFailure}).Draw(t, "reason"))
		s.after(policy.Deadline)
		carriedOut := map[string]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 0:
				n := refund.Notice{
					Outcome:          rapid.SampledFrom([]refund.Outcome{ok, pending, rejected, unknown}).Draw(t, "said"),
					ProviderRefundID: rapid.SampledFrom([]string{"", "re_1", "re_2"}).Draw(t, "id"),
				}
				if rapid.IntRange(0, 9).Draw(t, "problem") == 0 {
					n.Problem = refund.ProblemContent
				}
				s.noticeOf(n)
			case 1:
				if s.c.Status == isReview {
					s.decide(refund.ActionCheck)
				}
			case 2:
				if s.c.Status == isReview {
					s.decide(refund.ActionResend)
				}
			case 3:
				if s.c.Status == isReview {
					s.settle(rapid.SampledFrom([]refund.Status{isOK, refund.StatusNotRefunded}).Draw(t, "as"))
				}
			case 4:
				s.after(time.Duration(rapid.IntRange(0, 3*60*60).Draw(t, "seconds")) * time.Second)
			}
			for {
				before := s.c.Status
				step := workflows.Decide(s.c, policy, s.now)
				switch step.Kind {
				case toClose:
					require.True(t, before == isReview || before == step.Status, "a final state changed without people: %s to %s", before, step.Status)
					s.closed(step.Status)
				case toReview:
					require.True(t, before == isReview || step.Reason.Sticky(), "reopened for %s", step.Reason)
					s.inReview(step.Reason)
				default:
					require.Equal(t, isReview, before, "a call of a closed case")
					require.Equal(t, refund.OriginManual, step.Origin)
					require.True(t, s.now.Before(step.Until), "an order past its window")
					require.False(t, carriedOut[step.DecisionID], "an order carried out twice")
					if s.now.Before(step.At) {
						s.now = step.At
						continue
					}
					requireOrderedCall(t, s, step)
					kind := refund.KindCheck
					if step.Kind == toSubmit {
						kind = refund.KindSubmit
					}
					r := drawResult(t, s.now)
					s.call(kind, refund.OriginManual, r)
					s.c.Calls[len(s.c.Calls)-1].DecisionID = step.DecisionID
					carriedOut[step.DecisionID] = r.Outcome != notSent
					continue
				}
				break
			}
		}
	})
}

// requireOrderedCall checks a resend against what the whole story tells.
func requireOrderedCall(t *rapid.T, s *story, step workflows.Step) {
	if step.Kind != toSubmit {
		return
	}
	var settledAt time.Time
	for _, d := range s.c.Decisions {
		if d.Action == refund.ActionSettle {
			settledAt = d.At
		}
	}
	for _, n := range s.c.Notices {
		if n.Problem == "" {
			require.NotEqual(t, pending, n.Outcome, "a resend of what the provider works on")
		}
		if n.ReceivedAt.After(settledAt) {
			require.NotContains(t, []refund.Outcome{ok, rejected}, n.Outcome, "a resend after a definite fact")
		}
	}
	for _, c := range s.c.Calls {
		require.False(t, c.Result.NeverResend && c.Done(), "a resend that an answer forbids")
	}
}
