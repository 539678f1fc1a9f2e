package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"time"

	"refundgate/provider"
	"refundgate/refund"
)

// maxAnswer bounds the body of an answer, in bytes. A longer one is unknown.
const maxAnswer = 1 << 20

// Codes for refused credentials, whatever the provider wrote beside them.
const (
	codeUnauthorized = "unauthorized" // HTTP 401
	codeForbidden    = "forbidden"    // HTTP 403
)

// meaning is what a listed error code says.
type meaning struct {
	outcome     refund.Outcome
	accountWide bool
	ambiguous   bool
	neverResend bool
}

type errorTable map[int]map[string]meaning

// checkErrors are the errors that the contract lists for every request.
var checkErrors = errorTable{
	http.StatusTooManyRequests:    {"rate_limited": {outcome: refund.OutcomeBusy, accountWide: true}},
	http.StatusServiceUnavailable: {"temporarily_unavailable": {outcome: refund.OutcomeBusy}},
}

// submitErrors are the errors that the contract lists for a POST. Whatever is
// not here is unknown: no guess from the class of the status.
var submitErrors = errorTable{
	http.StatusConflict: {
		"in_progress":          {outcome: refund.OutcomeUnknown},
		"idempotency_mismatch": {outcome: refund.OutcomeUnknown, neverResend: true},
	},
	http.StatusUnprocessableEntity: {
		"invalid_request":      {outcome: refund.OutcomeRejected},
		"unknown_payment":      {outcome: refund.OutcomeRejected},
		"currency_mismatch":    {outcome: refund.OutcomeRejected},
		"refund_window_closed": {outcome: refund.OutcomeRejected},
		"insufficient_balance": {outcome: refund.OutcomeRejected},
		"payment_disputed":     {outcome: refund.OutcomeRejected},
		// An attempt of ours that worked would have caused these two as well.
		"already_refunded":         {outcome: refund.OutcomeRejected, ambiguous: true},
		"amount_exceeds_remaining": {outcome: refund.OutcomeRejected, ambiguous: true},
	},
	http.StatusTooManyRequests:    checkErrors[http.StatusTooManyRequests],
	http.StatusServiceUnavailable: checkErrors[http.StatusServiceUnavailable],
}

// answer is what came back for one request.
type answer struct {
	status int         // 0: no answer
	header http.Header // nil without an answer
	body   []byte      // at most maxAnswer+1 bytes; incomplete if err is set
	err    error       // why there is no whole answer
	now    time.Time   // when it had been read
	secret string      // the API key, which must never show in a Result

	exponents refund.Exponents // in which its amounts are counted
}

// submitted says what the answer to a POST means for the refund.
func (a answer) submitted(want refund.Refund) refund.Result {
	if code, ok := a.refusedCredentials(); ok {
		res := a.result(refund.OutcomeRejected, code)
		res.AccountWide = true
		return res
	}
	if res, ok := a.incomplete(); ok {
		return res
	}
	switch a.status {
	case http.StatusOK, http.StatusCreated:
		return a.single(want, "")
	case http.StatusAccepted:
		if len(a.body) == 0 {
			return a.result(refund.OutcomePending, "")
		}
		res := a.single(want, "")
		if res.Outcome == refund.OutcomeSucceeded || res.Outcome == refund.OutcomeRejected {
			return a.unknown(refund.CodeContradiction, "accepted only, yet with a final status")
		}
		return res
	}
	return a.listedError(submitErrors)
}

// checkedByID says what the answer to GET /v1/refunds/{id} means.
func (a answer) checkedByID(q provider.Query) refund.Result {
	if res, ok := a.noInformation(); ok {
		return res
	}
	switch a.status {
	case http.StatusOK:
		return a.single(q.Refund, q.ProviderRefundID)
	case http.StatusNotFound:
		return a.result(refund.OutcomeNotFound, "")
	}
	return a.listedError(checkErrors)
}

// checkedByReference says what the answer to GET /v1/refunds?reference= means.
func (a answer) checkedByReference(q provider.Query) refund.Result {
	if res, ok := a.noInformation(); ok {
		return res
	}
	if a.status == http.StatusOK {
		return a.list(q)
	}
	return a.listedError(checkErrors)
}

// noInformation handles answers to a check that say nothing about the refund.
// Refused credentials are among them: they are about us, so unlike on a
// POST they must not make the refund look rejected.
func (a answer) noInformation() (refund.Result, bool) {
	if code, ok := a.refusedCredentials(); ok {
		res := a.unknown(code, "the check was refused")
		res.AccountWide = true
		return res, true
	}
	return a.incomplete()
}

// refusedCredentials goes by the status alone: the contract gives 401 and 403
// their meaning with any body, so also with one that broke off.
func (a answer) refusedCredentials() (code string, ok bool) {
	switch a.status {
	case http.StatusUnauthorized:
		return codeUnauthorized, true
	case http.StatusForbidden:
		return codeForbidden, true
	}
	return "", false
}

// incomplete handles what is not a whole answer. It only says what was seen;
// whether any byte of the request had left is for the caller to judge.
func (a answer) incomplete() (refund.Result, bool) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(a.err, &tooLarge), len(a.body) > maxAnswer:
		return a.unknown(refund.CodeUnreadable, "over 1 MiB"), true
	case a.err == nil:
		return refund.Result{}, false
	case timedOut(a.err):
		return a.unknown(refund.CodeTimeout, "no whole answer in time"), true
	default:
		return a.unknown(refund.CodeDisconnected, "the connection ended before a whole answer"), true
	}
}

