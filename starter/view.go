package starter

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"refundgate/internal/config"
	"refundgate/ledger"
	"refundgate/refund"
)

// caseSummary is a case without its trail: the answer to a submission and an
// entry of a list.
type caseSummary struct {
	refund.Case
	// Calls hides Case.Calls, which is not read for a summary: leaving it out
	// is honest, an empty list would not be. So with Notices and Decisions.
	Calls     *struct{} `json:"calls,omitempty"`
	Notices   *struct{} `json:"notices,omitempty"`
	Decisions *struct{} `json:"decisions,omitempty"`
	// WebUIURL is the case's workflow in the Temporal Web UI.
	WebUIURL string `json:"web_ui_url,omitempty"`
}

// caseTrail is a case with everything that has happened to it: the calls, the
// notices, the decisions and, beside them, the events, which tell of all but
// the calls once more in words.
type caseTrail struct {
	refund.Case
	Events   []refund.Event `json:"events"`
	WebUIURL string         `json:"web_ui_url,omitempty"`
}

// caseDetail is a case with all that is known about it but its events: the
// answer to an action.
type caseDetail struct {
	refund.Case
	WebUIURL string `json:"web_ui_url,omitempty"`
}

type casePage struct {
	Cases []caseSummary `json:"cases"`
	// NextCursor fetches the next page; absent on the last one.
	NextCursor string `json:"next_cursor,omitempty"`
}

func (a *API) summary(c refund.Case) caseSummary {
	return caseSummary{Case: c, WebUIURL: a.webUIURL(c.Refund.ID)}
}

func (a *API) detail(c refund.Case) caseDetail {
	if c.Calls == nil {
		c.Calls = []refund.Call{}
	}
	return caseDetail{Case: c, WebUIURL: a.webUIURL(c.Refund.ID)}
}

func (a *API) trail(c refund.Case, events []refund.Event) caseTrail {
	if c.Calls == nil {
		c.Calls = []refund.Call{}
	}
	if events == nil {
		events = []refund.Event{}
	}
	return caseTrail{Case: c, Events: events, WebUIURL: a.webUIURL(c.Refund.ID)}
}

func (a *API) page(p ledger.Page) casePage {
	cases := make([]caseSummary, len(p.Cases))
	for i, c := range p.Cases {
		cases[i] = a.summary(c)
	}
	return casePage{Cases: cases, NextCursor: p.Next}
}

func (a *API) webUIURL(refundID string) string {
	if a.opts.WebUIURL == "" {
		return ""
	}
	return strings.TrimRight(a.opts.WebUIURL, "/") +
		"/namespaces/" + url.PathEscape(a.opts.Namespace) +
		"/workflows/" + url.PathEscape(refund.WorkflowID(refundID))
}

// healthView is the answer of /healthz. Status is "ok", or "degraded" while the
// database can't be read; the process is well in both.
type healthView struct {
	Status string                  `json:"status"`
	Egress map[string]egressHealth `json:"egress,omitempty"` // by account
}

// egressHealth says who may call an account's provider, and how that goes.
type egressHealth struct {
	// Owned tells whether somebody holds the egress at this moment.
	Owned  bool       `json:"owned"`
	Holder string     `json:"holder,omitempty"`
	SeenAt *time.Time `json:"seen_at,omitempty"`
	// Gate is what the owner's gate did at SeenAt, with its breaker's state.
	Gate json.RawMessage `json:"gate,omitempty"`
	// Calls is how long recent calls took; absent if there were none.
	Calls *CallTimes `json:"calls,omitempty"`
}

// CallTimes shows how long an account's recent calls took beside the budgets
// that end them.
type CallTimes struct {
	ConnectTimeoutMS int64            `json:"connect_timeout_ms"`
	CallTimeoutMS    int64            `json:"call_timeout_ms"`
	Kinds            []ledger.Latency `json:"kinds"`
}

// NewCallTimes returns the account's call times, nil if there are none.
func NewCallTimes(acc config.Account, kinds []ledger.Latency) *CallTimes {
	if len(kinds) == 0 {
		return nil
	}
	return &CallTimes{
		ConnectTimeoutMS: acc.ConnectTimeout.Milliseconds(), CallTimeoutMS: acc.CallTimeout.Milliseconds(), Kinds: kinds,
	}
}

// egressHealth returns the health of every configured account.
func (a *API) egressHealth(ctx context.Context) (map[string]egressHealth, error) {
	owners, err := a.opts.Ledger.EgressOwners(ctx)
	if err != nil {
		return nil, err
	}
	health := map[string]egressHealth{}
	for _, acc := range a.opts.Accounts {
		kinds, err := a.opts.Ledger.Latencies(ctx, acc.Name)
		if err != nil {
			return nil, err
		}
		health[acc.Name] = egressHealth{Calls: NewCallTimes(acc, kinds)}
	}
	for _, o := range owners {
		if h, ok := health[o.Account]; ok && o.Held {
			h.Owned, h.Holder, h.SeenAt, h.Gate = true, o.Holder, &o.SeenAt, o.Gate
			health[o.Account] = h
		}
	}
	return health, nil
}
