package workflows

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"refundgate/refund"
)

// StepKind is what a case does next.
type StepKind string

const (
	StepSubmit StepKind = "submit" // send the refund
	StepCheck  StepKind = "check"  // ask what became of it
	StepReview StepKind = "review" // hand the case to people
	StepClose  StepKind = "close"  // the result is final
)

// Step is the decision about a case.
type Step struct {
	Kind StepKind
	// At is the earliest instant of a submit or check; due does not mean sent.
	// Until is the instant from which on it is not made any more.
	At, Until time.Time
	Origin    refund.Origin // of a submit or check
	// DecisionID names the decision that ordered the call, if a person did.
	DecisionID string
	// Status is where the case stands while the step waits, or ends.
	Status refund.Status
	Reason refund.ReviewReason // of a review
	Why    string              // for people
}

// Decide returns the next step of the case. It is pure and total: it looks at
// nothing but its arguments, and every case has a next step.
//
// The order of the questions is the order of precedence: facts that contradict
// each other are for people; a definite fact ends the case; then the deadline
// hands it over; then what may have been executed is asked about; and only a
// case of which nothing may be under way at the provider is sent.
func Decide(c refund.Case, p refund.Policy, now time.Time) Step {
	f := learn(c, p)
	switch {
	case c.Status.Final():
		if reason, why := f.contradiction(c.Status); reason != "" {
			return review(reason, why)
		}
		return Step{Kind: StepClose, Status: c.Status, Why: closedBy(c)}
	case c.Status == refund.StatusReview:
		return f.inReview(c, p, now)
	}
	step := f.automatic(c, p, now)
	if step.Kind != StepSubmit && step.Kind != StepCheck {
		return step
	}
	// Who wants to know now need not wait for the next check to be due.
	if d, ok := f.order(c, p, now, refund.ActionCheck); ok {
		return f.ordered(d, p, step.Status)
	}
	return step
}

// automatic is the next step of a case that people have nothing to do with.
func (f *facts) automatic(c refund.Case, p refund.Policy, now time.Time) Step {
	reason, why := f.contradiction(c.Status)
	switch {
	case reason != "":
		return review(reason, why)
	case f.settled() != nil:
		return f.close()
	case f.forbidden != "":
		return review(f.forbidden, "the provider's answer forbids an automatic resend")
	case !now.Before(c.DeadlineAt):
		return review(f.deadlineReason(), fmt.Sprintf("no final result by the deadline %s", c.DeadlineAt.UTC().Format(time.RFC3339)))
	case f.pending:
		return f.check(c, p, refund.StatusPending, refund.ReviewChecks, "the provider has accepted and not finished")
	case f.open && f.ambiguous:
		return f.check(c, p, refund.StatusUnknown, refund.ReviewAmbiguousReject, "the reject may be the echo of an attempt that worked")
	case f.open:
		return f.check(c, p, refund.StatusUnknown, refund.ReviewChecks, "an attempt may have been executed")
	case f.ambiguous:
		return review(refund.ReviewAmbiguousReject, "the provider refuses as if it had been refunded, and checks find no refund of ours")
	case f.attempts >= p.MaxAttempts:
		return review(refund.ReviewAttempts, fmt.Sprintf("all %d attempts are used and the provider accepted none", p.MaxAttempts))
	case f.mayHaveRun && !p.Contract.IdempotentResends:
		return review(refund.ReviewNoSafeResend, "the provider's contract does not make a resend safe")
	case f.keyExpired(p, now):
		return review(refund.ReviewKeyExpired, "the idempotency key is past its lifetime")
	default:
		return f.submit(c, p, now)
	}
}

// inReview is the next step of a case that people have: a definite fact ends
// it, an order of theirs is carried out, and otherwise it waits. What is known
// to contradict itself waits for people whatever else comes.
func (f *facts) inReview(c refund.Case, p refund.Policy, now time.Time) Step {
	if !c.ReviewReason.Sticky() {
		if reason, why := f.contradiction(c.Status); reason != "" {
			return review(reason, why)
		}
		if f.settled() != nil {
			return f.close()
		}
	}
	if d, ok := f.order(c, p, now, refund.ActionCheck, refund.ActionResend); ok {
		step := f.ordered(d, p, refund.StatusReview)
		step.Reason = c.ReviewReason
		return step
	}
	return Step{Kind: StepReview, Status: refund.StatusReview, Reason: c.ReviewReason, Why: "waits for people: " + c.ReviewReason.InWords()}
}

