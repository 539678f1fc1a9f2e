package starter

import (
	"encoding/json"
	"net/url"
	"strings"
	"time"

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
}

// egressHealth returns the health of every configured account.
func (a *API) egressHealth(owners []ledger.Owner) map[string]egressHealth {
	health := map[string]egressHealth{}
	for _, account := range a.opts.Accounts {
		health[account] = egressHealth{}
	}
	for _, o := range owners {
		if _, ok := health[o.Account]; !ok || !o.Held {
			continue
		}
		health[o.Account] = egressHealth{Owned: true, Holder: o.Holder, SeenAt: &o.SeenAt, Gate: o.Gate}
	}
	return health
}
