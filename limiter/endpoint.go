package limiter

import (
	"errors"
	"fmt"
	"time"

	"refundgate/refund"
)

// EndpointLimit is the share of an account's budget that calls of one kind may
// use. It holds under the account's total, never instead of it. Zero values
// mean no limit but the account's.
type EndpointLimit struct {
	// Interval is the least time between two starts of this kind. It is no
	// shorter than the account's.
	Interval time.Duration
	// MaxInFlight bounds the calls of this kind between first Write and closed
	// socket. It is no more than the account's.
	MaxInFlight int
}

// endpoint is what calls of one kind use of the account's budget. The gate's
// lock guards it.
type endpoint struct {
	limit     EndpointLimit
	nextStart time.Duration // earliest next start of this kind on the clock
	inFlight  int
}

// free tells whether one more call of this kind may be in flight.
func (e *endpoint) free() bool {
	return e.limit.MaxInFlight == 0 || e.inFlight < e.limit.MaxInFlight
}

// started takes a place in the kind's schedule for a call that left at now.
func (e *endpoint) started(now time.Duration) { e.nextStart = now + e.limit.Interval }

// endpoints holds one endpoint per kind of call.
type endpoints [2]endpoint

func (e *endpoints) of(k refund.CallKind) *endpoint {
	if k == refund.KindCheck {
		return &e[1]
	}
	return &e[0]
}

// set takes over the configured limits, which must lie under the account's.
func (e *endpoints) set(cfg Config) error {
	for kind, limit := range cfg.Endpoints {
		switch {
		case kind != refund.KindSubmit && kind != refund.KindCheck:
			return fmt.Errorf("limiter: there is no endpoint for calls of kind %q", kind)
		case limit.Interval < 0 || limit.MaxInFlight < 0:
			return errors.New("limiter: budgets must be positive")
		case limit.Interval > 0 && limit.Interval < cfg.Interval, limit.MaxInFlight > cfg.MaxInFlight:
			return fmt.Errorf("limiter: the limit of kind %q is above the account's", kind)
		}
		e.of(kind).limit = limit
	}
	return nil
}