// closedBy says for people how a closed case was closed.
func closedBy(c refund.Case) string {
	for _, d := range slices.Backward(c.Decisions) {
		if d.Action == refund.ActionSettle && d.Status == c.Status {
			return fmt.Sprintf("settled by %s: %s", d.By, d.Reason)
		}
	}
	return "already closed"
}

func review(reason refund.ReviewReason, why string) Step {
	return Step{Kind: StepReview, Status: refund.StatusReview, Reason: reason, Why: why}
}

func (f *facts) close() Step {
	r := f.settled()
	return Step{Kind: StepClose, Status: finalStatus(r.Outcome), Why: describe(*r)}
}

func finalStatus(o refund.Outcome) refund.Status {
	if o == refund.OutcomeSucceeded {
		return refund.StatusSucceeded
	}
	return refund.StatusRejected
}

// facts is what calls, notices and decisions of the current generation have
// taught.
type facts struct {
	succeeded  *refund.Result      // the first definite success
	failed     *refund.Result      // the first definite failure
	refused    bool                // the failure is a send that was refused, not a refund that failed
	twice      bool                // successes of two different refunds of the provider
	foreign    bool                // a notice about our refund with other content
	forbidden  refund.ReviewReason // set: no automatic send may follow
	attempts   int                 // automatic sends that may have reached the provider
	firstUse   time.Time           // of the idempotency key; zero if there was none
	mayHaveRun bool                // some attempt was unknown or accepted, even if found absent since
	open       bool                // an attempt may have been executed and isn't accounted for
	since      time.Time           // when the last such attempt ended
	ambiguous  bool                // an answer was a reject that may be an echo
	pending    bool                // the provider has the refund and works on it
	missing    int                 // checks in a row that found no trace; those that learnt nothing don't count
	checks     int                 // automatic checks made
	checksRow  int                 // checks since the last send
	notSentRow int                 // calls in a row that were not sent
	lastEnd    time.Time           // when the last call ended
	retryAt    time.Time           // the provider asked not to be called before
	served     map[string]bool     // decisions whose call may have reached the provider
}

// learn goes through what happened in the current generation, in the order in
// which it became known.
func learn(c refund.Case, p refund.Policy) facts {
	f := facts{lastEnd: c.AcceptedAt, served: map[string]bool{}}
	for _, e := range timeline(c) {
		switch {
		case e.call != nil:
			f.learnCall(*e.call, p)
		case e.notice != nil:
			f.learnNotice(*e.notice)
		case e.decision != nil && e.decision.Action == refund.ActionSettle:
			f.learnSettlement()
		}
	}
	// The ledger's count stands where this history knows less than it.
	f.attempts = max(f.attempts, c.Attempts)
	return f
}

// entry is one thing that happened, and when it became known.
type entry struct {
	at       time.Time
	call     *refund.Call
	notice   *refund.Notice
	decision *refund.Decision
}

// timeline returns what happened in the current generation in the order in
// which it became known.
func timeline(c refund.Case) []entry {
	var all []entry
	for i, call := range c.Calls {
		if call.Key.Generation == c.Generation {
			all = append(all, entry{at: knownAt(call), call: &c.Calls[i]})
		}
	}
	for i, n := range c.Notices {
		if n.Generation == c.Generation {
			all = append(all, entry{at: n.ReceivedAt, notice: &c.Notices[i]})
		}
	}
	for i, d := range c.Decisions {
		if d.Generation == c.Generation {
			all = append(all, entry{at: d.At, decision: &c.Decisions[i]})
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return a.at.Compare(b.at) })
	return all
}

