package starter

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"refundgate/internal/telemetry"
	"refundgate/refund"
)

// problem is the answer to a request that is refused, in the form of RFC
// 9457. Clients decide by Type, which never changes for a cause.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Errors names each refused field of the body or the query.
	Errors []refund.FieldError `json:"errors,omitempty"`
	// CaseURL is where the state of the refund in question can be looked up.
	CaseURL string `json:"case_url,omitempty"`

	retryAfter time.Duration
}

// problemPrefix and the names below are the stable types of problems.
const problemPrefix = "urn:refundgate:problem:"

var (
	problemUnauthorized     = newProblem("unauthorized", http.StatusUnauthorized, "The request has no valid bearer token")
	problemForbidden        = newProblem("forbidden", http.StatusForbidden, "The token does not allow this")
	problemNotFound         = newProblem("not-found", http.StatusNotFound, "There is no such thing")
	problemMethodNotAllowed = newProblem("method-not-allowed", http.StatusMethodNotAllowed, "This path does not take that method")
	problemMalformed        = newProblem("malformed-body", http.StatusBadRequest, "The body is not one JSON object")
	problemBodyTimeout      = newProblem("body-timeout", http.StatusRequestTimeout, "The body came too slowly")
	problemInvalidQuery     = newProblem("invalid-query", http.StatusBadRequest, "The query was refused")
	problemUnsupportedMedia = newProblem("unsupported-media-type", http.StatusUnsupportedMediaType, "The body must be application/json")
	problemTooLarge         = newProblem("too-large", http.StatusRequestEntityTooLarge, "The body is too large")
	problemInvalidRefund    = newProblem("invalid-refund", http.StatusUnprocessableEntity, "The refund was refused")
	problemPaymentExceeded  = newProblem("payment-exceeded", http.StatusUnprocessableEntity, "The payment's refunds would exceed the payment")
	problemPaymentMismatch  = newProblem("payment-mismatch", http.StatusUnprocessableEntity, "The payment is known with another amount")
	problemConflict         = newProblem("conflict", http.StatusConflict, "The refund id was used with other content")
	problemTooManyRequests  = newProblem("too-many-requests", http.StatusTooManyRequests, "The client has made too many requests")
	problemOverCapacity     = newProblem("over-capacity", http.StatusServiceUnavailable, "The account takes no more refunds for now")
	problemUnavailable      = newProblem("unavailable", http.StatusServiceUnavailable, "The service is not available for the moment")
	// problemAway: what is needed does not answer, and soon may.
	problemAway = problemUnavailable.after(retryAfter)
)

// problems lists every problem there is; openapi.yaml tells of each.
var problems []problem

// newProblem declares a problem.
func newProblem(name string, status int, title string) problem {
	p := problem{Type: problemPrefix + name, Title: title, Status: status}
	problems = append(problems, p)
	return p
}

// name is the short form of the type: "conflict".
func (p problem) name() string { return strings.TrimPrefix(p.Type, problemPrefix) }

// event is what a refusal with the problem is logged as: a conflict has an event
// of its own.
func (p problem) event() string {
	if p.Type == problemConflict.Type {
		return telemetry.EventRefundConflict
	}
	return telemetry.EventIntakeRefused
}

// with returns the problem with words about this occurrence.
func (p problem) with(detail string, fields ...refund.FieldError) problem {
	p.Detail, p.Errors = detail, fields
	return p
}

// about returns the problem with the place to look the refund up.
func (p problem) about(refundID string) problem {
	p.CaseURL = casePath(refundID)
	return p
}

// after returns the problem with the time after which to try again.
func (p problem) after(d time.Duration) problem {
	p.retryAfter = d
	return p
}

func (p problem) write(w http.ResponseWriter) {
	if p.retryAfter > 0 {
		// Rounded up: whoever comes back then must not be too early.
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	writeBody(w, p.Status, p)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	writeBody(w, status, body)
}

// writeBody sends the answer. A client that is gone by then misses it; what
// was done stays done.
func writeBody(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body)
}
