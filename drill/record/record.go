// Package record is what a drill has on record, from three sides that don't
// know of each other, and the checks that hold them against one another and
// against what was promised:
//
//   - the transport record: what the workers' gates logged at the first byte of
//     each call,
//   - the ledger: what was written to the database before and after,
//   - the wire record: what the stand-in provider received at its socket.
package record

import (
	"slices"
	"time"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// Start is an entry of the transport record: the first byte of a call left.
type Start struct {
	Key      refund.CallKey
	Origin   refund.Origin
	Mono     time.Duration // on the host's CLOCK_MONOTONIC
	InFlight int           // calls in flight, this one included
	Process  string        // the process that sent it
}

// Finish is the end of a call at the transport.
type Finish struct {
	Key      refund.CallKey
	Duration time.Duration // since the first byte, rounded down to milliseconds
	Outcome  refund.Outcome
	Code     string
}

// Tenure is one ownership of the egress.
type Tenure struct {
	Process string
	Epoch   int64
	// Since and Until are instants of CLOCK_MONOTONIC by the reader of the
	// logs, so they are late by the time that a line takes. Until is 0 while
	// the ownership lasts; it ends with the process, or when that notices that
	// it has lost it.
	Since, Until time.Duration
}

// Record is everything that is known about the calls of one account.
type Record struct {
	Starts   []Start  // by Mono
	Finishes []Finish // as they were logged
	Tenures  []Tenure // by Since
	// Hidden counts second sends on one ticket that were blocked.
	Hidden int
	// Killed counts the worker processes that were ended by kill -9. Such a one
	// can have sent a byte and not lived to log it.
	Killed int

	// Accepted are the ids that the intake said yes to.
	Accepted []string
	// Cases are those in the database, with their calls and decisions.
	Cases []refund.Case
	// Handed is when a case was handed to people for the first time.
	Handed map[string]time.Time

	Wire []standin.Request // by arrival
	// Executions counts the refunds at the provider by reference.
	Executions map[string]int
}

// Since returns the part of the record from that instant of CLOCK_MONOTONIC on,
// and of the cases those of the given refunds. What arrived at the provider is
// in it whoever sent it and whatever it is about.
func (r Record) Since(at time.Duration, ids []string) Record {
	wanted := make(map[string]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	part := r
	part.Starts = filter(r.Starts, func(s Start) bool { return s.Mono >= at })
	part.Wire = filter(r.Wire, func(q standin.Request) bool { return q.ArrivedMonoNS >= int64(at) })
	part.Tenures = filter(r.Tenures, func(t Tenure) bool { return t.Until == 0 || t.Until >= at })
	part.Cases = filter(r.Cases, func(c refund.Case) bool { return wanted[c.Refund.ID] })
	part.Accepted = filter(r.Accepted, func(id string) bool { return wanted[id] })
	return part
}

// Calls returns the ledger's rows of all cases.
func (r Record) Calls() []refund.Call {
	var calls []refund.Call
	for _, c := range r.Cases {
		calls = append(calls, c.Calls...)
	}
	return calls
}

// Off returns when a case was closed or handed to people, and whether it was.
func (r Record) Off(c refund.Case) (at time.Time, ok bool) {
	if at, ok = r.Handed[c.Refund.ID]; ok {
		return at, true
	}
	if c.ClosedAt != nil {
		return *c.ClosedAt, true
	}
	return time.Time{}, false
}

// Finish returns how a call ended at the transport, if that was logged.
func (r Record) Finish(key refund.CallKey) (Finish, bool) {
	i := slices.IndexFunc(r.Finishes, func(f Finish) bool { return f.Key == key })
	if i < 0 {
		return Finish{}, false
	}
	return r.Finishes[i], true
}

func filter[T any](all []T, keep func(T) bool) []T {
	var kept []T
	for _, v := range all {
		if keep(v) {
			kept = append(kept, v)
		}
	}
	return kept
}
