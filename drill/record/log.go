package record

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"refundgate/internal/telemetry"
	"refundgate/refund"
)

// Log collects the transport record from what worker processes log. It is safe
// for concurrent use.
type Log struct {
	account string

	mu       sync.Mutex
	starts   []Start
	finishes []Finish
	tenures  []Tenure
	hidden   int
	killed   int
	breaker  []Transition
	unread   []string // lines that tell of a call and can't be read
}

// Transition is a change of the circuit breaker's state.
type Transition struct {
	At       time.Time
	From, To string
}

// NewLog returns an empty log of the account's calls.
func NewLog(account string) *Log { return &Log{account: account} }

// line has the attributes of the events that are collected.
type line struct {
	Time    time.Time      `json:"time"`
	Event   string         `json:"event"`
	Account string         `json:"account"`
	CallKey string         `json:"call_key"`
	Origin  refund.Origin  `json:"origin"`
	Mono    time.Duration  `json:"started_mono_ns"`
	Flight  int            `json:"in_flight"`
	Outcome refund.Outcome `json:"outcome"`
	Code    string         `json:"code"`
	Millis  int64          `json:"duration_ms"`
	Epoch   int64          `json:"epoch"`
	From    string         `json:"from"`
	To      string         `json:"to"`
}

// Add takes a line that the process has logged, read at that instant of
// CLOCK_MONOTONIC. What isn't an event of the account's calls is ignored.
func (l *Log) Add(process string, read time.Duration, raw []byte) {
	var in line
	if json.Unmarshal(raw, &in) != nil || in.Account != l.account {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch in.Event {
	case telemetry.EventCallStarted, telemetry.EventCallFinished:
		key, err := parseKey(in.CallKey)
		switch {
		case err != nil:
			l.unread = append(l.unread, string(raw))
		case in.Event == telemetry.EventCallStarted:
			l.starts = append(l.starts, Start{Key: key, Origin: in.Origin, Mono: in.Mono, InFlight: in.Flight, Process: process})
		default:
			l.finishes = append(l.finishes, Finish{Key: key, Duration: time.Duration(in.Millis) * time.Millisecond, Outcome: in.Outcome, Code: in.Code})
		}
	case telemetry.EventHiddenRetryBlocked:
		l.hidden++
	case telemetry.EventOwnerAcquired:
		l.tenures = append(l.tenures, Tenure{Process: process, Epoch: in.Epoch, Since: read})
	case telemetry.EventOwnerLost:
		l.end(process, read)
	case telemetry.EventBreakerTransition:
		l.breaker = append(l.breaker, Transition{At: in.Time, From: in.From, To: in.To})
	}
}

// Ended notes that the process has ended, and whether kill -9 did it.
func (l *Log) Ended(process string, at time.Duration, killed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(process, at)
	if killed {
		l.killed++
	}
}

func (l *Log) end(process string, at time.Duration) {
	for i := range l.tenures {
		if t := &l.tenures[i]; t.Process == process && t.Until == 0 {
			t.Until = at
		}
	}
}

// Starts returns how many calls have started.
func (l *Log) Starts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.starts)
}

// Rate returns how many calls per second started within the span before now.
func (l *Log) Rate(now, span time.Duration) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for i := len(l.starts) - 1; i >= 0 && l.starts[i].Mono > now-span; i-- {
		n++
	}
	return float64(n) / span.Seconds()
}

// Breaker returns the breaker's changes so far.
func (l *Log) Breaker() []Transition {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.breaker)
}

// Record returns the transport's part of a record, or an error if a line could
// not be read.
func (l *Log) Record() (Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.unread) > 0 {
		return Record{}, fmt.Errorf("%d log lines about calls can't be read, such as %s", len(l.unread), l.unread[0])
	}
	starts := slices.Clone(l.starts)
	slices.SortFunc(starts, func(a, b Start) int { return int(a.Mono - b.Mono) })
	return Record{
		Starts: starts, Finishes: slices.Clone(l.finishes), Tenures: slices.Clone(l.tenures),
		Hidden: l.hidden, Killed: l.killed,
	}, nil
}

// parseKey reads refund.CallKey.String.
func parseKey(s string) (refund.CallKey, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 4 || !strings.HasPrefix(parts[1], "g") {
		return refund.CallKey{}, fmt.Errorf("%q is no call key", s)
	}
	generation, err := strconv.Atoi(parts[1][1:])
	if err != nil {
		return refund.CallKey{}, fmt.Errorf("%q is no call key", s)
	}
	seq, err := strconv.Atoi(parts[3])
	if err != nil {
		return refund.CallKey{}, fmt.Errorf("%q is no call key", s)
	}
	return refund.CallKey{RefundID: parts[0], Generation: generation, Kind: refund.CallKind(parts[2]), Seq: seq}, nil
}
