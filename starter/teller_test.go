package starter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"refundgate/internal/devenv"
	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// testNotice says of a refund of testRefund's content that it succeeded.
func testNotice(refundID, eventID string) refund.Notice {
	return refund.Notice{
		Account: "main", Source: refund.SourceNotification, EventID: eventID, ProviderRefundID: "re_" + refundID, Reference: refundID,
		PaymentID: "pay_1", Amount: refund.Money{Value: 1250, Currency: "TWD"}, Outcome: refund.OutcomeSucceeded, SaidAt: time.Now(),
	}
}

func (o *office) notice(n refund.Notice) {
	o.t.Helper()
	_, isNew, err := o.ledger.AddNotice(o.t.Context(), n)
	require.NoError(o.t, err)
	require.True(o.t, isNew)
}

// becomes waits until the case has the status.
func (o *office) becomes(id string, status refund.Status) refund.Case {
	o.t.Helper()
	var c refund.Case
	require.Eventually(o.t, func() bool { c = o.read(id); return c.Status == status }, 30*time.Second, 20*time.Millisecond,
		"%s is still %s", id, c.Status)
	return c
}

func (o *office) untold() int {
	o.t.Helper()
	news, err := o.ledger.Untold(o.t.Context(), 100)
	require.NoError(o.t, err)
	return len(news)
}

// From the provider's request to the case: one that waits in review is settled
// by what the provider says, and one that was closed without money goes back to
// people, though its workflow has completed.
func TestTellerReachesOpenAndClosedCases(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	teller := NewTeller(o.ledger, o.temporal, discard)
	runRelay(t, teller)
	i := newIntake(t, o.ledger, nil)

	o.inReview("r-1")
	require.Equal(t, 200, i.notify(notification()).status)
	teller.Wake()
	c := o.becomes("r-1", refund.StatusSucceeded)
	require.Equal(t, "re_1", c.ProviderRefundID)
	require.Empty(t, c.Calls, "nothing was asked or sent for it")

	o.inReview("r-2")
	in := settled
	in.Status = refund.StatusNotRefunded
	_, err := o.act("r-2", "s-1", refund.ActionSettle, in)
	require.NoError(t, err)
	require.NoError(t, o.temporal.GetWorkflow(t.Context(), "refund-r-2", "").Get(t.Context(), nil))
	require.Equal(t, 200, i.notify(notification("evt_1", "evt_2", "r-1", "r-2", "re_1", "re_2")).status)
	c = o.becomes("r-2", refund.StatusReview)
	require.Equal(t, refund.ReviewContradiction, c.ReviewReason)
	require.Nil(t, c.ClosedAt)
	require.Eventually(t, func() bool { return o.untold() == 0 }, 10*time.Second, 20*time.Millisecond)
}

// A case that is long closed, and whose workflow Temporal has forgotten, is
// reached all the same: the ledger remembers.
func TestCase27_NoticeAfterRetention(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	o.closed("r-1", refund.StatusSucceeded) // no workflow of it has ever run here
	n := testNotice("r-1", "evt_1")
	n.Outcome, n.Code = refund.OutcomeRejected, "account_closed"
	o.notice(n)
	runRelay(t, NewTeller(o.ledger, o.temporal, discard))
	c := o.becomes("r-1", refund.StatusReview)
	require.Equal(t, refund.ReviewLateFailure, c.ReviewReason)
	require.Empty(t, c.Calls)
}

// A notice at the instant at which the workflow completes is applied: by the
// run that ends, or by another one. The person who settles says which version
// of the case that is based on, so what they didn't know isn't overruled.
func TestCase41_NoticeWhileTheWorkflowCompletes(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	teller := NewTeller(o.ledger, o.temporal, discard)
	runRelay(t, teller)
	const cases = 8
	for n := range cases {
		o.inReview(fmt.Sprintf("r-%d", n))
	}
	var wg sync.WaitGroup
	for n := range cases {
		id := fmt.Sprintf("r-%d", n)
		in := settled
		in.Status, in.Version = refund.StatusNotRefunded, o.read(id).Version
		wg.Go(func() {
			_, err := o.act(id, "s-1", refund.ActionSettle, in)
			var refused *ledger.ActionRefusedError
			if err != nil && !errors.As(err, &refused) {
				t.Error(err)
			}
		})
		wg.Go(func() {
			time.Sleep(time.Duration(n) * 10 * time.Millisecond) // before, while and after it completes
			if _, _, err := o.ledger.AddNotice(t.Context(), testNotice(id, "evt-"+id)); err != nil {
				t.Error(err)
			}
			teller.Wake()
		})
	}
	wg.Wait()
	for n := range cases {
		id := fmt.Sprintf("r-%d", n)
		require.Eventually(t, func() bool {
			c := o.read(id)
			settledFirst := c.Status == refund.StatusReview && c.ReviewReason == refund.ReviewContradiction
			return len(c.Notices) == 1 && (settledFirst || c.Status == refund.StatusSucceeded)
		}, 30*time.Second, 20*time.Millisecond, "%s: the notice is lost", id)
	}
}

