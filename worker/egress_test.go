package worker

import (
	"context"
	"encoding/json"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// wait is how long a new owner sends nothing: connect + overall + margin.
func wait() time.Duration {
	b := budgets()
	return b.ConnectTimeout + b.CallTimeout + time.Second
}

// One process sends, the other says who does; when the first has stopped, the
// second waits until nothing of the first can be in flight, then goes on.
func TestEgress_OwnerAndStandby(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.orchestrate()
	first := r.egress("one", nil)
	first.await("owner")
	acquired := r.owner().AcquiredAt
	second := r.egress("two", nil)
	second.await("standby (held by one, epoch 1)")

	calls := r.settled(r.submit("a", 10))
	require.Len(t, calls, 10)
	require.Len(t, inEpoch(calls, 1), 10)
	require.Len(t, r.wire(), 10)
	require.GreaterOrEqual(t, inEpoch(calls, 1)[0].StartedAt.Sub(acquired), wait(), "the owner didn't wait")
	require.Len(t, first.logs.Events(t, telemetry.EventCallStarted), 10)
	require.Empty(t, second.logs.Events(t, telemetry.EventCallStarted))
	require.Equal(t, []string{"standby (held by one, epoch 1)"}, second.announced(), "it repeats itself")
	standby := second.logs.Events(t, telemetry.EventStandby)
	require.Len(t, standby, 1)
	require.Equal(t, "standby (held by one, epoch 1)", standby[0]["state"])
	require.True(t, r.owner().SeenAt.After(acquired), "the owner doesn't prove itself")

	ids := r.submit("b", 10) // some may be sent by the first still
	first.stop()
	stopped := time.Now()
	require.Len(t, first.logs.Events(t, telemetry.EventReleased), 1)
	second.await("standby (held by one, epoch 1)", "owner")
	ids = append(ids, r.submit("c", 1)...)
	acquired = r.owner().AcquiredAt
	require.Equal(t, "two", r.owner().Holder)

	calls = r.settled(ids)
	for _, c := range inEpoch(calls, 1) {
		require.True(t, c.FinishedAt.Before(stopped))
	}
	seconds := inEpoch(calls, 2)
	require.NotEmpty(t, seconds)
	require.GreaterOrEqual(t, seconds[0].StartedAt.Sub(acquired), wait(), "the new owner didn't wait")
	require.Len(t, r.wire(), 10+len(sent(calls)))
	second.stop()
	require.False(t, r.owner().Held)
}

// The session with the lock dies while calls wait: nothing is sent until the
// ownership is acquired anew and its wait is over; then work goes on.
func TestEgress_LockSessionKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, kill := r.own("one", func(e *Egress) { e.Gate.Interval = 100 * time.Millisecond })
	r.orchestrate()
	ids := r.submit("r", 30)
	r.waitWire(5)

	killed := kill()
	p.await("owner", "owner")
	again := r.owner()
	require.EqualValues(t, 2, again.Epoch)

	calls := r.settled(ids)
	require.Len(t, r.wire(), len(sent(calls)))
	before, after := inEpoch(calls, 1), inEpoch(calls, 2)
	require.GreaterOrEqual(t, len(before), 5)
	require.GreaterOrEqual(t, len(after), 10)
	last := before[len(before)-1].StartedAt
	require.Less(t, last.Sub(killed), budgets().IntentMaxAge, "only an intent from before may still go out")
	require.GreaterOrEqual(t, after[0].StartedAt.Sub(again.AcquiredAt), wait())

	lost := p.logs.Events(t, telemetry.EventOwnerLost)
	require.Len(t, lost, 1)
	require.EqualValues(t, 1, lost[0]["epoch"])
	require.Len(t, p.logs.Events(t, telemetry.EventOwnerAcquired), 2)
	require.NotContains(t, p.logs.String(), "until someone acts", "nobody has to")
	p.stop()
	require.Len(t, p.logs.Events(t, telemetry.EventReleased), 1)
}

// Lost while the new owner still waits: the wait begins again.
func TestEgress_LockSessionKilledDuringTheWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, kill := r.own("one", nil)
	kill()
	p.await("owner", "owner")
	acquired := r.owner().AcquiredAt
	r.orchestrate()
	calls := r.settled(r.submit("r", 1))
	require.Len(t, inEpoch(calls, 2), 1)
	require.GreaterOrEqual(t, calls[0].StartedAt.Sub(acquired), wait())
	require.Len(t, p.logs.Events(t, telemetry.EventOwnerLost), 1)
}

