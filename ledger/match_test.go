package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"refundgate/refund"
)

// learn records that the generation's first call was answered with the
// provider's id.
func learn(t *testing.T, l *Ledger, k *EgressLock, refundID string, generation int, providerRefundID string, outcome refund.Outcome) {
	t.Helper()
	in := submit(refundID, 1)
	in.Call.Key.Generation = generation
	in.IdempotencyKey = refund.IdempotencyKey(refundID, generation)
	intend(t, k, in)
	call := finished(in.Call, outcome, "")
	call.Result.ProviderRefundID = providerRefundID
	require.NoError(t, l.Complete(t.Context(), call))
}

func TestCase25_WhoseNoticeItIs(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	k := acquire(t, l)
	for _, id := range []string{"known-by-call", "known-by-case", "known-by-notice", "unknown"} {
		accept(t, l, newRefund(id))
	}
	elsewhere := newRefund("elsewhere")
	elsewhere.Account = "other"
	accept(t, l, elsewhere)
	learn(t, l, k, "known-by-call", 1, "re_call", refund.OutcomeSucceeded)
	require.NoError(t, l.Save(t.Context(), Change{RefundID: "known-by-case", Status: refund.StatusPending, ProviderRefundID: "re_case"}))
	earlier := newNotice("earlier", "known-by-notice")
	earlier.ProviderRefundID = "re_notice"
	addNotice(t, l, earlier)
	// A notice with a problem says nothing about whose its id is.
	foreign := newNotice("foreign", "unknown")
	foreign.ProviderRefundID, foreign.Amount = "re_foreign", twd(1)
	require.Equal(t, refund.ProblemContent, addNotice(t, l, foreign).Problem)

	for name, tc := range map[string]struct {
		id, reference string
		want          string // the case; empty: parked
		problem       refund.NoticeProblem
	}{
		"reference":                           {"", "unknown", "unknown", ""},
		"id from a call":                      {"re_call", "", "known-by-call", ""},
		"id from the case":                    {"re_case", "", "known-by-case", ""},
		"id from a notice":                    {"re_notice", "", "known-by-notice", ""},
		"id from a notice that is no fact":    {"re_foreign", "", "", refund.ProblemNoMatch},
		"id and reference":                    {"re_call", "known-by-call", "known-by-call", ""},
		"reference with a new id":             {"re_new", "unknown", "unknown", ""},
		"id and reference of two cases":       {"re_call", "unknown", "", refund.ProblemTwoCases},
		"id and a reference that isn't ours":  {"re_call", "somebody-else", "known-by-call", refund.ProblemContent},
		"neither is known":                    {"re_x", "nobody", "", refund.ProblemNoMatch},
		"nothing is said":                     {"", "", "", refund.ProblemNoMatch},
		"reference of another account's case": {"", "elsewhere", "", refund.ProblemNoMatch},
		"reference in other letters":          {"", "UNKNOWN", "", refund.ProblemNoMatch},
		"id in other letters":                 {"RE_CALL", "", "", refund.ProblemNoMatch},
	} {
		n := newNotice("evt "+name, tc.reference)
		n.ProviderRefundID, n.PaymentID = tc.id, ""
		stored := addNotice(t, l, n)
		require.Equal(t, tc.want, stored.RefundID, name)
		require.Equal(t, tc.problem, stored.Problem, name)
	}
	require.Equal(t, "re_call", theCase(t, l, "known-by-call").ProviderRefundID, "learnt from the notice that confirms it")
	require.Equal(t, "re_new", theCase(t, l, "unknown").ProviderRefundID, "and not from one that is no fact")
}

func TestCase25_AnIDOfTwoCases(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	k := acquire(t, l)
	for _, id := range []string{"r-1", "r-2"} {
		accept(t, l, newRefund(id))
		learn(t, l, k, id, 1, "re_1", refund.OutcomeUnknown)
	}
	n := newNotice("evt_1", "r-1")
	require.Equal(t, refund.ProblemTwoCases, addNotice(t, l, n).Problem)
}

