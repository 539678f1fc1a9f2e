package standin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider/standin"
)

// notice is a notification as its receiver sees it.
type notice struct {
	ID        string         `json:"id"`
	Type      string         `json:"type"`
	Data      standin.Refund `json:"data"`
	signature string
	raw       []byte
}

// receive starts a receiver that answers with the statuses in turn, the last
// one for good.
func receive(t *testing.T, statuses ...int) (url string, notices <-chan notice) {
	t.Helper()
	ch := make(chan notice, 100)
	next := make(chan int, len(statuses))
	for _, s := range statuses {
		next <- s
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		n := notice{signature: r.Header.Get("Provider-Signature"), raw: raw}
		_ = json.Unmarshal(raw, &n)
		select {
		case s := <-next:
			w.WriteHeader(s)
		default:
		}
		ch <- n
	}))
	t.Cleanup(srv.Close)
	return srv.URL, ch
}

func take(t *testing.T, ch <-chan notice) notice {
	t.Helper()
	select {
	case n := <-ch:
		return n
	case <-time.After(5 * time.Second):
		require.FailNow(t, "no notification came")
		return notice{}
	}
}

func TestWebhookIsSigned(t *testing.T) {
	t.Parallel()
	url, notices := receive(t)
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetWebhooks(t.Context(), standin.Webhooks{Enabled: true, URL: url, Secrets: []string{"new", "old"}, ClockOffsetS: -3600}))
	made := refundOf(t, post(t, s, "r-1"))
	n := take(t, notices)
	require.Equal(t, "refund.succeeded", n.Type)
	require.Equal(t, made, n.Data)

	stamp, _, _ := strings.Cut(strings.TrimPrefix(n.signature, "t="), ",")
	unix, err := strconv.ParseInt(stamp, 10, 64)
	require.NoError(t, err)
	at := time.Unix(unix, 0)
	require.InDelta(t, 3600, time.Since(at).Seconds(), 60)
	require.Equal(t, standin.Sign(at, n.raw, "new", "old"), n.signature)
	require.Equal(t, 2, strings.Count(n.signature, ",v1="))
	// From an independent computation: printf '1.{}' | openssl dgst -sha256 -hmac k
	require.Equal(t, "t=1,v1=3dd49b2593d0f9a349e9e71c4bde3e2b862c2be4003fe9b4ba81332029310158", standin.Sign(time.Unix(1, 0), []byte("{}"), "k"))
}

func TestWebhookTellsOfEachChange(t *testing.T) {
	t.Parallel()
	url, notices := receive(t)
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetWebhooks(t.Context(), standin.Webhooks{Enabled: true, URL: url, Secrets: []string{"k"}}))
	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.Pending, SettleMS: 100}}))
	r := refundOf(t, post(t, s, "r-1"))
	require.Equal(t, "refund.pending", take(t, notices).Type)
	require.Equal(t, "refund.succeeded", take(t, notices).Type)
	require.NoError(t, c.SetStatus(t.Context(), r.ID, "failed", "account_closed"))
	n := take(t, notices)
	require.Equal(t, "refund.failed", n.Type)
	require.Equal(t, "account_closed", n.Data.Failure.Code)

	require.NoError(t, c.SetWebhooks(t.Context(), standin.Webhooks{}))
	post(t, s, "r-2")
	require.NoError(t, s.Close(), "waits for what is on its way")
	require.Empty(t, notices, "off is off")
}

func TestCase26_WebhooksComeTwiceAndOutOfOrder(t *testing.T) {
	t.Parallel()
	url, notices := receive(t)
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetWebhooks(t.Context(), standin.Webhooks{Enabled: true, URL: url, Secrets: []string{"k"}, Duplicate: true, Reorder: true, ReorderMS: 60_000}))
	post(t, s, "r-1")
	post(t, s, "r-2")
	var order []string
	ids := map[string]bool{}
	for range 4 {
		n := take(t, notices)
		order = append(order, n.Data.Reference)
		ids[n.ID] = true
	}
	require.Equal(t, []string{"r-2", "r-2", "r-1", "r-1"}, order)
	require.Len(t, ids, 2, "a duplicate keeps its event id")
}

func TestHeldWebhookIsLetGoWithoutASuccessor(t *testing.T) {
	t.Parallel()
	url, notices := receive(t)
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetWebhooks(t.Context(), standin.Webhooks{Enabled: true, URL: url, Secrets: []string{"k"}, Reorder: true, ReorderMS: 10, DelayMS: 10}))
	post(t, s, "r-1")
	require.Equal(t, "r-1", take(t, notices).Data.Reference)
}