func (f *facts) learnCall(call refund.Call, p refund.Policy) {
	f.lastEnd = endOf(call, p)
	r := call.Result
	if r.NeverResend {
		f.forbidden = refund.ReviewMismatch
		if r.Code == refund.CodeUnsupported {
			f.forbidden = refund.ReviewUnsupported
		}
	}
	if call.Done() && r.Outcome == refund.OutcomeNotSent {
		f.notSentRow++
		return
	}
	f.notSentRow = 0
	if call.DecisionID != "" {
		f.served[call.DecisionID] = true
	}
	if r.RetryAt != nil && r.RetryAt.After(f.retryAt) {
		f.retryAt = *r.RetryAt
	}
	switch call.Key.Kind {
	case refund.KindSubmit:
		f.learnSubmit(call)
	case refund.KindCheck:
		f.learnCheck(call, p.Contract)
	}
}

// learnNotice: what the provider says of itself is worth as much as what it
// answers.
func (f *facts) learnNotice(n refund.Notice) {
	if n.Problem != "" {
		f.foreign = true
		return
	}
	r := refund.Result{Outcome: n.Outcome, Code: n.Code, ProviderRefundID: n.ProviderRefundID, Detail: string(n.Source)}
	f.missing = 0 // whatever it says, there is a trace
	switch n.Outcome {
	case refund.OutcomeSucceeded:
		f.succeed(r)
	case refund.OutcomeRejected:
		f.fail(r)
	case refund.OutcomePending:
		f.accepted()
	}
}

// learnSettlement: a person has weighed everything up to here.
func (f *facts) learnSettlement() {
	f.succeeded, f.failed, f.refused, f.twice, f.foreign = nil, nil, false, false, false
}

func (f *facts) learnSubmit(call refund.Call) {
	if call.Origin != refund.OriginManual {
		f.attempts++
	}
	if f.firstUse.IsZero() {
		f.firstUse = call.IntentAt
	}
	f.checksRow, f.missing = 0, 0
	r := call.Result
	switch r.Outcome {
	case refund.OutcomeSucceeded:
		f.succeed(r)
	case refund.OutcomePending:
		f.accepted()
	case refund.OutcomeBusy:
		// Not accepted, and said so. What was open before stays open.
	case refund.OutcomeRejected:
		switch {
		case r.AccountWide:
			// About our credentials, not about the refund.
		case r.Ambiguous && f.mayHaveRun:
			f.ambiguous, f.open, f.since = true, true, f.lastEnd
		default:
			f.refused = f.failed == nil
			f.fail(r)
		}
	default: // unknown, or no outcome was ever recorded
		f.mayHaveRun, f.open, f.since = true, true, f.lastEnd
	}
}

func (f *facts) learnCheck(call refund.Call, contract refund.Contract) {
	if call.Origin != refund.OriginManual {
		f.checks++
	}
	f.checksRow++
	r := call.Result
	switch r.Outcome {
	case refund.OutcomeSucceeded:
		f.succeed(r)
	case refund.OutcomePending:
		f.accepted()
	case refund.OutcomeRejected:
		if !r.AccountWide {
			f.fail(r)
		}
	case refund.OutcomeNotFound:
		f.missing++
		asked := call.IntentAt
		if call.StartedAt != nil {
			asked = *call.StartedAt
		}
		longEnough := contract.NotFoundAfter > 0 && asked.Sub(f.since) >= contract.NotFoundAfter
		if longEnough && f.missing >= contract.NotFoundChecks {
			f.open = false
		}
	default:
		// Busy, unreadable or without an answer: nothing learnt. But an answer
		// that shows some trace, however contradictory, is no step towards
		// absence.
		if r.ProviderRefundID != "" || r.Code == refund.CodeContradiction {
			f.missing = 0
		}
	}
}

// accepted: the provider has the refund. From then on checks tell the rest,
// and a reject of another send may be the echo of this one.
func (f *facts) accepted() {
	f.pending, f.mayHaveRun = true, true
}

// succeed keeps the first definite success.
func (f *facts) succeed(r refund.Result) {
	if f.succeeded == nil {
		f.succeeded = &r
		return
	}
	one, other := f.succeeded.ProviderRefundID, r.ProviderRefundID
	f.twice = f.twice || (one != "" && other != "" && one != other)
}

