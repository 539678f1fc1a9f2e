package main

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/devenv"
	"refundgate/internal/testenv"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// The review desk through the API and the command line, on the real parts:
// what people order goes through the same gate as everything else.
func TestReviewDeskEndToEnd(t *testing.T) {
	t.Parallel()
	const policy = `{backoff: [{min: 50ms, max: 100ms}, {min: 50ms, max: 100ms}], checks: {max: 3, initial: 200ms, cap: 400ms}}`
	const lifetime = 4 * time.Second
	b := newBench(t, policy, map[string]string{
		"desk": "", "twopeople": "", "terminated": "", "expired": fmt.Sprintf("contract: {key_lifetime: %s}", lifetime),
	})
	b.run()
	by := map[string]any{"by": "mei", "reason": "looked into it"}
	byMei := []string{"--by", "mei", "--reason", "looked into it"}

	t.Run("from the list to a resend", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "desk")
		s.plan(sends(3, standin.Fault{Kind: standin.Busy}))
		s.accept("desk")
		require.Equal(t, refund.ReviewAttempts, s.becomes("desk", refund.StatusReview).ReviewReason)
		require.Contains(t, s.done("review", "list", "--unassigned", "--account", "desk"), "desk")
		s.acted("desk", refund.ActionAssign, map[string]any{"by": "bo", "reason": "she knows the order", "owner": "mei"})
		require.Contains(t, s.done("review", "list", "--owner", "mei"), "desk")
		s.done(append([]string{"review", "note", "desk"}, byMei...)...)

		// One check, although it is ordered twice under one name.
		for range 2 {
			status, answer := s.act("desk", refund.ActionCheck, "check-1", by)
			require.Equal(t, http.StatusOK, status, answer)
		}
		c := s.until("desk", "the check", func(c refund.Case) bool { return len(c.Calls) == 4 && c.Calls[3].Done() })
		require.Equal(t, refund.OutcomeNotFound, c.Calls[3].Result.Outcome)
		require.Equal(t, "check-1", c.Calls[3].DecisionID)
		s.parked("desk")
		require.Equal(t, refund.StatusReview, s.caseOf("desk").Status)

		out := s.done(append([]string{"review", "resend", "desk"}, byMei...)...)
		require.Contains(t, out, "desk: resend recorded")
		c = s.becomes("desk", refund.StatusSucceeded)
		s.ended("desk", "")
		require.Equal(t, []string{"assign", "note", "check", "resend"}, actionsOf(c))
		status, answer := s.request(http.MethodGet, "/v1/refunds/desk", nil)
		require.Equal(t, http.StatusOK, status, answer)
		require.Equal(t, "succeeded", answer["status"])
		require.Len(t, answer["decisions"], 4)
		require.Equal(t, 3, c.Attempts, "a person's resend is no attempt")
		tr := s.truth("desk")
		require.Equal(t, []string{"POST", "POST", "POST", "GET", "POST"}, tr.Wire)
		require.Equal(t, 1, tr.Executions)
		for _, call := range c.Calls[3:] {
			require.Equal(t, refund.OriginManual, call.Origin)
		}
		s.requireMatched("desk")
		s.requireSpaced("desk")
		// And they waited in the follow-ups' line.
		var groups []string
		for _, event := range s.history("desk", "") {
			if a := event.GetActivityTaskScheduledEventAttributes(); a.GetTaskQueue().GetName() == refund.EgressQueue("desk") {
				groups = append(groups, a.GetPriority().GetFairnessKey())
			}
		}
		require.Equal(t, []string{"first", "follow-up", "follow-up", "follow-up", "follow-up"}, groups)
	})

	// One of them settles it, the other one is told; there is one decision.
	t.Run("Case45_TwoPeopleSettleAtOnce", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "twopeople")
		const rounds = 3
		s.plan(sends(0, standin.Fault{Kind: standin.Busy}))
		for i := range rounds {
			s.accept(fmt.Sprintf("two-%d", i))
		}
		for i := range rounds {
			id := fmt.Sprintf("two-%d", i)
			s.becomes(id, refund.StatusReview)
			how := []string{"succeeded", "not_refunded"}
			statuses, answers := make([]int, len(how)), make([]map[string]any, len(how))
			var people sync.WaitGroup
			for k, status := range how {
				people.Go(func() {
					statuses[k], answers[k] = s.act(id, refund.ActionSettle, "", map[string]any{
						"by": "person-" + status, "reason": "sure", "status": status, "evidence": "line 88",
					})
				})
			}
			people.Wait()
			won := 0
			if statuses[1] == http.StatusOK {
				won = 1
			}
			require.Equal(t, http.StatusOK, statuses[won], "%v", answers)
			require.Equal(t, http.StatusConflict, statuses[1-won], "%v", answers)
			require.Contains(t, answers[1-won]["type"], "action-refused")
			require.Contains(t, answers[1-won]["detail"], "it is already "+how[won])
			s.ended(id, "")
			tr := s.truth(id)
			require.Equal(t, refund.Status(how[won]), tr.Case.Status)
			require.Equal(t, []string{"settle"}, actionsOf(tr.Case))
			require.Equal(t, "person-"+how[won], tr.Case.Decisions[0].By)
			settled := 0
			for _, e := range tr.Trail {
				if e.Action == "review.settle" {
					settled++
				}
			}
			require.Equal(t, 1, settled)
			require.Zero(t, tr.Executions)
			s.requireMatched(id)
		}
	})

	// CASE 14: past the key's life a resend would be a second refund.
	t.Run("Case14_ResendPastTheKeysLifetime", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "expired")
		s.plan(sends(0, standin.Fault{Kind: standin.AcceptThenDrop}), checks(0, nothingFound))
		s.accept("expired")
		require.Equal(t, refund.ReviewChecks, s.becomes("expired", refund.StatusReview).ReviewReason)
		c := s.caseOf("expired")
		time.Sleep(time.Until(c.Calls[0].IntentAt.Add(lifetime)))
		status, answer := s.act("expired", refund.ActionResend, "", by)
		require.Equal(t, http.StatusConflict, status, answer)
		require.Contains(t, answer["detail"], "past its lifetime")
		require.Contains(t, s.failed(exitFailed, append([]string{"review", "resend", "expired"}, byMei...)...), "past its lifetime")
		s.parked("expired")
		require.Empty(t, s.caseOf("expired").Decisions)
		s.requireOneSend("expired")
		s.requireMatched("expired")
	})

	// Somebody has terminated the workflow: the next action starts a new run,
	// which carries it out.
	t.Run("after the workflow was terminated", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "terminated")
		s.plan(sends(3, standin.Fault{Kind: standin.Busy}))
		s.accept("terminated")
		before := s.becomes("terminated", refund.StatusReview)
		s.parked("terminated")
		run := s.runID("terminated")
		s.terminate("terminated")
		s.acted("terminated", refund.ActionCheck, by)
		run = s.newRun("terminated", run)
		s.until("terminated", "the check", func(c refund.Case) bool { return len(c.Calls) == 4 && c.Calls[3].Done() })
		s.parked("terminated")
		s.terminate("terminated")
		s.done(append([]string{"review", "resend", "terminated"}, byMei...)...)
		s.newRun("terminated", run)
		c := s.becomes("terminated", refund.StatusSucceeded)
		s.ended("terminated", "")
		require.Equal(t, 3, c.Attempts)
		require.Equal(t, before.DeadlineAt, c.DeadlineAt)
		tr := s.truth("terminated")
		require.Equal(t, []string{"POST", "POST", "POST", "GET", "POST"}, tr.Wire)
		require.Equal(t, 1, tr.Executions)
		s.requireMatched("terminated")
	})
}

