package standin

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind names a misbehaviour; the package comment describes each.
type Kind string

// The kinds of Fault.
const (
	Delay            Kind = "delay"
	AcceptThenDrop   Kind = "accept_then_drop"
	AcceptThenReset  Kind = "accept_then_reset"
	ErrorAfterAccept Kind = "error_after_accept"
	Pending          Kind = "pending"
	Drop             Kind = "drop"
	Reject           Kind = "reject"
	Busy             Kind = "busy"
	RateLimit        Kind = "rate_limit"
	Deny             Kind = "deny"
	Hang             Kind = "hang"
	Garbage          Kind = "garbage"
	Partial          Kind = "partial"
	Redirect         Kind = "redirect"
	Answer           Kind = "answer"
)

// Rule applies a fault to the requests that match.
type Rule struct {
	Match Match `json:"match"`
	Fault Fault `json:"fault"`
	// Times is how often the rule applies; 0 means without limit.
	Times int `json:"times,omitempty"`
	// PerReference makes Times count for each reference alone.
	PerReference bool `json:"per_reference,omitempty"`
	// Hits is how often the rule has applied; read only.
	Hits int `json:"hits,omitempty"`
}

// Match selects requests. The zero value matches all.
type Match struct {
	Method      string `json:"method,omitempty"`       // GET or POST
	Reference   string `json:"reference,omitempty"`    // exact, or a prefix ending in *
	FromRequest int    `json:"from_request,omitempty"` // first number, counted from 1
	ToRequest   int    `json:"to_request,omitempty"`   // last number
	FromMS      int64  `json:"from_ms,omitempty"`      // since the plan was set
	ToMS        int64  `json:"to_ms,omitempty"`        // this instant excluded; 0: no end
}

// Fault is what goes wrong. Which fields a kind takes is in the package
// comment; a field that it doesn't take makes the plan invalid.
type Fault struct {
	Kind        Kind   `json:"kind"`
	DelayMS     int64  `json:"delay_ms,omitempty"`
	Execute     bool   `json:"execute,omitempty"`
	Code        string `json:"code,omitempty"`
	Status      int    `json:"status,omitempty"`
	RetryAfter  string `json:"retry_after,omitempty"` // sent as it is, also if it is junk
	Location    string `json:"location,omitempty"`
	ContentType string `json:"content_type,omitempty"` // Defaults to application/json
	Body        string `json:"body,omitempty"`
	EmptyBody   bool   `json:"empty_body,omitempty"`
	SettleMS    int64  `json:"settle_ms,omitempty"`
	SettleTo    string `json:"settle_to,omitempty"` // Defaults to succeeded
}

// accepts tells whether the request is processed as usual before the fault.
func (f Fault) accepts() bool {
	switch f.Kind {
	case Drop, Busy, RateLimit, Deny:
		return false
	case Hang, Garbage, Partial, Redirect, Answer:
		return f.Execute
	}
	return true
}

// takes lists the fields that a kind has beside kind and delay_ms.
var takes = map[Kind][]string{
	Delay:            nil,
	AcceptThenDrop:   nil,
	AcceptThenReset:  nil,
	ErrorAfterAccept: nil,
	Pending:          {"status", "empty_body", "settle_ms", "settle_to"},
	Drop:             nil,
	Reject:           {"code"},
	Busy:             {"retry_after"},
	RateLimit:        {"retry_after"},
	Deny:             {"status"},
	Hang:             {"execute"},
	Garbage:          {"execute", "body"},
	Partial:          {"execute"},
	Redirect:         {"execute", "status", "location"},
	Answer:           {"execute", "status", "content_type", "body", "retry_after"},
}

func (f Fault) validate() error {
	allowed, ok := takes[f.Kind]
	if !ok {
		return fmt.Errorf("unknown fault kind %q", f.Kind)
	}
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"execute", f.Execute},
		{"code", f.Code != ""},
		{"status", f.Status != 0},
		{"retry_after", f.RetryAfter != ""},
		{"location", f.Location != ""},
		{"content_type", f.ContentType != ""},
		{"body", f.Body != ""},
		{"empty_body", f.EmptyBody},
		{"settle_ms", f.SettleMS != 0},
		{"settle_to", f.SettleTo != ""},
	} {
		if field.set && !slices.Contains(allowed, field.name) {
			return fmt.Errorf("%s takes no %s", f.Kind, field.name)
		}
	}
	if f.DelayMS < 0 || f.SettleMS < 0 {
		return errors.New("a time must not be negative")
	}
	for _, header := range []string{f.RetryAfter, f.Location, f.ContentType} {
		if strings.ContainsAny(header, "\r\n\x00") {
			return errors.New("a header value must be one line")
		}
	}
	oneOf := func(allowed ...int) error {
		if !slices.Contains(allowed, f.Status) {
			return fmt.Errorf("%s takes status %s", f.Kind, strings.Trim(fmt.Sprint(allowed), "[]"))
		}
		return nil
	}
	switch f.Kind {
	case Delay:
		if f.DelayMS == 0 {
			return errors.New("delay needs delay_ms")
		}
	case Reject:
		if f.Code == "" {
			return errors.New("reject needs a code")
		}
	case Deny:
		return oneOf(http.StatusUnauthorized, http.StatusForbidden)
	case Redirect:
		if f.Status != 0 {
			return oneOf(http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect)
		}
	case Answer:
		if f.Status < 200 || f.Status > 599 {
			return errors.New("answer needs a status from 200 to 599")
		}
	case Pending:
		return f.validatePending(oneOf)
	}
	return nil
}

