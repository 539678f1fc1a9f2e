package record

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"refundgate/drill/report"
	"refundgate/refund"
)

// Limits are what was promised.
type Limits struct {
	Interval       time.Duration // between two starts
	MaxInFlight    int
	ConnectTimeout time.Duration
	CallTimeout    time.Duration
	MaxAttempts    int // automatic sends of a refund
	MaxChecks      int // automatic checks of a refund
}

// Names of the checks of Promises.
const (
	CheckOneToOne   = "one-to-one"
	CheckLedger     = "ledger"
	CheckGap        = "gap"
	CheckWireRate   = "wire-rate"
	CheckInFlight   = "in-flight"
	CheckOneKey     = "one-key"
	CheckExecutions = "executions"
	CheckBudget     = "budget"
	CheckOwner      = "one-owner"
	CheckKept       = "kept"
)

// Promises holds a record to everything that has to be true of every record,
// whatever happened in it.
func Promises(r Record, l Limits) []report.Check {
	return []report.Check{
		oneToOne(r), inLedger(r), gap(r, l), wireRate(r, l), inFlight(r, l),
		oneKey(r), executions(r), budget(r, l), oneOwner(r, l), kept(r),
	}
}

func oneToOne(r Record) report.Check {
	f := report.NewCheck(CheckOneToOne, "each request that the provider received is one start at the gate, and the other way round")
	m := r.match()
	for _, q := range m.surplus {
		f.Require(false, "%s: no start of the gate belongs to it", describe(q))
	}
	for _, s := range m.silent {
		f.Require(false, "%s started and never arrived", s.Key)
	}
	if r.Hidden > 0 {
		f.Require(false, "%d second sends of a call were attempted and blocked", r.Hidden)
	}
	return f.Judged("%d requests, %d starts, %d of killed processes", len(r.Wire), len(r.Starts), len(m.unstamped))
}

// inLedger holds the transport record to the ledger's rows.
func inLedger(r Record) report.Check {
	f := report.NewCheck(CheckLedger, "each start has its row in the ledger, written before it, with the same stamp; each row of which a byte left has its start")
	rows := map[refund.CallKey]refund.Call{}
	stamped := 0
	started := r.started()
	for _, call := range r.Calls() {
		rows[call.Key] = call
		if call.StartedMono == 0 {
			continue
		}
		stamped++
		if _, ok := started[call.Key]; !ok {
			f.Require(false, "%s has a stamp in the ledger and didn't start at the gate", call.Key)
		}
	}
	if len(started) < len(r.Starts) {
		f.Require(false, "%d starts share their key with another one", len(r.Starts)-len(started))
	}
	for _, s := range r.Starts {
		row, ok := rows[s.Key]
		switch {
		case !ok:
			f.Require(false, "%s started and has no row in the ledger", s.Key)
		case row.StartedMono == 0 && row.Result.Code == refund.CodeLost && r.Killed > 0:
			// The process was killed before it could write the stamp.
		case row.StartedMono != int64(s.Mono) || row.InFlight != s.InFlight || row.Origin != s.Origin:
			f.Require(false, "%s: the ledger has %d ns, %d in flight, %s; the gate had %d ns, %d, %s",
				s.Key, row.StartedMono, row.InFlight, row.Origin, int64(s.Mono), s.InFlight, s.Origin)
		case row.IntentAt.After(*row.StartedAt):
			f.Require(false, "%s: its intent is later than its first byte", s.Key)
		}
	}
	return f.Judged("%d starts, %d rows with a stamp, %d rows", len(r.Starts), stamped, len(rows))
}

func gap(r Record, l Limits) report.Check {
	f := report.NewCheck(CheckGap, fmt.Sprintf("two starts are at least %s apart, whichever process they are of", l.Interval))
	smallest := time.Duration(0)
	for i := 1; i < len(r.Starts); i++ {
		before, s := r.Starts[i-1], r.Starts[i]
		g := s.Mono - before.Mono
		if smallest == 0 || g < smallest {
			smallest = g
		}
		if g < l.Interval {
			f.Require(false, "%s (%s) started %s after %s (%s)", s.Key, s.Process, g, before.Key, before.Process)
		}
	}
	if smallest == 0 {
		return f.Judged("no two starts")
	}
	return f.Judged("smallest gap %.4f ms of %d", float64(smallest)/1e6, len(r.Starts)-1)
}

// The provider's clock sees requests after the network and the scheduler have
// had them, so single gaps say nothing there; a window does.
const (
	rateWindow = 5 * time.Second
	// rateSlack is how many requests may have been delayed into a window. A
	// machine that stands still for half a second delays two or three.
	rateSlack = 4
)

