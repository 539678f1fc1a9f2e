package drill

import (
	"context"
	"fmt"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/provider/standin"
)

var outage = scenario{
	name: "outage", requirement: "G7", title: "After an outage the oldest case gets younger, with refunds coming in all the time",
	story: `Refunds come in steadily. For a while every answer of the provider comes too late: calls time out, the
circuit breaker opens, refunds wait. Once the provider is well again the age of the oldest open case has to fall
until it is down to a moment, while as many refunds come in as before.`,
	full: 110 * time.Second, short: 80 * time.Second,
	run: runOutage, checks: checkOutage,
}

const (
	outageInflow = 2 // refunds per second
	// outageYoung is the age that the oldest case has to come down to.
	outageYoung = 5 * time.Second
	// outageWindow is the time over which its age is compared.
	outageWindow = 5 * time.Second
	outageLabel  = "every answer too late"
)

func runOutage(ctx context.Context, s *stage) error {
	late := s.limits().CallTimeout + 500*time.Millisecond
	if err := s.provider.SetPlan(ctx, standin.Rule{Fault: standin.Fault{Kind: standin.Delay, DelayMS: late.Milliseconds()}}); err != nil {
		return err
	}
	from, length := monotonic(), s.wait(20*time.Second, 12*time.Second)
	over := false
	s.say("the provider is too slow, refunds come in")
	err := s.trickle(ctx, "in", outageInflow, func() (bool, error) {
		switch {
		case !over && monotonic() < from+length:
			return false, nil
		case !over:
			over = true
			s.window(outageLabel, from, monotonic())
			s.say("the provider is well again, refunds come in as before")
			return false, s.provider.SetPlan(ctx)
		case monotonic() > from+length+settleLimit:
			return true, nil // the check says that it didn't
		}
		age, err := s.oldest(ctx)
		return age < outageYoung/2, err
	})
	if err != nil {
		return err
	}
	return s.settle(ctx)
}

// oldest is the age of the oldest case that is neither closed nor with people.
func (s *stage) oldest(ctx context.Context) (time.Duration, error) {
	dues, err := s.ledger.OpenCases(ctx)
	if err != nil {
		return 0, err
	}
	now, oldest := time.Now(), time.Duration(0)
	for _, d := range dues {
		if d.Account == s.account && d.Status != "review" {
			oldest = max(oldest, now.Sub(d.Oldest))
		}
	}
	return oldest, nil
}

func checkOutage(s *stage, r record.Record) []report.Check {
	falls := report.NewCheck("age-falls", fmt.Sprintf("from %s to %s after the recovery the oldest case gets younger, until it is under %s old", outageWindow, outageWindow, outageYoung))
	begin := s.recovery()
	end := s.origin.wallSeconds(lastAccepted(r))
	ages := s.ages(r)
	var highest []float64 // per window
	for _, a := range ages {
		if a.At < begin || a.At > end {
			continue
		}
		i := int((a.At - begin) / outageWindow.Seconds())
		for len(highest) <= i {
			highest = append(highest, 0)
		}
		highest[i] = max(highest[i], a.Seconds)
	}
	falls.Require(len(highest) > 0, "no refund came in after the recovery")
	for i := 1; i < len(highest); i++ {
		falls.Require(highest[i] < highest[i-1] || highest[i] < outageYoung.Seconds(),
			"%d s after the recovery it was %.1f s old, and %.1f s before that", i*int(outageWindow.Seconds()), highest[i], highest[i-1])
	}
	first, last := 0.0, 0.0
	if n := len(highest); n > 0 {
		first, last = highest[0], highest[n-1]
	}
	falls.Require(last < outageYoung.Seconds(), "it was still %.1f s old at the end", last)
	s.figure("oldest case at the recovery", first, "s")
	s.figure("oldest case at the end", last, "s")
	s.figure("from the recovery to there", end-begin, "s")
	return []report.Check{falls.Judged("from %.1f s to %.1f s within %.0f s, with %d refunds/s coming in", first, last, end-begin, outageInflow)}
}

// recovery is when calls went out again after the outage, in the report's time:
// its end, or when the breaker closed.
func (s *stage) recovery() float64 {
	w := s.windowOf(outageLabel)
	at := s.origin.seconds(w.to)
	for _, t := range s.log.Breaker() {
		if t.To == "closed" {
			at = max(at, s.origin.wallSeconds(t.At))
		}
	}
	return at
}

func lastAccepted(r record.Record) (at time.Time) {
	for _, c := range r.Cases {
		if c.AcceptedAt.After(at) {
			at = c.AcceptedAt
		}
	}
	return at
}
