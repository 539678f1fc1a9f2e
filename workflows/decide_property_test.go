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

// drawResult draws what may come back from a call: sensible or not.
func drawResult(t *rapid.T, now time.Time) refund.Result {
	oneIn := func(n int, what string) bool { return rapid.IntRange(1, n).Draw(t, what) == 1 }
	r := refund.Result{Outcome: rapid.SampledFrom(append([]refund.Outcome{"", "junk"}, refund.Outcomes...)).Draw(t, "outcome")}
	if oneIn(5, "retryAt") {
		at := now.Add(time.Duration(rapid.IntRange(-60, 1200).Draw(t, "retryIn")) * time.Second)
		r.RetryAt = &at
	}
	if oneIn(5, "coded") {
		r.Code = rapid.SampledFrom([]string{refund.CodeContradiction, refund.CodeUnsupported, refund.CodeTimeout}).Draw(t, "code")
	}
	if oneIn(10, "identified") {
		r.ProviderRefundID = "re_1"
	}
	r.AccountWide = oneIn(10, "accountWide")
	r.Ambiguous = oneIn(5, "ambiguous")
	r.NeverResend = oneIn(20, "neverResend")
	return r
}

func drawPolicy(t *rapid.T) refund.Policy {
	p := policy
	p.MaxAttempts = rapid.IntRange(0, 3).Draw(t, "maxAttempts")
	p.Backoff = policy.Backoff[:rapid.IntRange(0, 2).Draw(t, "backoffs")]
	p.Checks.Max = rapid.IntRange(0, 20).Draw(t, "maxChecks")
	p.Contract = refund.Contract{
		IdempotentResends: rapid.Bool().Draw(t, "idempotent"),
		KeyLifetime:       rapid.SampledFrom([]time.Duration{0, 2 * time.Minute, 24 * time.Hour}).Draw(t, "keyLifetime"),
		NotFoundAfter:     rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "notFoundAfter"),
		NotFoundChecks:    rapid.IntRange(1, 3).Draw(t, "notFoundChecks"),
	}
	return p
}

// Whatever the provider answers, whatever people do meanwhile and whatever the
// policy: never more automatic sends than allowed, none after a final fact,
// none while an attempt may have been executed or the provider says pending, no
// end as rejected or succeeded without an answer that says so, and always an
// end, final or in review for a reason that holds, by the deadline.
func TestPropertyDecide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newStory()
		s.c.Refund.ID = fmt.Sprintf("r-%d", rapid.IntRange(0, 1_000_000).Draw(t, "id"))
		m := model{policy: drawPolicy(t), lastEnd: s.now}
		call := func(kind refund.CallKind, origin refund.Origin) {
			r, start := drawResult(t, s.now), s.now
			s.call(kind, origin, r)
			m.learn(kind, origin, r, start)
		}
		for steps := 0; ; steps++ {
			require.Less(t, steps, 2000, "the case does not end")
			if rapid.IntRange(1, 20).Draw(t, "by hand") == 1 {
				call(rapid.SampledFrom([]refund.CallKind{refund.KindSubmit, refund.KindCheck}).Draw(t, "kind by hand"), refund.OriginManual)
			}
			step := workflows.Decide(s.c, m.policy, s.now)
			require.Equal(t, step, workflows.Decide(s.c, m.policy, s.now), "the same case, the same step")
			switch step.Kind {
			case toClose:
				require.Equal(t, m.fact, step.Status, "closed without an answer that says so")
				return
			case toReview:
				require.True(t, m.fact == "" || m.contradicted, "a case with a definite answer was handed to people")
				require.True(t, m.holds(step.Reason, !s.now.Before(s.c.DeadlineAt)), step.Reason)
				return
			case toSubmit, toCheck:
				require.True(t, s.now.Before(s.c.DeadlineAt), "a call after the deadline")
			default:
				require.Fail(t, "no such step", "%q", step.Kind)
			}
			if s.now.Before(step.At) {
				s.now = step.At
				if s.now.After(s.c.DeadlineAt) {
					s.now = s.c.DeadlineAt
				}
				continue
			}
			require.False(t, s.now.Before(m.retryAt), "a call before the provider asked for it")
			kind := refund.KindCheck
			if step.Kind == toSubmit {
				kind = refund.KindSubmit
				m.beforeSend(t, s.now)
			}
			// The gate takes its time.
			s.after(time.Duration(rapid.IntRange(0, 5000).Draw(t, "waitedMS")) * time.Millisecond)
			call(kind, step.Origin)
			m.lastEnd = s.now
			require.LessOrEqual(t, s.c.CountAttempts(), m.policy.MaxAttempts)
		}
	})
}

// model keeps, apart from the code under test, what may be assumed of the
// provider.
type model struct {
	policy refund.Policy

	fact refund.Status // the first definite one
	// contradicted: another definite answer says the opposite.
	contradicted bool
	pending      bool
	open         bool      // something may have been executed
	since        time.Time // the start of the last such call
	missing      int
	everRun      bool // something may have been executed or was accepted, ever
	echo         bool
	never        bool
	sends        int // automatic ones
	checks       int // automatic ones
	firstUse     time.Time
	retryAt      time.Time
	lastEnd      time.Time
}

func (m *model) beforeSend(t *rapid.T, now time.Time) {
	require.Empty(t, m.fact, "a send after a final fact")
	require.False(t, m.pending, "a send while the provider says pending")
	require.False(t, m.open, "a send while an attempt may have been executed")
	require.False(t, m.echo, "a send after a reject that may be an echo")
	require.False(t, m.never, "a send after an answer that forbids it")
	require.Less(t, m.sends, m.policy.MaxAttempts)
	require.False(t, m.keyExpired(now), "a send under an expired key")
	if m.everRun {
		require.True(t, m.policy.Contract.IdempotentResends, "a resend that is not safe")
	}
	if m.sends > 0 && len(m.policy.Backoff) > 0 {
		require.GreaterOrEqual(t, now.Sub(m.lastEnd), time.Second, "a resend without backoff")
	}
}