func TestCase27_WebhookIsRepeatedUntilStored(t *testing.T) {
	t.Parallel()
	url, notices := receive(t, http.StatusServiceUnavailable, http.StatusServiceUnavailable)
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetWebhooks(t.Context(), standin.Webhooks{Enabled: true, URL: url, Secrets: []string{"k"}, RetryMS: 5}))
	post(t, s, "r-1")
	first := take(t, notices)
	require.Equal(t, first.ID, take(t, notices).ID)
	require.Equal(t, first.ID, take(t, notices).ID)
	require.Eventually(t, func() bool {
		list, err := c.Deliveries(t.Context())
		require.NoError(t, err)
		return len(list) == 3 && fmt.Sprint(list[0].Status, list[1].Status, list[2].Status) == "503 503 200"
	}, 5*time.Second, 5*time.Millisecond)
}

func TestCase20_WebhookBeatsTheAnswer(t *testing.T) {
	t.Parallel()
	url, notices := receive(t)
	s, c := start(t, standin.Options{})
	require.NoError(t, c.SetWebhooks(t.Context(), standin.Webhooks{Enabled: true, URL: url, Secrets: []string{"k"}}))
	require.NoError(t, c.SetPlan(t.Context(), standin.Rule{Fault: standin.Fault{Kind: standin.Delay, DelayMS: 60_000}}))
	ctx, giveUp := context.WithCancel(t.Context())
	answered := make(chan got, 1)
	go func() { answered <- call(ctx, http.MethodPost, s.URL()+"/v1/refunds", "refund-r-1", body("r-1")) }()
	require.Equal(t, "r-1", take(t, notices).Data.Reference)
	require.Empty(t, answered, "the answer waits")
	giveUp()
	<-answered
}

func TestCase25_WebhooksLeaveMembersOut(t *testing.T) {
	t.Parallel()
	url, notices := receive(t)
	s, c := start(t, standin.Options{})
	for _, name := range []string{"id", "reference"} {
		require.NoError(t, c.SetWebhooks(t.Context(), standin.Webhooks{Enabled: true, URL: url, Secrets: []string{"k"}, Omit: []string{name}}))
		made := refundOf(t, post(t, s, "r-"+name))
		var event struct{ Data map[string]any }
		require.NoError(t, json.Unmarshal(take(t, notices).raw, &event))
		require.NotContains(t, event.Data, name)
		require.Len(t, event.Data, 6)
		require.Equal(t, made.PaymentID, event.Data["payment_id"])
	}
}

func TestCase26_WebhookIsRedeliveredOnDemand(t *testing.T) {
	t.Parallel()
	url, notices := receive(t)
	s, c := start(t, standin.Options{})
	settings := standin.Webhooks{Enabled: true, URL: url, Secrets: []string{"old"}, ClockOffsetS: -360}
	require.NoError(t, c.SetWebhooks(t.Context(), settings))
	post(t, s, "r-1")
	first := take(t, notices)
	post(t, s, "r-2")
	take(t, notices)
	settings.Secrets, settings.ClockOffsetS = []string{"new"}, 0
	require.NoError(t, c.SetWebhooks(t.Context(), settings))
	require.NoError(t, c.Redeliver(t.Context(), first.ID))
	again := take(t, notices)
	require.Equal(t, first.raw, again.raw)
	require.NotEqual(t, first.signature, again.signature, "signed afresh, with what is set now")
	require.ErrorContains(t, c.Redeliver(t.Context(), "evt_none"), "no such event")
	require.NoError(t, c.SetWebhooks(t.Context(), standin.Webhooks{}))
	require.ErrorContains(t, c.Redeliver(t.Context(), first.ID), "webhooks are off")
}

func TestBadWebhookSettingsAreRefused(t *testing.T) {
	t.Parallel()
	_, c := start(t, standin.Options{})
	for want, w := range map[string]standin.Webhooks{
		"url must be":     {Enabled: true, URL: "ftp://x", Secrets: []string{"k"}},
		"secrets must":    {Enabled: true, URL: "http://127.0.0.1:1"},
		"not be negative": {DelayMS: -1},
		"omit may name":   {Omit: []string{"status"}},
	} {
		require.ErrorContains(t, c.SetWebhooks(t.Context(), w), want)
	}
}
