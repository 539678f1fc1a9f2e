package standin

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Request is one entry of the wire record. Times in nanoseconds are readings
// of the host's CLOCK_MONOTONIC, comparable between processes of one boot.
type Request struct {
	Number int `json:"number"` // counts from 1 in order of arrival
	// Connection numbers the TCP connections in order of acceptance.
	Connection int `json:"connection"`
	// ConnectionMonoNS is when the connection's first byte was read.
	ConnectionMonoNS int64 `json:"connection_first_byte_mono_ns"`
	// ArrivedMonoNS is when the request's first byte was read.
	ArrivedMonoNS int64     `json:"arrived_mono_ns"`
	ArrivedAt     time.Time `json:"arrived_at"`
	// InFlight counts the requests without an answer at the arrival, this one
	// included.
	InFlight   int    `json:"in_flight"`
	Proto      string `json:"proto"`
	Method     string `json:"method"`
	Path       string `json:"path"` // with the query
	Key        string `json:"idempotency_key,omitempty"`
	Reference  string `json:"reference,omitempty"`
	BodySHA256 string `json:"body_sha256"`
	BodyBytes  int    `json:"body_bytes"`
	Fault      Kind   `json:"fault,omitempty"`
	// Executed: this request created the refund.
	Executed bool `json:"executed"`
	// Replayed: the key was known and its first answer was used again.
	Replayed bool `json:"replayed"`
	// Answer is what the client got.
	Answer AnswerKind `json:"answer"`
	// Status is the HTTP status that was sent, 0 if none.
	Status int `json:"status,omitempty"`
	// FinishedMonoNS is when the answer was handed to the socket or given up;
	// 0 while the request waits.
	FinishedMonoNS int64 `json:"finished_mono_ns,omitempty"`
}

// AnswerKind says how a request ended.
type AnswerKind string

const (
	AnswerWaiting    AnswerKind = "waiting"     // not over yet
	AnswerSent       AnswerKind = "sent"        // a whole answer
	AnswerPartial    AnswerKind = "partial"     // a part, then the end of the stream
	AnswerReset      AnswerKind = "reset"       // a part or nothing, then RST
	AnswerDropped    AnswerKind = "dropped"     // closed without a byte
	AnswerClientGone AnswerKind = "client_gone" // the client gave up first
)

// record is the list of requests, safe for concurrent use.
type record struct {
	mu       sync.Mutex
	requests []*Request
	number   int
	inFlight int
	arrived  chan struct{} // closed and replaced at each arrival
}

func newRecord() *record { return &record{arrived: make(chan struct{})} }

// add numbers the request and puts it on record.
func (r *record) add(req Request) *Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number++
	r.inFlight++
	req.Number, req.InFlight, req.Answer = r.number, r.inFlight, AnswerWaiting
	r.requests = append(r.requests, &req)
	close(r.arrived)
	r.arrived = make(chan struct{})
	return &req
}

// update changes an entry.
func (r *record) update(req *Request, change func(*Request)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(req)
}

// finish says how the request ended; the first word counts.
func (r *record) finish(req *Request, kind AnswerKind, status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.Answer != AnswerWaiting {
		return
	}
	req.Answer, req.Status, req.FinishedMonoNS = kind, status, monotonic()
	r.inFlight--
}

func (r *record) list() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.copy()
}

func (r *record) copy() []Request {
	list := make([]Request, len(r.requests))
	for i, req := range r.requests {
		list[i] = *req
	}
	// Two handlers may get here in another order than their first bytes did.
	slices.SortStableFunc(list, func(a, b Request) int {
		return cmp.Compare(a.ArrivedMonoNS, b.ArrivedMonoNS)
	})
	return list
}

// wait returns the record once it holds n requests or ctx has ended.
func (r *record) wait(ctx context.Context, n int) []Request {
	for {
		r.mu.Lock()
		list, arrived := r.copy(), r.arrived
		r.mu.Unlock()
		if len(list) >= n {
			return list
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return list
		}
	}
}

// clear empties the record and starts the numbers again.
func (r *record) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests, r.number = nil, 0
}

// conn stamps the first byte of the connection and of each request. The next
// request's first byte is the first one read after the previous request's body
// has ended; clients don't pipeline.
type conn struct {
	net.Conn
	number int

	mu      sync.Mutex
	first   int64 // monotonic; 0: nothing read yet
	request int64 // monotonic; 0: the next byte starts a request
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.mu.Lock()
		if c.request == 0 {
			c.request = monotonic()
			if c.first == 0 {
				c.first = c.request
			}
		}
		c.mu.Unlock()
	}
	return n, err
}

// ended notes that the current request has been read to its end, and returns
// when the connection's and the request's first bytes came.
func (c *conn) ended() (first, request int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, request = c.first, c.request
	c.request = 0
	return first, request
}

// reset closes the connection with RST instead of FIN.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only on a dead socket
	}
	_ = c.Close()
}

// listener numbers the connections.
type listener struct {
	net.Listener
	mu     sync.Mutex
	number int
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	return &conn{Conn: c, number: l.number}, nil
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

func connOf(ctx context.Context) *conn {
	return ctx.Value(connKey{}).(*conn)
}

// monotonic reads CLOCK_MONOTONIC in nanoseconds. Go's own monotonic readings
// can't be compared between processes.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("reading CLOCK_MONOTONIC: %v", err)) // no such kernel
	}
	return ts.Nano()
}
