package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/refund"
)

// A notice, the answer to a check, two people and the workflow come to one case
// at the same time, a thousand times over. Whoever is first settles it.
func TestCase43_NoticeCheckAndPeopleAThousandTimes(t *testing.T) {
	t.Parallel()
	const refunds, rounds = 100, 10
	l := newLedger(t)
	k := acquire(t, l)
	var races errgroup.Group
	races.SetLimit(8)
	for i := range refunds {
		races.Go(func() error {
			r := partOf(fmt.Sprintf("r-%d", i), 60, 100)
			r.PaymentID = fmt.Sprintf("pay-%d", i)
			if _, _, err := l.Accept(t.Context(), Submission{Refund: r, Deadline: time.Minute}); err != nil {
				return err
			}
			was := refund.StatusQueued
			for n := 1; n <= rounds; n++ {
				status, err := (&race{l: l, k: k, r: r, n: n}).run(t.Context(), was)
				if err != nil {
					return fmt.Errorf("%s, round %d: %w", r.ID, n, err)
				}
				was = status
			}
			return nil
		})
	}
	require.NoError(t, races.Wait())
}

// race is one round on one case, the n-th.
type race struct {
	l *Ledger
	k *EgressLock
	r refund.Refund
	n int

	noticed, answered, ann, bob, saved error
}

// at is the time of everything that settles the case in this round.
func (r *race) at() time.Time { return time.Date(2026, 3, 1, 12, 0, r.n, 0, time.UTC) }

// run plays the round on a case that was left in the given status, and returns
// the status in which it ends, or what is wrong.
func (r *race) run(ctx context.Context, was refund.Status) (refund.Status, error) {
	toPeople := Change{RefundID: r.r.ID, Status: refund.StatusReview, ReviewReason: refund.ReviewChecks}
	if was.Final() {
		toPeople = reopen(r.r.ID, was, r.at().Add(-time.Millisecond))
	}
	if err := r.l.Save(ctx, toPeople); err != nil {
		return "", err
	}
	in := check(r.r.ID, r.n)
	in.Call.Origin = refund.OriginManual // people have the case
	if _, err := r.k.Intent(ctx, in); err != nil {
		return "", err
	}

	notice := newNotice(fmt.Sprintf("%s/%d", r.r.ID, r.n), r.r.ID)
	notice.ProviderRefundID, notice.PaymentID, notice.Amount = "re_"+r.r.ID, r.r.PaymentID, r.r.Amount
	answer := finished(in.Call, refund.OutcomeSucceeded, "")
	answer.Result.ProviderRefundID = notice.ProviderRefundID
	ann := newAct(r.r.ID, fmt.Sprintf("ann-%d", r.n), refund.ActionSettle)
	bob := newAct(r.r.ID, fmt.Sprintf("bob-%d", r.n), refund.ActionSettle)
	bob.Input.By, bob.Input.Status = "bob", refund.StatusNotRefunded
	ann.At, bob.At = r.at(), r.at()
	workflow := Change{
		RefundID: r.r.ID, Status: refund.StatusSucceeded,
		Event: &refund.Event{At: r.at(), Actor: "workflow", Action: "status.succeeded"},
	}
	racers := []func(){
		func() { _, _, r.noticed = r.l.AddNotice(ctx, notice) },
		func() { r.answered = r.l.Complete(ctx, answer) },
		func() { _, r.ann = r.l.Act(ctx, ann) },
		func() { _, r.bob = r.l.Act(ctx, bob) },
		func() { r.saved = r.l.Save(ctx, workflow) },
	}
	var all errgroup.Group
	for _, i := range rand.Perm(len(racers)) {
		all.Go(func() error { racers[i](); return nil })
	}
	_ = all.Wait()
	return r.judge(ctx)
}

// judge finds out who settled the case and checks that it was one alone, and
// that everything that happened is on record once.
func (r *race) judge(ctx context.Context) (refund.Status, error) {
	if err := errors.Join(r.noticed, r.answered); err != nil {
		return "", fmt.Errorf("what the provider says is always taken: %w", err)
	}
	c, err := r.l.Case(ctx, r.r.ID)
	if err != nil {
		return "", err
	}
	events, err := r.l.Events(ctx, r.r.ID)
	if err != nil {
		return "", err
	}
	var settled []string
	notices := 0
	for _, e := range events {
		if e.At.Equal(r.at()) {
			settled = append(settled, e.Actor)
		}
		if strings.HasSuffix(e.Detail, fmt.Sprintf("event %s/%d", r.r.ID, r.n)) {
			notices++
		}
	}
	decided := slices.ContainsFunc(c.Decisions, func(d refund.Decision) bool { return d.At.Equal(r.at()) })
	status := map[string]refund.Status{"ann": refund.StatusSucceeded, "bob": refund.StatusNotRefunded, "workflow": refund.StatusSucceeded}
	switch {
	case len(settled) != 1 || c.Status != status[settled[0]]:
		return "", fmt.Errorf("%s, settled by %v", c.Status, settled)
	case decided != (settled[0] != "workflow"):
		return "", fmt.Errorf("settled by %s, decision recorded: %t", settled[0], decided)
	case c.ReviewReason != "" || c.ClosedAt == nil:
		return "", fmt.Errorf("half settled: %+v", c)
	case notices != 1 || len(c.Notices) != r.n || len(c.Calls) != r.n || !c.Calls[r.n-1].Done() || c.ProviderRefundID != "re_"+r.r.ID:
		return "", fmt.Errorf("something is not on record: %d lines for the notice, %+v", notices, c)
	}
	for who, err := range map[string]error{"ann": r.ann, "bob": r.bob} {
		var refused *ActionRefusedError
		if won := who == settled[0]; won != (err == nil) || !won && !errors.As(err, &refused) {
			return "", fmt.Errorf("settled by %s, and %s is told: %w", settled[0], who, err)
		}
	}
	if sameResult := c.Status == refund.StatusSucceeded; sameResult != (r.saved == nil) || !sameResult && !errors.Is(r.saved, ErrClosed) {
		return "", fmt.Errorf("%s, and the workflow is told: %w", c.Status, r.saved)
	}
	return c.Status, r.reserved(ctx, c.Status)
}

