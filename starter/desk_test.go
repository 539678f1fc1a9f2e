package starter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/workflow"

	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
	"refundgate/worker"
)

// office is a desk with the real ledger, Temporal and orchestrator. There is
// no egress: what is to be sent waits.
type office struct {
	t        *testing.T
	ledger   *ledger.Ledger
	temporal client.Client
	desk     *Desk
	woken    int
}

func newOffice(t *testing.T) *office {
	t.Helper()
	hostPort, namespace := testenv.Temporal(t)
	o := &office{t: t, ledger: newLedger(t, testenv.MariaDB(t)), temporal: dial(t, hostPort, namespace)}
	o.desk = &Desk{Ledger: o.ledger, Temporal: o.temporal, Deadline: testDeadline, Wake: func() { o.woken++ }}
	return o
}

// openOffice is newOffice with an orchestrator.
func openOffice(t *testing.T) *office {
	t.Helper()
	o := newOffice(t)
	o.orchestrate()
	return o
}

// orchestrate runs the real workflow until the test ends.
func (o *office) orchestrate() {
	orchestrator := &worker.Orchestrator{
		Temporal: o.temporal, Ledger: o.ledger, Policies: map[string]refund.Policy{"main": refund.DefaultPolicy()}, Log: discard,
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- orchestrator.Run(ctx) }()
	o.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			o.t.Error(err)
		}
	})
}

// accept makes a case that goes to review after deadline.
func (o *office) accept(id string, deadline time.Duration) {
	o.t.Helper()
	_, _, err := o.ledger.Accept(o.t.Context(), ledger.Submission{Refund: testRefund(id), Deadline: deadline})
	require.NoError(o.t, err)
}

// closed makes a case that is closed.
func (o *office) closed(id string, status refund.Status) {
	o.t.Helper()
	o.accept(id, testDeadline)
	require.NoError(o.t, o.ledger.Save(o.t.Context(), ledger.Change{RefundID: id, Status: status}))
}

// inReview makes a case that is in review, with its workflow.
func (o *office) inReview(id string) {
	o.t.Helper()
	o.accept(id, 10*time.Millisecond)
	require.NoError(o.t, NewRelay(o.ledger, o.temporal, discard).pass(o.t.Context()))
	require.Eventually(o.t, func() bool { return o.read(id).Status == refund.StatusReview }, 30*time.Second, 20*time.Millisecond)
}

func (o *office) read(id string) refund.Case {
	o.t.Helper()
	c, err := o.ledger.Case(o.t.Context(), id)
	require.NoError(o.t, err)
	return c
}

func (o *office) act(refundID, id string, action refund.Action, in refund.ActionInput) (refund.Case, error) {
	if in.By == "" {
		in.By = "mei"
	}
	in.Reason = "because"
	return o.desk.Act(o.t.Context(), refundID, id, action, in)
}

func requireRefused(t *testing.T, err error, why string) {
	t.Helper()
	var refused *ledger.ActionRefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, why, refused.Why)
}

// settled is how a case is settled here.
var settled = refund.ActionInput{Status: refund.StatusSucceeded, Evidence: "line 88"}

// An open case belongs to its workflow, which is started if it doesn't run. An
// action's id is done once, and names no other action.
func TestDeskActsOnAnOpenCase(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	o.accept("r-1", testDeadline)

	c, err := o.act("r-1", "a-1", refund.ActionAssign, refund.ActionInput{Owner: "lin"})
	require.NoError(t, err)
	require.Equal(t, "lin", c.Owner)
	_, err = o.act("r-1", "a-2", refund.ActionNote, refund.ActionInput{})
	require.NoError(t, err)
	before := o.read("r-1")
	require.Len(t, before.Decisions, 2)
	require.Equal(t, "a-1", before.Decisions[0].ID)

	for range 2 {
		c, err = o.act("r-1", "a-1", refund.ActionAssign, refund.ActionInput{Owner: "lin"})
		require.NoError(t, err)
		require.Equal(t, before, c, "the same action again changes nothing")
	}
	_, err = o.act("r-1", "a-1", refund.ActionAssign, refund.ActionInput{Owner: "bo"})
	requireRefused(t, err, "its id was used for another action before")

	_, err = o.act("r-1", "a-3", refund.ActionNote, refund.ActionInput{Version: before.Version - 1})
	requireRefused(t, err, fmt.Sprintf("it has changed since version %d and is at version %d now", before.Version-1, before.Version))
	_, err = o.act("r-1", "a-4", refund.ActionSettle, settled)
	requireRefused(t, err, "it is queued, not in review")
	_, err = o.act("r-1", "a-5", refund.ActionResend, refund.ActionInput{})
	requireRefused(t, err, "it is queued, not in review")
	require.Equal(t, before, o.read("r-1"), "what is refused changes nothing")

	events, err := o.ledger.Events(t.Context(), "r-1")
	require.NoError(t, err)
	var told []string
	for _, e := range events {
		if e.Actor == "mei" && e.Action != ledger.ActionAccepted {
			told = append(told, e.Action+" "+e.Detail)
		}
	}
	require.Equal(t, []string{"review.assign to lin: because", "review.note because"}, told)
}

