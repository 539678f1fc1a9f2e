package main

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// What a pair's account is configured with: short budgets, so that a hundred
// changes of ownership take minutes.
const (
	pairInterval = 20 * time.Millisecond
	pairConnect  = 200 * time.Millisecond
	pairCall     = 600 * time.Millisecond
	// What the provider takes, and for "slow-*". With two slow ones in five,
	// nearly as many calls are under way as may be, and still the next one
	// mostly waits for its slot with its intent written.
	pairAnswer     = 100 * time.Millisecond
	pairSlowAnswer = 350 * time.Millisecond

	// ownerMargin is what a new owner adds to the two budgets in its wait.
	ownerMargin = time.Second
	// intentMaxAge is how long an intent permits its call to start.
	intentMaxAge = time.Second
)

const pairConfig = `
defaults:
  starts_per_second: 50
  connect_timeout: 200ms
  call_timeout: 600ms
  # Calls in flight when their process is stopped time out. That must not open
  # the circuit here.
  breaker: {window: 1000, failure_rate: 1}
policy:
  checks: {initial: 200ms, cap: 2s}
  not_sent: {initial: 200ms, cap: 1s}
`

// pair is a system with two processes that make the calls of one account: the
// owner of its egress and a standby, under a load that the tests choose.
type pair struct {
	*system
	owner, standby *process
	holder         ledger.Owner // the owner as the ledger knows it
	// acquired is when each epoch began, from epoch 1 without a gap.
	acquired map[int64]time.Time
	quiet    []quiet
}

// quiet is a span of the monotonic clock in which no call of an epoch up to
// this one may start.
type quiet struct {
	from, to time.Duration
	epoch    int64
}

const anyEpoch = math.MaxInt64

func newPair(s *system) *pair {
	s.t.Helper()
	s.configure(map[string]string{"demo": s.provider.URL()}, pairConfig)
	require.NoError(s.t, s.control.SetPlan(s.t.Context(),
		standin.Rule{
			Match: standin.Match{Method: http.MethodPost, Reference: "drop-*"}, Times: 1, PerReference: true,
			Fault: standin.Fault{Kind: standin.AcceptThenDrop},
		},
		standin.Rule{
			Match: standin.Match{Method: http.MethodPost, Reference: "slow-*"},
			Fault: standin.Fault{Kind: standin.Delay, DelayMS: pairSlowAnswer.Milliseconds()},
		},
		standin.Rule{Fault: standin.Fault{Kind: standin.Delay, DelayMS: pairAnswer.Milliseconds()}},
	))
	s.start("serve").waitFor("intake:")
	s.start("worker", "--roles", "orchestrator")
	p := &pair{system: s, acquired: map[int64]time.Time{}}
	p.owner = s.start("worker", "--roles", "egress")
	p.owner.waitFor("egress: owner")
	p.standby = s.start("worker", "--roles", "egress")
	p.standby.waitFor("egress: standby (held by ")
	p.awaitOwner(1)
	return p
}

// keepOpen keeps n refunds open, one of five of which needs a check, until the
// returned function is called, which returns the ids of all.
func (p *pair) keepOpen(n int) (finish func() []string) {
	var load sync.WaitGroup
	var ids []string
	end := make(chan struct{})
	load.Go(func() {
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			for range n - p.open() {
				kinds := []string{"drop", "fast", "slow", "fast", "slow"}
				ids = append(ids, fmt.Sprintf("%s-%04d", kinds[len(ids)%len(kinds)], len(ids)))
				p.submit(ids[len(ids)-1], "demo")
			}
		}
	})
	stop := sync.OnceFunc(func() {
		close(end)
		load.Wait()
	})
	p.t.Cleanup(stop)
	return func() []string {
		stop()
		return ids
	}
}

// open counts the refunds that are not settled.
func (p *pair) open() (n int) {
	p.t.Helper()
	require.NoError(p.t, p.db.QueryRowContext(p.t.Context(), `SELECT COUNT(*) FROM refunds WHERE closed_at IS NULL`).Scan(&n))
	return n
}

// awaitRequests waits until the provider has received n more.
func (p *pair) awaitRequests(n int) {
	p.t.Helper()
	record, err := p.control.Record(p.t.Context())
	require.NoError(p.t, err)
	_, err = p.control.WaitRecord(p.t.Context(), len(record)+n)
	require.NoError(p.t, err)
}

// awaitChange waits until the owner has noticed that its epoch is over, and the
// next one has begun: of the two processes one says that it owns, and the other
// one that it stands by.
func (p *pair) awaitChange() {
	p.t.Helper()
	lost := fmt.Sprintf(`"event":"egress.owner_lost","account":"demo","epoch":%d,`, p.holder.Epoch)
	require.Eventually(p.t, func() bool { return strings.Contains(p.owner.log(), lost) }, 20*time.Second, 20*time.Millisecond, "the owner hasn't noticed")
	p.awaitOwner(int64(len(p.acquired)) + 1)
	p.owner.waitForLast("egress: owner")
	p.standby.waitForLast(p.standbyLine())
}