// A notice that came before its refund was known waits, and is told of once it
// has found it.
func TestCase25_ParkedNoticeFindsItsCase(t *testing.T) {
	t.Parallel()
	dsn := testenv.MariaDB(t)
	l := newLedger(t, dsn)
	_, _, err := l.AddNotice(t.Context(), testNotice("r-1", "evt_1"))
	require.NoError(t, err)
	_, _, err = l.Accept(t.Context(), ledger.Submission{Refund: testRefund("r-1"), Deadline: testDeadline})
	require.NoError(t, err)
	var told []string
	signaller := signallerFunc(func(_ context.Context, id string) error {
		told = append(told, id)
		return nil
	})
	require.NoError(t, NewTeller(l, signaller, discard).round(t.Context()))
	require.Empty(t, told, "it was tried a moment ago")

	later, err := ledger.Open(t.Context(), dsn, ledger.Options{Now: func() time.Time { return time.Now().Add(time.Minute) }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, later.Close()) })
	teller := NewTeller(later, signaller, discard)
	require.NoError(t, teller.round(t.Context()))
	require.NoError(t, teller.round(t.Context()))
	require.Equal(t, []string{"refund-r-1"}, told, "once")
}

// While Temporal is down notices wait, and nothing is taken for told; two
// tellers tell when it is back.
func TestTellerOutlivesTemporal(t *testing.T) {
	t.Parallel()
	o := &office{t: t, ledger: newLedger(t, testenv.MariaDB(t))}
	server := testenv.OwnTemporal(t)
	o.temporal = dial(t, server.HostPort(), devenv.DefaultNamespace)
	require.NoError(t, server.Stop())
	logs := &testenv.Logs{}
	for range 2 {
		runRelay(t, NewTeller(o.ledger, o.temporal, telemetry.NewLogger(logs, telemetry.FormatJSON, slog.LevelInfo)))
	}
	o.accept("r-1", testDeadline)
	o.notice(testNotice("r-1", "evt_1"))
	require.Eventually(t, func() bool { return logs.String() != "" }, 20*time.Second, 20*time.Millisecond)
	require.Contains(t, logs.String(), "workflows can't be told of notices; trying again")
	require.Equal(t, 1, o.untold())

	require.NoError(t, server.Start(t.Context()))
	require.Eventually(t, func() bool { return o.untold() == 0 }, 30*time.Second, 20*time.Millisecond)
	require.Len(t, waitWorkflows(t, o.temporal, 1), 1)
	o.orchestrate()
	c := o.becomes("r-1", refund.StatusSucceeded)
	require.Empty(t, c.Calls, "the notice came first, so nothing is sent")
}

// signallerFunc is a Signaller that fails as Temporal can.
type signallerFunc func(ctx context.Context, id string) error

func (f signallerFunc) SignalWithStartWorkflow(ctx context.Context, id, _ string, _ any, _ client.StartWorkflowOptions, _ any, _ ...any) (client.WorkflowRun, error) {
	return nil, f(ctx, id)
}

// A case that Temporal refuses stays untold, and those behind it are told;
// more than a batch in one round, the oldest first.
func TestTellerTellsEverybody(t *testing.T) {
	t.Parallel()
	o := &office{t: t, ledger: newLedger(t, testenv.MariaDB(t))}
	var want []string
	for n := range tellerBatch + 5 {
		id := fmt.Sprintf("r-%03d", n)
		o.accept(id, testDeadline)
		o.notice(testNotice(id, "evt-"+id))
		want = append(want, refund.WorkflowID(id))
	}
	var told []string
	teller := NewTeller(o.ledger, signallerFunc(func(_ context.Context, id string) error {
		told = append(told, id)
		return nil
	}), discard)
	require.NoError(t, teller.round(t.Context()))
	require.Equal(t, want, told)

	for _, id := range []string{"r-001", "r-000"} {
		o.notice(testNotice(id, "again-"+id))
	}
	refusing := NewTeller(o.ledger, signallerFunc(func(_ context.Context, id string) error {
		if id == "refund-r-001" {
			return serviceerror.NewInvalidArgument("too large")
		}
		return nil
	}), discard)
	require.ErrorContains(t, refusing.round(t.Context()), "telling the workflow of refund r-001: too large")
	news, err := o.ledger.Untold(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, news, 1)
	require.Equal(t, "r-001", news[0].Refund.ID)
}

// C7: somebody has terminated the run of a case. Once its deadline has passed,
// a new run hands it to people; a case whose run lives isn't touched again and
// again.
func TestTerminatedRunsAreReplaced(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	o.accept("r-1", 3*time.Second)
	require.NoError(t, NewRelay(o.ledger, o.temporal, discard).pass(t.Context()))
	require.NoError(t, o.temporal.TerminateWorkflow(t.Context(), "refund-r-1", "", "by mistake"))
	require.Equal(t, refund.StatusQueued, o.read("r-1").Status)

	teller := NewTeller(o.ledger, o.temporal, discard)
	require.NoError(t, teller.tellOverdue(t.Context(), time.Now()))
	require.Empty(t, teller.told, "its deadline hasn't come")
	time.Sleep(time.Until(o.read("r-1").DeadlineAt))
	later := time.Now().Add(overdueAfter + time.Second)
	require.NoError(t, teller.tellOverdue(t.Context(), later))
	require.Equal(t, refund.ReviewDeadlineUnsent, o.becomes("r-1", refund.StatusReview).ReviewReason)

	o.accept("r-2", 0)
	signals := 0
	counting := NewTeller(o.ledger, signallerFunc(func(context.Context, string) error { signals++; return nil }), discard)
	for _, after := range []time.Duration{0, overdueEvery, overdueAgain - time.Minute, overdueAgain + time.Second} {
		require.NoError(t, counting.tellOverdue(t.Context(), later.Add(after)))
	}
	require.Equal(t, 2, signals)
}
