package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"refundgate/internal/telemetry"
	"refundgate/ledger"
	"refundgate/limiter"
	"refundgate/refund"
)

// Metrics measures the egress of one account. The owner reports it to the
// ledger with every proof of its ownership, for serve to show; a worker can
// show it itself. Counters begin at zero with the process.
type Metrics struct {
	registry *prometheus.Registry

	owner    prometheus.Gauge
	starts   *prometheus.CounterVec   // by kind, origin
	outcomes *prometheus.CounterVec   // by kind, outcome
	took     *prometheus.HistogramVec // by kind
	connect  prometheus.Histogram
	gaps     prometheus.Histogram
	hidden   prometheus.Counter

	gate atomic.Pointer[limiter.Gate] // nil while there is none

	mu   sync.Mutex
	last time.Duration // the latest start of this ownership, 0 before the first
}

// NewMetrics returns the metrics of an account's egress with these budgets,
// which the buckets of the histograms are shares of.
func NewMetrics(account string, budgets limiter.Config) *Metrics {
	budgets = budgets.WithDefaults()
	labels := prometheus.Labels{telemetry.LabelAccount: account}
	counters := func(name, help string, by ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, by)
	}
	histogram := func(name, help string, bounds []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: bounds}
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		owner: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: telemetry.MetricEgressOwner, Help: "1 while this process owns the account's egress, 0 while it does not.", ConstLabels: labels,
		}),
		starts: counters(telemetry.MetricCallStarts,
			"Calls of which the first byte was handed to the network.", telemetry.LabelKind, telemetry.LabelOrigin),
		outcomes: counters(telemetry.MetricCallOutcomes,
			"Calls that are over, by what they turned out to mean; not_sent ones never started.", telemetry.LabelKind, telemetry.LabelOutcome),
		took: prometheus.NewHistogramVec(histogram(telemetry.MetricCallDuration,
			"From the first byte of a call's request to the closed socket. The buckets are shares of the call budget.",
			buckets(budgets.CallTimeout, shares...)), []string{telemetry.LabelKind}),
		connect: prometheus.NewHistogram(histogram(telemetry.MetricConnectDuration,
			"What DNS, TCP and TLS took of calls that started. The buckets are shares of the connect budget.",
			buckets(budgets.ConnectTimeout, shares...))),
		gaps: prometheus.NewHistogram(histogram(telemetry.MetricStartGap,
			"Between the first bytes of two consecutive calls of one ownership. The first bucket ends at the least allowed gap and stays empty.",
			buckets(budgets.Interval, gapShares...))),
		hidden: prometheus.NewCounter(prometheus.CounterOpts{
			Name: telemetry.MetricHiddenRetriesBlocked, Help: "Second sends on one permit that were refused: something below the workflow retries.", ConstLabels: labels,
		}),
	}
	m.registry.MustRegister(m.owner, m.starts, m.outcomes, m.took, m.connect, m.gaps, m.hidden, newGateCollector(&m.gate, labels))
	m.expose()
	return m
}

// Upper bounds of buckets, in thousandths of a budget and of the least gap.
var (
	shares    = []int64{10, 25, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 950, 1000, 1050}
	gapShares = []int64{1000, 1005, 1025, 1050, 1100, 1250, 1500, 2000, 5000, 25_000, 150_000}
)

// buckets returns upper bounds in seconds.
func buckets(of time.Duration, thousandths ...int64) []float64 {
	bounds := make([]float64, len(thousandths))
	for i, n := range thousandths {
		bounds[i] = (of * time.Duration(n) / 1000).Seconds()
	}
	return bounds
}

// expose makes every counter that there can be show zero, so that its first
// increment is one that a rate sees.
func (m *Metrics) expose() {
	for kind, origins := range map[refund.CallKind][]refund.Origin{
		refund.KindSubmit: {refund.OriginFirst, refund.OriginRetry, refund.OriginManual},
		refund.KindCheck:  {refund.OriginCheck, refund.OriginManual},
	} {
		for _, origin := range origins {
			m.starts.WithLabelValues(string(kind), string(origin))
		}
		for _, outcome := range refund.Outcomes {
			m.outcomes.WithLabelValues(string(kind), string(outcome))
		}
		m.took.WithLabelValues(string(kind))
	}
}

