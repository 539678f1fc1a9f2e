package limiter

import (
	"container/heap"
	"iter"
	"slices"
	"time"

	"refundgate/refund"
)

// waiter is one call inside the gate. All fields but call are guarded by the
// gate's lock until turn or failed is closed.
type waiter struct {
	call   Call
	serial uint64 // arrival; breaks ties of AcceptedAt
	index  int    // in the heap, or -1
	prep   *preparation
	// rehearsed: it needs no connection, for nothing will be sent.
	rehearsed bool
	deaths    int // how many of its connections were closed before its turn
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
	return w.rehearsed || (w.prep != nil && w.prep.client != nil && w.prep.client.Err() == nil)
}

// room is the waiting room: for each group a line per kind of call.
type room struct {
	first, followUp lines
	last            refund.Group // the group that was served last
	serial          uint64
	waiting         map[refund.CallKey]*waiter
}

func (r *room) init(e *endpoints) {
	for i := range e {
		r.first[i].endpoint, r.followUp[i].endpoint = &e[i], &e[i]
	}
	r.last = refund.GroupFollowUp // so that first attempts have the first turn
	r.waiting = map[refund.CallKey]*waiter{}
}

func (r *room) group(g refund.Group) *lines {
	if g == refund.GroupFirst {
		return &r.first
	}
	return &r.followUp
}

func (r *room) line(c Call) *line {
	if c.Key.Kind == refund.KindCheck {
		return &r.group(c.Group)[1]
	}
	return &r.group(c.Group)[0]
}

// all goes through the lines in the order in which they may take the next
// turn.
func (r *room) all() iter.Seq[*line] {
	return func(yield func(*line) bool) {
		for _, g := range r.order() {
			for i := range g {
				if !yield(&g[i]) {
					return
				}
			}
		}
	}
}

// order returns the groups in the order in which they may take the next turn.
func (r *room) order() [2]*lines {
	if r.last == refund.GroupFirst {
		return [2]*lines{&r.followUp, &r.first}
	}
	return [2]*lines{&r.first, &r.followUp}
}

func (r *room) add(w *waiter) {
	r.serial++
	w.serial = r.serial
	r.waiting[w.call.Key] = w
	r.line(w.call).add(w)
}

// remove takes w out wherever it is and drops its preparation, unless its
// turn has come; it may be called again.
func (r *room) remove(w *waiter) {
	r.forget(w)
	r.line(w.call).remove(w)
}

func (r *room) forget(w *waiter) {
	if r.waiting[w.call.Key] == w { // not a later call of the same key
		delete(r.waiting, w.call.Key)
	}
}

// fail lets w leave with the reason why it can't be sent.
func (r *room) fail(w *waiter, err *NotSentError) {
	r.remove(w)
	w.err = err
	close(w.failed)
}

func (r *room) failAll(err *NotSentError) {
	for l := range r.all() {
		for w := l.head(); w != nil; w = l.head() {
			r.fail(w, err)
		}
	}
}

// pick returns the call whose turn it is to start at the given slot, or nil.
// The head of the group whose turn it is goes, leaving out kinds that have
// used up their own limit; while strict, nobody may go instead of a head that
// is still dialling. Otherwise the turn falls to the earliest prepared call, so
// that one slow connection can't cost the account a slot.
func (r *room) pick(slot time.Duration, strict bool) *waiter {
	for _, g := range r.order() {
		head := g.earliest(slot, (*line).head)
		if head == nil {
			continue
		}
		if strict && !head.ready() {
			return nil
		}
		if w := g.earliest(slot, (*line).headReady); w != nil {
			return w
		}
	}
	return nil
}

// pickCheck returns the earliest prepared check that may start at the slot, or
// nil.
func (r *room) pickCheck(slot time.Duration) *waiter {
	for _, g := range r.order() {
		if checks := &g[1]; checks.open(slot) {
			if w := checks.headReady(); w != nil {
				return w
			}
		}
	}
	return nil
}

// opens returns when the first call that waits only for the interval of its own
// kind may start, or never. Kinds that are open at the given slot wait for
// something else.
func (r *room) opens(slot time.Duration) time.Duration {
	at := never
	for l := range r.all() {
		if l.len() > 0 && l.endpoint.free() && l.endpoint.nextStart > slot {
			at = min(at, l.endpoint.nextStart)
		}
	}
	return at
}

// take removes w for its turn; its preparation stays with it.
func (r *room) take(w *waiter) {
	r.forget(w)
	l := r.line(w.call)
	l.front = slices.DeleteFunc(l.front, func(x *waiter) bool { return x == w })
	r.last = w.call.Group
}

// ahead counts the calls that go before the one with the given key, up to
// limit: those of its group that were accepted earlier, and of the other group
// as many, for the two take turns.
func (r *room) ahead(key refund.CallKey, limit int) (int, bool) {
	w, ok := r.waiting[key]
	if !ok {
		return 0, false
	}
	own, other := &r.first, &r.followUp
	if w.call.Group != refund.GroupFirst {
		own, other = other, own
	}
	n := 0
	for i := range own {
		n += own[i].before(w, limit-n)
	}
	return min(n+min(n, other.len()), limit), true
}

// lines are one group's calls: those that submit and those that check.
type lines [2]line

func (g *lines) len() int { return g[0].len() + g[1].len() }

// earliest returns the earliest accepted of the calls that the given function
// finds in the lines that are open at the slot, or nil.
func (g *lines) earliest(slot time.Duration, of func(*line) *waiter) *waiter {
	var first *waiter
	for i := range g {
		if !g[i].open(slot) {
			continue
		}
		if w := of(&g[i]); w != nil && (first == nil || w.before(first)) {
			first = w
		}
	}
	return first
}

// line is the calls of one kind in one group, earliest accepted first: a short
// sorted front whose calls are being prepared, and a heap behind it. Every
// operation on the way to a start costs O(log n) in the number waiting.
type line struct {
	endpoint *endpoint
	front    []*waiter // at most dialAhead
	back     waiterHeap
}

func (l *line) len() int { return len(l.front) + len(l.back) }

// open tells whether the kind's own limit lets a call start at the given slot.
func (l *line) open(slot time.Duration) bool {
	return l.endpoint.free() && l.endpoint.nextStart <= slot
}

// before counts the calls that go before w, up to limit.
func (l *line) before(w *waiter, limit int) int {
	n := 0
	for _, x := range l.front {
		if x.before(w) {
			n++
		}
	}
	if n >= limit {
		return limit
	}
	return n + l.back.before(w, 0, limit-n)
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

// headReady returns the earliest call that has its connection, or nil.
func (l *line) headReady() *waiter {
	if i := slices.IndexFunc(l.front, (*waiter).ready); i >= 0 {
		return l.front[i]
	}
	return nil
}

func (l *line) add(w *waiter) {
	w.index = -1
	if n := len(l.front); n > 0 && w.before(l.front[n-1]) {
		l.insertFront(w)
		if len(l.front) > dialAhead {
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
	for len(l.front) < dialAhead && len(l.back) > 0 {
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

// before counts the calls of the subtree at i that go before w, up to limit. A
// call that doesn't ends the search below it, so this costs O(limit).
func (h waiterHeap) before(w *waiter, i, limit int) int {
	if limit == 0 || i >= len(h) || !h[i].before(w) {
		return 0
	}
	n := 1
	for child := 2*i + 1; child <= 2*i+2; child++ {
		n += h.before(w, child, limit-n)
	}
	return n
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
