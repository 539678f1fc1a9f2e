package workflows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
	"refundgate/workflows"
)

var (
	accepted = time.Date(2026, 3, 29, 1, 30, 0, 0, time.UTC) // the night of a DST change
	policy   = refund.DefaultPolicy()
)

// story builds a case call by call, on a clock of its own.
type story struct {
	c   refund.Case
	now time.Time
}

func newStory() *story {
	return &story{
		c: refund.Case{
			Refund: refund.Refund{
				ID: "r-1", Account: "demo", OrderID: "o-1", PaymentID: "pay-1",
				Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "damaged", RequestedBy: "alice",
			},
			Status: refund.StatusQueued, Generation: 1,
			AcceptedAt: accepted, DeadlineAt: accepted.Add(policy.Deadline),
		},
		now: accepted,
	}
}

// after lets time pass.
func (s *story) after(d time.Duration) *story {
	s.now = s.now.Add(d)
	return s
}

// call adds a call that started now and took 100 ms. One without an outcome
// has no record but its intent.
func (s *story) call(kind refund.CallKind, origin refund.Origin, r refund.Result) *story {
	start, end := s.now, s.now.Add(100*time.Millisecond)
	call := refund.Call{
		Key:    refund.CallKey{RefundID: s.c.Refund.ID, Generation: s.c.Generation, Kind: kind, Seq: s.c.NextSeq(kind)},
		Origin: origin, Account: "demo", IntentAt: start, Result: r,
	}
	if call.Done() {
		call.FinishedAt = &end
	}
	if call.Done() && call.MayHaveReached() {
		call.StartedAt = &start
	}
	s.c.Calls = append(s.c.Calls, call)
	s.c.Attempts = s.c.CountAttempts()
	s.now = end
	return s
}

func (s *story) send(o refund.Outcome) *story { return s.sendResult(refund.Result{Outcome: o}) }

func (s *story) sendResult(r refund.Result) *story {
	origin := refund.OriginRetry
	if s.c.Attempts == 0 {
		origin = refund.OriginFirst
	}
	return s.call(refund.KindSubmit, origin, r)
}

// resend is a send by hand.
func (s *story) resend(r refund.Result) *story {
	return s.call(refund.KindSubmit, refund.OriginManual, r)
}

func (s *story) check(o refund.Outcome) *story { return s.checkResult(refund.Result{Outcome: o}) }

func (s *story) checkResult(r refund.Result) *story {
	return s.call(refund.KindCheck, refund.OriginCheck, r)
}

// absent adds what proves absence: three checks without a trace, the last one
// a minute and more after the last possible send.
func (s *story) absent() *story {
	return s.after(2 * time.Second).check(refund.OutcomeNotFound).
		after(10 * time.Second).check(refund.OutcomeNotFound).
		after(55 * time.Second).check(refund.OutcomeNotFound)
}

func (s *story) next() workflows.Step { return workflows.Decide(s.c, policy, s.now) }

const (
	ok        = refund.OutcomeSucceeded
	pending   = refund.OutcomePending
	rejected  = refund.OutcomeRejected
	busy      = refund.OutcomeBusy
	unknown   = refund.OutcomeUnknown
	notFound  = refund.OutcomeNotFound
	notSent   = refund.OutcomeNotSent
	toSubmit  = workflows.StepSubmit
	toCheck   = workflows.StepCheck
	toReview  = workflows.StepReview
	toClose   = workflows.StepClose
	noReason  = refund.ReviewReason("")
	isQueued  = refund.StatusQueued
	isRetry   = refund.StatusRetrying
	isUnknown = refund.StatusUnknown
	isPending = refund.StatusPending
	isReview  = refund.StatusReview
	isOK      = refund.StatusSucceeded
	isReject  = refund.StatusRejected
)

