package prom

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/client"
)

// temporalHelp stands at every metric of the SDK, which gives none itself.
const temporalHelp = "Of the Temporal SDK; see its metrics reference."

// temporalBuckets are the upper bounds of the SDK's latencies, in seconds: from
// a request to a server nearby to an activity that waits for its slot.
var temporalBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900}

// Temporal returns the handler that puts what the Temporal SDK measures into
// the registry: counters with the suffix _total, timers as histograms with the
// suffix _seconds, tags as labels.
func Temporal(r prometheus.Registerer) client.MetricsHandler {
	m := &temporalMetrics{byKey: map[string]prometheus.Metric{}}
	r.MustRegister(m)
	return temporalHandler{metrics: m}
}

// temporalMetrics are the SDK's metrics. Those of one name don't all have the
// same tags, which a prometheus.CounterVec couldn't hold.
type temporalMetrics struct {
	mu    sync.Mutex
	byKey map[string]prometheus.Metric // by name and tags
}

// Describe implements prometheus.Collector: what there will be isn't known.
func (m *temporalMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *temporalMetrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.byKey))
	m.mu.Unlock()
	for _, metric := range all {
		out <- metric
	}
}

// temporalHandler implements client.MetricsHandler.
type temporalHandler struct {
	metrics *temporalMetrics
	tags    map[string]string // never changed once it is here
}

func (h temporalHandler) WithTags(tags map[string]string) client.MetricsHandler {
	all := make(map[string]string, len(h.tags)+len(tags))
	maps.Copy(all, h.tags)
	maps.Copy(all, tags)
	return temporalHandler{metrics: h.metrics, tags: all}
}

func (h temporalHandler) Counter(name string) client.MetricsCounter {
	return counter{metric(h, name+"_total", func(name string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: temporalHelp, ConstLabels: h.tags})
	})}
}

func (h temporalHandler) Gauge(name string) client.MetricsGauge {
	return gauge{metric(h, name, func(name string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: temporalHelp, ConstLabels: h.tags})
	})}
}

func (h temporalHandler) Timer(name string) client.MetricsTimer {
	return timer{metric(h, name+"_seconds", func(name string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: temporalHelp, Buckets: temporalBuckets, ConstLabels: h.tags})
	})}
}

// metric returns the metric of that name with the handler's tags, made on first
// use.
func metric[M prometheus.Metric](h temporalHandler, name string, create func(name string) M) M {
	var key strings.Builder
	key.WriteString(name)
	for _, tag := range slices.Sorted(maps.Keys(h.tags)) {
		key.WriteString("\x00" + tag + "\x00" + h.tags[tag])
	}
	m := h.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.byKey[key.String()]; ok {
		return known.(M) // the suffix tells the kinds apart
	}
	created := create(name)
	m.byKey[key.String()] = created
	return created
}

// The SDK's names for what Prometheus's metrics do.
type (
	counter struct{ prometheus.Counter }
	gauge   struct{ prometheus.Gauge }
	timer   struct{ prometheus.Histogram }
)

func (c counter) Inc(n int64)          { c.Add(float64(n)) }
func (g gauge) Update(v float64)       { g.Set(v) }
func (t timer) Record(d time.Duration) { t.Observe(d.Seconds()) }