// A case in review is settled once, and everybody learns how. The settlement's
// own id is answered with it for good.
func TestDeskSettles(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	o.inReview("r-1")
	seen := o.read("r-1")

	c, err := o.act("r-1", "s-1", refund.ActionSettle, settled)
	require.NoError(t, err)
	require.Equal(t, refund.StatusSucceeded, c.Status)
	require.NotNil(t, c.ClosedAt)
	again, err := o.act("r-1", "s-1", refund.ActionSettle, settled)
	require.NoError(t, err)
	require.Equal(t, c, again)
	in := settled
	in.Version = seen.Version
	_, err = o.act("r-1", "s-2", refund.ActionSettle, in)
	requireRefused(t, err, "it is already succeeded")
	require.NoError(t, o.temporal.GetWorkflow(t.Context(), "refund-r-1", "").Get(t.Context(), nil), "the workflow ends with the case")
}

// Two people settle the same case, one this way and one that: one of them has
// settled it, and the other is told.
func TestCase45_TwoPeopleSettle(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	const cases = 5
	for n := range cases {
		o.inReview(fmt.Sprintf("r-%d", n))
	}
	var wg sync.WaitGroup
	for n := range cases {
		id := fmt.Sprintf("r-%d", n)
		var errs [2]error
		wg.Go(func() {
			var both sync.WaitGroup
			for person, status := range []refund.Status{refund.StatusSucceeded, refund.StatusNotRefunded} {
				both.Go(func() {
					in := refund.ActionInput{By: fmt.Sprintf("person-%d", person), Status: status, Evidence: "line 88"}
					_, errs[person] = o.act(id, fmt.Sprintf("s-%d", person), refund.ActionSettle, in)
				})
			}
			both.Wait()
			c, err := o.ledger.Case(t.Context(), id)
			winner := 0
			if errs[0] != nil {
				winner = 1
			}
			var refused *ledger.ActionRefusedError
			switch {
			case err != nil:
				t.Error(err)
			case errs[winner] != nil, !errors.As(errs[1-winner], &refused):
				t.Errorf("%s: one must win and one be refused: %v", id, errs)
			case len(c.Decisions) != 1, c.Decisions[0].Status != c.Status, c.Decisions[0].By != fmt.Sprintf("person-%d", winner):
				t.Errorf("%s is %s by %+v", id, c.Status, c.Decisions)
			}
		})
	}
	wg.Wait()
}

// On a closed case only words can be added; a rejected one can be corrected,
// which has the relay start it again.
func TestDeskOnAClosedCase(t *testing.T) {
	t.Parallel()
	o := newOffice(t) // nothing of this needs a workflow
	for _, status := range []refund.Status{refund.StatusSucceeded, refund.StatusRejected} {
		id := "r-" + string(status)
		o.closed(id, status)
		for _, action := range []refund.Action{refund.ActionAssign, refund.ActionCheck, refund.ActionResend, refund.ActionSettle} {
			in := refund.ActionInput{Nobody: action == refund.ActionAssign}
			if action == refund.ActionSettle {
				in = settled
			}
			_, err := o.act(id, "a-1", action, in)
			requireRefused(t, err, "it is already "+string(status))
		}
		for range 2 {
			c, err := o.act(id, "n-1", refund.ActionNote, refund.ActionInput{})
			require.NoError(t, err)
			require.Len(t, c.Decisions, 1)
			require.Equal(t, status, c.Status)
		}
	}
	correction := refund.Correction{By: "mei", Reason: "wrong payment", PaymentID: "pay_2"}
	_, err := o.desk.Correct(t.Context(), "r-succeeded", "c-1", correction)
	requireRefused(t, err, "it is succeeded, not rejected")
	require.Zero(t, o.woken)
	for range 2 {
		c, err := o.desk.Correct(t.Context(), "r-rejected", "c-1", correction)
		require.NoError(t, err)
		require.Equal(t, 2, c.Generation)
		require.Equal(t, refund.StatusQueued, c.Status)
		require.InDelta(t, testDeadline, time.Until(c.DeadlineAt), float64(time.Minute))
	}
	require.Positive(t, o.woken)
	left, err := o.ledger.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "pay_2", left[0].PaymentID)
}

