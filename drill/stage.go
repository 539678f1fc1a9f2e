package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"refundgate/drill/record"
	"refundgate/drill/report"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// stage is one scenario while it is carried out.
type stage struct {
	*system
	scenario scenario
	origin   origin
	began    time.Duration
	groups   map[string][]string // ids of the refunds, by what they are for
	all      []string
	before   []string // of the scenarios before this one
	spans    []span
	figures  []report.Figure
	say      func(what string) // shows what is being done

	// What single scenarios keep for their checks.
	listed map[string]refund.Case // with people, as the intake API lists them
	trails map[string]trail
	whole  record.Record // of the whole drill
}

// origin is the beginning of the drill on both clocks.
type origin struct {
	wall time.Time
	mono time.Duration
}

// seconds returns an instant of CLOCK_MONOTONIC on the report's axis.
func (o origin) seconds(mono time.Duration) float64 { return (mono - o.mono).Seconds() }

// wallSeconds returns an instant of the wall clock on the report's axis.
func (o origin) wallSeconds(at time.Time) float64 { return at.Sub(o.wall).Seconds() }

// size is how much of something a scenario takes: less in a short drill.
func (s *stage) size(full, short int) int {
	if s.opts.Short {
		return short
	}
	return full
}

// wait is size for a time.
func (s *stage) wait(full, short time.Duration) time.Duration {
	if s.opts.Short {
		return short
	}
	return full
}

// ids adds n refunds of a group to the scenario, without submitting them.
func (s *stage) ids(group string, n int) []string {
	var ids []string
	for range n {
		ids = append(ids, fmt.Sprintf("%s-%s-%03d", s.prefix(), group, len(s.groups[group])+len(ids)+1))
	}
	s.groups[group] = append(s.groups[group], ids...)
	s.all = append(s.all, ids...)
	return ids
}

// prefix begins the ids of the scenario's refunds. It has the run's name in it:
// a database may have seen other drills.
func (s *stage) prefix() string { return s.runName + "-" + s.scenario.name }

// match selects the requests about a group.
func (s *stage) match(group, method string) standin.Match {
	return standin.Match{Method: method, Reference: s.prefix() + "-" + group + "-*"}
}

// submit submits n refunds of a group at once.
func (s *stage) submit(ctx context.Context, group string, n int) error {
	s.say(fmt.Sprintf("submitting %d refunds (%s)", n, group))
	for _, id := range s.ids(group, n) {
		if err := s.system.submit(ctx, s.intake, id); err != nil {
			return err
		}
	}
	return nil
}

// trickle submits refunds of a group one by one, perSecond, until done says so.
func (s *stage) trickle(ctx context.Context, group string, perSecond float64, done func() (bool, error)) error {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for next := time.Now(); ; {
		if over, err := done(); over || err != nil {
			return err
		}
		if err := s.alive(); err != nil {
			return err
		}
		if !time.Now().Before(next) {
			next = next.Add(time.Duration(float64(time.Second) / perSecond))
			if err := s.system.submit(ctx, s.intake, s.ids(group, 1)[0]); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
		}
	}
}

// besides submits refunds that go well until those of the group are closed or
// with people. Among them the others' failures don't open the circuit breaker.
func (s *stage) besides(ctx context.Context, group string) error {
	s.say(fmt.Sprintf("waiting for the refunds (%s), among others that go well", group))
	waiting := slices.Clone(s.groups[group])
	err := s.trickle(ctx, "fine", 3, func() (bool, error) {
		for len(waiting) > 0 {
			c, err := s.ledger.Case(ctx, waiting[0])
			if err != nil || (c.Open() && c.Status != refund.StatusReview) {
				return false, err
			}
			waiting = waiting[1:]
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	return s.settle(ctx)
}

// settleLimit bounds the wait for open cases: the longest that any scenario
// takes is a backlog that the budget drains within two minutes, after a breaker
// that was open.
const settleLimit = 5 * time.Minute

// settle waits until no case is open but those that are with people.
func (s *stage) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, fmt.Errorf("cases are still open after %s", settleLimit))
	defer cancel()
	return s.until(ctx, "waiting for the refunds to settle", func() (bool, error) {
		load, err := s.ledger.Load(ctx, s.account, time.Now())
		return load.Open == 0, err
	})
}

// until waits for a condition, with an eye on the processes.
func (s *stage) until(ctx context.Context, what string, holds func() (bool, error)) error {
	s.say(what)
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		ok, err := holds()
		if ok || (err != nil && ctx.Err() == nil) {
			return err
		}
		if err := s.alive(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// pause lets time pass.
func (s *stage) pause(ctx context.Context, what string, d time.Duration) error {
	end := time.Now().Add(d)
	return s.until(ctx, what, func() (bool, error) { return !time.Now().Before(end), nil })
}

// received waits until the provider has received n requests that count.
func (s *stage) received(ctx context.Context, what string, n int, counts func(standin.Request) bool) error {
	return s.until(ctx, what, func() (bool, error) {
		wire, err := s.provider.Record(ctx)
		got := 0
		for _, q := range wire {
			if q.ArrivedMonoNS >= int64(s.began) && counts(q) {
				got++
			}
		}
		return got >= n, err
	})
}

// span is a part of the scenario that explains what is seen in it.
type span struct {
	label    string
	from, to time.Duration // of CLOCK_MONOTONIC
}

// window notes a span.
func (s *stage) window(label string, from, to time.Duration) {
	s.spans = append(s.spans, span{label, from, to})
}

// windowOf returns the span that was noted under the label.
func (s *stage) windowOf(label string) span {
	for _, w := range s.spans {
		if w.label == label {
			return w
		}
	}
	return span{}
}

// during sets the provider's plan for as long as do takes, and notes the window.
func (s *stage) during(ctx context.Context, label string, do func() error, rules ...standin.Rule) error {
	if err := s.provider.SetPlan(ctx, rules...); err != nil {
		return err
	}
	from := monotonic()
	err := do()
	s.window(label, from, monotonic())
	return errors.Join(err, s.provider.SetPlan(ctx))
}

func (s *stage) figure(name string, value float64, unit string) {
	s.figures = append(s.figures, report.Figure{Name: name, Value: value, Unit: unit})
}

// since returns the record of everything since the scenario began.
func (s *stage) since(ctx context.Context) (record.Record, error) {
	r, err := s.record(ctx, s.all)
	return r.Since(s.began, s.all), err
}

// in returns the record's starts within a span.
func startsIn(r record.Record, from, to time.Duration) []record.Start {
	return slices.DeleteFunc(slices.Clone(r.Starts), func(st record.Start) bool { return st.Mono < from || st.Mono > to })
}

// cases returns the record's cases of a group.
func (s *stage) cases(r record.Record, group string) []refund.Case {
	var found []refund.Case
	for _, c := range r.Cases {
		if slices.Contains(s.groups[group], c.Refund.ID) {
			found = append(found, c)
		}
	}
	return found
}
