package starter

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"refundgate/internal/telemetry"
	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// page scrapes /metrics without a token.
func (i *intake) page() map[string]*dto.MetricFamily {
	i.t.Helper()
	a := i.do("GET", "/metrics", "", "")
	require.Equal(i.t, 200, a.status, string(a.body))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(a.body))
	require.NoError(i.t, err)
	return families
}

// samples returns a family's counters and gauges by their labels.
func samples(f *dto.MetricFamily) map[string]float64 {
	all := map[string]float64{}
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		all[strings.Join(labels, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return all
}

func TestMetrics_Intake(t *testing.T) {
	t.Parallel()
	i := newIntake(t, newLedger(t, testenv.MariaDB(t)), nil)
	for range 2 {
		i.post(body(nil))
	}
	i.post(body(map[string]string{"amount": `{"value":1,"currency":"TWD"}`})) // the same id, other content
	i.post(`{}`)
	i.post(`{`)
	i.do("POST", "/v1/refunds", readToken, body(nil))
	i.do("POST", "/v1/refunds", "", body(nil))
	// Nothing of this is a submission.
	i.do("GET", "/v1/refunds", "", "")
	i.get("/v1/refunds/r-1")
	i.do("PUT", "/v1/refunds", ordersToken, body(nil))

	require.Equal(t, map[string]float64{
		"result=accepted": 1, "result=duplicate": 1, "result=conflict": 1, "result=invalid-refund": 1, "result=malformed-body": 1,
		"result=forbidden": 1, "result=unauthorized": 1, "result=unsupported-media-type": 0, "result=too-large": 0,
		"result=payment-exceeded": 0, "result=payment-mismatch": 0, "result=unavailable": 0,
		"result=too-many-requests": 0, "result=over-capacity": 0,
	}, samples(i.page()[telemetry.MetricIntakeRequests]))
}

func TestMetrics_Cases(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	settled := func() map[string]float64 { return samples(i.page()[telemetry.MetricSettled]) }
	age := func() map[string]float64 { return samples(i.page()[telemetry.MetricOldestOpenAge]) }
	none := map[string]float64{}
	for _, account := range []string{"main", "second"} {
		for _, status := range []string{"succeeded", "rejected", "not_refunded"} {
			none["account="+account+" status="+status] = 0
		}
	}
	require.Equal(t, none, settled(), "zero is shown, so that a rate sees the first one")
	require.Equal(t, map[string]float64{"account=main": 0, "account=second": 0}, age())

	for _, id := range []string{"a", "b", "c"} {
		require.Equal(t, 202, i.post(body(map[string]string{"refund_id": `"` + id + `"`, "payment_id": `"p-` + id + `"`})).status)
	}
	time.Sleep(20 * time.Millisecond)
	require.GreaterOrEqual(t, age()["account=main"], 0.02)
	require.Less(t, age()["account=main"], 60.0)
	save := func(id string, s refund.Status, r refund.ReviewReason) {
		require.NoError(t, l.Save(t.Context(), ledger.Change{RefundID: id, Status: s, ReviewReason: r}))
	}
	save("a", refund.StatusSucceeded, "")
	save("b", refund.StatusReview, refund.ReviewChecks)
	open := samples(i.page()[telemetry.MetricOpenCases])
	require.Len(t, open, 10)
	require.Subset(t, open, map[string]float64{"account=main status=queued": 1, "account=main status=review": 1, "account=second status=queued": 0})
	none["account=main status=succeeded"] = 1
	require.Equal(t, none, settled())

	save("c", refund.StatusRejected, "")
	none["account=main status=rejected"] = 1
	require.Equal(t, none, settled())
	require.Zero(t, age()["account=main"], "what is left waits for people")
	require.Equal(t, none, samples(newIntake(t, l, nil).page()[telemetry.MetricSettled]), "another process counts the same")
}

const reportText = `# HELP refundgate_in_flight Calls.
# TYPE refundgate_in_flight gauge
refundgate_in_flight{account="%"} 3
# HELP refundgate_egress_owner Owner.
# TYPE refundgate_egress_owner gauge
refundgate_egress_owner{account="%"} 1
`

// What owners have reported is shown as long as they are the owners and say so.
func TestMetrics_Egress(t *testing.T) {
	t.Parallel()
	dsn := testenv.MariaDB(t)
	l := newLedger(t, dsn)
	i := newIntake(t, l, nil)
	acquire := func(l *ledger.Ledger, account string) *ledger.EgressLock {
		lock, err := l.AcquireEgress(t.Context(), account, "host-a:17")
		require.NoError(t, err)
		t.Cleanup(func() { _ = lock.Release(context.Background()) })
		return lock
	}
	report := func(lock *ledger.EgressLock, account string) {
		require.NoError(t, lock.Report(t.Context(), ledger.Report{Metrics: strings.ReplaceAll(reportText, "%", account)}))
	}
	requireShown := func(owner, inFlight map[string]float64) {
		t.Helper()
		page := i.page()
		require.Equal(t, owner, samples(page[telemetry.MetricEgressOwner]))
		require.Equal(t, inFlight, samples(page[telemetry.MetricInFlight]))
	}
	requireShown(map[string]float64{"account=main": 0, "account=second": 0}, map[string]float64{})

	main := acquire(l, "main")
	requireShown(map[string]float64{"account=main": 1, "account=second": 0}, map[string]float64{})
	report(main, "main")
	second := acquire(l, "second")
	report(second, "second")
	report(acquire(l, "not-configured"), "not-configured")
	requireShown(map[string]float64{"account=main": 1, "account=second": 1}, map[string]float64{"account=main": 3, "account=second": 3})

	// One is released, the other one stopped a while ago.
	require.NoError(t, main.Release(t.Context()))
	require.NoError(t, second.Release(t.Context()))
	past, err := ledger.Open(t.Context(), dsn, ledger.Options{Now: func() time.Time { return time.Now().Add(-11 * time.Second) }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, past.Close()) })
	report(acquire(past, "second"), "second")
	requireShown(map[string]float64{"account=main": 0, "account=second": 0}, map[string]float64{})

	require.Empty(t, i.logs.String(), "nothing contradicts itself")

	// A report that can't be read costs itself, and people learn of it.
	main = acquire(l, "main")
	require.NoError(t, main.Report(t.Context(), ledger.Report{Metrics: "refundgate_in_flight{"}))
	requireShown(map[string]float64{"account=main": 1, "account=second": 0}, map[string]float64{})
	require.Contains(t, i.logs.String(), "reading the metrics that the owner of account main reported")
}

// away is a ledger whose database doesn't answer.
type away struct{ Ledger }

func (away) OpenCases(context.Context) ([]ledger.OpenCases, error) {
	return nil, errors.New("gone away")
}

func (away) EgressOwners(context.Context) ([]ledger.Owner, error) {
	return nil, errors.New("gone away")
}

func (away) InboxLoad(context.Context) (ledger.InboxLoad, error) {
	return ledger.InboxLoad{}, errors.New("gone away")
}

// Without the database the process still shows itself.
func TestMetrics_WithoutTheDatabase(t *testing.T) {
	t.Parallel()
	i := newIntake(t, away{}, nil)
	i.do("POST", "/v1/refunds", "", "")
	page := i.page()
	require.Subset(t, samples(page[telemetry.MetricIntakeRequests]), map[string]float64{"result=unauthorized": 1})
	require.Contains(t, page, "go_goroutines")
	require.NotContains(t, page, telemetry.MetricEgressOwner, "unknown isn't zero")
	require.NotContains(t, page, telemetry.MetricOpenCases)
	require.NotContains(t, page, telemetry.MetricInboxRows)
	require.Contains(t, i.logs.String(), "gone away")
	require.Equal(t, 405, i.do("POST", "/metrics", "", "").status)
}