func (m *model) keyExpired(now time.Time) bool {
	life := m.policy.Contract.KeyLifetime
	return life > 0 && !m.firstUse.IsZero() && now.Sub(m.firstUse) >= life
}

// holds tells whether a case may be handed to people for the reason.
func (m *model) holds(reason refund.ReviewReason, late bool) bool {
	switch reason {
	case refund.ReviewLateFailure, refund.ReviewContradiction:
		return m.contradicted
	case refund.ReviewDeadlineUnsent:
		return late && m.sends == 0
	case refund.ReviewDeadlineUnknown:
		return late && m.open && !m.pending
	case refund.ReviewDeadlinePending:
		return late && m.pending
	case refund.ReviewDeadlineBusy:
		return late && m.sends > 0 && !m.open && !m.pending
	case refund.ReviewAttempts:
		return m.sends == m.policy.MaxAttempts && !m.open && !m.pending
	case refund.ReviewChecks:
		return m.checks == m.policy.Checks.Max && (m.open || m.pending)
	case refund.ReviewAmbiguousReject:
		return m.echo && (!m.open || m.checks == m.policy.Checks.Max)
	case refund.ReviewKeyExpired:
		return m.policy.Contract.KeyLifetime > 0 && !m.firstUse.IsZero()
	case refund.ReviewNoSafeResend:
		return m.everRun && !m.policy.Contract.IdempotentResends
	case refund.ReviewMismatch, refund.ReviewUnsupported:
		return m.never
	}
	return false
}

func (m *model) learn(kind refund.CallKind, origin refund.Origin, r refund.Result, start time.Time) {
	m.never = m.never || r.NeverResend
	if r.Outcome == notSent {
		return
	}
	if r.RetryAt != nil && r.RetryAt.After(m.retryAt) {
		m.retryAt = *r.RetryAt
	}
	if kind == refund.KindCheck {
		m.learnCheck(origin, r, start)
	} else {
		m.learnSend(origin, r, start)
	}
}

func (m *model) learnSend(origin refund.Origin, r refund.Result, start time.Time) {
	if origin != refund.OriginManual {
		m.sends++
	}
	if m.firstUse.IsZero() {
		m.firstUse = start
	}
	m.missing = 0
	switch {
	case r.Outcome == ok:
		m.settle(isOK)
	case r.Outcome == pending:
		m.pending, m.everRun = true, true
	case r.Outcome == busy, r.Outcome == rejected && r.AccountWide:
	case r.Outcome == rejected && r.Ambiguous && m.everRun:
		m.echo, m.open, m.since = true, true, start
	case r.Outcome == rejected:
		m.settle(isReject)
	default: // a "not found" too: no answer to a send
		m.open, m.everRun, m.since = true, true, start
	}
}

func (m *model) learnCheck(origin refund.Origin, r refund.Result, start time.Time) {
	if origin != refund.OriginManual {
		m.checks++
	}
	switch {
	case r.Outcome == ok:
		m.settle(isOK)
	case r.Outcome == pending:
		m.pending, m.everRun = true, true
	case r.Outcome == rejected && !r.AccountWide:
		m.settle(isReject)
	case r.Outcome == notFound:
		m.missing++
		window := m.policy.Contract.NotFoundAfter
		if window > 0 && start.Sub(m.since) >= window && m.missing >= m.policy.Contract.NotFoundChecks {
			m.open = false
		}
	case r.ProviderRefundID != "" || r.Code == refund.CodeContradiction:
		m.missing = 0
	}
}

func (m *model) settle(s refund.Status) {
	if m.fact == "" {
		m.fact = s
	}
	m.contradicted = m.contradicted || m.fact != s
}

// Decide is total: any case and any policy, however odd, gets a step.
func TestPropertyDecideIsTotal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := refund.Case{
			Status:     rapid.SampledFrom(append([]refund.Status{"", "junk"}, refund.Statuses...)).Draw(t, "status"),
			Generation: rapid.IntRange(-1, 3).Draw(t, "generation"),
			Attempts:   rapid.IntRange(-1, 5).Draw(t, "attempts"),
		}
		now := accepted
		for range rapid.IntRange(0, 30).Draw(t, "calls") {
			call := refund.Call{
				Key: refund.CallKey{
					Generation: rapid.IntRange(-1, 3).Draw(t, "callGeneration"),
					Kind:       rapid.SampledFrom([]refund.CallKind{refund.KindSubmit, refund.KindCheck, "junk"}).Draw(t, "kind"),
					Seq:        rapid.IntRange(-1, 9).Draw(t, "seq"),
				},
				Origin: rapid.SampledFrom([]refund.Origin{refund.OriginFirst, refund.OriginRetry, refund.OriginCheck, refund.OriginManual, "junk"}).Draw(t, "origin"),
				Result: drawResult(t, now),
			}
			c.Calls = append(c.Calls, call)
		}
		p := rapid.SampledFrom([]refund.Policy{{}, {MaxAttempts: 3, Deadline: -1}, policy, drawPolicy(t)}).Draw(t, "policy")
		c.DeadlineAt = now.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "left")) * time.Minute)
		step := workflows.Decide(c, p, now)
		require.Contains(t, []workflows.StepKind{toSubmit, toCheck, toReview, toClose}, step.Kind)
		require.True(t, step.Status.Valid())
	})
}