// The rows of SPEC C, and the situations of CASES.md that are the decision's.
func TestDecide(t *testing.T) {
	t.Parallel()
	echo := refund.Result{Outcome: rejected, Code: "already_refunded", Ambiguous: true}
	tomorrow := accepted.Add(24 * time.Hour)
	for _, tt := range []struct {
		name   string
		story  *story
		kind   workflows.StepKind
		status refund.Status
		reason refund.ReviewReason
	}{
		{"a new case is sent", newStory(), toSubmit, isQueued, noReason},

		{"C1 busy once: second attempt", newStory().send(busy), toSubmit, isRetry, noReason},
		{"C1 busy twice: third attempt", newStory().send(busy).send(busy), toSubmit, isRetry, noReason},
		{"C1 three attempts and no more", newStory().send(busy).send(busy).send(busy), toReview, isReview, refund.ReviewAttempts},
		{"C1 a call without an outcome counts", newStory().send("").absent().send("").absent().send("").absent(), toReview, isReview, refund.ReviewAttempts},
		{"C1 the ledger's count stands above the history", func() *story { s := newStory().send(busy); s.c.Attempts = 3; return s }(), toReview, isReview, refund.ReviewAttempts},
		{"C1 the history's count stands above the ledger's", func() *story { s := newStory().send(busy).send(busy).send(busy); s.c.Attempts = 0; return s }(), toReview, isReview, refund.ReviewAttempts},
		{"C1 manual sends use up no attempt", newStory().resend(refund.Result{Outcome: busy}).send(busy).send(busy), toSubmit, isRetry, noReason},

		{"C2 succeeded", newStory().send(ok), toClose, isOK, noReason},
		{"C2 pending is asked about", newStory().send(pending), toCheck, isPending, noReason},
		{"C2 rejected", newStory().send(rejected), toClose, isReject, noReason},
		{"C2 unknown is asked about", newStory().send(unknown), toCheck, isUnknown, noReason},
		{"C2 credentials refused: not about the refund", newStory().sendResult(refund.Result{Outcome: rejected, Code: "unauthorized", AccountWide: true}), toSubmit, isRetry, noReason},

		{"C3 unknown is never sent on a guess", newStory().send(unknown).check(unknown).check(unknown), toCheck, isUnknown, noReason},
		{"C3 found after unknown", newStory().send(unknown).check(ok), toClose, isOK, noReason},
		{"C3 found failed after unknown", newStory().send(unknown).check(rejected), toClose, isReject, noReason},
		{"C3 found pending after unknown", newStory().send(unknown).check(pending), toCheck, isPending, noReason},
		{"C3 busy answers to a check teach nothing", newStory().send(unknown).check(busy), toCheck, isUnknown, noReason},
		{"C3 a crash between send and record", newStory().send(""), toCheck, isUnknown, noReason},
		{"C3 a busy answer to another send leaves it open", newStory().send(unknown).resend(refund.Result{Outcome: busy}), toCheck, isUnknown, noReason},

		{"C4 not found twice is not enough", newStory().send(unknown).after(59 * time.Second).check(notFound).after(9 * time.Second).check(notFound), toCheck, isUnknown, noReason},
		{"C4 not found inside the window is not enough", newStory().send(unknown).after(10 * time.Second).check(notFound).after(10 * time.Second).check(notFound).after(30 * time.Second).check(notFound), toCheck, isUnknown, noReason},
		{"C4 three in a row, the last outside the window", newStory().send(unknown).absent(), toSubmit, isRetry, noReason},
		{"C4 the window begins again with each attempt", newStory().send(unknown).absent().send(unknown).check(notFound), toCheck, isUnknown, noReason},
		{"C4 and so does the row of checks", newStory().send(unknown).absent().send(unknown).after(61 * time.Second).check(notFound), toCheck, isUnknown, noReason},
		{"C4 a trace in between, of another amount, breaks the row", newStory().send(unknown).check(notFound).check(notFound).checkResult(refund.Result{Outcome: unknown, Code: refund.CodeContradiction}).after(time.Minute).check(notFound), toCheck, isUnknown, noReason},
		{"C4 a trace in between, in an unknown state, breaks the row", newStory().send(unknown).check(notFound).check(notFound).checkResult(refund.Result{Outcome: unknown, Code: refund.CodeUnreadable, ProviderRefundID: "re_1"}).after(time.Minute).check(notFound), toCheck, isUnknown, noReason},
		{"C4 a check in between that learnt nothing breaks no row", newStory().send(unknown).after(10 * time.Second).check(notFound).check(unknown).after(10 * time.Second).check(notFound).after(60 * time.Second).check(notFound), toSubmit, isRetry, noReason},

		{"C6 out of checks", func() *story {
			s := newStory().send(unknown)
			for range policy.Checks.Max {
				s.after(10 * time.Second).check(unknown)
			}
			return s
		}(), toReview, isReview, refund.ReviewChecks},
		{"C6 manual checks are not counted", func() *story {
			s := newStory().send(unknown)
			for range policy.Checks.Max {
				s.after(10*time.Second).call(refund.KindCheck, refund.OriginManual, refund.Result{Outcome: unknown})
			}
			return s
		}(), toCheck, isUnknown, noReason},

		{"C7 the deadline's own instant", func() *story { s := newStory(); s.now = s.c.DeadlineAt; return s }(), toReview, isReview, refund.ReviewDeadlineUnsent},
		{"C7 deadline, nothing sent", newStory().sendResult(refund.Result{Outcome: notSent}).after(policy.Deadline), toReview, isReview, refund.ReviewDeadlineUnsent},
		{"C7 deadline, unknown", newStory().send(unknown).after(policy.Deadline), toReview, isReview, refund.ReviewDeadlineUnknown},
		{"C7 deadline, pending", newStory().send(pending).after(policy.Deadline), toReview, isReview, refund.ReviewDeadlinePending},
		{"C7 deadline, busy", newStory().send(busy).after(policy.Deadline), toReview, isReview, refund.ReviewDeadlineBusy},
		{"C7 a result in the last moment counts", newStory().after(policy.Deadline).send(ok), toClose, isOK, noReason},

		{"C8 rejects are final", newStory().send(busy).send(rejected), toClose, isReject, noReason},
		{"C8 a reject that proves, after an unknown attempt", newStory().send(unknown).absent().send(rejected), toClose, isReject, noReason},
		{"C8 a reject that may be an echo, on the first attempt", newStory().sendResult(echo), toClose, isReject, noReason},
		{"C8 a reject that may be an echo, after busy", newStory().send(busy).sendResult(echo), toClose, isReject, noReason},

		{"CASE 1 the first attempt worked after all", newStory().send(unknown).check(notFound).check(ok), toClose, isOK, noReason},
		{"CASE 2 two time-outs, then a person resends", newStory().send(unknown).absent().send(unknown).resend(refund.Result{Outcome: unknown}), toCheck, isUnknown, noReason},
		{"CASE 3 crash and deadline", newStory().send("").after(policy.Deadline), toReview, isReview, refund.ReviewDeadlineUnknown},
		{"CASE 4 not sent uses no attempt", newStory().sendResult(refund.Result{Outcome: notSent}).sendResult(refund.Result{Outcome: notSent}), toSubmit, isQueued, noReason},
		{"CASE 12 the provider knows our key with other content", newStory().sendResult(refund.Result{Outcome: unknown, Code: "idempotency_mismatch", NeverResend: true}), toReview, isReview, refund.ReviewMismatch},
		{"CASE 12 the adapter can't express it", newStory().sendResult(refund.Result{Outcome: notSent, Code: refund.CodeUnsupported, NeverResend: true}), toReview, isReview, refund.ReviewUnsupported},
		{"CASE 13 the same stored 500 for every attempt", newStory().send(unknown).absent().send(unknown).absent().send(unknown).absent(), toReview, isReview, refund.ReviewAttempts},
		{"CASE 17 already refunded, after our own time-out: check", newStory().send(unknown).absent().sendResult(echo), toCheck, isUnknown, noReason},
		{"CASE 17 ... and it is ours", newStory().send(unknown).absent().sendResult(echo).check(ok), toClose, isOK, noReason},
		{"CASE 17 ... and there is none of ours", newStory().send(unknown).absent().sendResult(echo).absent(), toReview, isReview, refund.ReviewAmbiguousReject},
		{"CASE 17 ... and the checks are used up", func() *story {
			s := newStory().send(unknown).absent().sendResult(echo)
			for range policy.Checks.Max - 3 {
				s.check(unknown)
			}
			return s
		}(), toReview, isReview, refund.ReviewAmbiguousReject},
		{"CASE 17 ... and absence is asked for anew", newStory().send(unknown).absent().sendResult(echo).check(notFound).check(notFound).check(notFound), toCheck, isUnknown, noReason},
		{"CASE 17 ... and it stays so after another send", newStory().send(unknown).absent().sendResult(echo).resend(refund.Result{Outcome: unknown}).absent(), toReview, isReview, refund.ReviewAmbiguousReject},
		{"CASE 17 already refunded, after the provider accepted: check", newStory().send(pending).resend(echo), toCheck, isPending, noReason},
		{"CASE 17 already refunded, after a check found it: check", newStory().check(pending).resend(echo), toCheck, isPending, noReason},
		{"CASE 18 pending for long is not resent", newStory().send(pending).after(10 * time.Minute).check(pending), toCheck, isPending, noReason},
		{"CASE 19 a failure after the success", newStory().send(ok).check(rejected), toReview, isReview, refund.ReviewLateFailure},
		{"CASE 20 a final fact never regresses", newStory().send(ok).check(pending), toClose, isOK, noReason},
		{"CASE 21 checks alone settle", newStory().send(pending).check(pending).check(ok), toClose, isOK, noReason},
		{"CASE 22 too early, until beyond the deadline", newStory().sendResult(refund.Result{Outcome: busy, RetryAt: &tomorrow}).after(policy.Deadline), toReview, isReview, refund.ReviewDeadlineBusy},
		{"CASE 23 a dispute between two attempts", newStory().send(busy).sendResult(refund.Result{Outcome: rejected, Code: "payment_disputed"}), toClose, isReject, noReason},
		{"CASE 24 not found, not found, succeeded", newStory().send(unknown).check(notFound).check(notFound).check(ok), toClose, isOK, noReason},
		{"pending and then not found is still pending", newStory().send(pending).absent(), toCheck, isPending, noReason},

		{"a closed case stays closed", func() *story { s := newStory(); s.c.Status = refund.StatusNotRefunded; return s }(), toClose, refund.StatusNotRefunded, noReason},
		{"a case in review stays there", func() *story {
			s := newStory().send(unknown)
			s.c.Status, s.c.ReviewReason = isReview, refund.ReviewChecks
			return s
		}(), toReview, isReview, refund.ReviewChecks},
		{"an earlier generation is another matter", func() *story { s := newStory().send(rejected); s.c.Generation, s.c.Attempts = 2, 0; return s }(), toSubmit, isQueued, noReason},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			step := tt.story.next()
			require.Equal(t, tt.kind, step.Kind, "%+v", step)
			require.Equal(t, tt.status, step.Status)
			require.Equal(t, tt.reason, step.Reason)
			require.NotEmpty(t, step.Why)
			switch step.Kind {
			case toSubmit:
				require.Equal(t, step.Status == isQueued, step.Origin == refund.OriginFirst)
				require.Equal(t, step.Status == isRetry, step.Origin == refund.OriginRetry)
				require.False(t, step.At.IsZero())
			case toCheck:
				require.Equal(t, refund.OriginCheck, step.Origin)
				require.False(t, step.At.IsZero())
			default:
				require.Empty(t, step.Origin)
			}
		})
	}
}