// An orderly stop finishes what is in flight, hands back what waits, and gives
// the ownership up last.
func TestEgress_OrderlyStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plan(standin.Rule{Fault: standin.Fault{Kind: standin.Delay, DelayMS: 500}})
	r.orchestrate()
	slow := func(e *Egress) { e.Gate.MaxInFlight, e.Gate.CallTimeout = 2, 2*time.Second }
	p := r.egress("one", slow)
	ids := r.submit("r", 12)
	r.waitWire(2)

	p.stop()

	released := r.owner()
	require.False(t, released.Held)
	require.NotNil(t, released.ReleasedAt)
	wire := r.wire()
	require.Less(t, len(wire), 12)
	for _, request := range wire {
		require.Equal(t, standin.AnswerSent, request.Answer, "cut off in flight")
	}
	finished := 0
	for _, id := range ids {
		c, err := r.ledger.Case(t.Context(), id)
		require.NoError(t, err)
		for _, call := range sent(c.Calls) {
			require.Equal(t, refund.OutcomeSucceeded, call.Result.Outcome)
			require.False(t, released.ReleasedAt.Before(*call.FinishedAt), "released with a call in flight")
			finished++
		}
	}
	require.Len(t, wire, finished)
	handedBack := p.logs.Events(t, telemetry.EventCallNotSent)
	require.NotEmpty(t, handedBack)
	for _, e := range handedBack {
		require.Equal(t, refund.CodeShutdown, e["code"])
	}

	time.Sleep(300 * time.Millisecond)
	require.Len(t, r.wire(), len(wire), "sent after the stop")

	r.egress("two", slow)
	calls := r.settled(ids)
	require.Len(t, sent(calls), 12, "handing back uses up no attempt")
	require.Len(t, r.wire(), 12)
}

// The database dies with a call in flight and comes back: the answer is
// written later, and the egress is acquired anew.
func TestEgress_DatabaseAway(t *testing.T) {
	t.Parallel()
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refunds"))
	r := newRigOn(t, db.DSN("refunds"))
	r.plan(standin.Rule{Fault: standin.Fault{Kind: standin.Delay, DelayMS: 2000}, Times: 1})
	r.orchestrate()
	p := r.egress("one", func(e *Egress) { e.Gate.CallTimeout = 10 * time.Second })
	p.await("owner")
	ids := r.submit("r", 1)
	r.waitWire(1)

	require.NoError(t, db.Kill())
	p.await("owner", "standby (the database can't be asked)")
	require.NoError(t, db.Start(t.Context()))
	p.await("owner", "standby (the database can't be asked)", "owner")

	calls := r.settled(ids)
	require.Len(t, calls, 1)
	require.EqualValues(t, 1, calls[0].Epoch)
	require.NotNil(t, calls[0].StartedAt)
	require.Len(t, r.wire(), 1)
}

// A stop because of refused credentials is for people to lift. A new ownership
// of the same process doesn't.
func TestEgress_RefusedCredentialsOutliveTheOwnership(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plan(standin.Rule{Fault: standin.Fault{Kind: standin.Deny, Status: 401}})
	p, kill := r.own("one", nil)
	r.orchestrate()
	r.submit("r", 3)
	r.waitWire(1)
	require.Eventually(t, func() bool { return strings.Contains(p.logs.String(), "until someone acts") }, patience, 5*time.Millisecond)
	sent := len(r.wire()) // another may have been in flight

	kill()
	p.await("owner", "owner")
	require.Eventually(t, func() bool {
		var after bool // the second ownership answers calls
		for _, e := range p.logs.Events(t, telemetry.EventCallNotSent) {
			at, err := time.Parse(time.RFC3339Nano, e["time"].(string))
			require.NoError(t, err)
			after = after || at.Sub(r.owner().AcquiredAt) > wait() && e["code"] == refund.CodeStopped
		}
		return after
	}, patience, 50*time.Millisecond)
	require.Len(t, r.wire(), sent)
	require.Equal(t, 1, strings.Count(p.logs.String(), "until someone acts"))
}

