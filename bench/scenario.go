package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"refundgate/limiter"
)

// scenario is a backlog that every candidate works off.
type scenario struct {
	Interval time.Duration // between two starts, as demanded
	Calls    int           // ready at the beginning of a round
	Rounds   int
	// Dials is what the network adds to a dial; each dial draws one of them.
	Dials []time.Duration
	TLS   bool
}

// unevenDials is a network as it is: most connections to a provider are quick,
// some meet a slow resolver, a lost packet, an address far away.
var unevenDials = []time.Duration{0, 20 * time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond}

// idealDials is the loopback alone.
var idealDials = []time.Duration{0}

func (s scenario) String() string {
	over := "HTTP"
	if s.TLS {
		over = "HTTPS"
	}
	return fmt.Sprintf("%s, a start every %s, dials of %v", over, s.Interval, s.Dials)
}

// comparison is what a scenario showed, with one entry per candidate.
type comparison struct {
	scenario
	Sent, Arrived []spacing
	Repeated      int // rounds that were taken again
}

func (c *comparison) add(candidate string, sent, arrived []*starts) {
	c.Sent = append(c.Sent, measure(candidate, c.Interval, sent))
	c.Arrived = append(c.Arrived, measure(candidate, c.Interval, arrived))
}

// roundTries bounds how often a round is taken in which a call fails. One does
// when the machine stalls for as long as a connect budget.
const roundTries = 3

// round has a candidate work off the backlog for the n-th time.
func (c *comparison) round(ctx context.Context, n int, candidate string, run func(context.Context, *round) error, progress io.Writer) (*round, error) {
	for try := 1; ; try++ {
		_, _ = fmt.Fprintf(progress, "%s, round %d of %d: %s\n", c.scenario, n+1, c.Rounds, candidate)
		r, err := newRound(c.scenario, uint64(n))
		if err != nil {
			return nil, err
		}
		err = r.complete(run(ctx, r))
		if err == nil {
			return r, nil
		}
		err = fmt.Errorf("%s, %s: %w", c.scenario, candidate, err)
		if try == roundTries || ctx.Err() != nil {
			return nil, err
		}
		_, _ = fmt.Fprintf(progress, "once more, for a call failed: %v\n", err)
		c.Repeated++
	}
}

// compare lets each candidate work off the same backlog. The rounds are
// interleaved, and each begins with another candidate, so that what else the
// machine does hits all alike.
func compare(ctx context.Context, s scenario, all []candidate, progress io.Writer) (comparison, error) {
	c := comparison{scenario: s}
	sent, arrived := make([][]*starts, len(all)), make([][]*starts, len(all))
	for n := range s.Rounds {
		for i := range all {
			i = (i + n) % len(all)
			r, err := c.round(ctx, n, all[i].Name, all[i].run, progress)
			if err != nil {
				return comparison{}, err
			}
			sent[i], arrived[i] = append(sent[i], &r.sent), append(arrived[i], &r.arrived)
		}
	}
	for i, candidate := range all {
		c.add(candidate.Name, sent[i], arrived[i])
	}
	return c, nil
}

// overTLS runs the gate alone, at a rate at which no dial fits between two
// starts. Under TLS the TCP connection can't tell the request from the
// handshake, so the sending side is the gate's own stamp.
func overTLS(ctx context.Context, s scenario, progress io.Writer) (comparison, error) {
	c := comparison{scenario: s}
	var sent, arrived []*starts
	for n := range s.Rounds {
		var started *starts
		r, err := c.round(ctx, n, "the gate", func(ctx context.Context, r *round) error {
			started = &starts{}
			return gateRound(ctx, r, limiter.Events{Started: func(_ limiter.Call, p limiter.Passage) {
				started.at = append(started.at, time.Time{}.Add(p.StartedMono))
				started.cpu = append(started.cpu, cpuTime())
			}})
		}, progress)
		if err != nil {
			return comparison{}, err
		}
		sent, arrived = append(sent, started), append(arrived, &r.arrived)
	}
	c.add("the gate", sent, arrived)
	return c, nil
}
