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
	r := refund.Result{Outcome: rapid.SampledFrom(append([]refund.Outcome{"", "junk"}, refund.Outcomes...)).Draw(t, "outcome")}
	if rapid.IntRange(0, 4).Draw(t, "retryAt") == 0 {
		at := now.Add(time.Duration(rapid.IntRange(-60, 1200).Draw(t, "retryIn")) * time.Second)
		r.RetryAt = &at
	}
	r.AccountWide = rapid.IntRange(0, 9).Draw(t, "accountWide") == 0
	r.Ambiguous = rapid.IntRange(0, 4).Draw(t, "ambiguous") == 0
	r.NeverResend = rapid.IntRange(0, 19).Draw(t, "neverResend") == 0
	return r
}

// Whatever the provider answers: never more than three automatic sends, none
// after a final fact, none while an attempt may have been executed or the
// provider says pending, no end as rejected or succeeded without an answer
// that says so, and always an end, final or in review, by the deadline.
func TestDecideProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newStory()
		s.c.Refund.ID = fmt.Sprintf("r-%d", rapid.IntRange(0, 1_000_000).Draw(t, "id"))
		p := policy
		p.Contract.IdempotentResends = rapid.Bool().Draw(t, "idempotent")
		m := model{window: p.Contract.NotFoundAfter, checks: p.Contract.NotFoundChecks}
		for steps := 0; ; steps++ {
			require.Less(t, steps, 2000, "the case does not end")
			step := workflows.Decide(s.c, p, s.now)
			require.Equal(t, step, workflows.Decide(s.c, p, s.now), "the same case, the same step")
			switch step.Kind {
			case toClose:
				require.True(t, step.Status.Final())
				require.True(t, m.facts[step.Status], "closed as %s without an answer that says so", step.Status)
				return
			case toReview:
				require.NotEmpty(t, step.Reason)
				require.Empty(t, m.facts, "a case with a definite answer was handed to people")
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
			// The gate takes its time.
			s.after(time.Duration(rapid.IntRange(0, 5000).Draw(t, "waitedMS")) * time.Millisecond)
			kind := refund.KindCheck
			if step.Kind == toSubmit {
				kind = refund.KindSubmit
				m.beforeSend(t, p)
			}
			r := drawResult(t, s.now)
			m.learn(kind, r, s.now)
			s.call(kind, step.Origin, r)
			require.LessOrEqual(t, s.c.CountAttempts(), p.MaxAttempts)
		}
	})
}

// model keeps, apart from the code under test, what may be assumed of the
// provider.
type model struct {
	window time.Duration
	checks int

	facts    map[refund.Status]bool
	pending  bool
	open     bool      // something may have been executed
	since    time.Time // the start of the last such call
	missing  int
	everOpen bool
	sends    int
	never    bool
}

func (m *model) beforeSend(t *rapid.T, p refund.Policy) {
	require.Empty(t, m.facts, "a send after a final fact")
	require.False(t, m.pending, "a send while the provider says pending")
	require.False(t, m.open, "a send while an attempt may have been executed")
	require.False(t, m.never, "a send after an answer that forbids it")
	require.Less(t, m.sends, p.MaxAttempts)
	if m.everOpen {
		require.True(t, p.Contract.IdempotentResends, "a resend that is not safe")
	}
}

func (m *model) learn(kind refund.CallKind, r refund.Result, start time.Time) {
	m.never = m.never || r.NeverResend
	switch r.Outcome {
	case ok:
		m.fact(isOK)
	case pending:
		m.pending, m.open = true, false
	case rejected:
		echo := kind == refund.KindSubmit && r.Ambiguous && m.everOpen
		switch {
		case r.AccountWide:
		case echo:
			m.open, m.since, m.missing = true, start, 0
		default:
			m.fact(isReject)
		}
	case notFound:
		if kind == refund.KindSubmit { // no answer to a send; so unknown
			m.unknown(start)
			break
		}
		m.missing++
		if m.missing >= m.checks && start.Sub(m.since) >= m.window {
			m.open = false
		}
	case busy, notSent:
	default:
		if kind == refund.KindSubmit {
			m.unknown(start)
		}
	}
	if kind == refund.KindSubmit && r.Outcome != notSent {
		m.sends++
		m.missing = 0
	}
}

func (m *model) unknown(start time.Time) {
	m.open, m.everOpen, m.since, m.missing = true, true, start, 0
}

func (m *model) fact(s refund.Status) {
	if m.facts == nil {
		m.facts = map[refund.Status]bool{}
	}
	m.facts[s] = true
}

// Decide is total: any case and any policy, however odd, gets a step.
func TestDecideIsTotal(t *testing.T) {
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
		p := rapid.SampledFrom([]refund.Policy{{}, policy}).Draw(t, "policy")
		step := workflows.Decide(c, p, now)
		require.Contains(t, []workflows.StepKind{toSubmit, toCheck, toReview, toClose}, step.Kind)
		require.True(t, step.Status.Valid())
	})
}
