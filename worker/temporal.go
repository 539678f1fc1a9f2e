package worker

import (
	"context"
	"log/slog"
	"time"

	"go.temporal.io/sdk/client"
)

// reachEvery is how often an unreachable Temporal is tried again.
const reachEvery = 2 * time.Second

// awaitTemporal waits until Temporal answers, so that processes may start in
// any order. It returns false if ctx ends first.
func awaitTemporal(ctx context.Context, c client.Client, log *slog.Logger) bool {
	for waiting := false; ; waiting = true {
		attempt, cancel := context.WithTimeout(ctx, reachEvery)
		_, err := c.CheckHealth(attempt, &client.CheckHealthRequest{})
		cancel()
		if err == nil {
			return true
		}
		if !waiting && ctx.Err() == nil {
			log.WarnContext(ctx, "Temporal can't be reached; waiting for it", "error", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(reachEvery):
		}
	}
}
