// Package starter is the way in: it accepts refunds over HTTP, makes them
// durable before it answers, and sees to it that each one's workflow starts.
//
// The API only ever talks to the ledger. A Relay, in the same process or
// another, starts the workflows of what was accepted; while Temporal is down
// it waits, and no caller notices.
package starter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/refund"
)

const (
	// maxBody bounds a submission, in bytes. The largest valid one is well
	// under 20 KiB.
	maxBody = ledger.MaxPayload
	// ledgerTimeout bounds what a request waits for the database.
	ledgerTimeout = 10 * time.Second
	// pingTimeout bounds the readiness check's look at the database.
	pingTimeout = 2 * time.Second
	// retryAfter is what a caller is told while the database is away: longer
	// than a restart or a fail-over's first moment, shorter than any deadline.
	retryAfter = 5 * time.Second
)

// Acceptor makes a refund durable. See ledger.Ledger.
type Acceptor interface {
	Accept(ctx context.Context, s ledger.Submission) (c refund.Case, created bool, err error)
}

// Reader looks cases up. See ledger.Ledger.
type Reader interface {
	Case(ctx context.Context, refundID string) (refund.Case, error)
	Events(ctx context.Context, refundID string) ([]refund.Event, error)
	List(ctx context.Context, f ledger.Filter) (ledger.Page, error)
}

// Pinger proves that the ledger can be reached.
type Pinger interface {
	Ping(ctx context.Context) error
}

// Egresses tells who may call the providers, and how long the calls take. See
// ledger.Ledger.
type Egresses interface {
	EgressOwners(ctx context.Context) ([]ledger.Owner, error)
	Latencies(ctx context.Context, account string) ([]ledger.Latency, error)
}

// Totals counts cases. See ledger.Ledger.
type Totals interface {
	OpenCases(ctx context.Context) ([]ledger.OpenCases, error)
	Settled(ctx context.Context) ([]ledger.Settled, error)
	InboxLoad(ctx context.Context) (ledger.InboxLoad, error)
}

// Ledger is what the API needs of the ledger.
type Ledger interface {
	Acceptor
	Reader
	Pinger
	Egresses
	Totals
	NoticeStore
}

// Options are what an API is made of. All fields without a default are
// required.
type Options struct {
	Ledger Ledger
	// Accounts are those that refunds are accepted for.
	Accounts []config.Account
	// Clients may call the API; nobody else.
	Clients []config.Client
	// Deadline is how long after acceptance a case goes to review.
	Deadline time.Duration
	// Admission says which accounts can take more. Defaults to all, always.
	Admission *Admission
	// Wake is called after each acceptance and must not block; usually
	// Relay.Wake. Defaults to nothing: the relay finds the refund by itself
	// within a second.
	Wake func()
	// Notifications reads the notifications of the accounts that take them.
	// Defaults to none.
	Notifications map[string]NotificationReader
	// WakeTeller is called after each notification that was stored and must
	// not block; usually Teller.Wake. Defaults to nothing, as Wake.
	WakeTeller func()
	// Desk carries out the actions of people.
	Desk Actor
	// WebUIURL and Namespace make the link from a case to its workflow in the
	// Temporal Web UI. Defaults to no link.
	WebUIURL, Namespace string
	// Metrics is what the process measures of itself, for /metrics to show
	// beside what the API and the ledger know. Defaults to nothing.
	Metrics prometheus.Gatherer
	Log     *slog.Logger
}

// readScopes each allow to look cases up; which ones, see caller.onlyOwn.
var readScopes = []string{config.ScopeRead, config.ScopeReadAll, config.ScopeReview}

// API is the intake API as an http.Handler.
type API struct {
	opts     Options
	log      *slog.Logger
	callers  []caller
	mux      *http.ServeMux
	intake   *prometheus.CounterVec // answers to submissions, by result
	draining atomic.Bool
}

