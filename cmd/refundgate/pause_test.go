package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// B1 to B4: an owner under load is stopped at a random point: while calls
// wait, dial, hold their intent or are in flight, and now and then while it
// waits out its predecessor's calls. A second process, or one that is started
// at this moment, is seen to be blocked. In every other round the owner's
// database session is ended too, and the right to send passes on. Then it goes
// on. What must never happen is checked after each round and at the end, over
// everything that any of them sent.
//
// Some rounds of both kinds by default; `make test-pauses` runs a hundred.
func TestOwnerIsStoppedAgainAndAgain(t *testing.T) {
	t.Parallel()
	rounds := int(environment(t, "ROUNDS", 6))
	seed := environment(t, "SEED", rand.Uint64())
	t.Logf("ROUNDS=%d SEED=%d", rounds, seed)
	p := newPair(newSystem(t))
	finish := p.keepOpen(60)
	pauses := pauses{pair: p, rnd: rand.New(rand.NewPCG(seed, seed))}
	for round := range rounds {
		pauses.round(round%2 == 1)
	}
	p.requireAllSucceeded(finish())

	inFlight, held := p.underWay(pauses.stops)
	t.Logf("of %d stops, %d were with calls in flight, %d between intent and first byte", rounds, inFlight, held)
	if rounds >= 20 { // enough for both to come up
		require.Positive(t, inFlight)
		require.Positive(t, held)
	}
}

// environment reads a number from the environment.
func environment(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err, name)
	return n
}

// pauses stops the owner of a pair again and again.
type pauses struct {
	*pair
	rnd   *rand.Rand
	stops []time.Time
}

// round stops the owner, with or without the end of its database session, and
// lets it go on.
func (p *pauses) round(endSession bool) {
	p.t.Helper()
	began := time.Now()
	fresh := p.rnd.IntN(3) == 0 // the other process is started during the stop
	if fresh {
		require.NoError(p.t, p.standby.stop())
	}
	if p.rnd.IntN(8) > 0 { // else it may not have begun to send
		p.awaitRequests(3)
	}
	time.Sleep(p.upTo(10 * pairInterval))
	quiet := quiet{from: p.owner.pause(), epoch: anyEpoch}
	p.stops = append(p.stops, time.Now())
	if fresh {
		p.standby = p.start("worker", "--roles", "egress")
	}
	p.standby.waitForLast(p.standbyLine())
	time.Sleep(p.upTo(2 * time.Second)) // an intent is too old after one
	require.Equal(p.t, p.standbyLine(), p.standby.last())
	if endSession {
		quiet.epoch = p.holder.Epoch
		p.endSession()
		// It goes on before the next one owns, while that one waits out its
		// calls, or while that one sends.
		time.Sleep(p.upTo(4 * time.Second))
	}
	quiet.to = monotonic()
	p.owner.signal(syscall.SIGCONT)
	p.quiet = append(p.quiet, quiet)
	if endSession {
		p.awaitChange()
	} else {
		now, err := p.ledger.EgressOwner(p.t.Context(), "demo")
		require.NoError(p.t, err)
		require.True(p.t, now.Held)
		require.Equal(p.t, p.holder.Epoch, now.Epoch, "the right to send passed on while its owner had its session")
	}
	p.requireOneEgress()
	p.t.Logf("round %d: session ended %v, new process %v, stopped for %v, epoch %d, took %v", len(p.stops), endSession, fresh,
		(quiet.to - quiet.from).Round(time.Millisecond), p.holder.Epoch, time.Since(began).Round(time.Millisecond))
}

// upTo returns a random duration under limit.
func (p *pauses) upTo(limit time.Duration) time.Duration {
	return time.Duration(p.rnd.Int64N(int64(limit)))
}

// underWay counts at how many of the instants a call was in flight, and at how
// many one had its intent and no byte of it had left.
func (s *system) underWay(instants []time.Time) (inFlight, held int) {
	s.t.Helper()
	for _, at := range instants {
		var flying, holding bool
		require.NoError(s.t, s.db.QueryRowContext(s.t.Context(), `
			SELECT COALESCE(MAX(started_at <= ?), 0), COALESCE(MAX(started_at IS NULL OR started_at > ?), 0)
			FROM provider_calls WHERE intent_at <= ? AND finished_at > ?`, at, at, at, at).Scan(&flying, &holding))
		if flying {
			inFlight++
		}
		if holding {
			held++
		}
	}
	return inFlight, held
}

// pause stops the process and returns an instant of the monotonic clock from
// which on none of its threads runs, until SIGCONT.
func (p *process) pause() time.Duration {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	for {
		// The kernel reports the stop once it is complete.
		err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED, nil)
		if !errors.Is(err, unix.EINTR) {
			require.NoError(p.t, err, "waiting for the process to stop")
			return monotonic()
		}
	}
}

// standbyLine is what a standby prints while the current owner owns.
func (p *pair) standbyLine() string {
	return fmt.Sprintf("egress: standby (held by %s, epoch %d)", p.holder.Holder, p.holder.Epoch)
}

// last returns the latest line of stdout.
func (p *process) last() string {
	if all := p.lines(); len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// waitForLast waits until the latest line of stdout is this one.
func (p *process) waitForLast(line string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.last() == line }, 30*time.Second, 20*time.Millisecond, "no line %q", line)
}

// owns tells whether the process is the holder of that name.
func (p *process) owns(holder string) bool {
	return strings.HasSuffix(holder, fmt.Sprintf(":%d", p.cmd.Process.Pid))
}
