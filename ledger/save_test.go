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

func event(action string) *refund.Event {
	return &refund.Event{At: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC), Actor: "workflow", Action: action, Detail: "退款 \U0001F4B8"}
}

// trail returns the actions of the case's events after its acceptance.
func trail(t *testing.T, l *Ledger, refundID string) []string {
	t.Helper()
	events, err := l.Events(t.Context(), refundID)
	require.NoError(t, err)
	var actions []string
	for _, e := range events {
		if e.Action != ActionAccepted {
			actions = append(actions, e.Action)
		}
	}
	return actions
}

func TestSave(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))

	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusPending, ProviderRefundID: "re_1"}))
	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusReview, ReviewReason: refund.ReviewDeadlinePending}))
	c, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, refund.StatusReview, c.Status)
	require.Equal(t, refund.ReviewDeadlinePending, c.ReviewReason)
	require.Equal(t, "re_1", c.ProviderRefundID, "what is known stays known")
	require.Nil(t, c.ClosedAt)

	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusSucceeded, Event: event("refund.settled")}))
	c, err = l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, refund.StatusSucceeded, c.Status)
	require.Empty(t, c.ReviewReason)
	require.NotNil(t, c.ClosedAt)

	events, err := l.Events(t.Context(), "r-1")
	require.NoError(t, err)
	want := *event("refund.settled")
	want.At = want.At.Truncate(time.Microsecond)
	require.Contains(t, events, want)
}

func TestCase20_FinalStatesNeverRegress(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for _, final := range []refund.Status{refund.StatusSucceeded, refund.StatusRejected, refund.StatusNotRefunded} {
		id := "r-" + string(final)
		accept(t, l, newRefund(id))
		require.NoError(t, l.Save(t.Context(), Change{RefundID: id, Status: final, Event: event("closed")}))
		before, err := l.Case(t.Context(), id)
		require.NoError(t, err)
		for _, later := range refund.Statuses {
			change := Change{RefundID: id, Status: later, Event: event("later")}
			if later == refund.StatusReview {
				change.ReviewReason = refund.ReviewChecks
			}
			err := l.Save(t.Context(), change)
			if later == final {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrClosed)
			}
		}
		after, err := l.Case(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, before, after)
		require.Equal(t, []string{"closed"}, trail(t, l, id))
	}
}

// Two writers close one case: one of them wins, as a whole.
func TestCase45_StatusAndTrailChangeTogether(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for i := range 10 {
		id := fmt.Sprintf("r-%d", i)
		accept(t, l, newRefund(id))
		var writers errgroup.Group
		for _, s := range []refund.Status{refund.StatusSucceeded, refund.StatusNotRefunded} {
			writers.Go(func() error {
				return l.Save(context.Background(), Change{RefundID: id, Status: s, Event: event(string(s))})
			})
		}
		require.ErrorIs(t, writers.Wait(), ErrClosed)
		c, err := l.Case(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, []string{string(c.Status)}, trail(t, l, id))
	}
}

func TestSave_RepeatAddsNoEvent(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	change := Change{RefundID: "r-1", Status: refund.StatusRetrying, Event: event("retry.scheduled")}
	var repeats errgroup.Group
	for range 5 {
		repeats.Go(func() error { return l.Save(t.Context(), change) })
	}
	require.NoError(t, repeats.Wait())
	require.Equal(t, []string{"retry.scheduled"}, trail(t, l, "r-1"))

	later := *change.Event
	later.At = later.At.Add(time.Microsecond)
	change.Event = &later
	require.NoError(t, l.Save(t.Context(), change))
	require.Len(t, trail(t, l, "r-1"), 2, "the same words at another time are another event")
}

func TestSave_Refuses(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	require.ErrorIs(t, l.Save(t.Context(), Change{RefundID: "nobody", Status: refund.StatusUnknown}), ErrNotFound)
	for _, bad := range []Change{
		{RefundID: "r-1"},
		{RefundID: "r-1", Status: "done"},
		{RefundID: "r-1", Status: refund.StatusReview},
		{RefundID: "r-1", Status: refund.StatusUnknown, ReviewReason: refund.ReviewChecks},
		{RefundID: "r-1", Status: refund.StatusUnknown, Event: &refund.Event{Action: "timeless"}},
	} {
		require.Error(t, l.Save(t.Context(), bad))
	}
	c, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, refund.StatusQueued, c.Status)
	require.Empty(t, trail(t, l, "r-1"))
}

func TestClip(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   string
		max  int
		want string
	}{
		{"", 3, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"退款\U0001F4B8x", 3, "退款\U0001F4B8"},
		{"a\xffb", 3, "a\uFFFDb"},
		{strings.Repeat("\xff", 9), 2, "\uFFFD"},
	} {
		require.Equal(t, tc.want, clip(tc.in, tc.max))
	}
}

// reopen is the change that gives a closed case back to people.
func reopen(refundID string, was refund.Status, at time.Time) Change {
	return Change{
		RefundID: refundID, Status: refund.StatusReview, ReviewReason: refund.ReviewLateFailure, Reopen: true, Was: was,
		Event: &refund.Event{At: at, Actor: "workflow", Action: "status.review", Detail: "late"},
	}
}