// While Temporal is away an action on an open case is answered with 503 and not
// recorded. Once it is back, the same one under the same name is done, once.
func TestActionsWhileTemporalIsAway(t *testing.T) {
	t.Parallel()
	temporal := testenv.OwnTemporal(t)
	b := newSystemOn(t, testenv.MariaDB(t), temporal.HostPort(), devenv.DefaultNamespace).benched(quickly, map[string]string{"demo": ""})
	b.run()
	s := b.at(t, "demo")
	s.plan(sends(3, standin.Fault{Kind: standin.Busy}))
	s.accept("r-1")
	s.becomes("r-1", refund.StatusReview)
	s.parked("r-1")
	before := s.truth("r-1")
	resend := func() (int, map[string]any) {
		t.Helper()
		return s.act("r-1", refund.ActionResend, "resend-1", map[string]any{"by": "mei", "reason": "nothing arrived"})
	}

	require.NoError(t, temporal.Kill())
	status, answer := resend()
	require.Equal(t, http.StatusServiceUnavailable, status, answer)
	require.Contains(t, answer["detail"], "Idempotency-Key: resend-1")
	require.Equal(t, before, s.truth("r-1"))

	require.NoError(t, temporal.Start(t.Context()))
	s.eventually("the resend", func() bool {
		status, answer = resend()
		return status == http.StatusOK
	})
	c := s.becomes("r-1", refund.StatusSucceeded)
	status, answer = resend()
	require.Equal(t, http.StatusOK, status, answer)
	require.Equal(t, []string{"resend"}, actionsOf(c))
	tr := s.truth("r-1")
	require.Equal(t, []string{"POST", "POST", "POST", "POST"}, tr.Wire)
	require.Equal(t, 1, tr.Executions)
	s.requireMatched("r-1")
}
