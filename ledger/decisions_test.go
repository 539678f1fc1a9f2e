package ledger

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/refund"
)

// newAct is a valid action of ann's.
func newAct(refundID, id string, action refund.Action) Act {
	a := Act{
		RefundID: refundID, Account: account, ID: id, Action: action,
		Input: refund.ActionInput{By: "ann", Reason: "the customer asked"},
		At:    time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC),
	}
	switch action {
	case refund.ActionAssign:
		a.Input.Owner = "bob"
	case refund.ActionSettle:
		a.Input.Status, a.Input.Evidence = refund.StatusSucceeded, "statement 17"
	}
	return a
}

func mustAct(t *testing.T, l *Ledger, a Act) refund.Case {
	t.Helper()
	c, err := l.Act(t.Context(), a)
	require.NoError(t, err)
	return c
}

func requireActionRefused(t *testing.T, why string, err error) {
	t.Helper()
	var refused *ActionRefusedError
	require.ErrorAs(t, err, &refused)
	require.Contains(t, refused.Why, why)
}

// inStatus accepts a refund and brings it into the status.
func inStatus(t *testing.T, l *Ledger, id string, status refund.Status) refund.Case {
	t.Helper()
	accept(t, l, newRefund(id))
	if status == refund.StatusReview {
		toReview(t, l, id)
	} else if status != refund.StatusQueued {
		require.NoError(t, l.Save(t.Context(), Change{RefundID: id, Status: status}))
	}
	return theCase(t, l, id)
}

func TestAct_WhatEachStatusAllows(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for _, status := range refund.Statuses {
		for _, action := range []refund.Action{refund.ActionAssign, refund.ActionNote, refund.ActionCheck, refund.ActionResend, refund.ActionSettle} {
			id := fmt.Sprintf("%s-%s", status, action)
			before := inStatus(t, l, id, status)
			allowed := action == refund.ActionNote || !status.Final()
			if action == refund.ActionResend || action == refund.ActionSettle {
				allowed = status == refund.StatusReview
			}
			c, err := l.Act(t.Context(), newAct(id, "a-1", action))
			if allowed {
				require.NoError(t, err, id)
				require.Len(t, c.Decisions, 1, id)
				require.Greater(t, c.Version, before.Version, id)
				require.Equal(t, []string{"review." + string(action)}, trail(t, l, id))
				continue
			}
			requireActionRefused(t, string(status), err)
			require.Equal(t, before, theCase(t, l, id))
			require.Empty(t, trail(t, l, id))
		}
	}
}

func TestAct_Assign(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	require.Equal(t, "bob", mustAct(t, l, newAct("r-1", "a-1", refund.ActionAssign)).Owner)
	nobody := newAct("r-1", "a-2", refund.ActionAssign)
	nobody.Input.Owner, nobody.Input.Nobody = "", true
	nobody.At = nobody.At.Add(time.Second)
	c := mustAct(t, l, nobody)
	require.Empty(t, c.Owner)
	require.Equal(t, []refund.Decision{
		{ID: "a-1", Generation: 1, Action: refund.ActionAssign, By: "ann", Reason: "the customer asked", Owner: "bob", At: stored(nobody.At.Add(-time.Second))},
		{ID: "a-2", Generation: 1, Action: refund.ActionAssign, By: "ann", Reason: "the customer asked", At: stored(nobody.At)},
	}, c.Decisions)
	events, err := l.Events(t.Context(), "r-1")
	require.NoError(t, err)
	require.Contains(t, events, refund.Event{At: stored(nobody.At).Add(-time.Second), Actor: "ann", Action: "review.assign", Detail: "to bob: the customer asked"})
	require.Contains(t, events, refund.Event{At: stored(nobody.At), Actor: "ann", Action: "review.assign", Detail: "to nobody: the customer asked"})
}

