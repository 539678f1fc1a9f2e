package limiter

import (
	"container/heap"
	"slices"

	"refundgate/refund"
)

// waiter is one call inside the gate. All fields but call are guarded by the
// gate's lock until turn or failed is closed.
type waiter struct {
	call   Call
	serial uint64 // arrival; breaks ties of AcceptedAt
	index  int    // in the heap, or -1
	prep   *preparation
	dials  int // connections opened for it so far
	// generation is the breaker's, from the call's turn on.
	generation uint64
	turn       chan struct{} // closed when the call is next
	failed     chan struct{} // closed when it can't be sent; err says why
	err        *NotSentError
}

func (w *waiter) before(other *waiter) bool {
	if c := w.call.AcceptedAt.Compare(other.call.AcceptedAt); c != 0 {
		return c < 0
	}
	return w.serial < other.serial
}

// ready tells whether the call has a connection that still stands.
func (w *waiter) ready() bool {
	return w.prep != nil && w.prep.client != nil && w.prep.client.Err() == nil
}

// room is the waiting room: two lines, one per group.
type room struct {
	lines  [2]line
	serial uint64
	last   refund.Group // the group that was served last
}

func (r *room) init(window int) {
	for i := range r.lines {
		r.lines[i].window = window
	}
	r.last = refund.GroupFollowUp // so that first attempts have the first turn
}

func (r *room) line(g refund.Group) *line {
	if g == refund.GroupFirst {
		return &r.lines[0]
	}
	return &r.lines[1]
}

// order returns the lines in the order in which they may take the next turn.
func (r *room) order() [2]*line {
	if r.last == refund.GroupFirst {
		return [2]*line{&r.lines[1], &r.lines[0]}
	}
	return [2]*line{&r.lines[0], &r.lines[1]}
}

func (r *room) add(w *waiter) {
	r.serial++
	w.serial = r.serial
	r.line(w.call.Group).add(w)
}

// remove takes w out wherever it is and drops its preparation, unless its
// turn has come; it may be called again.
func (r *room) remove(w *waiter) { r.line(w.call.Group).remove(w) }

// fail lets w leave with the reason why it can't be sent.
func (r *room) fail(w *waiter, err *NotSentError) {
	r.remove(w)
	w.err = err
	close(w.failed)
}

func (r *room) failAll(err *NotSentError) {
	for i := range r.lines {
		for w := r.lines[i].head(); w != nil; w = r.lines[i].head() {
			r.fail(w, err)
		}
	}
}

// pick returns the call whose turn it is, or nil. The head of the line whose
// turn it is goes; while strict, nobody may go instead of a head that is
// still dialling. Otherwise the turn falls to the earliest prepared call, so
// that one slow connection can't cost the account a slot.
func (r *room) pick(strict bool) *waiter {
	for _, l := range r.order() {
		head := l.head()
		if head == nil {
			continue
		}
		if head.ready() {
			return head
		}
		if strict {
			return nil
		}
		if i := slices.IndexFunc(l.front, (*waiter).ready); i >= 0 {
			return l.front[i]
		}
	}
	return nil
}

// pickCheck returns the earliest prepared check, or nil: a breaker's probes
// ask rather than send, where there is something to ask.
func (r *room) pickCheck() *waiter {
	front := r.line(refund.GroupFollowUp).front
	i := slices.IndexFunc(front, func(w *waiter) bool { return w.call.Key.Kind == refund.KindCheck && w.ready() })
	if i < 0 {
		return nil
	}
	return front[i]
}

// take removes w for its turn; its preparation stays with it.
func (r *room) take(w *waiter) {
	l := r.line(w.call.Group)
	l.front = slices.DeleteFunc(l.front, func(x *waiter) bool { return x == w })
	r.last = w.call.Group
}

// line is one group's calls, earliest accepted first: a short sorted front
// whose calls are being prepared, and a heap behind it. Every operation costs
// O(log n) in the number waiting.
type line struct {
	window int // bound of front
	front  []*waiter
	back   waiterHeap
}

func (l *line) len() int { return len(l.front) + len(l.back) }

// ahead counts the calls of the line before the one with the given key.
func (l *line) ahead(key refund.CallKey) (int, bool) {
	if i := slices.IndexFunc(l.front, func(w *waiter) bool { return w.call.Key == key }); i >= 0 {
		return i, true
	}
	i := slices.IndexFunc(l.back, func(w *waiter) bool { return w.call.Key == key })
	if i < 0 {
		return 0, false
	}
	n := len(l.front)
	for _, w := range l.back {
		if w.before(l.back[i]) {
			n++
		}
	}
	return n, true
}

func (l *line) head() *waiter {
	if len(l.front) > 0 {
		return l.front[0]
	}
	if len(l.back) > 0 {
		return l.back[0]
	}
	return nil
}

func (l *line) add(w *waiter) {
	w.index = -1
	if n := len(l.front); n > 0 && w.before(l.front[n-1]) {
		l.insertFront(w)
		if len(l.front) > l.window {
			last := l.front[len(l.front)-1]
			l.front = l.front[:len(l.front)-1]
			last.dropPreparation()
			heap.Push(&l.back, last)
		}
		return
	}
	heap.Push(&l.back, w)
}

func (l *line) insertFront(w *waiter) {
	i, _ := slices.BinarySearchFunc(l.front, w, func(a, b *waiter) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	l.front = slices.Insert(l.front, i, w)
}

// advance moves calls from the back to the front while there is room there.
func (l *line) advance() {
	for len(l.front) < l.window && len(l.back) > 0 {
		l.front = append(l.front, heap.Pop(&l.back).(*waiter))
	}
}

func (l *line) remove(w *waiter) {
	if w.index >= 0 {
		heap.Remove(&l.back, w.index)
		return
	}
	if i := slices.Index(l.front, w); i >= 0 {
		l.front = slices.Delete(l.front, i, i+1)
		w.dropPreparation()
	}
}

// waiterHeap orders waiters for container/heap, earliest accepted on top.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *waiterHeap) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

func (h *waiterHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.index = -1
	return w
}