// C4: what the contract does not promise is not relied on.
func TestDecideKeepsToTheContract(t *testing.T) {
	t.Parallel()
	t.Run("resends are not idempotent", func(t *testing.T) {
		t.Parallel()
		p := policy
		p.Contract.IdempotentResends = false
		s := newStory().send(unknown).absent()
		require.Equal(t, refund.ReviewNoSafeResend, workflows.Decide(s.c, p, s.now).Reason)
		s = newStory().send(busy) // not accepted, and said so
		require.Equal(t, toSubmit, workflows.Decide(s.c, p, s.now).Kind)
	})
	t.Run("absence is never proven", func(t *testing.T) {
		t.Parallel()
		p := policy
		p.Contract.NotFoundAfter = 0
		s := newStory().send(unknown).absent()
		require.Equal(t, toCheck, workflows.Decide(s.c, p, s.now).Kind)
	})
	t.Run("CASE 14 the key is past its lifetime", func(t *testing.T) {
		t.Parallel()
		p := policy
		p.Contract.KeyLifetime = time.Minute
		s := newStory().send(unknown).absent()
		require.Equal(t, refund.ReviewKeyExpired, workflows.Decide(s.c, p, s.now).Reason)
	})
	t.Run("CASE 14 the key's life begins with its first use, by hand or not", func(t *testing.T) {
		t.Parallel()
		p := policy
		p.Contract.KeyLifetime = time.Minute
		s := newStory().resend(refund.Result{Outcome: busy}).after(40 * time.Second).send(busy)
		ends := accepted.Add(time.Minute)
		require.Equal(t, toSubmit, workflows.Decide(s.c, p, ends.Add(-1)).Kind)
		require.Equal(t, refund.ReviewKeyExpired, workflows.Decide(s.c, p, ends).Reason)
	})
	t.Run("keys have no life where resends have no promise", func(t *testing.T) {
		t.Parallel()
		p := policy
		p.Contract.IdempotentResends, p.Contract.KeyLifetime = false, 0
		require.Equal(t, toSubmit, workflows.Decide(newStory().send(busy).c, p, accepted.Add(time.Minute)).Kind)
	})
}