func TestAct_Settle(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for _, status := range []refund.Status{refund.StatusSucceeded, refund.StatusNotRefunded} {
		id := "r-" + string(status)
		accept(t, l, newRefund(id))
		toReview(t, l, id)
		a := newAct(id, "a-1", refund.ActionSettle)
		a.Input.Status = status
		c := mustAct(t, l, a)
		require.Equal(t, status, c.Status)
		require.Empty(t, c.ReviewReason)
		require.NotNil(t, c.ClosedAt)
		require.Equal(t, []refund.Decision{{
			ID: "a-1", Generation: 1, Action: refund.ActionSettle, By: "ann", Reason: "the customer asked",
			Status: status, Evidence: "statement 17", At: stored(a.At),
		}}, c.Decisions)
		events, err := l.Events(t.Context(), id)
		require.NoError(t, err)
		require.Contains(t, events, refund.Event{
			At: stored(a.At), Actor: "ann", Action: "review.settle",
			Detail: "as " + string(status) + ": the customer asked; evidence: statement 17",
		})
	}
}

func TestAct_Version(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	toReview(t, l, "r-1")
	seen := theCase(t, l, "r-1").Version
	addNotice(t, l, newNotice("evt_1", "r-1")) // which the person has not seen

	settle := newAct("r-1", "a-1", refund.ActionSettle)
	settle.Input.Version = seen
	_, err := l.Act(t.Context(), settle)
	requireActionRefused(t, fmt.Sprintf("changed since version %d and is at version %d now", seen, seen+1), err)
	require.Empty(t, theCase(t, l, "r-1").Decisions)

	settle.Input.Version = seen + 1
	_, err = l.Act(t.Context(), settle)
	requireActionRefused(t, "changed since version", err)
	settle.ID = "a-2" // what was refused under an id stays refused
	c := mustAct(t, l, settle)
	require.Equal(t, refund.StatusSucceeded, c.Status)
	require.Equal(t, c, mustAct(t, l, settle), "its own change is no reason to refuse a repeat")
}

// Who settles whatever the case is by now can't have weighed what the provider
// has only just reported. Once the workflow knows of it, they can.
func TestAct_NobodySettlesOverUnreadNews(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	toReview(t, l, "r-1")
	addNotice(t, l, newNotice("evt_1", "r-1"))
	settle := newAct("r-1", "a-1", refund.ActionSettle)
	_, err := l.Act(t.Context(), settle)
	requireActionRefused(t, "the provider has just reported something about it", err)
	mustAct(t, l, newAct("r-1", "a-2", refund.ActionNote))

	require.NoError(t, l.MarkTold(t.Context(), untoldOf(t, l, 10)[0]))
	settle.ID = "a-3"
	require.Equal(t, refund.StatusSucceeded, mustAct(t, l, settle).Status)
}

func TestAct_SameIDAgain(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	toReview(t, l, "r-1")
	assign := newAct("r-1", "a-1", refund.ActionAssign)
	var repeats errgroup.Group
	for range 10 {
		repeats.Go(func() error {
			_, err := l.Act(context.Background(), assign)
			return err
		})
	}
	require.NoError(t, repeats.Wait())
	require.Len(t, theCase(t, l, "r-1").Decisions, 1)

	other := newAct("r-1", "a-2", refund.ActionAssign)
	other.Input.Owner = "eve"
	mustAct(t, l, other)
	after := mustAct(t, l, newAct("r-1", "a-3", refund.ActionSettle))
	assign.At = assign.At.Add(time.Hour) // a repeat is told by its id
	require.Equal(t, after, mustAct(t, l, assign), "also if the state has moved on")
	require.Equal(t, "eve", after.Owner)
	require.Equal(t, []string{"review.assign", "review.assign", "review.settle"}, trail(t, l, "r-1"))
}

