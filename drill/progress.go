package drill

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// progress is what is shown of a run while it lasts.
type progress struct {
	number atomic.Int32 // of the scenario that is carried out, from 0
	begun  atomic.Int64 // when it began: nanoseconds since the drill did
	mu     sync.Mutex
	doing  string
}

// say notes what is being done.
func (p *progress) say(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doing = what
}

// progressEvery is how often progress is told.
const progressEvery = 500 * time.Millisecond

// watch tells the progress until stop is called or ctx ends.
func (d *drill) watch(ctx context.Context) (stop func()) {
	if d.opts.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for tick := time.NewTicker(progressEvery); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				d.opts.Progress(d.now())
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// now returns how far the drill is.
func (d *drill) now() Progress {
	number := int(d.number.Load())
	p := Progress{Scenario: d.chosen[number].name, Number: number + 1, Of: len(d.chosen), Elapsed: monotonic() - d.origin.mono}
	d.mu.Lock()
	p.Doing = d.doing
	d.mu.Unlock()
	p.Starts, p.StartsPerSecond = d.log.Starts(), d.log.Rate(monotonic(), rateOver)
	for i, s := range d.chosen[number:] {
		p.Left += s.estimate(d.opts.Short)
		if i == 0 {
			p.Left = max(0, p.Left-(p.Elapsed-time.Duration(d.begun.Load())))
		}
	}
	return p
}

// rateOver is the time over which the starts per second are shown.
const rateOver = 5 * time.Second
