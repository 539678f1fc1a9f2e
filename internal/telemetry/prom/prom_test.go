package prom

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"refundgate/internal/telemetry"
)

func scrape(t *testing.T, h http.Handler) string {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, rec.Code, rec.Body.String())
	require.Contains(t, rec.Header().Get("Content-Type"), "text/plain; version=0.0.4")
	return rec.Body.String()
}

// One source of several fails: its own metrics are missing, and the log says so.
func TestHandler_KeepsThePage(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	broken := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, errors.New("the source is away") })
	page := scrape(t, Handler(telemetry.NewLogger(&log, telemetry.FormatJSON, slog.LevelInfo), broken, NewProcess()))
	require.Contains(t, page, "\ngo_goroutines ")
	require.Contains(t, page, "\nprocess_resident_memory_bytes ")
	require.Contains(t, log.String(), "the source is away")
}

// More scrapes at a time than a source should bear are turned away.
func TestHandler_IsBounded(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	slow := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		entered <- struct{}{}
		<-release
		return nil, nil
	})
	h := Handler(slog.New(slog.DiscardHandler), slow)
	var scrapes sync.WaitGroup
	for range maxScrapes {
		scrapes.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)) })
		<-entered
	}
	oneMore := httptest.NewRecorder()
	scrapes.Go(func() { h.ServeHTTP(oneMore, httptest.NewRequest(http.MethodGet, "/metrics", nil)) })
	select {
	case <-entered:
		t.Error("one more was let through")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	scrapes.Wait()
	require.Equal(t, http.StatusServiceUnavailable, oneMore.Code)
}

// The SDK gives one name several sets of tags, overwrites tags, and asks for
// the same metric again and again, from many goroutines.
func TestTemporal(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	root := Temporal(r).WithTags(map[string]string{"namespace": "refunds", "task_queue": "none"})
	worker := root.WithTags(map[string]string{"task_queue": "refund-egress.acme"})
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 100 {
				worker.Counter("temporal_request").Inc(2)
			}
		})
	}
	workers.Wait()
	root.Counter("temporal_request").Inc(1)
	root.WithTags(map[string]string{"operation": "StartWorkflow"}).Counter("temporal_request").Inc(3)
	worker.Gauge("temporal_num_pollers").Update(2)
	worker.Gauge("temporal_num_pollers").Update(1)
	root.Timer("temporal_request_latency").Record(40 * time.Millisecond)
	root.Timer("temporal_request_latency").Record(time.Hour)

	page := "\n" + scrape(t, Handler(slog.New(slog.DiscardHandler), r))
	require.Contains(t, page, `
# HELP temporal_num_pollers Of the Temporal SDK; see its metrics reference.
# TYPE temporal_num_pollers gauge
temporal_num_pollers{namespace="refunds",task_queue="refund-egress.acme"} 1
`)
	require.Contains(t, page, "# TYPE temporal_request_total counter\n")
	for _, line := range []string{
		`temporal_request_total{namespace="refunds",task_queue="refund-egress.acme"} 1600`,
		`temporal_request_total{namespace="refunds",task_queue="none"} 1`,
		`temporal_request_total{namespace="refunds",operation="StartWorkflow",task_queue="none"} 3`,
	} {
		require.Contains(t, page, line+"\n")
	}

	families, err := r.Gather()
	require.NoError(t, err)
	latency := families[1]
	require.Equal(t, "temporal_request_latency_seconds", latency.GetName())
	h := latency.GetMetric()[0].GetHistogram()
	require.EqualValues(t, 2, h.GetSampleCount())
	require.InDelta(t, 3600.04, h.GetSampleSum(), 1e-6)
	for _, b := range h.GetBucket() {
		want := uint64(0)
		if b.GetUpperBound() >= 0.05 {
			want = 1
		}
		require.Equal(t, want, b.GetCumulativeCount(), "le=%v", b.GetUpperBound())
	}
}