func TestDeskRefusesWhatIsNoAction(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.closed("r-1", refund.StatusRejected)
	_, err := o.act("r-2", "a-1", refund.ActionNote, refund.ActionInput{})
	require.ErrorIs(t, err, ledger.ErrNotFound)
	_, err = o.desk.Correct(t.Context(), "r-2", "c-1", refund.Correction{By: "mei", Reason: "r", PaymentID: "pay_2"})
	require.ErrorIs(t, err, ledger.ErrNotFound)
	var invalid *refund.InvalidError
	_, err = o.act("r-1", "a-1", refund.ActionSettle, refund.ActionInput{Status: refund.StatusRejected})
	require.ErrorAs(t, err, &invalid)
	_, err = o.desk.Correct(t.Context(), "r-1", "c-1", refund.Correction{By: "mei", Reason: "r"})
	require.ErrorAs(t, err, &invalid)
	require.Empty(t, o.read("r-1").Decisions)
}

// Temporal is away, or nobody works: the person is told in time, and the same
// action under the same id is done once when both are there.
func TestDeskWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, temporal := range map[string]func(*office) client.Client{
		"no Temporal":     func(o *office) client.Client { return dial(o.t, "127.0.0.1:1", "default") },
		"no orchestrator": func(o *office) client.Client { return o.temporal },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			o.accept("r-1", testDeadline)
			o.desk.Temporal, o.desk.Timeout = temporal(o), time.Second
			begin := time.Now()
			_, err := o.act("r-1", "a-1", refund.ActionAssign, refund.ActionInput{Owner: "lin"})
			var uncertain *UncertainError
			require.ErrorAs(t, err, &uncertain)
			require.Equal(t, "a-1", uncertain.ID)
			require.Less(t, time.Since(begin), 5*time.Second)
			require.Empty(t, o.read("r-1").Decisions)

			o.orchestrate()
			o.desk.Temporal, o.desk.Timeout = o.temporal, 0
			c, err := o.act("r-1", "a-1", refund.ActionAssign, refund.ActionInput{Owner: "lin"})
			require.NoError(t, err)
			require.Equal(t, "lin", c.Owner)
			require.Len(t, c.Decisions, 1)
		})
	}
}

// lossy loses the answers to updates.
type lossy struct{ client.Client }

func (l lossy) UpdateWithStartWorkflow(ctx context.Context, opts client.UpdateWithStartWorkflowOptions) (client.WorkflowUpdateHandle, error) {
	_, _ = l.Client.UpdateWithStartWorkflow(ctx, opts)
	return nil, errors.New("the connection broke")
}

// What is done and only the answer lost is done, and said to be.
func TestDeskLosesTheAnswer(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	o.accept("r-1", testDeadline)
	o.desk.Temporal = lossy{o.temporal}
	c, err := o.act("r-1", "a-1", refund.ActionAssign, refund.ActionInput{Owner: "lin"})
	require.NoError(t, err)
	require.Equal(t, "lin", c.Owner)
}

// A run that ends before it has taken the action is no reason to give up:
// another one takes it.
func TestDeskOutlivesARun(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.accept("r-1", testDeadline)
	var runs atomic.Int32
	w := runWorkflow(t, o.temporal, func(ctx workflow.Context, _ refund.Refund) error {
		var run int32
		if err := workflow.SideEffect(ctx, func(workflow.Context) any { return runs.Add(1) }).Get(&run); err != nil {
			return err
		}
		asked, done := false, false
		err := workflow.SetUpdateHandler(ctx, string(refund.ActionAssign), func(ctx workflow.Context, in refund.ActionInput) error {
			asked = true
			if run == 1 {
				return workflow.Await(ctx, func() bool { return false }) // the run ends under it
			}
			defer func() { done = true }()
			ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: 10 * time.Second})
			return workflow.ExecuteActivity(ctx, refund.ActivityAct, workflow.GetCurrentUpdateInfo(ctx).ID, in).Get(ctx, nil)
		})
		if err != nil {
			return err
		}
		return workflow.Await(ctx, func() bool { return asked && (run == 1 || done) })
	})
	w.RegisterActivityWithOptions(func(ctx context.Context, id string, in refund.ActionInput) error {
		_, err := o.ledger.Act(ctx, ledger.Act{RefundID: "r-1", ID: id, Action: refund.ActionAssign, Input: in, At: time.Now()})
		return err
	}, activity.RegisterOptions{Name: refund.ActivityAct})

	c, err := o.act("r-1", "a-1", refund.ActionAssign, refund.ActionInput{Owner: "lin"})
	require.NoError(t, err)
	require.Equal(t, "lin", c.Owner)
	require.EqualValues(t, 2, runs.Load())
}