// wireRate is what the stamps can't show if they are wrong.
func wireRate(r Record, l Limits) report.Check {
	most := int(rateWindow/l.Interval) + 1
	f := report.NewCheck(CheckWireRate, fmt.Sprintf("the provider receives at most %d requests in any %s, by its own clock (%d of them delayed into it)", most+rateSlack, rateWindow, rateSlack))
	highest, from := 0, 0
	for i, q := range r.Wire {
		for q.ArrivedMonoNS-r.Wire[from].ArrivedMonoNS > int64(rateWindow) {
			from++
		}
		n := i - from + 1
		highest = max(highest, n)
		if n > most+rateSlack {
			f.Require(false, "%d requests in the %s before request %d", n, rateWindow, q.Number)
		}
	}
	return f.Judged("at most %d in %s", highest, rateWindow)
}

func inFlight(r Record, l Limits) report.Check {
	f := report.NewCheck(CheckInFlight, fmt.Sprintf("at most %d calls are in flight, by the gate's count and by starts and durations", l.MaxInFlight))
	highest := 0
	counts := r.flights(l.CallTimeout)
	for i, s := range r.Starts {
		highest = max(highest, counts[i], s.InFlight)
		if s.InFlight > l.MaxInFlight {
			f.Require(false, "%s started as one of %d, says the gate", s.Key, s.InFlight)
		}
		if counts[i] > l.MaxInFlight {
			f.Require(false, "%s started as one of %d, say starts and durations", s.Key, counts[i])
		}
	}
	return f.Judged("at most %d", highest)
}

func oneKey(r Record) report.Check {
	f := report.NewCheck(CheckOneKey, "all sends of a refund carry its one idempotency key and the same bytes")
	generations := map[string]int{}
	for _, c := range r.Cases {
		generations[c.Refund.ID] = c.Generation
	}
	bodies := map[string]string{} // by key
	sends := 0
	for _, q := range r.Wire {
		if q.Method != methods[refund.KindSubmit] {
			continue
		}
		sends++
		last, ours := generations[q.Reference]
		switch {
		case !ours:
			f.Require(false, "%s: there is no such refund", describe(q))
		case !keyOf(q.Reference, last, q.Key):
			f.Require(false, "%s: that is not its key", describe(q))
		case bodies[q.Key] != "" && bodies[q.Key] != q.BodySHA256:
			f.Require(false, "%s: other bytes than the send before it", describe(q))
		}
		bodies[q.Key] = q.BodySHA256
	}
	return f.Judged("%d sends with %d keys", sends, len(bodies))
}

// keyOf tells whether key is that of one of the refund's generations.
func keyOf(refundID string, generations int, key string) bool {
	for g := 1; g <= generations; g++ {
		if key == refund.IdempotencyKey(refundID, g) {
			return true
		}
	}
	return false
}

func executions(r Record) report.Check {
	f := report.NewCheck(CheckExecutions, "the provider executes no refund twice, and none that is reported as not done")
	executed := 0
	for _, c := range r.Cases {
		n := r.Executions[c.Refund.ID]
		executed += n
		if n > 1 {
			f.Require(false, "%s was executed %d times", c.Refund.ID, n)
		}
		if n == 0 && c.Status == refund.StatusSucceeded {
			f.Require(false, "%s is reported as succeeded and was never executed", c.Refund.ID)
		}
		if n > 0 && (c.Status == refund.StatusRejected || c.Status == refund.StatusNotRefunded) {
			f.Require(false, "%s was executed and is reported as %s", c.Refund.ID, c.Status)
		}
	}
	return f.Judged("%d executions of %d refunds", executed, len(r.Cases))
}