// fail keeps the first definite failure.
func (f *facts) fail(r refund.Result) {
	if f.failed == nil {
		f.failed = &r
	}
}

// settled is the one definite fact, or nil.
func (f *facts) settled() *refund.Result {
	if f.succeeded != nil {
		return f.succeeded
	}
	return f.failed
}

// contradiction says why what is known can't be true together with itself or
// with the status as which the case was closed; an empty reason if it can.
func (f *facts) contradiction(status refund.Status) (reason refund.ReviewReason, why string) {
	succeeded := f.succeeded != nil || status == refund.StatusSucceeded
	failed := f.failed != nil || status == refund.StatusRejected || status == refund.StatusNotRefunded
	switch {
	case f.twice:
		return refund.ReviewContradiction, "the provider reports two refunds for this one"
	case f.foreign:
		return refund.ReviewContradiction, "the provider reports a refund under our reference with another amount, currency or payment"
	case succeeded && f.failed != nil && !f.refused:
		return refund.ReviewLateFailure, "the provider reports success and failure: " + describe(*f.failed)
	case succeeded && failed:
		return refund.ReviewContradiction, "the provider reports a refund that was refused, or that was settled as not made"
	}
	return "", ""
}

// keyExpired tells whether the idempotency key can't be relied on any more.
func (f *facts) keyExpired(p refund.Policy, now time.Time) bool {
	return !f.firstUse.IsZero() && p.Contract.KeyLifetime > 0 && now.Sub(f.firstUse) >= p.Contract.KeyLifetime
}

// order returns the oldest decision that orders one of the given actions, is
// not carried out yet and still may be.
func (f *facts) order(c refund.Case, p refund.Policy, now time.Time, actions ...refund.Action) (refund.Decision, bool) {
	for _, d := range c.Decisions {
		switch {
		case d.Generation != c.Generation || !slices.Contains(actions, d.Action):
		case f.served[d.ID] || !now.Before(d.At.Add(refund.ManualWindow)):
		case d.Action == refund.ActionResend && f.resendRefusal(c, p, now) != "":
		default:
			return d, true
		}
	}
	return refund.Decision{}, false
}

// ordered is the step that carries out an order.
func (f *facts) ordered(d refund.Decision, p refund.Policy, status refund.Status) Step {
	step := Step{
		Kind: StepCheck, Origin: refund.OriginManual, DecisionID: d.ID, Status: status,
		Why: fmt.Sprintf("%s ordered by %s", d.Action, d.By),
		At:  latest(d.At, f.retryAt, f.notSentUntil(p)), Until: d.At.Add(refund.ManualWindow),
	}
	if d.Action == refund.ActionResend {
		step.Kind = StepSubmit
		if expiry := f.firstUse.Add(p.Contract.KeyLifetime); f.open && expiry.Before(step.Until) {
			step.Until = expiry
		}
	}
	return step
}

// resendRefusal says, for people, why a resend can't be ordered; empty if it
// can. Automatic sends have stricter rules: a person has looked.
func (f *facts) resendRefusal(c refund.Case, p refund.Policy, now time.Time) string {
	switch {
	case c.Status != refund.StatusReview:
		return fmt.Sprintf("a resend is for cases in review; this one is %s", c.Status)
	case c.ReviewReason.Sticky():
		return "what the provider reports contradicts itself; settle the case with evidence"
	case f.settled() != nil:
		return "the result is known: " + describe(*f.settled())
	case f.forbidden != "":
		return fmt.Sprintf("the provider's answer forbids a resend (%s)", f.forbidden)
	case f.pending:
		return "the provider has accepted the refund and works on it; check again instead"
	case f.open && !p.Contract.IdempotentResends:
		return "an attempt may have been executed, and the provider's contract does not make a resend safe"
	case f.open && f.keyExpired(p, now):
		return "an attempt may have been executed, and the idempotency key is past its lifetime: a resend would be a second refund"
	}
	return ""
}

func (f *facts) deadlineReason() refund.ReviewReason {
	switch {
	case f.pending:
		return refund.ReviewDeadlinePending
	case f.open:
		return refund.ReviewDeadlineUnknown
	case f.attempts == 0:
		return refund.ReviewDeadlineUnsent
	default:
		return refund.ReviewDeadlineBusy
	}
}

