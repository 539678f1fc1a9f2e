package worker

import (
	"context"
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
	"refundgate/limiter"
	"refundgate/provider"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// values returns the counters and gauges of the family by their labels but the
// account, "kind=submit origin=first"; those that are zero are left out.
func values(families map[string]*dto.MetricFamily, name string) map[string]int {
	all := map[string]int{}
	for _, m := range families[name].GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			if l.GetName() != telemetry.LabelAccount {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
		}
		if v := int(m.GetCounter().GetValue() + m.GetGauge().GetValue()); v != 0 {
			all[strings.Join(labels, " ")] = v
		}
	}
	return all
}

// histogram returns the family's histogram, of the kind if it has kinds.
func histogram(t *testing.T, families map[string]*dto.MetricFamily, name string, kind refund.CallKind) *dto.Histogram {
	t.Helper()
	for _, m := range families[name].GetMetric() {
		for _, l := range m.GetLabel() {
			if kind == "" || l.GetValue() == string(kind) {
				return m.GetHistogram()
			}
		}
	}
	require.FailNow(t, "there is no such histogram", "%s %s", name, kind)
	return nil
}

func gather(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := m.Gather()
	require.NoError(t, err)
	families := map[string]*dto.MetricFamily{}
	for _, f := range all {
		families[f.GetName()] = f
	}
	return families
}

// reported returns what the owner has told the ledger.
func (r *rig) reported() map[string]*dto.MetricFamily {
	r.t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(r.owner().Metrics))
	require.NoError(r.t, err)
	return families
}

func newMetrics() *Metrics { return NewMetrics(account, budgets()) }

// What is measured is what was on the wire: starts by kind and origin, every
// outcome, one gap less than starts and none below the least. The ledger is
// told the same.
func TestMetrics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plan(
		standin.Rule{Match: standin.Match{Method: http.MethodPost, Reference: "busy-1"}, Fault: standin.Fault{Kind: standin.Busy}, Times: 1},
		standin.Rule{Match: standin.Match{Method: http.MethodPost, Reference: "drop-1"}, Fault: standin.Fault{Kind: standin.AcceptThenDrop}, Times: 1},
		standin.Rule{Match: standin.Match{Method: http.MethodPost, Reference: "late-1"}, Fault: standin.Fault{Kind: standin.Delay, DelayMS: 3000}, Times: 1},
	)
	m := newMetrics()
	require.Empty(t, values(gather(t, m), telemetry.MetricEgressOwner))
	require.Len(t, gather(t, m)[telemetry.MetricCallStarts].GetMetric(), 5, "each counter shows zero")
	require.NotContains(t, gather(t, m), telemetry.MetricInFlight, "there is no gate")
	r.orchestrate()
	p := r.egress("one", func(e *Egress) { e.Metrics = m })
	var ids []string
	for prefix, n := range map[string]int{"good": 10, "busy": 1, "drop": 1, "late": 1} {
		ids = append(ids, r.submit(prefix, n)...)
	}
	calls := r.settled(ids)

	wantStarts, wantOutcomes, took := map[string]int{}, map[string]int{}, map[refund.CallKind]uint64{}
	for _, c := range calls {
		wantOutcomes["kind="+string(c.Key.Kind)+" outcome="+string(c.Result.Outcome)]++
	}
	calls = sent(calls)
	for _, c := range calls {
		wantStarts["kind="+string(c.Key.Kind)+" origin="+string(c.Origin)]++
		took[c.Key.Kind]++
	}
	require.Equal(t, 13, wantStarts["kind=submit origin=first"])
	require.Equal(t, 1, wantStarts["kind=submit origin=retry"])
	require.GreaterOrEqual(t, wantStarts["kind=check origin=check"], 2)
	require.Len(t, r.wire(), len(calls))
	matches := func(t require.TestingT, families map[string]*dto.MetricFamily) {
		require.Equal(t, wantStarts, values(families, telemetry.MetricCallStarts))
		require.Equal(t, wantOutcomes, values(families, telemetry.MetricCallOutcomes))
		require.Equal(t, map[string]int{"": 1}, values(families, telemetry.MetricEgressOwner))
		require.Equal(t, map[string]int{"state=closed": 1}, values(families, telemetry.MetricBreakerState))
		require.Len(t, families[telemetry.MetricBreakerState].GetMetric(), 3)
		require.Contains(t, families, telemetry.MetricInFlight)
		require.Len(t, families[telemetry.MetricWaiting].GetMetric(), 2)
	}
	matches(t, gather(t, m))
	require.EventuallyWithT(t, func(c *assert.CollectT) { matches(c, r.reported()) }, patience, 100*time.Millisecond)

	families := r.reported()
	gaps := histogram(t, families, telemetry.MetricStartGap, "")
	require.EqualValues(t, len(calls)-1, gaps.GetSampleCount())
	require.InDelta(t, 0.02, gaps.GetBucket()[0].GetUpperBound(), 1e-12)
	require.Zero(t, gaps.GetBucket()[0].GetCumulativeCount(), "a gap below the least")
	require.EqualValues(t, len(calls), histogram(t, families, telemetry.MetricConnectDuration, "").GetSampleCount())
	for kind, n := range took {
		require.Equal(t, n, histogram(t, families, telemetry.MetricCallDuration, kind).GetSampleCount())
	}
	// The one that timed out is in with its whole budget, the others are below it.
	submits := histogram(t, families, telemetry.MetricCallDuration, refund.KindSubmit)
	require.GreaterOrEqual(t, submits.GetSampleSum(), (budgets().CallTimeout - budgets().ConnectTimeout).Seconds())

	p.stop()
	families = gather(t, m)
	require.Empty(t, values(families, telemetry.MetricEgressOwner))
	require.NotContains(t, families, telemetry.MetricInFlight)
	require.Equal(t, wantStarts, values(families, telemetry.MetricCallStarts), "counters stay")
}