// C4: the window is measured from the last instant at which the send can have
// happened to the first byte of the check.
func TestDecideMeasuresTheWindow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		send refund.Outcome
		last time.Duration // the earliest possible end of the send, after its intent
	}{
		{"the answer was awaited", unknown, 100 * time.Millisecond},
		{"only the intent is known", "", policy.CallBudget},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStory().send(tt.send).check(notFound).check(notFound)
			opens := accepted.Add(tt.last + policy.Contract.NotFoundAfter)
			third := func(start time.Time) workflows.StepKind {
				c := s.c
				end := start.Add(time.Second)
				c.Calls = append(c.Calls[:len(c.Calls):len(c.Calls)], refund.Call{
					Key:    refund.CallKey{RefundID: c.Refund.ID, Generation: 1, Kind: refund.KindCheck, Seq: 3},
					Origin: refund.OriginCheck, IntentAt: start.Add(-time.Second), StartedAt: &start, FinishedAt: &end,
					Result: refund.Result{Outcome: notFound},
				})
				return workflows.Decide(c, policy, end).Kind
			}
			require.Equal(t, toCheck, third(opens.Add(-1)))
			require.Equal(t, toSubmit, third(opens))
		})
	}
}

// C5: the second attempt after 1 to 2 s, the third after 1 to 4 s, uniformly,
// and never before a Retry-After.
func TestDecideBacksOff(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		sent     int
		min, max time.Duration
	}{{1, time.Second, 2 * time.Second}, {2, time.Second, 4 * time.Second}} {
		var lowest, highest, sum time.Duration = time.Hour, 0, 0
		const n = 2000
		for i := range n {
			s := newStory()
			s.c.Refund.ID = fmt.Sprintf("r-%d", i)
			for range tt.sent {
				s.send(busy)
			}
			wait := s.next().At.Sub(s.now)
			lowest, highest, sum = min(lowest, wait), max(highest, wait), sum+wait
		}
		require.GreaterOrEqual(t, lowest, tt.min)
		require.LessOrEqual(t, highest, tt.max)
		require.InDelta(t, (tt.min+tt.max).Seconds()/2, (sum / n).Seconds(), 0.1*(tt.max-tt.min).Seconds(), "uniform")
		require.Less(t, lowest-tt.min, (tt.max-tt.min)/20)
		require.Less(t, tt.max-highest, (tt.max-tt.min)/20)
	}
	s := newStory()
	retryAt := s.now.Add(30 * time.Second)
	s.sendResult(refund.Result{Outcome: busy, RetryAt: &retryAt})
	require.Equal(t, retryAt, s.next().At)
	sooner := s.now.Add(10 * time.Second)
	s.resend(refund.Result{Outcome: busy, RetryAt: &sooner})
	require.Equal(t, retryAt, s.next().At, "the latest instant asked for holds")
	s = newStory().resend(refund.Result{Outcome: busy, RetryAt: &retryAt})
	require.Equal(t, refund.OriginFirst, s.next().Origin)
	require.Equal(t, retryAt, s.next().At, "for a first attempt as well")
	s = newStory().send(unknown).checkResult(refund.Result{Outcome: busy, RetryAt: &retryAt})
	require.Equal(t, retryAt, s.next().At, "for checks as well")
	early := s.now.Add(-time.Second)
	s = newStory().sendResult(refund.Result{Outcome: busy, RetryAt: &early})
	require.Greater(t, s.next().At, s.now.Add(time.Second-time.Millisecond), "it never speeds up")
}

