package main

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// Every way in which the provider may behave ends where it should, with the
// default numbers: at most one execution, one ledger row for each request on
// the wire, the same key and bytes in every attempt.
func TestEveryProviderBehaviour(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	// Behind the second account nobody listens at first.
	late := freePort(t)
	lateURL := (&url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", itoa(late))}).String()
	s.configure(map[string]string{"demo": s.provider.URL(), "late": lateURL})

	posts := func(f standin.Fault) *standin.Fault { return &f }
	tests := []struct {
		id       string
		fault    *standin.Fault // for the first send
		times    int            // the fault's uses; 1 if zero
		want     refund.Status
		attempts int
		executed int
		checks   bool // result checks are needed
	}{
		{id: "success", want: refund.StatusSucceeded, attempts: 1, executed: 1},
		{id: "pending-201", fault: posts(standin.Fault{Kind: standin.Pending, Status: 201, SettleMS: 3000}), want: refund.StatusSucceeded, attempts: 1, executed: 1, checks: true},
		{id: "pending-202", fault: posts(standin.Fault{Kind: standin.Pending, Status: 202, EmptyBody: true, SettleMS: 3000}), want: refund.StatusSucceeded, attempts: 1, executed: 1, checks: true},
		{id: "pending-fails", fault: posts(standin.Fault{Kind: standin.Pending, Status: 201, SettleMS: 1000, SettleTo: "failed"}), want: refund.StatusRejected, attempts: 1, executed: 1, checks: true},
		{id: "busy", fault: posts(standin.Fault{Kind: standin.Busy, RetryAfter: "4"}), want: refund.StatusSucceeded, attempts: 2, executed: 1},
		{id: "busy-thrice", fault: posts(standin.Fault{Kind: standin.Busy}), times: 3, want: refund.StatusReview, attempts: 3, executed: 0},
		{id: "rejected", fault: posts(standin.Fault{Kind: standin.Reject, Code: "refund_window_closed"}), want: refund.StatusRejected, attempts: 1, executed: 0},
		{id: "delay-3s", fault: posts(standin.Fault{Kind: standin.Delay, DelayMS: 3300}), want: refund.StatusSucceeded, attempts: 1, executed: 1, checks: true},
		{id: "accept-drop", fault: posts(standin.Fault{Kind: standin.AcceptThenDrop}), want: refund.StatusSucceeded, attempts: 1, executed: 1, checks: true},
		{id: "reset-mid-body", fault: posts(standin.Fault{Kind: standin.AcceptThenReset}), want: refund.StatusSucceeded, attempts: 1, executed: 1, checks: true},
		{id: "500-after", fault: posts(standin.Fault{Kind: standin.ErrorAfterAccept}), want: refund.StatusSucceeded, attempts: 1, executed: 1, checks: true},
		{id: "garbage", fault: posts(standin.Fault{Kind: standin.Garbage, Execute: true}), want: refund.StatusSucceeded, attempts: 1, executed: 1, checks: true},
		{id: "partial", fault: posts(standin.Fault{Kind: standin.Partial, Execute: true}), want: refund.StatusSucceeded, attempts: 1, executed: 1, checks: true},
		{id: "redirect", fault: posts(standin.Fault{Kind: standin.Redirect, Execute: true}), want: refund.StatusSucceeded, attempts: 1, executed: 1, checks: true},
		// Not executed: no trace for 60 s and three checks, then a resend.
		{id: "drop-before", fault: posts(standin.Fault{Kind: standin.Drop}), want: refund.StatusSucceeded, attempts: 2, executed: 1, checks: true},
		{id: "garbage-nothing", fault: posts(standin.Fault{Kind: standin.Garbage}), want: refund.StatusSucceeded, attempts: 2, executed: 1, checks: true},
	}
	var rules []standin.Rule
	var ids []string
	for _, tt := range tests {
		ids = append(ids, tt.id)
		if tt.fault != nil {
			rules = append(rules, standin.Rule{Match: standin.Match{Method: http.MethodPost, Reference: tt.id}, Fault: *tt.fault, Times: max(tt.times, 1)})
		}
	}
	require.NoError(t, s.control.SetPlan(t.Context(), rules...))
	s.start("serve").waitFor("intake:")
	worker := s.start("worker")
	worker.waitFor("egress: owner")
	for _, id := range ids {
		s.submit(id, "demo")
	}
	s.submit("refused-connection", "late")

	for _, tt := range tests {
		t.Run(tt.id, func(t *testing.T) {
			c := s.settled(tt.id, 3*time.Minute)
			require.Equal(t, tt.want, c.Status, describeCalls(c))
			require.Equal(t, tt.attempts, c.Attempts, describeCalls(c))
			checked := false
			for _, call := range c.Calls {
				checked = checked || call.Key.Kind == refund.KindCheck
				require.True(t, call.Done(), "a call without an outcome")
			}
			require.Equal(t, tt.checks, checked, describeCalls(c))
			if tt.want == refund.StatusReview {
				require.Equal(t, refund.ReviewAttempts, c.ReviewReason)
			}
			executions, err := s.control.Executions(t.Context())
			require.NoError(t, err)
			require.Equal(t, tt.executed, executions[tt.id])
		})
	}
	s.requireMatched(ids...)
	// So many faults at once open the circuit breaker, and it closes by itself.
	require.Contains(t, worker.log(), `"event":"breaker.transition","account":"demo","from":"closed","to":"open"`)
	require.Contains(t, worker.log(), `"from":"half_open","to":"closed"`)

	t.Run("refused connection", func(t *testing.T) {
		c, err := s.ledger.Case(t.Context(), "refused-connection")
		require.NoError(t, err)
		require.Equal(t, refund.StatusQueued, c.Status, "nothing was sent, so nothing is unknown")
		require.Zero(t, c.Attempts)
		// Now the provider comes up at that address.
		target, err := url.Parse(s.provider.URL())
		require.NoError(t, err)
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", itoa(late)))
		require.NoError(t, err)
		srv := &http.Server{Handler: httputil.NewSingleHostReverseProxy(target), ReadHeaderTimeout: time.Second}
		t.Cleanup(func() { _ = srv.Close() })
		go func() { _ = srv.Serve(ln) }()
		c = s.settled("refused-connection", 2*time.Minute)
		require.Equal(t, refund.StatusSucceeded, c.Status, describeCalls(c))
		require.Equal(t, 1, c.Attempts)
		s.requireMatched("refused-connection")
	})
	require.NoError(t, worker.stop())
}