// Gather implements prometheus.Gatherer.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }

// owned notes that this process owns the egress, until the returned function
// is called.
func (m *Metrics) owned() (over func()) {
	m.mu.Lock()
	m.last = 0 // between the ownerships somebody else may have sent
	m.mu.Unlock()
	m.owner.Set(1)
	return func() {
		m.gate.Store(nil)
		m.owner.Set(0)
	}
}

// started counts a call of which a byte has left.
func (m *Metrics) started(c limiter.Call, p limiter.Passage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.starts.WithLabelValues(string(c.Key.Kind), string(c.Origin)).Inc()
	m.connect.Observe(p.Connect.Seconds())
	if m.last > 0 {
		m.gaps.Observe((p.StartedMono - m.last).Seconds())
	}
	m.last = p.StartedMono
}

// ended counts a call that is over.
func (m *Metrics) ended(call refund.Call) {
	kind := string(call.Key.Kind)
	m.outcomes.WithLabelValues(kind, string(call.Result.Outcome)).Inc()
	if call.StartedAt != nil {
		m.took.WithLabelValues(kind).Observe(call.FinishedAt.Sub(*call.StartedAt).Seconds())
	}
}

// report is what the owner tells the ledger. With an error, it is a part of
// that.
func (m *Metrics) report() (r ledger.Report, err error) {
	if gate := m.gate.Load(); gate != nil { // it isn't open yet in the first seconds of an ownership
		if r.Gate, err = json.Marshal(gate.Status()); err != nil {
			return r, fmt.Errorf("describing the gate: %w", err)
		}
	}
	families, err := m.Gather()
	if err != nil {
		return r, fmt.Errorf("gathering the egress's metrics: %w", err)
	}
	var text strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			return r, fmt.Errorf("writing the egress's metrics: %w", err)
		}
	}
	r.Metrics = text.String()
	return r, nil
}

// callActivity is an activity that makes a call.
type callActivity func(ctx context.Context, in refund.CallInput) (refund.CallResult, error)

// counted counts what becomes of the calls that the activity makes. A repeat
// of a call key makes none.
func (m *Metrics) counted(call callActivity) callActivity {
	return func(ctx context.Context, in refund.CallInput) (refund.CallResult, error) {
		res, err := call(ctx, in)
		if err == nil && !res.Repeat {
			m.ended(res.Call)
		}
		return res, err
	}
}

// gateCollector shows what the gate is doing; nothing while there is none.
type gateCollector struct {
	gate                       *atomic.Pointer[limiter.Gate]
	inFlight, waiting, breaker *prometheus.Desc
}

func newGateCollector(gate *atomic.Pointer[limiter.Gate], labels prometheus.Labels) *gateCollector {
	return &gateCollector{
		gate: gate,
		inFlight: prometheus.NewDesc(telemetry.MetricInFlight,
			"Calls between their first byte and the closed socket.", nil, labels),
		waiting: prometheus.NewDesc(telemetry.MetricWaiting,
			"Calls in the egress's waiting room. More may be in its Temporal task queue.", []string{telemetry.LabelGroup}, labels),
		breaker: prometheus.NewDesc(telemetry.MetricBreakerState,
			"The circuit breaker: 1 for the state it is in, 0 for the others.", []string{telemetry.LabelState}, labels),
	}
}

// Describe implements prometheus.Collector.
func (c *gateCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.inFlight
	out <- c.waiting
	out <- c.breaker
}

// Collect implements prometheus.Collector.
func (c *gateCollector) Collect(out chan<- prometheus.Metric) {
	gate := c.gate.Load()
	if gate == nil {
		return
	}
	s := gate.Status()
	show := func(d *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	show(c.inFlight, s.InFlight)
	show(c.waiting, s.WaitingFirst, string(refund.GroupFirst))
	show(c.waiting, s.WaitingFollowUp, string(refund.GroupFollowUp))
	for _, state := range []limiter.BreakerState{limiter.BreakerClosed, limiter.BreakerOpen, limiter.BreakerHalfOpen} {
		is := 0
		if s.Breaker == state {
			is = 1
		}
		show(c.breaker, is, string(state))
	}
}
