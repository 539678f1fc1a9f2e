package record

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// matching says which start is which request.
type matching struct {
	pairs []pair
	// surplus are requests that no start belongs to, silent are starts that the
	// provider never heard of.
	surplus []standin.Request
	silent  []Start
	// unstamped are requests of processes that were killed before they could
	// log their start; the ledger has their intent.
	unstamped []standin.Request
}

type pair struct {
	start Start
	wire  standin.Request
}

// conversation is a refund's requests of one method: what a start and a request
// have to agree on to be the same.
type conversation struct {
	reference, method string
}

var methods = map[refund.CallKind]string{refund.KindSubmit: http.MethodPost, refund.KindCheck: http.MethodGet}

// match matches starts and requests one to one. A request is the last start
// before its arrival that no earlier request is.
func (r Record) match() matching {
	started := map[conversation][]Start{}
	for _, s := range r.Starts {
		c := conversation{s.Key.RefundID, methods[s.Key.Kind]}
		started[c] = append(started[c], s)
	}
	lost := r.unlogged()
	var m matching
	for _, q := range r.Wire {
		c := conversation{q.Reference, q.Method}
		waiting := started[c]
		i := len(waiting) - 1
		for i >= 0 && int64(waiting[i].Mono) > q.ArrivedMonoNS {
			i--
		}
		switch {
		case i >= 0:
			m.pairs = append(m.pairs, pair{waiting[i], q})
			started[c] = slices.Delete(slices.Clone(waiting), i, i+1)
		case lost[c] > 0:
			lost[c]--
			m.unstamped = append(m.unstamped, q)
		default:
			m.surplus = append(m.surplus, q)
		}
	}
	for _, s := range r.Starts {
		c := conversation{s.Key.RefundID, methods[s.Key.Kind]}
		if slices.Contains(started[c], s) {
			m.silent = append(m.silent, s)
		}
	}
	return m
}

// unlogged counts the calls of which a byte may have left and no start was
// logged: their intents are all that is left of a process that was killed.
func (r Record) unlogged() map[conversation]int {
	n := map[conversation]int{}
	if r.Killed == 0 {
		return n
	}
	logged := r.started()
	for _, call := range r.Calls() {
		if _, ok := logged[call.Key]; !ok && call.Result.Code == refund.CodeLost {
			n[conversation{call.Key.RefundID, methods[call.Key.Kind]}]++
		}
	}
	return n
}

// started returns the starts by their keys.
func (r Record) started() map[refund.CallKey]Start {
	byKey := make(map[refund.CallKey]Start, len(r.Starts))
	for _, s := range r.Starts {
		byKey[s.Key] = s
	}
	return byKey
}

// flights returns, for each start, how many calls were under way at that
// instant by their starts and durations, this one included. One whose end is
// not on record lasted no longer than its budget.
func (r Record) flights(budget time.Duration) []int {
	ended := make(map[refund.CallKey]time.Duration, len(r.Finishes))
	for _, f := range r.Finishes {
		ended[f.Key] = f.Duration
	}
	var ends []time.Duration
	counts := make([]int, len(r.Starts))
	for i, s := range r.Starts {
		ends = slices.DeleteFunc(ends, func(end time.Duration) bool { return end <= s.Mono })
		lasted, ok := ended[s.Key]
		if !ok || lasted > budget { // a process that was stopped notices late
			lasted = budget
		}
		ends = append(ends, s.Mono+lasted)
		counts[i] = len(ends)
	}
	return counts
}

func describe(q standin.Request) string {
	return fmt.Sprintf("request %d: %s about %s on connection %d with key %q", q.Number, q.Method, q.Reference, q.Connection, q.Key)
}