func TestCase17_ContentThatIsNotTheRefunds(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	for what, change := range map[string]func(*refund.Notice){
		"amount":    func(n *refund.Notice) { n.Amount.Value-- },
		"payment":   func(n *refund.Notice) { n.PaymentID = "pay-2" },
		"amount ":   func(n *refund.Notice) { n.Amount.Currency = "JPY" },
		" no less ": func(n *refund.Notice) { n.Amount.Value = 0 },
	} {
		n := newNotice("evt "+what+".", "r-1")
		change(&n)
		stored := addNotice(t, l, n)
		require.Equal(t, "r-1", stored.RefundID, what)
		require.Equal(t, refund.ProblemContent, stored.Problem, what)
	}
	c := theCase(t, l, "r-1")
	require.Len(t, c.Notices, 4)
	require.Empty(t, c.ProviderRefundID, "the id of another refund is not this one's")
	events, err := l.Events(t.Context(), "r-1")
	require.NoError(t, err)
	for _, e := range events[1:] {
		require.Contains(t, e.Detail, "not the refund's: ")
	}
	silent := newNotice("evt no payment", "r-1")
	silent.PaymentID = ""
	require.Empty(t, addNotice(t, l, silent).Problem, "what is not said is not wrong")
}

// All generations of a case have one reference.
func TestCase25_WhichGenerationItIsAbout(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	k := acquire(t, l)
	accept(t, l, newRefund("r-1"))
	learn(t, l, k, "r-1", 1, "re_1", refund.OutcomeRejected)
	reject(t, l, "r-1")
	correct(t, l, "r-1", "fix-1", refund.Correction{Amount: &refund.Money{Value: 1000, Currency: "TWD"}})

	event := 0
	generation := func(id string, amount int64) int {
		t.Helper()
		event++
		n := newNotice(fmt.Sprintf("evt_%d", event), "r-1")
		n.ProviderRefundID, n.Amount = id, twd(amount)
		stored := addNotice(t, l, n)
		require.Equal(t, "r-1", stored.RefundID)
		require.Empty(t, stored.Problem, "the content is compared with that generation's")
		return stored.Generation
	}
	require.Equal(t, 1, generation("re_1", 1250))
	require.Equal(t, 1, generation("", 1250), "the second was not sent yet")
	require.Empty(t, theCase(t, l, "r-1").ProviderRefundID, "the id of the first is none of the second")

	learn(t, l, k, "r-1", 2, "", refund.OutcomeUnknown)
	require.Equal(t, 2, generation("re_2", 1000))
	require.Equal(t, 2, generation("", 1000))
	require.Equal(t, 1, generation("re_1", 1250), "its id still belongs to the first")
	require.Equal(t, "re_2", theCase(t, l, "r-1").ProviderRefundID)

	late := newNotice("evt late", "")
	late.ProviderRefundID, late.PaymentID, late.Amount = "re_1", "", twd(1000)
	require.Equal(t, refund.ProblemContent, addNotice(t, l, late).Problem, "an amount of the second")
}

// The answer's id is recorded a moment after the notice about it came.
func TestCase25_ParkedUntilTheIDIsKnown(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return now }})
	k := acquire(t, l)
	accept(t, l, newRefund("r-1"))
	n := newNotice("evt_1", "")
	n.PaymentID = "" // only their id
	require.Equal(t, refund.ProblemNoMatch, addNotice(t, l, n).Problem)
	require.Empty(t, theCase(t, l, "r-1").Notices)
	learn(t, l, k, "r-1", 1, "re_1", refund.OutcomePending)

	sweep := func(want int) {
		t.Helper()
		matched, err := l.MatchParked(t.Context(), 10)
		require.NoError(t, err)
		require.Equal(t, want, matched)
	}
	now = now.Add(parkedRetry - time.Millisecond)
	sweep(0)
	now = now.Add(time.Millisecond)
	version := theCase(t, l, "r-1").Version
	sweep(1)
	sweep(0)
	c := theCase(t, l, "r-1")
	require.Len(t, c.Notices, 1)
	require.Equal(t, stored(now), c.Notices[0].ReceivedAt, "the case has it from now on")
	require.Equal(t, version+1, c.Version)
	require.Equal(t, []string{"notice.notification"}, trail(t, l, "r-1"))
	parked, err := l.Parked(t.Context(), "", 10)
	require.NoError(t, err)
	require.Empty(t, parked)
	news, err := l.Untold(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, news, 1)
}