// check schedules the next result check, or hands the case over if all are
// used.
func (f *facts) check(c refund.Case, p refund.Policy, status refund.Status, exhausted refund.ReviewReason, why string) Step {
	if f.checks >= p.Checks.Max {
		return review(exhausted, fmt.Sprintf("%s, and all %d checks are used", why, p.Checks.Max))
	}
	u := spread(c, refund.KindCheck)
	at := f.lastEnd.Add(checkInterval(p.Checks, f.checksRow, u))
	return Step{
		Kind: StepCheck, Origin: refund.OriginCheck, Status: status, Why: why, Until: c.DeadlineAt,
		At: latest(at, f.retryAt, f.notSentUntil(p)),
	}
}

// checkInterval is the wait before the (n+1)th check since the last send, for
// a uniform u in [0, 1).
func checkInterval(c refund.Checks, n int, u float64) time.Duration {
	base := math.Min(float64(c.Initial)*math.Pow(c.Factor, float64(n)), float64(c.Cap))
	return time.Duration(math.Min(base*(1+c.Jitter*(2*u-1)), float64(c.Cap)))
}

// submit schedules the next send.
func (f *facts) submit(c refund.Case, p refund.Policy, now time.Time) Step {
	if f.attempts == 0 {
		return Step{
			Kind: StepSubmit, Origin: refund.OriginFirst, Status: refund.StatusQueued, Why: "first attempt",
			Until: c.DeadlineAt, At: latest(now, f.retryAt, f.notSentUntil(p)),
		}
	}
	at := f.lastEnd
	if len(p.Backoff) > 0 {
		r := p.Backoff[min(f.attempts, len(p.Backoff))-1]
		at = at.Add(r.Min + time.Duration(spread(c, refund.KindSubmit)*float64(r.Max-r.Min)))
	}
	return Step{
		Kind: StepSubmit, Origin: refund.OriginRetry, Status: refund.StatusRetrying,
		Why:   fmt.Sprintf("attempt %d of %d; the provider has accepted none so far", f.attempts+1, p.MaxAttempts),
		Until: c.DeadlineAt, At: latest(at, f.retryAt, f.notSentUntil(p)),
	}
}

// notSentUntil is the end of the wait after calls that were not sent: they use
// up no attempt, but trying again at once would only turn the wheel.
func (f *facts) notSentUntil(p refund.Policy) time.Time {
	if f.notSentRow == 0 {
		return time.Time{}
	}
	wait := float64(p.NotSentInitial) * math.Pow(2, float64(f.notSentRow-1))
	return f.lastEnd.Add(time.Duration(math.Min(wait, float64(p.NotSentMax))))
}

// spread returns a number in [0, 1) that is uniform over calls and always the
// same for one call: jitter without randomness, so a replay decides alike.
func spread(c refund.Case, kind refund.CallKind) float64 {
	key := refund.CallKey{RefundID: c.Refund.ID, Generation: c.Generation, Kind: kind, Seq: c.NextSeq(kind)}
	sum := sha256.Sum256([]byte(key.String()))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}

// knownAt is when the call's outcome became known, or else its intent.
func knownAt(call refund.Call) time.Time {
	if call.FinishedAt != nil {
		return *call.FinishedAt
	}
	return call.IntentAt
}

// endOf is when the call was over. Nobody knows of one without a record: it
// may have taken all the time that a call can.
func endOf(call refund.Call, p refund.Policy) time.Time {
	if call.FinishedAt != nil {
		return *call.FinishedAt
	}
	return call.IntentAt.Add(p.CallBudget)
}

func latest(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}

// describe puts a result into words for people.
func describe(r refund.Result) string {
	s := string(r.Outcome)
	switch {
	case r.Code != "" && r.HTTPStatus != 0:
		s += fmt.Sprintf(" (%s, HTTP %d)", r.Code, r.HTTPStatus)
	case r.Code != "":
		s += " (" + r.Code + ")"
	}
	if r.Budget != "" {
		s += ", " + string(r.Budget) + " budget used up"
	}
	return s
}