func (f Fault) validatePending(oneOf func(...int) error) error {
	if f.EmptyBody && f.Status != http.StatusAccepted {
		return errors.New("only a pending answer with status 202 can have an empty body")
	}
	if f.SettleTo != "" && f.SettleMS == 0 {
		return errors.New("settle_to needs settle_ms")
	}
	if f.SettleTo != "" && f.SettleTo != statusSucceeded && f.SettleTo != statusFailed {
		return errors.New("settle_to must be succeeded or failed")
	}
	if f.Status != 0 {
		return oneOf(http.StatusCreated, http.StatusAccepted)
	}
	return nil
}

// postOnly tells whether the fault has no meaning for a GET.
func (f Fault) postOnly() bool {
	return f.Kind == Pending || f.Kind == Reject || f.Kind == ErrorAfterAccept
}

func (r Rule) validate() error {
	m := r.Match
	switch {
	case m.Method != "" && m.Method != http.MethodGet && m.Method != http.MethodPost:
		return errors.New("method must be GET or POST")
	case m.Method == http.MethodGet && r.Fault.postOnly():
		return fmt.Errorf("%s has no meaning for GET", r.Fault.Kind)
	case strings.Contains(strings.TrimSuffix(m.Reference, "*"), "*"):
		return errors.New("reference may have a * only at its end")
	case m.FromRequest < 0, m.ToRequest < 0, m.FromMS < 0, m.ToMS < 0, r.Times < 0:
		return errors.New("numbers must not be negative")
	case m.ToRequest != 0 && m.ToRequest < m.FromRequest:
		return errors.New("to_request is before from_request")
	case m.ToMS != 0 && m.ToMS <= m.FromMS:
		return errors.New("to_ms is not after from_ms")
	case r.PerReference && r.Times == 0:
		return errors.New("per_reference needs times")
	}
	return r.Fault.validate()
}

func (m Match) matches(method, reference string, number int, since time.Duration) bool {
	if prefix, ok := strings.CutSuffix(m.Reference, "*"); ok {
		if !strings.HasPrefix(reference, prefix) {
			return false
		}
	} else if m.Reference != "" && m.Reference != reference {
		return false
	}
	return (m.Method == "" || m.Method == method) &&
		number >= m.FromRequest && (m.ToRequest == 0 || number <= m.ToRequest) &&
		since >= ms(m.FromMS) && (m.ToMS == 0 || since < ms(m.ToMS))
}

// plan decides which fault a request meets.
type plan struct {
	mu     sync.Mutex
	rules  []Rule
	used   []map[string]int // per rule: uses per reference, or all under ""
	since  time.Time
	number int // requests seen since the plan was set
}

// set replaces the rules, or changes nothing and says which rule is wrong.
func (p *plan) set(rules []Rule) error {
	for i, r := range rules {
		if err := r.validate(); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = slices.Clone(rules)
	p.used = make([]map[string]int, len(rules))
	for i := range rules {
		p.rules[i].Hits = 0
		p.used[i] = map[string]int{}
	}
	p.since, p.number = time.Now(), 0
	return nil
}

func (p *plan) list() []Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.rules)
}

// next counts a request and returns its fault; ok is false if there is none.
func (p *plan) next(method, reference string) (f Fault, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	for i := range p.rules {
		r := &p.rules[i]
		if r.Fault.postOnly() && method != http.MethodPost {
			continue
		}
		if !r.Match.matches(method, reference, p.number, time.Since(p.since)) {
			continue
		}
		counter := ""
		if r.PerReference {
			counter = reference
		}
		if r.Times != 0 && p.used[i][counter] >= r.Times {
			continue
		}
		p.used[i][counter]++
		r.Hits++
		return r.Fault, true
	}
	return Fault{}, false
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