// selfRetrying is an adapter on top of a library that sends again by itself.
type selfRetrying struct{ provider.Adapter }

func (a selfRetrying) Submit(ctx context.Context, rt http.RoundTripper, s provider.Submission) refund.Result {
	first := a.Adapter.Submit(ctx, rt, s)
	a.Adapter.Submit(ctx, rt, s)
	return first
}

// A7: the second send is refused, counted and logged; the wire sees one.
func TestMetrics_HiddenRetriesAreCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := newMetrics()
	r.orchestrate()
	p := r.egress("one", func(e *Egress) { e.Adapter, e.Metrics = selfRetrying{e.Adapter}, m })
	r.settled(r.submit("r", 3))
	require.Len(t, r.wire(), 3)
	require.Equal(t, map[string]int{"": 3}, values(gather(t, m), telemetry.MetricHiddenRetriesBlocked))
	require.Len(t, p.logs.Events(t, telemetry.EventHiddenRetryBlocked), 3)
	require.Equal(t, map[string]int{"kind=submit origin=first": 3}, values(gather(t, m), telemetry.MetricCallStarts))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.Equal(c, map[string]int{"": 3}, values(r.reported(), telemetry.MetricHiddenRetriesBlocked))
	}, patience, 100*time.Millisecond)
}

// A new owner tells the ledger what it is doing from its first seconds on,
// though it sends nothing yet, so that it isn't taken for dead.
func TestMetrics_ToldWhileTheOwnerStillWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.egress("one", func(e *Egress) { e.Gate.CallTimeout = time.Hour }).await("owner")
	require.EventuallyWithT(t, func(c *assert.CollectT) { require.NotEmpty(c, r.owner().Metrics) }, patience, 100*time.Millisecond)
	require.Equal(t, map[string]int{"": 1}, values(r.reported(), telemetry.MetricEgressOwner))
	require.NotContains(t, r.reported(), telemetry.MetricInFlight)
	require.True(t, r.owner().SeenAt.After(r.owner().AcquiredAt))
}

// A repeat of a key makes no call, and between two ownerships lies no gap.
func TestMetrics_WhatDoesNotCount(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	call := refund.Call{Key: refund.CallKey{RefundID: "r", Generation: 1, Kind: refund.KindCheck, Seq: 1}, Origin: refund.OriginManual}
	call.Result.Outcome = refund.OutcomeNotSent
	made := m.counted(func(context.Context, refund.CallInput) (refund.CallResult, error) {
		return refund.CallResult{Call: call}, nil
	})
	repeated := m.counted(func(context.Context, refund.CallInput) (refund.CallResult, error) {
		return refund.CallResult{Call: call, Repeat: true}, nil
	})
	failed := m.counted(func(context.Context, refund.CallInput) (refund.CallResult, error) {
		return refund.CallResult{}, context.Canceled
	})
	for _, f := range []callActivity{made, repeated, failed} {
		_, _ = f(t.Context(), refund.CallInput{})
	}
	require.Equal(t, map[string]int{"kind=check outcome=not_sent": 1}, values(gather(t, m), telemetry.MetricCallOutcomes))
	require.Zero(t, histogram(t, gather(t, m), telemetry.MetricCallDuration, refund.KindCheck).GetSampleCount())

	for range 2 {
		over := m.owned()
		for _, at := range []time.Duration{5 * time.Second, 6 * time.Second} {
			m.started(limiter.Call{Key: call.Key, Origin: call.Origin}, limiter.Passage{StartedMono: at})
		}
		over()
	}
	require.Equal(t, map[string]int{"kind=check origin=manual": 4}, values(gather(t, m), telemetry.MetricCallStarts))
	require.EqualValues(t, 2, histogram(t, gather(t, m), telemetry.MetricStartGap, "").GetSampleCount())
}

// The buckets are shares of the account's own budgets, so that a margin reads
// the same for every account.
func TestMetrics_BucketsFollowTheBudgets(t *testing.T) {
	t.Parallel()
	m := NewMetrics("slow", limiter.Config{Interval: time.Second, CallTimeout: 10 * time.Second})
	bounds := func(name string) (all []float64) {
		for _, b := range histogram(t, gather(t, m), name, "").GetBucket() {
			all = append(all, b.GetUpperBound())
		}
		return all
	}
	require.Equal(t, []float64{1, 1.005, 1.025, 1.05, 1.1, 1.25, 1.5, 2, 5, 25, 150}, bounds(telemetry.MetricStartGap))
	require.Equal(t, []float64{0.1, 0.25, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9.5, 10, 10.5}, bounds(telemetry.MetricCallDuration))
	require.Equal(t, []float64{0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1, 1.05}, bounds(telemetry.MetricConnectDuration), "the default's")
}