// A waiting call's place in line is there to be seen in the Web UI.
func TestEgress_WaitingCallsTellTheirPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plan(standin.Rule{Fault: standin.Fault{Kind: standin.RateLimit, RetryAfter: "3600"}})
	r.orchestrate()
	p := r.egress("one", nil)
	r.submit("pauses", 1)
	require.Eventually(t, func() bool { return len(p.logs.Events(t, telemetry.EventGatePaused)) == 1 }, patience, 5*time.Millisecond)
	ids := r.submit("r", 2)

	ahead := func(id string) int {
		d, err := r.temporal.DescribeWorkflow(t.Context(), refund.WorkflowID(id), "")
		require.NoError(t, err)
		for _, a := range d.RawResponse.GetPendingActivities() {
			for _, payload := range a.GetHeartbeatDetails().GetPayloads() {
				var place struct {
					Ahead int `json:"calls_ahead"`
				}
				require.NoError(t, json.Unmarshal(payload.GetData(), &place))
				return place.Ahead
			}
		}
		return -1
	}
	// Which of the two was accepted first is up to the workflows.
	require.Eventually(t, func() bool { return ahead(ids[0])+ahead(ids[1]) == 1 }, patience, 50*time.Millisecond)
	require.Len(t, r.wire(), 1)
}

// An egress that starts before Temporal does waits for it, and takes no
// ownership meanwhile.
func TestAwaitTemporal(t *testing.T) {
	t.Parallel()
	server := testenv.OwnTemporal(t)
	require.NoError(t, server.Stop())
	c, err := client.NewLazyClient(client.Options{HostPort: server.HostPort(), Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler))})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	var logs testenv.Logs
	done := make(chan bool, 1)
	go func() {
		done <- awaitTemporal(t.Context(), c, telemetry.NewLogger(&logs, telemetry.FormatJSON, slog.LevelInfo))
	}()
	require.Eventually(t, func() bool { return strings.Contains(logs.String(), "waiting for it") }, 30*time.Second, 10*time.Millisecond)
	require.Empty(t, done)
	require.NoError(t, server.Start(t.Context()))
	select {
	case reached := <-done:
		require.True(t, reached)
	case <-time.After(30 * time.Second):
		require.Fail(t, "Temporal is back and nobody noticed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, server.Stop())
	require.False(t, awaitTemporal(ctx, c, slog.New(slog.DiscardHandler)))
}

// Where Temporal refuses it, the egress ends with an error and keeps nothing.
func TestEgress_TemporalRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hostPort, _ := testenv.Temporal(t)
	nowhere := dial(t, hostPort, "no-such-namespace")
	p := r.egress("one", func(e *Egress) { e.Temporal = nowhere })
	p.wait()
	require.ErrorContains(t, p.err, "starting the egress of account acme")
	require.False(t, r.owner().Held)
}

// Stopped during the wait after acquiring: at once, without an error.
func TestEgress_StoppedWhileWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.egress("one", func(e *Egress) { e.Gate.CallTimeout = time.Hour })
	p.await("owner")
	standby := r.egress("two", nil)
	standby.await("standby (held by one, epoch 1)")
	standby.stop()
	p.stop()
	require.False(t, r.owner().Held)
	require.NotNil(t, r.owner().ReleasedAt)
}

// When both roles have returned, nothing of them runs on. (Not parallel: it
// looks at all goroutines.)
func TestNothingRunsOnAfterRun(t *testing.T) {
	r := newRig(t)
	o := r.orchestrate()
	p := r.egress("one", nil)
	r.settled(r.submit("r", 3))
	p.stop()
	o.stop()
	require.EventuallyWithT(t, func(c *assert.CollectT) { require.Empty(c, ourGoroutines()) }, 10*time.Second, 20*time.Millisecond)
}

// ourGoroutines returns the stacks of the goroutines that run code of the
// workers, of what they are made of, or of Temporal's worker.
func ourGoroutines() (ours []string) {
	buf := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, code := range []string{"refundgate/worker.(", "refundgate/activities.", "refundgate/limiter.", "refundgate/ledger.", "internal.(*baseWorker)"} {
			if strings.Contains(stack, code) {
				ours = append(ours, stack)
				break
			}
		}
	}
	return ours
}