// reserved checks that a success is counted once against the payment: another
// refund of 60 doesn't fit into its 100.
func (r *race) reserved(ctx context.Context, status refund.Status) error {
	if status != refund.StatusSucceeded {
		return nil // it would fit, and be there in the next round
	}
	other := partOf(r.r.ID+"-other", 60, 100)
	other.PaymentID = r.r.PaymentID
	_, _, err := r.l.Accept(ctx, Submission{Refund: other, Deadline: time.Minute})
	var exceeded *PaymentExceededError
	if !errors.As(err, &exceeded) || exceeded.Reserved != r.r.Amount {
		return fmt.Errorf("not reserved once: %w", err)
	}
	return nil
}

// Everything that writes to cases, on few of them that share a payment. Nobody
// gets to see a deadlock, and the payment is never exceeded.
func TestLockOrder(t *testing.T) {
	t.Parallel()
	const workers, steps, cases = 12, 30, 3
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return time.Now().Add(time.Hour) }})
	k := acquire(t, l)
	for i := range cases {
		accept(t, l, partOf(fmt.Sprintf("r-%d", i), 30, 100))
	}
	var all errgroup.Group
	for w := range workers {
		all.Go(func() error {
			for step := range steps {
				if err := anything(t.Context(), l, k, fmt.Sprintf("r-%d", rand.N(cases)), fmt.Sprintf("%d-%d", w, step)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	sum := queryValue[int](t, l, `SELECT COALESCE(SUM(amount), 0) FROM refunds WHERE status NOT IN ('rejected', 'not_refunded')`)
	require.LessOrEqual(t, sum, 100)
	for i := range cases {
		c := theCase(t, l, fmt.Sprintf("r-%d", i))
		require.Equal(t, c.CountAttempts(), c.Attempts)
		require.Equal(t, c.Generation, 1+queryValue[int](t, l, `SELECT COUNT(*) FROM decisions WHERE refund_id = ? AND action = 'correct'`, c.Refund.ID))
	}
}

// anything does one thing to a case. Refusals are fine, everything else is
// returned.
func anything(ctx context.Context, l *Ledger, k *EgressLock, id, name string) error {
	c, err := l.Case(ctx, id)
	if err != nil {
		return err
	}
	notice := newNotice(name, []string{id, "", "nobody"}[rand.N(3)])
	notice.ProviderRefundID, notice.PaymentID = "re_"+id, ""
	call := check(id, c.NextSeq(refund.KindCheck)+rand.N(2))
	call.Call.Key.Generation = c.Generation
	answer := finished(call.Call, refund.OutcomeSucceeded, "")
	answer.Result.ProviderRefundID = "re_" + id
	act := newAct(id, name, []refund.Action{refund.ActionAssign, refund.ActionSettle}[rand.N(2)])
	status := []refund.Status{refund.StatusReview, refund.StatusRejected, refund.StatusUnknown}[rand.N(3)]
	change := Change{RefundID: id, Status: status, Event: &refund.Event{At: time.Now(), Actor: "workflow", Action: "status." + string(status), Detail: name}}
	if status == refund.StatusReview {
		change.ReviewReason = refund.ReviewChecks
		change.Reopen, change.Was = c.Status == refund.StatusSucceeded, refund.StatusSucceeded
	}
	things := []func() error{
		func() error { _, _, err := l.AddNotice(ctx, notice); return err },
		func() error { _, err := l.MatchParked(ctx, 5); return err },
		func() error {
			news, err := l.Untold(ctx, 5)
			for _, n := range news {
				err = errors.Join(err, l.MarkTold(ctx, n))
			}
			return err
		},
		func() error { _, err := k.Intent(ctx, call); return err },
		func() error { return l.Complete(ctx, answer) },
		func() error { _, err := l.Abandon(ctx, call.Call); return err },
		func() error { _, err := l.Act(ctx, act); return err },
		func() error { return l.Save(ctx, change) },
		func() error {
			_, err := tryCorrect(l, id, name, refund.Correction{RefundReason: name})
			return err
		},
		func() error {
			_, _, err := l.Accept(ctx, Submission{Refund: partOf(name, 10, 100), Deadline: time.Minute})
			return err
		},
	}
	err = things[rand.N(len(things))]()
	var refused *ActionRefusedError
	var refusedCall *RefusedError
	var exceeded *PaymentExceededError
	if errors.As(err, &refused) || errors.As(err, &refusedCall) || errors.As(err, &exceeded) ||
		errors.Is(err, ErrClosed) || errors.Is(err, ErrDuplicateCall) || errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