// One id for two actions is the caller's mistake. It must not look done.
func TestAct_IDOfAnotherAction(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	toReview(t, l, "r-1")
	mustAct(t, l, newAct("r-1", "a-1", refund.ActionNote))
	for name, change := range map[string]func(*Act){
		"action": func(a *Act) { *a = newAct("r-1", "a-1", refund.ActionSettle) },
		"person": func(a *Act) { a.Input.By = "eve" },
		"reason": func(a *Act) { a.Input.Reason = "another" },
	} {
		a := newAct("r-1", "a-1", refund.ActionNote)
		change(&a)
		_, err := l.Act(t.Context(), a)
		requireActionRefused(t, "its id was used for another action", err)
		require.Len(t, theCase(t, l, "r-1").Decisions, 1, name)
	}
	accept(t, l, newRefund("r-2"))
	mustAct(t, l, newAct("r-2", "a-1", refund.ActionNote)) // ids belong to a case
}

func TestAct_Refuses(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	_, err := l.Act(t.Context(), newAct("nobody", "a-1", refund.ActionNote))
	require.ErrorIs(t, err, ErrNotFound)
	for name, change := range map[string]func(*Act){
		"no id":               func(a *Act) { a.ID = "" },
		"a long id":           func(a *Act) { a.ID = strings.Repeat("x", maxDecisionID+1) },
		"space around the id": func(a *Act) { a.ID = "a-1 " },
		"no name":             func(a *Act) { a.Input.By = " " },
		"no reason":           func(a *Act) { a.Input.Reason = "" },
		"what doesn't belong": func(a *Act) { a.Input.Owner = "bob" },
		"no time":             func(a *Act) { a.At = time.Time{} },
		"no action":           func(a *Act) { a.Action = "" },
		"a correction":        func(a *Act) { a.Action = refund.ActionCorrect },
		"another account":     func(a *Act) { a.Account = "other" },
	} {
		a := newAct("r-1", "a-1", refund.ActionNote)
		change(&a)
		_, err := l.Act(t.Context(), a)
		require.Error(t, err, name)
	}
	require.Empty(t, trail(t, l, "r-1"))
	a := newAct("r-1", strings.Repeat("\U0001F4B8", maxDecisionID), refund.ActionNote)
	a.Account = "" // whoever doesn't know it
	a.Input.By, a.Input.Reason = strings.Repeat("\U0001F436", refund.MaxActorLen), strings.Repeat("'", refund.MaxReasonLen)
	mustAct(t, l, a)
}

func TestCase45_TwoPeopleSettleWhileACallIsInFlight(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	k := acquire(t, l)
	for i := range 20 {
		id := fmt.Sprintf("r-%d", i)
		accept(t, l, newRefund(id))
		intend(t, k, submit(id, 1)) // in flight
		toReview(t, l, id)
		seen := theCase(t, l, id).Version
		ann := newAct(id, "by-ann", refund.ActionSettle)
		bob := newAct(id, "by-bob", refund.ActionSettle)
		bob.Input.By, bob.Input.Status = "bob", refund.StatusNotRefunded
		errs := make([]error, 2)
		var people errgroup.Group
		for i, a := range []Act{ann, bob} {
			a.Input.Version = seen
			people.Go(func() error {
				_, errs[i] = l.Act(context.Background(), a)
				return nil
			})
		}
		require.NoError(t, people.Wait())
		require.NoError(t, l.Complete(t.Context(), finished(submit(id, 1).Call, refund.OutcomeSucceeded, "")))

		c := theCase(t, l, id)
		require.Len(t, c.Decisions, 1)
		won, lost := errs[0], errs[1]
		if c.Decisions[0].By == "bob" {
			won, lost = lost, won
		}
		require.NoError(t, won)
		requireActionRefused(t, "it is already "+string(c.Status), lost)
		require.Equal(t, c.Decisions[0].Status, c.Status, "what came of the call is for the workflow to weigh")
		require.Equal(t, refund.OutcomeSucceeded, c.Calls[0].Result.Outcome)
		require.Equal(t, []string{"review.settle"}, trail(t, l, id))

		_, err := k.Intent(t.Context(), submit(id, 2))
		requireRefused(t, refund.CodeClosed, err)
	}
}