// awaitOwner waits for the owner of the given epoch and learns which of the two
// it is.
func (p *pair) awaitOwner(epoch int64) {
	p.t.Helper()
	var err error
	require.Eventually(p.t, func() bool {
		p.holder, err = p.ledger.EgressOwner(p.t.Context(), "demo")
		return err == nil && p.holder.Held && p.holder.Epoch >= epoch
	}, 30*time.Second, 20*time.Millisecond, "nobody owns epoch %d", epoch)
	require.Equal(p.t, epoch, p.holder.Epoch)
	p.acquired[epoch] = p.holder.AcquiredAt
	if p.standby.owns(p.holder.Holder) {
		p.owner, p.standby = p.standby, p.owner
	}
	require.True(p.t, p.owner.owns(p.holder.Holder), "%s is neither of the two", p.holder.Holder)
}

// requireOneEgress holds everything that is recorded to what a single egress
// would have done, whoever did it, and returns how many starts there were.
func (p *pair) requireOneEgress() int {
	p.t.Helper()
	calls := p.starts("demo")
	requireGaps(p.t, calls, pairInterval)
	requireInFlight(p.t, calls)
	for i, c := range calls {
		p.requireProven(c)
		if i == 0 || calls[i-1].Epoch != c.Epoch {
			require.GreaterOrEqual(p.t, c.StartedAt.Sub(p.acquired[c.Epoch]), pairConnect+pairCall+ownerMargin,
				"epoch %d didn't wait out the calls before it", c.Epoch)
		}
		if i > 0 && calls[i-1].Epoch != c.Epoch {
			last := calls[i-1]
			require.Less(p.t, last.Epoch, c.Epoch, "%s started when one of the next epoch had", c.Key)
			// The last intent of an epoch can use up the margin, as long as the
			// budgets of its call are left.
			require.GreaterOrEqual(p.t, time.Duration(c.StartedMono-last.StartedMono), pairConnect+pairCall,
				"%s of epoch %d may have been under way when epoch %d sent", last.Key, last.Epoch, c.Epoch)
		}
	}
	return len(calls)
}

// requireProven requires that whoever started the call had proven its right to
// send a moment before, and that it was not stopped.
func (p *pair) requireProven(c refund.Call) {
	p.t.Helper()
	began, known := p.acquired[c.Epoch]
	require.True(p.t, known, "%s: nobody acquired epoch %d", c.Key, c.Epoch)
	require.False(p.t, c.IntentAt.Before(began), "%s: its intent is older than its epoch", c.Key)
	if next, over := p.acquired[c.Epoch+1]; over {
		require.True(p.t, c.IntentAt.Before(next), "%s: its intent is younger than the next epoch", c.Key)
	}
	// Exactly a second at the last check; from there to the stamp it is
	// microseconds, or what a busy machine makes of them. A stop that falls
	// right in between is beyond any check (decision 1) and would show here.
	require.LessOrEqual(p.t, c.StartedAt.Sub(c.IntentAt), intentMaxAge+100*time.Millisecond, "%s: its intent was too old", c.Key)
	for _, q := range p.quiet {
		at := time.Duration(c.StartedMono)
		require.False(p.t, c.Epoch <= q.epoch && q.from < at && at < q.to, "%s of epoch %d started %v into a quiet span", c.Key, c.Epoch, at-q.from)
	}
}

// requireInFlight counts the calls under way at each start over all processes.
// One whose process was stopped ends with its budget: the provider has long
// answered.
func requireInFlight(t *testing.T, calls []refund.Call) {
	t.Helper()
	var ends []time.Time
	for _, c := range calls {
		ends = slices.DeleteFunc(ends, func(end time.Time) bool { return !end.After(*c.StartedAt) })
		end := c.StartedAt.Add(pairCall)
		if c.FinishedAt.Before(end) {
			end = *c.FinishedAt
		}
		ends = append(ends, end)
		require.LessOrEqual(t, len(ends), 10, "%s", c.Key)
	}
}

// requireAllSucceeded waits until every refund has, and holds what was sent to
// what was received.
func (p *pair) requireAllSucceeded(ids []string) {
	p.t.Helper()
	for _, id := range ids {
		c := p.settled(id, 2*time.Minute)
		require.Equal(p.t, refund.StatusSucceeded, c.Status, "%s: %v", id, describeCalls(c))
	}
	executions, err := p.control.Executions(p.t.Context())
	require.NoError(p.t, err)
	require.Len(p.t, executions, len(ids))
	for _, id := range ids {
		require.Equal(p.t, 1, executions[id], id)
	}
	p.requireMatched(ids...)
	record, err := p.control.Record(p.t.Context())
	require.NoError(p.t, err)
	starts := p.requireOneEgress()
	require.Equal(p.t, len(record), starts, "requests and starts")
	p.t.Logf("%d refunds, %d starts, %d epochs", len(ids), starts, len(p.acquired))
}

// endSession ends the database session of the owner.
func (p *pair) endSession() {
	p.t.Helper()
	_, err := p.ledger.ReleaseEgress(p.t.Context(), ledger.Release{Account: "demo", By: "test", Reason: "to see what happens", Force: true})
	require.NoError(p.t, err)
}

func monotonic() time.Duration { return limiter.MonotonicClock().Now() }
