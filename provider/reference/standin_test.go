package reference_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/provider/reference"
	"refundgate/provider/standin"
	"refundgate/refund"
)

// bench is an adapter with a stand-in of its own.
type bench struct {
	adapter *reference.Adapter
	control *standin.Client
}

func newBench(t *testing.T, rules ...standin.Rule) bench {
	t.Helper()
	s, err := standin.New(standin.Options{APIKey: "sk_test"})
	require.NoError(t, err)
	require.NoError(t, s.Start("127.0.0.1:0"))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	a, err := reference.New(reference.Config{BaseURL: s.URL(), APIKey: func() string { return "sk_test" }})
	require.NoError(t, err)
	b := bench{a, standin.NewClient(s.URL())}
	require.NoError(t, b.control.SetPlan(t.Context(), rules...))
	return b
}

func aRefund(id string) refund.Refund {
	return refund.Refund{
		ID: id, Account: "acme", OrderID: "o-1", PaymentID: "pay_1",
		Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "damaged\n🎁", RequestedBy: "shop",
	}
}

func transport() http.RoundTripper { return &http.Transport{DisableKeepAlives: true} }

// submit sends with a budget of a second.
func (b bench) submit(t *testing.T, r refund.Refund) refund.Result {
	t.Helper()
	body, err := b.adapter.Encode(r)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return b.adapter.Submit(ctx, transport(), provider.Submission{Refund: r, Key: refund.IdempotencyKey(r.ID, 1), Body: body})
}

func (b bench) check(t *testing.T, r refund.Refund, id string) refund.Result {
	t.Helper()
	return b.adapter.Check(t.Context(), transport(), provider.Query{Refund: r, ProviderRefundID: id})
}

func (b bench) executions(t *testing.T, id string) int {
	t.Helper()
	n, err := b.control.Executions(t.Context())
	require.NoError(t, err)
	return n[id]
}

// TestFaultsOfASend plays every fault against one send and says what the send
// and a later check learn from it.
func TestFaultsOfASend(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault    standin.Fault
		sent     refund.Outcome
		code     string
		later    refund.Outcome // what a check finds
		executed int
	}{
		"late":                {standin.Fault{Kind: standin.Delay, DelayMS: 60_000}, refund.OutcomeUnknown, refund.CodeTimeout, refund.OutcomeSucceeded, 1},
		"slow":                {standin.Fault{Kind: standin.Delay, DelayMS: 50}, refund.OutcomeSucceeded, "", refund.OutcomeSucceeded, 1},
		"Case01 answer lost":  {standin.Fault{Kind: standin.AcceptThenDrop}, refund.OutcomeUnknown, refund.CodeDisconnected, refund.OutcomeSucceeded, 1},
		"reset in the body":   {standin.Fault{Kind: standin.AcceptThenReset}, refund.OutcomeUnknown, refund.CodeDisconnected, refund.OutcomeSucceeded, 1},
		"500 after accepting": {standin.Fault{Kind: standin.ErrorAfterAccept}, refund.OutcomeUnknown, refund.CodeUnreadable, refund.OutcomeSucceeded, 1},
		"pending":             {standin.Fault{Kind: standin.Pending}, refund.OutcomePending, "", refund.OutcomePending, 1},
		"202":                 {standin.Fault{Kind: standin.Pending, Status: 202}, refund.OutcomePending, "", refund.OutcomePending, 1},
		"202 empty":           {standin.Fault{Kind: standin.Pending, Status: 202, EmptyBody: true}, refund.OutcomePending, "", refund.OutcomePending, 1},
		"reset":               {standin.Fault{Kind: standin.Drop}, refund.OutcomeUnknown, refund.CodeDisconnected, refund.OutcomeNotFound, 0},
		"reject":              {standin.Fault{Kind: standin.Reject, Code: "payment_disputed"}, refund.OutcomeRejected, "payment_disputed", refund.OutcomeNotFound, 0},
		"unlisted reject":     {standin.Fault{Kind: standin.Reject, Code: "computer_says_no"}, refund.OutcomeUnknown, refund.CodeUnreadable, refund.OutcomeNotFound, 0},
		"busy":                {standin.Fault{Kind: standin.Busy, RetryAfter: "2"}, refund.OutcomeBusy, "temporarily_unavailable", refund.OutcomeNotFound, 0},
		"quota":               {standin.Fault{Kind: standin.RateLimit, RetryAfter: "2"}, refund.OutcomeBusy, "rate_limited", refund.OutcomeNotFound, 0},
		"credentials":         {standin.Fault{Kind: standin.Deny, Status: 403}, refund.OutcomeRejected, "forbidden", refund.OutcomeNotFound, 0},
		"hang, executed":      {standin.Fault{Kind: standin.Hang, Execute: true}, refund.OutcomeUnknown, refund.CodeTimeout, refund.OutcomeSucceeded, 1},
		"hang":                {standin.Fault{Kind: standin.Hang}, refund.OutcomeUnknown, refund.CodeTimeout, refund.OutcomeNotFound, 0},
		"garbage":             {standin.Fault{Kind: standin.Garbage, Execute: true}, refund.OutcomeUnknown, refund.CodeUnreadable, refund.OutcomeSucceeded, 1},
		"partial":             {standin.Fault{Kind: standin.Partial, Execute: true}, refund.OutcomeUnknown, refund.CodeDisconnected, refund.OutcomeSucceeded, 1},
		"redirect":            {standin.Fault{Kind: standin.Redirect, Execute: true}, refund.OutcomeUnknown, refund.CodeUnreadable, refund.OutcomeSucceeded, 1},
		"418":                 {standin.Fault{Kind: standin.Answer, Status: 418}, refund.OutcomeUnknown, refund.CodeUnreadable, refund.OutcomeNotFound, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, standin.Rule{Match: standin.Match{Method: "POST"}, Fault: c.fault})
			r := aRefund("r-1")
			res := b.submit(t, r)
			require.Equal(t, c.sent, res.Outcome, "%+v", res)
			require.Equal(t, c.code, res.Code)
			later := b.check(t, r, "")
			require.Equal(t, c.later, later.Outcome, "%+v", later)
			require.Equal(t, c.executed, b.executions(t, "r-1"))
			record, err := b.control.Record(t.Context())
			require.NoError(t, err)
			require.Len(t, record, 2, "one request per call")
			if later.ProviderRefundID != "" {
				byID := b.check(t, r, later.ProviderRefundID)
				byID.HTTPStatus = later.HTTPStatus
				require.Equal(t, later, byID)
			}
		})
	}
}

