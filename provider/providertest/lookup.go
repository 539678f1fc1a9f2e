package providertest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/refund"
)

// found has the provider list refunds for one look-up by reference.
func (s suite) found(t *testing.T, foreign []string, list ...Found) refund.Result {
	t.Helper()
	body := s.Found(list...)
	p := newPeer(t, script(fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", ok200, len(body), body)))
	res := s.adapter(t, p.url()).Check(t.Context(), newTicket(), provider.Query{Refund: s.Refund, Foreign: foreign})
	require.Len(t, p.seen(), 1)
	requireSound(t, res)
	return res
}

// one is the refund asked about, under an id of the provider's.
func (s suite) one(id string, o refund.Outcome) Found {
	return Found{ID: id, Refund: s.Refund, Outcome: o}
}

var shown = []refund.Outcome{refund.OutcomeSucceeded, refund.OutcomePending, refund.OutcomeRejected}

// lookup covers what may stand under our reference while no earlier generation
// is known: nothing, our refund, one with other content, more than one.
func (s suite) lookup(t *testing.T) {
	require.Equal(t, refund.OutcomeNotFound, s.found(t, nil).Outcome)
	for _, outcome := range shown {
		res := s.found(t, nil, s.one("re_1", outcome))
		require.Equal(t, outcome, res.Outcome, "%+v", res)
		require.Equal(t, "re_1", res.ProviderRefundID)

		for name, change := range map[string]func(*refund.Refund){
			"another amount":    func(r *refund.Refund) { r.Amount.Value++ },
			"another currency":  func(r *refund.Refund) { r.Amount.Currency = "EUR" },
			"another payment":   func(r *refund.Refund) { r.PaymentID += "0" },
			"another reference": func(r *refund.Refund) { r.ID += "0" },
		} {
			other := s.one("re_1", outcome)
			change(&other.Refund)
			requireUnknown(t, name, s.found(t, nil, other))
		}
		for _, second := range shown {
			res := s.found(t, nil, s.one("re_1", outcome), s.one("re_2", second))
			requireUnknown(t, fmt.Sprintf("%s and %s", outcome, second), res)
			require.Equal(t, refund.CodeContradiction, res.Code)
		}
	}
}

// foreign covers the same with refunds of earlier generations among them,
// which have our reference and whatever content was corrected since.
func (s suite) foreign(t *testing.T) {
	foreign := []string{"re_0", "re_00"}
	corrected := s.one("re_0", refund.OutcomeRejected)
	corrected.Refund.Amount.Value++
	for _, earlier := range []Found{s.one("re_0", refund.OutcomeRejected), s.one("re_00", refund.OutcomeSucceeded), corrected} {
		res := s.found(t, foreign, earlier)
		require.Equal(t, refund.OutcomeNotFound, res.Outcome, "an earlier generation's alone: %+v", res)
		require.Empty(t, res.ProviderRefundID)
		for _, outcome := range shown {
			for _, list := range [][]Found{{earlier, s.one("re_1", outcome)}, {s.one("re_1", outcome), earlier}} {
				res := s.found(t, foreign, list...)
				require.Equal(t, outcome, res.Outcome, "%+v", res)
				require.Equal(t, "re_1", res.ProviderRefundID)
			}
			requireUnknown(t, "two beside an earlier one", s.found(t, foreign, earlier, s.one("re_1", outcome), s.one("re_2", outcome)))
		}
	}
}
