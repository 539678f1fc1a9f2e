package starter

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"refundgate/internal/telemetry"
	"refundgate/internal/telemetry/prom"
	"refundgate/ledger"
	"refundgate/refund"
)

// scrapeTimeout bounds what a scrape waits for the database, three times at
// most: Prometheus itself waits 10 s by default.
const scrapeTimeout = 3 * time.Second

// intakePath takes submissions.
const intakePath = "/v1/refunds"

// Results of submissions in MetricIntakeRequests, beside the names of the
// problems that submissions are refused with.
const (
	resultAccepted  = "accepted"
	resultDuplicate = "duplicate"
)

func newIntakeCounter() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: telemetry.MetricIntakeRequests,
		Help: "Submissions that were answered: accepted, duplicate, or the name of the problem.",
	}, []string{telemetry.LabelResult})
	for _, result := range []string{
		resultAccepted, resultDuplicate,
		problemUnauthorized.name(), problemForbidden.name(), problemMalformed.name(), problemUnsupportedMedia.name(), problemTooLarge.name(),
		problemInvalidRefund.name(), problemPaymentExceeded.name(), problemPaymentMismatch.name(), problemConflict.name(),
		problemTooManyRequests.name(), problemOverCapacity.name(), problemUnavailable.name(),
	} {
		c.WithLabelValues(result) // shows zero, so that a rate sees the first one
	}
	return c
}

// countIntake counts the answer to a submission; other requests aren't intake.
func (a *API) countIntake(r *http.Request, result string) {
	if r.Pattern == http.MethodPost+" "+intakePath {
		a.intake.WithLabelValues(result).Inc()
	}
}

// metrics returns the page for Prometheus: what this process measures, what
// the ledger counts, and what the owners of the egresses have reported.
func (a *API) metrics() http.Handler {
	own := prometheus.NewRegistry()
	own.MustRegister(a.intake)
	sources := []prometheus.Gatherer{own, prometheus.GathererFunc(a.gatherCases), prometheus.GathererFunc(a.gatherEgress), prometheus.GathererFunc(a.gatherAdmission), prometheus.GathererFunc(a.gatherInbox)}
	if a.opts.Metrics != nil {
		sources = append(sources, a.opts.Metrics)
	}
	return prom.Handler(a.log, sources...)
}

func (a *API) gatherAdmission() ([]*dto.MetricFamily, error) { return a.opts.Admission.gather() }

// gatherInbox counts the rows of the inbox.
func (a *API) gatherInbox() ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	load, err := a.opts.Ledger.InboxLoad(ctx)
	if err != nil {
		return nil, err
	}
	rows := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: telemetry.MetricInboxRows, Help: "Rows of refund_inbox: waiting to be accepted, or refused and waiting for people.",
	}, []string{telemetry.LabelState})
	rows.WithLabelValues("waiting").Set(float64(load.Waiting))
	rows.WithLabelValues("refused").Set(float64(load.Refused))
	oldest := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: telemetry.MetricInboxOldestAge, Help: "Age of the oldest row of refund_inbox that waits to be accepted; 0 if there is none.",
	})
	if load.Oldest != nil {
		oldest.Set(max(0, time.Since(*load.Oldest).Seconds())) // clocks differ
	}
	r := prometheus.NewRegistry()
	r.MustRegister(rows, oldest)
	return r.Gather()
}

// gatherCases counts the cases in the ledger.
func (a *API) gatherCases() ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	open, err := a.opts.Ledger.OpenCases(ctx)
	if err != nil {
		return nil, err
	}
	settled, err := a.opts.Ledger.Settled(ctx)
	if err != nil {
		return nil, err
	}

	labels := []string{telemetry.LabelAccount, telemetry.LabelStatus}
	openCases := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: telemetry.MetricOpenCases, Help: "Cases without a final status; those in review wait for people.",
	}, labels)
	oldest := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: telemetry.MetricOldestOpenAge,
		Help: "Age of the oldest open case that is not in review, since its acceptance; 0 if there is none.",
	}, labels[:1])
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: telemetry.MetricSettled, Help: "Cases that reached a final status, counted in the ledger.",
	}, labels)
	for _, acc := range a.opts.Accounts {
		oldest.WithLabelValues(acc.Name)
		for _, s := range refund.Statuses {
			if s.Final() {
				total.WithLabelValues(acc.Name, string(s))
			} else {
				openCases.WithLabelValues(acc.Name, string(s))
			}
		}
	}
	accepted := map[string]time.Time{} // when an account's oldest case was
	for _, o := range open {
		openCases.WithLabelValues(o.Account, string(o.Status)).Set(float64(o.Count))
		if first, ok := accepted[o.Account]; o.Status != refund.StatusReview && (!ok || o.Oldest.Before(first)) {
			accepted[o.Account] = o.Oldest
		}
	}
	for account, at := range accepted {
		oldest.WithLabelValues(account).Set(max(0, time.Since(at).Seconds())) // clocks differ
	}
	for _, s := range settled {
		total.WithLabelValues(s.Account, string(s.Status)).Add(float64(s.Total))
	}
	r := prometheus.NewRegistry()
	r.MustRegister(openCases, oldest, total)
	return r.Gather()
}

// gatherEgress merges what the owners of the configured accounts' egresses
// have reported, as long as they prove that they are the owners.
func (a *API) gatherEgress() ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	owners, err := a.opts.Ledger.EgressOwners(ctx)
	if err != nil {
		return nil, err
	}
	owned := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: telemetry.MetricEgressOwner,
		Help: "1 while the owner of the account's egress proves itself, 0 if there is none or its last proof is 10 s old.",
	}, []string{telemetry.LabelAccount})
	for _, acc := range a.opts.Accounts {
		owned.WithLabelValues(acc.Name)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(owned)
	sources := prometheus.Gatherers{r}
	now := time.Now()
	for _, o := range owners {
		if serves(a.opts.Accounts, o.Account) && o.Alive(now) {
			owned.WithLabelValues(o.Account).Set(1)
			sources = append(sources, reported(o))
		}
	}
	return sources.Gather()
}

// reported returns what the owner has reported, but whether it is one: that is
// seen from here.
func reported(o ledger.Owner) prometheus.GathererFunc {
	return func() ([]*dto.MetricFamily, error) {
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(o.Metrics))
		if err != nil {
			return nil, fmt.Errorf("reading the metrics that the owner of account %s reported: %w", o.Account, err)
		}
		delete(families, telemetry.MetricEgressOwner)
		return slices.Collect(maps.Values(families)), nil
	}
}