func TestFaultsOfACheck(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := aRefund("r-1")
	sent := b.submit(t, r)
	require.Equal(t, refund.OutcomeSucceeded, sent.Outcome)
	for want, faults := range map[refund.Outcome][]standin.Fault{
		refund.OutcomeUnknown: {
			{Kind: standin.AcceptThenDrop},
			{Kind: standin.AcceptThenReset},
			{Kind: standin.Drop},
			{Kind: standin.Garbage},
			{Kind: standin.Partial, Execute: true},
			{Kind: standin.Redirect},
			{Kind: standin.Deny, Status: 401},
			{Kind: standin.Answer, Status: 500},
			{Kind: standin.Answer, Status: 200, Body: "{}"},
		},
		refund.OutcomeBusy: {{Kind: standin.Busy, RetryAfter: "2"}, {Kind: standin.RateLimit, RetryAfter: "2"}},
	} {
		for _, f := range faults {
			for _, id := range []string{"", sent.ProviderRefundID} {
				require.NoError(t, b.control.SetPlan(t.Context(), standin.Rule{Fault: f}))
				res := b.check(t, r, id)
				require.Equal(t, want, res.Outcome, "%s: %+v", f.Kind, res)
				require.Equal(t, want == refund.OutcomeBusy, res.RetryAt != nil)
			}
		}
	}
	require.Equal(t, refund.OutcomeNotFound, newBench(t).check(t, r, "re_unknown").Outcome)
}

func TestCase12_EditedBytesAreAMismatchThatIsNeverResent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := aRefund("r-1")
	b.submit(t, r)
	r.Reason = "late"
	res := b.submit(t, r)
	require.Equal(t, refund.OutcomeUnknown, res.Outcome)
	require.Equal(t, "idempotency_mismatch", res.Code)
	require.True(t, res.NeverResend)
	require.Equal(t, 1, b.executions(t, "r-1"))
}

func TestCase13_Stored500IsReplayedAndTheCheckTells(t *testing.T) {
	t.Parallel()
	b := newBench(t, standin.Rule{Fault: standin.Fault{Kind: standin.ErrorAfterAccept}, Times: 1})
	r := aRefund("r-1")
	for range 3 {
		require.Equal(t, refund.OutcomeUnknown, b.submit(t, r).Outcome)
	}
	require.Equal(t, refund.OutcomeSucceeded, b.check(t, r, "").Outcome)
	require.Equal(t, 1, b.executions(t, "r-1"))
}

func TestCase15_EqualPartialRefundsAreTwoOperations(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.control.SetPayment(t.Context(), "pay_1", standin.Payment{Amount: 3000, Currency: "TWD"}))
	for _, id := range []string{"r-1", "r-2"} {
		require.Equal(t, refund.OutcomeSucceeded, b.submit(t, aRefund(id)).Outcome)
		require.Equal(t, 1, b.executions(t, id))
	}
	third := b.submit(t, aRefund("r-3"))
	require.Equal(t, refund.OutcomeRejected, third.Outcome)
	require.Equal(t, "amount_exceeds_remaining", third.Code)
	require.True(t, third.Ambiguous)
}

func TestCase17_SameReferenceWithAnotherAmountIsNoSuccess(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	other := aRefund("r-1")
	other.Amount.Value = 99
	require.Equal(t, refund.OutcomeSucceeded, b.submit(t, other).Outcome)
	res := b.check(t, aRefund("r-1"), "")
	require.Equal(t, refund.OutcomeUnknown, res.Outcome)
	require.Equal(t, refund.CodeContradiction, res.Code)
}

// A transport that keeps connections replays a POST with an Idempotency-Key
// by itself when a warm one dies, if it finds a way to read the body again.
func TestCase07_WarmConnectionThatDiesIsNotReplayed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var requests atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					if requests.Add(1) > 1 {
						_ = c.(*net.TCPConn).SetLinger(0)
						return
					}
					_, _ = io.WriteString(c, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
				}
			}()
		}
	}()
	a, err := reference.New(reference.Config{BaseURL: "http://" + l.Addr().String(), APIKey: func() string { return "sk_test" }})
	require.NoError(t, err)
	warm := &http.Transport{}
	defer warm.CloseIdleConnections()
	r := aRefund("r-1")
	body, err := a.Encode(r)
	require.NoError(t, err)
	s := provider.Submission{Refund: r, Key: "refund-r-1", Body: body}
	require.Equal(t, http.StatusInternalServerError, a.Submit(t.Context(), warm, s).HTTPStatus)
	res := a.Submit(t.Context(), warm, s)
	require.Equal(t, refund.CodeDisconnected, res.Code)
	require.Equal(t, int32(2), requests.Load(), "two calls, two requests")
}