// C6: intervals grow exponentially with +-50 % of jitter, and the cap holds
// after jitter; a new attempt starts them anew.
func TestDecideSpacesChecks(t *testing.T) {
	t.Parallel()
	var below, above, belowCap bool
	for i := range 200 {
		s := newStory()
		s.c.Refund.ID = fmt.Sprintf("r-%d", i)
		s.send(unknown)
		for n := range 12 {
			step := s.next()
			require.Equal(t, toCheck, step.Kind)
			base := min(2*time.Second<<n, time.Minute)
			wait := step.At.Sub(s.now)
			require.GreaterOrEqual(t, wait, base/2, "check %d", n)
			require.LessOrEqual(t, wait, min(base*3/2, time.Minute), "check %d", n)
			below, above = below || wait < base*6/10, above || wait > base*14/10
			belowCap = belowCap || n > 6 && wait < base*6/10
			s.now = step.At
			s.check(unknown)
			if s.now.After(s.c.DeadlineAt.Add(-2 * time.Minute)) {
				break
			}
		}
	}
	require.True(t, below && above, "the jitter uses its range")
	require.True(t, belowCap, "at the cap as well")
	s := newStory().send(unknown).absent().send(unknown)
	require.LessOrEqual(t, s.next().At.Sub(s.now), 3*time.Second)
}