func TestMatchParked_LeastRecentlyTriedFirst(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return now }})
	for i := range 3 {
		n := newNotice(fmt.Sprintf("evt_%d", i), fmt.Sprintf("r-%d", i))
		n.ProviderRefundID = ""
		addNotice(t, l, n)
		now = now.Add(time.Second)
	}
	now = now.Add(parkedRetry)
	matched, err := l.MatchParked(t.Context(), 2) // evt_0 and evt_1, in vain
	require.NoError(t, err)
	require.Zero(t, matched)

	for i := range 3 {
		accept(t, l, newRefund(fmt.Sprintf("r-%d", i)))
	}
	for _, want := range []int{1, 0} { // evt_2; the others were tried a moment ago
		matched, err = l.MatchParked(t.Context(), 2)
		require.NoError(t, err)
		require.Equal(t, want, matched)
	}
	require.Len(t, theCase(t, l, "r-2").Notices, 1)
	now = now.Add(parkedRetry)
	matched, err = l.MatchParked(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 2, matched)
}

// Why a notice is parked may change.
func TestMatchParked_AnotherProblem(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return now }})
	k := acquire(t, l)
	n := newNotice("evt_1", "r-1")
	addNotice(t, l, n)
	accept(t, l, newRefund("r-1"))
	accept(t, l, newRefund("r-2"))
	learn(t, l, k, "r-2", 1, "re_1", refund.OutcomeSucceeded)
	now = now.Add(parkedRetry)
	matched, err := l.MatchParked(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, matched)
	parked, err := l.Parked(t.Context(), account, 10)
	require.NoError(t, err)
	require.Equal(t, refund.ProblemTwoCases, parked[0].Problem)
}

func TestMatchParked_SweepersAtOnce(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	var ledgers []*Ledger
	later := func() time.Time { return time.Now().Add(parkedRetry) }
	for range 4 {
		ledgers = append(ledgers, openLedger(t, dsn, Options{Now: later}))
	}
	l := openLedger(t, dsn, Options{})
	for i := range 20 {
		n := newNotice(fmt.Sprintf("evt_%d", i), "r-1")
		n.ProviderRefundID = ""
		addNotice(t, l, n)
	}
	before := accept(t, l, newRefund("r-1"))
	var sweepers errgroup.Group
	for _, l := range ledgers {
		sweepers.Go(func() error {
			_, err := l.MatchParked(t.Context(), 100)
			return err
		})
	}
	require.NoError(t, sweepers.Wait())
	c := theCase(t, l, "r-1")
	require.Len(t, c.Notices, 20)
	require.Equal(t, before.Version+20, c.Version, "each once")
	require.Len(t, trail(t, l, "r-1"), 20)
}

// One that can't be matched for a defect must not hold up the others.
func TestMatchParked_GoesOnAfterAnError(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := openLedger(t, migrated(t), Options{Now: func() time.Time { return now }})
	k := acquire(t, l)
	broken := newNotice("evt_1", "")
	broken.PaymentID = ""
	addNotice(t, l, broken)
	sound := newNotice("evt_2", "r-2")
	sound.ProviderRefundID = ""
	addNotice(t, l, sound)
	accept(t, l, newRefund("r-1"))
	accept(t, l, newRefund("r-2"))
	learn(t, l, k, "r-1", 1, "re_1", refund.OutcomeRejected)
	// A generation without its content.
	_, err := l.pool.ExecContext(t.Context(), `UPDATE refunds SET generation = 2 WHERE refund_id = 'r-1'`)
	require.NoError(t, err)

	now = now.Add(parkedRetry)
	matched, err := l.MatchParked(t.Context(), 10)
	require.ErrorContains(t, err, "reading generation 1")
	require.Equal(t, 1, matched)
	require.Empty(t, trail(t, l, "r-1"))
	matched, err = l.MatchParked(t.Context(), 10)
	require.NoError(t, err, "it waits for its next turn like any other")
	require.Zero(t, matched)
}

// Who settled a case did not know of what came later, even if their clock is
// ahead of the ledger's.
func TestAddNotice_IsLaterThanTheSettlement(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	toReview(t, l, "r-1")
	settle := newAct("r-1", "settle-1", refund.ActionSettle)
	settle.At = time.Now().Add(time.Minute)
	mustAct(t, l, settle)
	require.Equal(t, stored(settle.At).Add(time.Microsecond), addNotice(t, l, newNotice("evt_1", "r-1")).ReceivedAt)
	require.Equal(t, stored(settle.At).Add(time.Microsecond), theCase(t, l, "r-1").Notices[0].ReceivedAt)
}