// NewAPI returns the API. It fails if a client's token hash is not one.
func NewAPI(opts Options) (*API, error) {
	callers, err := newCallers(opts.Clients)
	if err != nil {
		return nil, fmt.Errorf("setting up the intake API: %w", err)
	}
	if opts.Wake == nil {
		opts.Wake = func() {}
	}
	if opts.WakeTeller == nil {
		opts.WakeTeller = func() {}
	}
	a := &API{opts: opts, log: opts.Log, callers: callers, mux: http.NewServeMux(), intake: newIntakeCounter()}
	a.route(intakePath, map[string]http.Handler{
		http.MethodPost: a.allow(a.submit, config.ScopeWrite),
		http.MethodGet:  a.allow(a.list, readScopes...),
	})
	a.route("/v1/refunds/{id}", map[string]http.Handler{http.MethodGet: a.allow(a.show, readScopes...)})
	a.route("/v1/refunds/{id}/actions/{action}", map[string]http.Handler{http.MethodPost: a.allow(a.act, config.ScopeReview)})
	a.route("/v1/providers/{account}/notifications", map[string]http.Handler{http.MethodPost: http.HandlerFunc(a.notify)})
	a.route("/healthz", map[string]http.Handler{http.MethodGet: http.HandlerFunc(a.health)})
	a.route("/readyz", map[string]http.Handler{http.MethodGet: http.HandlerFunc(a.ready)})
	a.route("/metrics", map[string]http.Handler{http.MethodGet: a.metrics()})
	a.route(openAPIPath, map[string]http.Handler{http.MethodGet: http.HandlerFunc(openAPI)})
	a.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { problemNotFound.write(w) })
	return a, nil
}

// route registers a path's methods and answers every other method itself,
// because ServeMux would do so in plain text.
func (a *API) route(path string, methods map[string]http.Handler) {
	var allowed []string
	for method, h := range methods {
		a.mux.Handle(method+" "+path, h)
		allowed = append(allowed, method)
		if method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	slices.Sort(allowed)
	a.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		problemMethodNotAllowed.write(w)
	})
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// Drain makes /readyz say no from now on. Requests are still served.
func (a *API) Drain() { a.draining.Store(true) }

// submit accepts a refund.
func (a *API) submit(w http.ResponseWriter, r *http.Request, by caller) {
	body, refused := readBody(w, r)
	if refused != nil {
		a.refuse(w, r, by, *refused)
		return
	}
	rf, err := decodeServed(body, "", a.opts.Accounts)
	if err != nil {
		a.refuse(w, r, by, bodyProblem(err))
		return
	}

	// From here on the refund is ours: a caller that hangs up changes nothing.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), ledgerTimeout)
	defer cancel()
	place := a.opts.Admission.Place(rf.Account)
	c, created, err := a.opts.Ledger.Accept(ctx, ledger.Submission{
		Refund: rf, Client: by.name, Deadline: a.opts.Deadline, Admit: place.Take,
	})
	place.Leave()
	about := []slog.Attr{slog.String(telemetry.KeyRefundID, rf.ID), slog.String(telemetry.KeyAccount, rf.Account)}
	if err != nil {
		p := acceptProblem(rf.ID, err)
		if p.Type == problemUnavailable.Type {
			about = append(about, slog.Any("error", err))
		}
		a.refuse(w, r, by, p, about...)
		return
	}

	status, event, result := http.StatusOK, telemetry.EventRefundDuplicate, resultDuplicate
	if created {
		status, event, result = http.StatusAccepted, telemetry.EventRefundAccepted, resultAccepted
		a.opts.Wake()
	}
	a.countIntake(r, result)
	telemetry.Event(ctx, a.log, slog.LevelInfo, event, append(about, slog.String("client", by.name))...)
	w.Header().Set("Location", casePath(rf.ID))
	writeJSON(w, status, a.summary(c))
}

// serves tells whether the account is one of those that refunds are accepted
// for.
func serves(accounts []config.Account, account string) bool {
	return slices.ContainsFunc(accounts, func(acc config.Account) bool { return acc.Name == account })
}

// acceptProblem is the answer for what the ledger did not accept.
func acceptProblem(refundID string, err error) problem {
	var exceeded *ledger.PaymentExceededError
	var mismatch *ledger.PaymentMismatchError
	var full *OverCapacityError
	switch {
	case errors.Is(err, ledger.ErrConflict):
		return problemConflict.
			with("Another refund needs an id of its own; the same refund needs the same content.").
			about(refundID)
	case errors.As(err, &exceeded):
		return problemPaymentExceeded.with("", refund.FieldError{
			Field:   "amount.value",
			Message: fmt.Sprintf("exceeds what is left of the payment: %s of %s is refunded or reserved", exceeded.Reserved, exceeded.Limit),
		})
	case errors.As(err, &mismatch):
		return problemPaymentMismatch.with("", refund.FieldError{
			Field:   "payment_amount",
			Message: fmt.Sprintf("is not what earlier refunds of the payment said: %s", mismatch.Known),
		})
	case errors.As(err, &full):
		return problemOverCapacity.
			with("Nothing was accepted; the refund can be submitted again after that time. What the account has to do before: " + full.Why + ".").
			about(refundID).
			after(full.RetryAfter)
	default:
		return problemAway.
			with("It is not certain whether the refund was accepted. Sending the same request again is safe.").
			about(refundID)
	}
}