// budget compares what the provider received for each refund with what it was
// allowed to receive.
func budget(r Record, l Limits) report.Check {
	f := report.NewCheck(CheckBudget, fmt.Sprintf("a refund gets at most %d sends and %d checks by itself, none after its deadline, and what people order comes on top", l.MaxAttempts, l.MaxChecks))
	received := map[string]int{}
	for _, q := range r.Wire {
		received[q.Reference]++
	}
	most := 0
	for _, c := range r.Cases {
		id := c.Refund.ID
		var sends, checks, manual int
		for _, call := range c.Calls {
			switch {
			case !call.MayHaveReached():
			case call.Origin == refund.OriginManual:
				manual++
			case call.Key.Kind == refund.KindSubmit:
				sends++
			default:
				checks++
			}
			if call.Origin != refund.OriginManual && call.StartedAt != nil && call.StartedAt.After(c.DeadlineAt) {
				f.Require(false, "%s started %s after the deadline", call.Key, call.StartedAt.Sub(c.DeadlineAt))
			}
		}
		ordered := 0
		for _, d := range c.Decisions {
			if d.Action == refund.ActionResend || d.Action == refund.ActionCheck {
				ordered++
			}
		}
		most = max(most, received[id])
		switch {
		case sends > l.MaxAttempts:
			f.Require(false, "%s was sent %d times", id, sends)
		case checks > l.MaxChecks:
			f.Require(false, "%s was checked %d times", id, checks)
		case manual > ordered:
			f.Require(false, "%s got %d calls in people's name, who ordered %d", id, manual, ordered)
		case received[id] > sends+checks+manual:
			f.Require(false, "%s: the provider received %d requests, the ledger allows %d sends, %d checks, %d by people", id, received[id], sends, checks, manual)
		}
	}
	return f.Judged("at most %d requests for one refund, %.2f on average", most, average(len(r.Wire), len(r.Cases)))
}

func average(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// clockSlack is by how much the reader of the logs can be late.
const clockSlack = 500 * time.Millisecond

// oneOwner holds every start to the ownership under which it was made.
func oneOwner(r Record, l Limits) report.Check {
	quiet := l.ConnectTimeout + l.CallTimeout
	f := report.NewCheck(CheckOwner, fmt.Sprintf("one process at a time sends, a new owner only %s after it became it", quiet))
	for i := 1; i < len(r.Tenures); i++ {
		before, t := r.Tenures[i-1], r.Tenures[i]
		f.Require(before.Until != 0 && t.Since > before.Until-clockSlack,
			"%s became the owner (epoch %d) while %s was (epoch %d)", t.Process, t.Epoch, before.Process, before.Epoch)
	}
	epochs := map[refund.CallKey]int64{}
	for _, c := range r.Calls() {
		epochs[c.Key] = c.Epoch
	}
	first := map[int64]bool{}
	var last int64
	var senders []string
	for i, s := range r.Starts {
		if !slices.Contains(senders, s.Process) {
			senders = append(senders, s.Process)
		}
		epoch := epochs[s.Key]
		if epoch == 0 {
			continue // it has no row: the ledger's check says so
		}
		if epoch < last {
			f.Require(false, "%s of epoch %d started after a call of epoch %d", s.Key, epoch, last)
		}
		n := slices.IndexFunc(r.Tenures, func(t Tenure) bool { return t.Epoch == epoch && t.Process == s.Process })
		if n < 0 {
			f.Require(false, "%s was sent by %s, which never owned epoch %d", s.Key, s.Process, epoch)
			continue
		}
		t := r.Tenures[n]
		if t.Until != 0 && s.Mono > t.Until {
			f.Require(false, "%s started after its process had ended or lost epoch %d", s.Key, epoch)
		}
		if !first[epoch] && s.Mono < t.Since+quiet-clockSlack {
			f.Require(false, "%s started %s after its process became the owner", s.Key, s.Mono-t.Since)
		}
		if i > 0 && epoch != last && last != 0 && r.Starts[i-1].Process != s.Process && s.Mono-r.Starts[i-1].Mono < quiet {
			f.Require(false, "%s of %s started %s after the last one of %s", s.Key, s.Process, s.Mono-r.Starts[i-1].Mono, r.Starts[i-1].Process)
		}
		first[epoch], last = true, max(epoch, last)
	}
	return f.Judged("%d owners, senders: %s", len(first), strings.Join(senders, ", "))
}

// kept holds what was accepted to what is there.
func kept(r Record) report.Check {
	f := report.NewCheck(CheckKept, "each accepted refund is in the database, and has a final result or is with people")
	cases := map[string]refund.Case{}
	for _, c := range r.Cases {
		cases[c.Refund.ID] = c
	}
	byStatus := map[refund.Status]int{}
	for _, id := range r.Accepted {
		c, ok := cases[id]
		switch {
		case !ok:
			f.Require(false, "%s was accepted and is not in the database", id)
		case c.Open() && c.Status != refund.StatusReview:
			f.Require(false, "%s is still %s", id, c.Status)
		}
		byStatus[c.Status]++
	}
	var counts []string
	for _, status := range refund.Statuses {
		if n := byStatus[status]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, status))
		}
	}
	return f.Judged("%d accepted: %s", len(r.Accepted), strings.Join(counts, ", "))
}