// Calls that are not sent are tried again at growing distances.
func TestDecideSpacesWhatIsNotSent(t *testing.T) {
	t.Parallel()
	s := newStory()
	for n := range 8 {
		s.sendResult(refund.Result{Outcome: notSent, Code: refund.CodeConnect})
		require.Equal(t, min(time.Second<<n, 30*time.Second), s.next().At.Sub(s.now))
	}
	s.send(busy)
	require.Less(t, s.next().At.Sub(s.now), 3*time.Second, "a call that was sent ends the row")

	for what, s := range map[string]*story{"retries": newStory().send(busy), "checks": newStory().send(unknown)} {
		kind := s.next().Kind
		for range 8 {
			s.call(refund.CallKind(kind), s.next().Origin, refund.Result{Outcome: notSent})
		}
		require.Equal(t, kind, s.next().Kind)
		require.Equal(t, 30*time.Second, s.next().At.Sub(s.now), what)
	}
}

// One case's calls draw their jitter each for itself, and so do the calls of
// cases that began together.
func TestDecideSpreads(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for i := range 10 {
		s := newStory()
		s.c.Refund.ID = fmt.Sprintf("r-%d", i)
		for range 3 {
			s.send(busy)
			seen[s.next().At.Sub(s.now)] = true
			s.c.Calls[len(s.c.Calls)-1].Origin = refund.OriginManual // keeps the range the same
			s.c.Attempts = 0
		}
	}
	require.Len(t, seen, 30)
}
