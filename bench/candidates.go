package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"go.uber.org/ratelimit"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"refundgate/limiter"
	"refundgate/refund"
)

// candidate is one way to keep the starts of calls apart.
type candidate struct {
	Name   string
	Module string // of the library that is measured, for its version; "" for the gate
	Note   string // how it is used
	// run makes all calls of the round, which are ready from the beginning,
	// and returns when they are over. An error is a call that failed.
	run func(ctx context.Context, r *round) error
}

// candidates returns what is compared, the gate first.
func candidates(server *temporalServer) []candidate {
	return []candidate{
		{
			Name: "the gate",
			Note: "package `limiter`, each call through `Gate.Do`",
			run:  throughGate,
		},
		{ // the limiter that Go programs use unless there is a reason not to
			Name: "x/time/rate", Module: "golang.org/x/time",
			Note: "`rate.NewLimiter` with burst 1, `Wait` before each request",
			run: withPermits(func(interval time.Duration) acquire {
				return rate.NewLimiter(rate.Every(interval), 1).Wait
			}),
		},
		{ // made for even spacing; its slack, the default, would allow bursts
			Name: "uber/ratelimit", Module: "go.uber.org/ratelimit",
			Note: "`WithoutSlack`, `Take` before each request",
			run: withPermits(func(interval time.Duration) acquire {
				limiter := ratelimit.New(1, ratelimit.Per(interval), ratelimit.WithoutSlack)
				return func(context.Context) error {
					limiter.Take()
					return nil
				}
			}),
		},
		{ // the resilience library that would bring retries and a breaker along
			Name: "failsafe-go", Module: "github.com/failsafe-go/failsafe-go",
			Note: "`ratelimiter.NewSmoothWithMaxRate`, `AcquirePermit` before each request",
			run: withPermits(func(interval time.Duration) acquire {
				return ratelimiter.NewSmoothWithMaxRate[any](interval).AcquirePermit
			}),
		},
		// What Temporal has on board, the first thing to reach for here.
		{
			Name: "Temporal, queue", Module: "go.temporal.io/sdk",
			Note: "`TaskQueueActivitiesPerSecond`, one worker, the default partitions, each call an activity",
			run:  server.throughTaskQueue,
		},
		{
			Name: "Temporal, worker", Module: "go.temporal.io/sdk",
			Note: "`WorkerActivitiesPerSecond`, otherwise the same",
			run:  server.throughWorker,
		},
	}
}

// throughGate sends the calls as the product does, half of them in each group.
func throughGate(ctx context.Context, r *round) error {
	return gateRound(ctx, r, limiter.Events{})
}

func gateRound(ctx context.Context, r *round, events limiter.Events) error {
	gate, err := limiter.New(limiter.Config{
		Target: r.target, Interval: r.Interval, MaxInFlight: maxInFlight,
		ConnectTimeout: connectTimeout, CallTimeout: callTimeout,
		TLS: r.tls, Dial: r.dial, Events: events,
	})
	if err != nil {
		return err
	}
	accepted := time.Now()
	calls, callsCtx := errgroup.WithContext(ctx)
	for i := range r.Calls {
		calls.Go(func() error {
			group := refund.GroupFirst
			if i%2 == 1 {
				group = refund.GroupFollowUp
			}
			var sendErr error
			_, err := gate.Do(callsCtx, limiter.Call{
				Key:        refund.CallKey{RefundID: fmt.Sprintf("r-%d", i), Generation: 1, Kind: refund.KindSubmit, Seq: 1},
				Group:      group,
				AcceptedAt: accepted.Add(time.Duration(i)),
				Intent:     func(context.Context) error { return nil },
				Send:       func(ctx context.Context, t *limiter.Ticket) { sendErr = r.post(ctx, t.RoundTrip) },
			})
			if err != nil {
				return err
			}
			return sendErr
		})
	}
	return errors.Join(calls.Wait(), gate.Close(ctx))
}

// acquire returns when the caller may go.
type acquire func(context.Context) error

// withPermits runs the calls as a limiter's documentation shows it: of all
// that wait, ten at a time take a permit and then make their request.
func withPermits(newLimiter func(interval time.Duration) acquire) func(context.Context, *round) error {
	return func(ctx context.Context, r *round) error {
		permit, client := newLimiter(r.Interval), r.client()
		calls, ctx := errgroup.WithContext(ctx)
		calls.SetLimit(maxInFlight)
		for range r.Calls {
			calls.Go(func() error {
				if err := permit(ctx); err != nil {
					return err
				}
				return r.post(ctx, client.Do)
			})
		}
		return calls.Wait()
	}
}