func TestCase19_LateFailureReopensTheCase(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	start := time.Now()
	for _, was := range []refund.Status{refund.StatusSucceeded, refund.StatusRejected, refund.StatusNotRefunded} {
		id := "r-" + string(was)
		closed := inStatus(t, l, id, was)
		for _, other := range []refund.Status{refund.StatusSucceeded, refund.StatusRejected, refund.StatusNotRefunded} {
			if other != was {
				require.ErrorIs(t, l.Save(t.Context(), reopen(id, other, start)), ErrClosed, "it is not what was seen")
			}
		}
		require.Equal(t, closed, theCase(t, l, id))

		require.NoError(t, l.Save(t.Context(), reopen(id, was, start)))
		c := theCase(t, l, id)
		require.Equal(t, refund.StatusReview, c.Status)
		require.Equal(t, refund.ReviewLateFailure, c.ReviewReason)
		require.Nil(t, c.ClosedAt)
		require.Equal(t, []string{"status.review"}, trail(t, l, id))

		require.NoError(t, l.Save(t.Context(), reopen(id, was, start)))
		require.Equal(t, c, theCase(t, l, id), "a repeat changes nothing")
	}
}

// The answer to the first try was lost, and people were faster than the second.
func TestCase19_ARepeatDoesNotReopenWhatPeopleSettled(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	start := time.Now()
	inStatus(t, l, "r-1", refund.StatusSucceeded)
	require.NoError(t, l.Save(t.Context(), reopen("r-1", refund.StatusSucceeded, start)))
	settled := mustAct(t, l, newAct("r-1", "a-1", refund.ActionSettle))
	require.ErrorIs(t, l.Save(t.Context(), reopen("r-1", refund.StatusSucceeded, start)), ErrClosed)
	require.Equal(t, settled, theCase(t, l, "r-1"))

	require.NoError(t, l.Save(t.Context(), reopen("r-1", refund.StatusSucceeded, start.Add(time.Second))), "a new finding does")
}

func TestSave_ReopenIsForReview(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	before := inStatus(t, l, "r-1", refund.StatusSucceeded)
	for name, spoil := range map[string]func(*Change){
		"another status":   func(c *Change) { c.Status, c.ReviewReason = refund.StatusUnknown, "" },
		"an open one":      func(c *Change) { c.Was = refund.StatusPending },
		"no event":         func(c *Change) { c.Event = nil },
		"a timeless event": func(c *Change) { c.Event.At = time.Time{} },
	} {
		c := reopen("r-1", refund.StatusSucceeded, time.Now())
		spoil(&c)
		require.Error(t, l.Save(t.Context(), c), name)
	}
	require.Equal(t, before, theCase(t, l, "r-1"))
	// It is no way into a case that isn't closed any more.
	require.NoError(t, l.Save(t.Context(), reopen("r-1", refund.StatusSucceeded, time.Now())))
	unknown := Change{RefundID: "r-1", Status: refund.StatusUnknown}
	require.NoError(t, l.Save(t.Context(), unknown))
	require.ErrorIs(t, l.Save(t.Context(), reopen("r-1", refund.StatusSucceeded, time.Now().Add(time.Second))), ErrClosed)
}

// CASE 38: a run that was reset believes the case to stand where it stood
// before. What it wants to save is based on less than the ledger knows.
func TestCase38_SaveOfARunThatWasReset(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	now := time.Now()
	save := func(after, generation int, was, status refund.Status, reason refund.ReviewReason) error {
		return l.Save(t.Context(), Change{
			RefundID: "r-1", Generation: generation, Was: was, Status: status, ReviewReason: reason,
			Event: &refund.Event{At: now.Add(time.Duration(after) * time.Millisecond), Actor: "workflow", Action: "status." + string(status), Detail: "why"},
		})
	}
	require.NoError(t, save(1, 1, refund.StatusQueued, refund.StatusUnknown, ""))
	require.NoError(t, save(1, 1, refund.StatusQueued, refund.StatusUnknown, ""), "a repeat is none")
	require.NoError(t, save(2, 1, refund.StatusUnknown, refund.StatusReview, refund.ReviewChecks))
	before := theCase(t, l, "r-1")
	require.ErrorIs(t, save(3, 1, refund.StatusQueued, refund.StatusUnknown, ""), ErrClosed, "people have it")
	require.ErrorIs(t, save(4, 1, refund.StatusUnknown, refund.StatusReview, refund.ReviewChecks), ErrClosed, "it is there already")
	require.Equal(t, before, theCase(t, l, "r-1"))

	// The generation before was rejected. That is no result of this one.
	reject(t, l, "r-1")
	correct(t, l, "r-1", "fix-1", refund.Correction{RefundReason: "late"})
	require.ErrorIs(t, save(5, 1, refund.StatusQueued, refund.StatusRejected, ""), ErrClosed)
	require.Equal(t, refund.StatusQueued, theCase(t, l, "r-1").Status)
}

// A late repeat of an earlier change must not undo a later one.
func TestSave_LateRepeatChangesNothing(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	first := Change{RefundID: "r-1", Status: refund.StatusUnknown, Event: event("status.unknown")}
	require.NoError(t, l.Save(t.Context(), first))
	require.NoError(t, l.Save(t.Context(), Change{RefundID: "r-1", Status: refund.StatusReview, ReviewReason: refund.ReviewChecks, Event: event("status.review")}))
	before := theCase(t, l, "r-1")
	require.NoError(t, l.Save(t.Context(), first))
	require.Equal(t, before, theCase(t, l, "r-1"))
}