func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// single reads one refund, which must be ours; id is the provider's id that
// was asked for, or empty.
func (a answer) single(want refund.Refund, id string) refund.Result {
	body, ok := a.json()
	if !ok {
		return a.unreadable()
	}
	got, err := readRefund(body, a.exponents)
	if err != nil {
		return a.unknown(refund.CodeUnreadable, err.Error())
	}
	if id != "" && got.id != id {
		return a.unknown(refund.CodeContradiction, "id is not the one asked for")
	}
	return a.ours(got, want)
}

// list reads the refunds that carry our reference. Those of the case's earlier
// generations carry it too and are left out. One refund may be left: which of
// several is this generation's would be a guess, and so would be a success.
func (a answer) list(q provider.Query) refund.Result {
	body, ok := a.json()
	if !ok {
		return a.unreadable()
	}
	var entries []json.RawMessage
	data, ok := body["data"]
	if !ok || json.Unmarshal(data, &entries) != nil || entries == nil {
		return a.unknown(refund.CodeUnreadable, "no list of refunds")
	}
	var found []wireRefund
	others := false
	for _, raw := range entries {
		var o object
		if err := json.Unmarshal(raw, &o); err != nil {
			return a.unknown(refund.CodeUnreadable, "an entry of the list is not a refund")
		}
		got, err := readRefund(o, a.exponents)
		switch {
		case err != nil:
			return a.unknown(refund.CodeUnreadable, err.Error())
		case slices.Contains(q.Foreign, got.id):
		case got.reference != q.Refund.ID:
			others = true
		default:
			found = append(found, got)
		}
	}
	switch {
	case len(found) > 1:
		return a.unknown(refund.CodeContradiction, fmt.Sprintf("%d refunds with our reference", len(found)))
	case len(found) == 1:
		return a.ours(found[0], q.Refund)
	case others: // so they say nothing about "not found" either
		return a.unknown(refund.CodeContradiction, "the list holds other refunds, not ours")
	}
	return a.result(refund.OutcomeNotFound, "")
}

// ours says what a refund means that must be the one we asked about.
func (a answer) ours(got wireRefund, want refund.Refund) refund.Result {
	if diff := got.differsFrom(want); diff != "" {
		return a.unknown(refund.CodeContradiction, diff+" is not ours")
	}
	return a.byStatus(got)
}

// byStatus says what a refund that is ours means.
func (a answer) byStatus(got wireRefund) refund.Result {
	outcome, listed := statuses[got.status]
	var res refund.Result
	switch {
	case !listed:
		res = a.unknown(refund.CodeUnreadable, "unknown status "+a.quote(got.status))
	case outcome == refund.OutcomeRejected:
		res = a.result(outcome, failureCode(got.failure, a.secret))
	case got.failure != "":
		res = a.unknown(refund.CodeContradiction, fmt.Sprintf("status %s with failure code %s", a.quote(got.status), a.quote(got.failure)))
	default:
		res = a.result(outcome, "")
	}
	res.ProviderRefundID = got.id
	return res
}

// listedError looks the answer's error code up. A code under another status
// than the contract's is as unknown as no code at all.
func (a answer) listedError(table errorTable) refund.Result {
	codes, ok := table[a.status]
	if !ok {
		return a.unknown(refund.CodeUnreadable, "not in the contract")
	}
	body, ok := a.json()
	if !ok {
		return a.unreadable()
	}
	var e object
	if json.Unmarshal(body["error"], &e) != nil {
		return a.unknown(refund.CodeUnreadable, "no error code")
	}
	code, ok := e.text("code")
	if !ok {
		return a.unknown(refund.CodeUnreadable, "no error code")
	}
	m, ok := codes[code]
	if !ok {
		return a.unknown(refund.CodeUnreadable, "unlisted code "+a.quote(code))
	}
	res := a.result(m.outcome, code)
	res.AccountWide, res.Ambiguous, res.NeverResend = m.accountWide, m.ambiguous, m.neverResend
	if m.outcome == refund.OutcomeBusy {
		res.RetryAt = retryAt(a.header.Get("Retry-After"), a.now)
	}
	return res
}

func (a answer) result(o refund.Outcome, code string) refund.Result {
	return refund.Result{Outcome: o, Code: code, HTTPStatus: a.status}
}

// unknown is an answer that proves nothing; seen says in our own words what
// came. Messages and bodies of the provider are left out: they may quote the
// customer or our credentials.
func (a answer) unknown(code, seen string) refund.Result {
	res := a.result(refund.OutcomeUnknown, code)
	if a.status != 0 {
		seen = fmt.Sprintf("HTTP %d: %s", a.status, seen)
	}
	res.Detail = cut(seen, refund.MaxDetailLen)
	return res
}

func (a answer) unreadable() refund.Result {
	return a.unknown(refund.CodeUnreadable, "not a JSON object; content type "+a.quote(a.header.Get("Content-Type")))
}

// json reads the body as one JSON object, if it is declared as JSON.
func (a answer) json() (object, bool) {
	mediaType, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		return nil, false
	}
	var o object
	if json.Unmarshal(a.body, &o) != nil || o == nil {
		return nil, false
	}
	return o, true
}

// quote makes a value of the provider showable.
func (a answer) quote(s string) string {
	return fmt.Sprintf("%q", clean(s, a.secret))
}
