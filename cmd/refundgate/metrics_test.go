package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"refundgate/internal/telemetry"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// scrape reads a page as Prometheus does: without a token.
func scrape(t require.TestingT, url string) map[string]*dto.MetricFamily {
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	require.NoError(t, err)
	return families
}

// counts returns what the family's counters and gauges show that isn't zero, by
// the given label.
func counts(f *dto.MetricFamily, label string) map[string]int {
	all := map[string]int{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if v := int(m.GetCounter().GetValue() + m.GetGauge().GetValue()); l.GetName() == label && v != 0 {
				all[l.GetValue()] += v
			}
		}
	}
	return all
}

// The page of serve, the only address that Prometheus needs, shows what the
// provider received, what the ledger holds, and who owns the egress, though the
// calls are made by another process.
func TestMetricsMatchTheWireAndTheLedger(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	posts := func(reference string, f standin.Fault) standin.Rule {
		return standin.Rule{Match: standin.Match{Method: http.MethodPost, Reference: reference}, Fault: f, Times: 1}
	}
	require.NoError(t, s.control.SetPlan(t.Context(),
		posts("drop", standin.Fault{Kind: standin.AcceptThenDrop}),
		posts("busy", standin.Fault{Kind: standin.Busy, RetryAfter: "1"}),
		posts("late", standin.Fault{Kind: standin.Delay, DelayMS: 3500}),
		posts("rejected", standin.Fault{Kind: standin.Reject, Code: "refund_window_closed"}),
	))
	serve := s.start("serve")
	serve.waitFor("intake:")
	worker := s.start("worker", "--metrics-listen", "127.0.0.1:0")
	worker.waitFor("egress: owner")
	worker.waitFor("metrics: http://127.0.0.1:")
	ids := []string{"drop", "busy", "late", "rejected"}
	for i := range 12 {
		ids = append(ids, fmt.Sprintf("good-%02d", i))
	}
	for _, id := range ids {
		s.submit(id, "demo")
	}
	require.Equal(t, len(ids), counts(scrape(t, s.intake+"/metrics")[telemetry.MetricIntakeRequests], telemetry.LabelResult)["accepted"])

	kinds, origins, outcomes := map[string]int{}, map[string]int{}, map[string]int{}
	statuses := map[string]int{}
	starts := 0
	for _, id := range ids {
		c := s.settled(id, time.Minute)
		statuses[string(c.Status)]++
		for _, call := range c.Calls {
			outcomes[string(call.Result.Outcome)]++
			if call.StartedAt != nil {
				starts++
				kinds[string(call.Key.Kind)]++
				origins[string(call.Origin)]++
			}
		}
	}
	record, err := s.control.Record(t.Context())
	require.NoError(t, err)
	wire := map[string]int{}
	for _, r := range record {
		wire[map[string]string{http.MethodPost: string(refund.KindSubmit), http.MethodGet: string(refund.KindCheck)}[r.Method]]++
	}
	require.Equal(t, wire, kinds)
	require.Equal(t, map[string]int{"succeeded": len(ids) - 1, "rejected": 1}, statuses)
	require.NotZero(t, origins["retry"])
	require.NotZero(t, origins["check"])

	var page map[string]*dto.MetricFamily
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the owner tells once a second
		page = scrape(c, s.intake+"/metrics")
		require.Equal(c, wire, counts(page[telemetry.MetricCallStarts], telemetry.LabelKind))
		require.Equal(c, origins, counts(page[telemetry.MetricCallStarts], telemetry.LabelOrigin))
		require.Equal(c, outcomes, counts(page[telemetry.MetricCallOutcomes], telemetry.LabelOutcome))
	}, 20*time.Second, 200*time.Millisecond)
	require.Equal(t, statuses, counts(page[telemetry.MetricSettled], telemetry.LabelStatus))
	require.Empty(t, counts(page[telemetry.MetricOpenCases], telemetry.LabelStatus))
	require.Equal(t, map[string]int{"demo": 1}, counts(page[telemetry.MetricEgressOwner], telemetry.LabelAccount))
	require.Equal(t, map[string]int{"closed": 1}, counts(page[telemetry.MetricBreakerState], telemetry.LabelState))
	gaps := page[telemetry.MetricStartGap].GetMetric()[0].GetHistogram()
	require.EqualValues(t, starts-1, gaps.GetSampleCount())
	require.InDelta(t, 0.2, gaps.GetBucket()[0].GetUpperBound(), 1e-12)
	require.Zero(t, gaps.GetBucket()[0].GetCumulativeCount(), "a gap under 200 ms")
	for _, name := range []string{
		telemetry.MetricCallDuration, telemetry.MetricConnectDuration, telemetry.MetricInFlight, telemetry.MetricWaiting,
		telemetry.MetricHiddenRetriesBlocked, telemetry.MetricOldestOpenAge,
		"temporal_request_total", "go_goroutines", "process_cpu_seconds_total",
	} {
		require.Contains(t, page, name)
	}

	// The worker shows the same of its egress, and its own SDK.
	own := scrape(t, strings.TrimPrefix(worker.lines()[0], "metrics: "))
	require.Equal(t, origins, counts(own[telemetry.MetricCallStarts], telemetry.LabelOrigin))
	require.Contains(t, own, "temporal_activity_execution_latency_seconds")
	require.Contains(t, own, "go_goroutines")

	// D6: the one that ran into its budget is in the distribution, with the 3 s
	// less what connecting took.
	out, errs, code := refundgate(t, "", "egress", "status", "--config", s.config)
	require.Zero(t, code, errs)
	require.Regexp(t, fmt.Sprintf(`\ndemo +submit +%d +1 +\S+ ms +.* [23]\d\d\d ms +connect 1000 ms, call 3000 ms `, wire["submit"]), out)
	require.Regexp(t, fmt.Sprintf(`\ndemo +check +%d +0 `, wire["check"]), out)
	_, health := s.request(http.MethodGet, "/healthz", nil)
	calls := health["egress"].(map[string]any)["demo"].(map[string]any)["calls"].(map[string]any)["kinds"].([]any)
	require.EqualValues(t, wire["submit"], calls[0].(map[string]any)["calls"])
	require.GreaterOrEqual(t, calls[0].(map[string]any)["max_ms"], 2000.0)

	// kill -9: nobody owns the egress any more, what was settled stays settled.
	worker.kill()
	require.NoError(t, serve.stop())
	s.start("serve").waitFor("intake:")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		page = scrape(c, s.intake+"/metrics")
		require.Empty(c, counts(page[telemetry.MetricEgressOwner], telemetry.LabelAccount))
	}, 20*time.Second, 100*time.Millisecond)
	require.Len(t, page[telemetry.MetricEgressOwner].GetMetric(), 1, "it shows zero")
	require.NotContains(t, page, telemetry.MetricInFlight)
	require.NotContains(t, page, telemetry.MetricBreakerState)
	require.Equal(t, statuses, counts(page[telemetry.MetricSettled], telemetry.LabelStatus))
}

func TestWorkerRefusesAMetricsAddressThatIsNone(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	out, errs, code := refundgate(t, "", "worker", "--metrics-listen", "8481", "--config", s.config)
	require.Equal(t, exitUsage, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, "worker.metrics_listen must be host:port")
	out, errs, code = refundgate(t, "", "worker", "--metrics-listen", strings.TrimPrefix(s.provider.URL(), "http://"), "--config", s.config)
	require.Equal(t, exitFailed, code, "the address is taken")
	require.Empty(t, out, "nothing has begun")
	require.Contains(t, errs, "listening at worker.metrics_listen")
}