// readBody reads a JSON body of a bounded size.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	refused := func(p problem) ([]byte, *problem) { return nil, &p }
	mediaType, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := params["charset"]
	if err != nil || mediaType != "application/json" || (charset != "" && !strings.EqualFold(charset, "utf-8")) || r.Header.Get("Content-Encoding") != "" {
		return refused(problemUnsupportedMedia.with("Send it as Content-Type: application/json in UTF-8, not compressed."))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return refused(readProblem(err))
	}
	return body, nil
}

// readProblem is the answer to a body that could not be read whole.
func readProblem(err error) problem {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return problemTooLarge.with(fmt.Sprintf("It may have %d bytes.", tooLarge.Limit))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return problemBodyTimeout.with("Nothing was stored. A request has a few seconds to arrive as a whole; then the connection is closed.")
	}
	return problemMalformed.with("The body ended too early.")
}

// bodyProblem is the answer to a body that DecodeRefund refused.
func bodyProblem(err error) problem {
	var invalid *refund.InvalidError
	if errors.As(err, &invalid) {
		return problemInvalidRefund.with("", invalid.Fields...)
	}
	return problemMalformed.with(err.Error())
}

// show answers with a case and its whole trail. Another client's case is not
// told from one that doesn't exist.
func (a *API) show(w http.ResponseWriter, r *http.Request, by caller) {
	id := r.PathValue("id")
	if refund.ValidateID(id) != nil {
		problemNotFound.write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), ledgerTimeout)
	defer cancel()
	c, err := a.opts.Ledger.Case(ctx, id)
	if err == nil && !by.sees(c) {
		err = ledger.ErrNotFound
	}
	if err != nil {
		a.failRead(ctx, w, err)
		return
	}
	events, err := a.opts.Ledger.Events(ctx, id)
	if err != nil {
		a.failRead(ctx, w, err)
		return
	}
	writeJSON(w, http.StatusOK, a.trail(c, events))
}

// list answers with a page of cases, the newest first.
func (a *API) list(w http.ResponseWriter, r *http.Request, by caller) {
	filter, fields := parseFilter(r.URL.RawQuery)
	if len(fields) > 0 {
		problemInvalidQuery.with("", fields...).write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), ledgerTimeout)
	defer cancel()
	filter.Client = by.onlyOwn()
	page, err := a.opts.Ledger.List(ctx, filter)
	if err != nil {
		a.failRead(ctx, w, err)
		return
	}
	writeJSON(w, http.StatusOK, a.page(page))
}

func (a *API) failRead(ctx context.Context, w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		problemNotFound.write(w)
	case errors.Is(err, ledger.ErrBadCursor):
		problemInvalidQuery.with("", refund.FieldError{Field: "cursor", Message: "is not a next_cursor of this API"}).write(w)
	default:
		a.log.ErrorContext(ctx, "reading cases failed", "error", err)
		problemUnavailable.after(retryAfter).write(w)
	}
}

// health says that the process serves, and how the egress of each account is.
func (a *API) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), pingTimeout)
	defer cancel()
	egress, err := a.egressHealth(ctx)
	if err != nil {
		a.log.WarnContext(ctx, "the state of the egress can't be read", "error", err)
		writeJSON(w, http.StatusOK, healthView{Status: "degraded"})
		return
	}
	writeJSON(w, http.StatusOK, healthView{Status: "ok", Egress: egress})
}

// ready says whether new requests should come here: the database answers and
// the server is not stopping. Temporal is no condition, since the relay
// catches up by itself.
func (a *API) ready(w http.ResponseWriter, r *http.Request) {
	if a.draining.Load() {
		problemUnavailable.with("The server is stopping.").write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pingTimeout)
	defer cancel()
	if err := a.opts.Ledger.Ping(ctx); err != nil {
		a.log.WarnContext(ctx, "not ready", "error", err)
		problemUnavailable.with("The database does not answer.").after(retryAfter).write(w)
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

func casePath(refundID string) string { return "/v1/refunds/" + url.PathEscape(refundID) }
