package starter

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/provider"
	"refundgate/provider/reference"
	"refundgate/refund"
)

const (
	oldSecret = "secret-that-is-being-replaced"
	newSecret = "secret-that-replaces-it"

	mainNotifications = "/v1/providers/main/notifications"
)

// testNotifications reads main's notifications; second takes none.
func testNotifications() map[string]NotificationReader {
	return map[string]NotificationReader{
		"main": reference.NewNotices("main", nil, func() []string { return []string{oldSecret, newSecret} }),
	}
}

// signed is the header with which the provider signs body, off from now.
func signed(secret, body string, off time.Duration) string {
	at := time.Now().Add(off).Unix()
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%d.%s", at, body)
	return fmt.Sprintf("t=%d,v1=%s", at, hex.EncodeToString(mac.Sum(nil)))
}

// notification is a message about refund r-1 with some parts replaced, as
// pairs of old and new.
func notification(replace ...string) string {
	return strings.NewReplacer(replace...).Replace(`{"id":"evt_1","type":"refund.succeeded","created_at":"2026-03-01T12:00:00Z","data":` +
		`{"id":"re_1","reference":"r-1","payment_id":"pay_1","amount":1250,"currency":"TWD","status":"succeeded","created_at":"2026-03-01T11:59:58Z"}}`)
}

// notify sends a message with the provider's signature.
func (i *intake) notify(body string) answer {
	i.t.Helper()
	return i.do("POST", mainNotifications, "", body, "Provider-Signature", signed(newSecret, body, 0))
}

// notices are r-1's.
func (i *intake) notices(l Reader) []refund.Notice {
	i.t.Helper()
	c, err := l.Case(i.t.Context(), "r-1")
	require.NoError(i.t, err)
	return c.Notices
}

func TestNotificationIsStoredBeforeItIsAnswered(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	require.Equal(t, 202, i.post(body(nil)).status)

	a := i.notify(notification())
	require.Equal(t, 200, a.status, string(a.body))
	require.JSONEq(t, `{"status":"stored"}`, string(a.body))
	stored := i.notices(l)
	require.Len(t, stored, 1)
	require.Equal(t, "re_1", stored[0].ProviderRefundID)
	require.Equal(t, refund.OutcomeSucceeded, stored[0].Outcome)
	require.Empty(t, stored[0].Problem)
	require.Equal(t, 1, i.woken(), "the teller is woken")

	// The old secret still signs, and the case shows what it said.
	second := notification("evt_1", "evt_2")
	require.Equal(t, 200, i.do("POST", mainNotifications, "", second, "Provider-Signature", signed(oldSecret, second, 0)).status)
	shown := i.get("/v1/refunds/r-1").object(t)
	require.Len(t, shown["notices"], 2)
	require.EqualValues(t, 3, shown["version"], "each notice is a change")
	list := i.get("/v1/refunds").object(t)["cases"].([]any)[0]
	require.NotContains(t, list, "notices")

	events := i.events("notice.stored")
	require.Len(t, events, 2)
	require.Equal(t, map[string]any{
		"level": "INFO", "msg": "notice.stored", "event": "notice.stored", "account": "main", "event_id": "evt_1",
		"refund_id": "r-1", "outcome": "succeeded", "notice_problem": "",
	}, events[0])
	require.NotContains(t, i.logs.String(), "pay_1", "nothing else of a body is logged")
	for _, secret := range []string{oldSecret, newSecret} {
		require.NotContains(t, i.logs.String(), secret)
	}
}

// Notice for refund A redelivered after B: one of each is stored, whatever the
// order, however often and through however many connections at once.
func TestCase26_RedeliveredNotices(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	require.Equal(t, 202, i.post(body(nil)).status)
	require.Equal(t, 202, i.post(body(map[string]string{"refund_id": `"r-2"`})).status)

	first, other := notification(), notification("evt_1", "evt_2", "re_1", "re_2", "r-1", "r-2")
	for _, message := range []string{first, other, first, first, other} {
		require.Equal(t, 200, i.notify(message).status)
	}
	third := notification("evt_1", "evt_3")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if a := i.notify(third); a.status != 200 {
				t.Errorf("%d: %s", a.status, a.body)
			}
		})
	}
	wg.Wait()

	require.Equal(t, []string{"evt_1", "evt_3"}, eventIDs(i.notices(l)))
	c, err := l.Case(t.Context(), "r-2")
	require.NoError(t, err)
	require.Equal(t, []string{"evt_2"}, eventIDs(c.Notices))
	require.Len(t, i.events("notice.stored"), 3)
	require.Len(t, i.events("notice.duplicate"), 3+19)
	require.Equal(t, 3, i.woken(), "a duplicate is no news")
}

func eventIDs(notices []refund.Notice) (ids []string) {
	for _, n := range notices {
		ids = append(ids, n.EventID)
	}
	return ids
}

// Database down while a notice arrives: the provider is told to come back, and
// what it repeats then is stored once.
func TestCase27_DatabaseDownWhileANoticeArrives(t *testing.T) {
	t.Parallel()
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.CreateDatabase(t.Context(), "refunds"))
	l := newLedger(t, db.DSN("refunds"))
	i := newIntake(t, l, nil)
	require.Equal(t, 202, i.post(body(nil)).status)
	require.NoError(t, db.Kill())

	for range 2 {
		a := i.notify(notification())
		a.problem(t, 503, "unavailable")
		require.Equal(t, "5", a.header.Get("Retry-After"))
	}
	require.Zero(t, i.woken())
	require.NoError(t, db.Start(t.Context()))
	require.Empty(t, i.notices(l), "what was refused was not stored")
	require.Equal(t, 200, i.notify(notification()).status)
	require.Equal(t, 200, i.notify(notification()).status)
	require.Len(t, i.notices(l), 1)
	require.Len(t, i.events("notice.refused"), 2)
}

// A notice that matches nothing is kept all the same: its sender has done what
// it can.
func TestParkedNotificationIsAnsweredWithSuccess(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	require.Equal(t, 200, i.notify(notification()).status)
	parked, err := l.Parked(t.Context(), "main", 10)
	require.NoError(t, err)
	require.Equal(t, []string{"evt_1"}, eventIDs(parked))
	require.Equal(t, refund.ProblemNoMatch, parked[0].Problem)
	require.Equal(t, "no_match", i.events("notice.stored")[0]["notice_problem"])

	// Another amount than the case's is no fact, and told loudly.
	require.Equal(t, 202, i.post(body(nil)).status)
	require.Equal(t, 200, i.notify(notification("evt_1", "evt_2", "1250", "1251")).status)
	require.Equal(t, refund.ProblemContent, i.notices(l)[0].Problem)
	require.Equal(t, "WARN", i.events("notice.stored")[1]["level"])
}

// Everything that must not get in, with its exact answer; nothing of it is
// stored.
func TestRefusedNotifications(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	require.Equal(t, 202, i.post(body(nil)).status)
	good := notification()
	send := func(path, body, signature string) answer {
		return i.do("POST", path, "", body, "Provider-Signature", signature)
	}

	for name, signature := range map[string]string{
		"none":              "",
		"of another key":    signed("guess", good, 0),
		"of other bytes":    signed(newSecret, good+" ", 0),
		"six minutes old":   signed(newSecret, good, -6*time.Minute),
		"six minutes early": signed(newSecret, good, 6*time.Minute),
		"junk":              "t=now,v1=zz",
	} {
		a := send(mainNotifications, good, signature)
		p := a.problem(t, 401, "bad-signature")
		require.Empty(t, p.Detail, "%s: a sender is told no more", name)
		require.Equal(t, `Signature realm="refundgate"`, a.header.Get("WWW-Authenticate"))
	}
	// A token is no way in, and a clock that was wrong is no harm once it is right.
	i.do("POST", mainNotifications, ordersToken, good).problem(t, 401, "bad-signature")

	for content, want := range map[string]string{
		"":                                 "the notification is not one JSON object",
		"[]":                               "the notification is not one JSON object",
		good + good:                        "the notification is not one JSON object",
		notification(`"evt_1"`, `""`):      "id must be 1 to 128 characters of A-Z a-z 0-9 . _ -",
		notification("1250", "12.50"):      "the amount must be an integer in minor units, such as 1250 for 12.50, from 1 to 1000000000000000",
		notification(`"TWD"`, `"twd"`):     "the currency must be an active ISO 4217 code such as TWD",
		notification("created_at", "when"): "created_at is missing",
	} {
		require.Equal(t, want, send(mainNotifications, content, signed(newSecret, content, 0)).problem(t, 400, "malformed-notification").Detail, content)
	}

	huge := notification() + strings.Repeat(" ", provider.MaxNotification)
	require.Equal(t, "It may have 65536 bytes.", send(mainNotifications, huge, signed(newSecret, huge, 0)).problem(t, 413, "too-large").Detail)

	off := send("/v1/providers/second/notifications", good, signed(newSecret, good, 0)).problem(t, 404, "notifications-not-configured")
	require.Equal(t, "Set notification_secrets of the account in the configuration.", off.Detail)
	for _, path := range []string{"/v1/providers/other/notifications", "/v1/providers/main", "/v1/providers//notifications"} {
		send(path, good, signed(newSecret, good, 0)).problem(t, 404, "not-found")
	}
	a := i.do("GET", mainNotifications, "", "")
	a.problem(t, 405, "method-not-allowed")
	require.Equal(t, "POST", a.header.Get("Allow"))

	require.Empty(t, i.notices(l))
	parked, err := l.Parked(t.Context(), "", 10)
	require.NoError(t, err)
	require.Empty(t, parked)
	for _, e := range i.events("notice.refused") {
		require.Subset(t, []string{"level", "msg", "event", "account", "status", "problem", "error"}, keys(e), "nothing of a body is logged")
	}

	// CASE 28: the redelivery with a right clock succeeds.
	require.Equal(t, 200, i.notify(good).status)
	full := notification("evt_1", "evt_2") + strings.Repeat(" ", provider.MaxNotification-len(notification()))
	require.Equal(t, 200, i.notify(full).status, "the limit itself is allowed")
}

// Half a notification is none: what was not received whole is not answered
// with success and not stored.
func TestProviderThatHangsUpEarly(t *testing.T) {
	t.Parallel()
	l := newLedger(t, testenv.MariaDB(t))
	i := newIntake(t, l, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(i.url, "http://"))
	require.NoError(t, err)
	message := notification()
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nProvider-Signature: %s\r\nContent-Length: %d\r\n\r\n%s",
		mainNotifications, signed(newSecret, message, 0), len(message)+1, message)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return len(i.events("notice.refused")) == 1 }, 5*time.Second, 10*time.Millisecond)
	parked, err := l.Parked(t.Context(), "", 10)
	require.NoError(t, err)
	require.Empty(t, parked)
}

// slowNotices holds every AddNotice until it is let go.
type slowNotices struct {
	*ledger.Ledger
	entered, release chan struct{}
}

func (s *slowNotices) AddNotice(ctx context.Context, n refund.Notice) (refund.Notice, bool, error) {
	s.entered <- struct{}{}
	<-s.release
	return s.Ledger.AddNotice(ctx, n)
}

// Once a notification is read it is stored, whether or not the provider waits
// for the answer.
func TestProviderThatHangsUp(t *testing.T) {
	t.Parallel()
	slow := &slowNotices{newLedger(t, testenv.MariaDB(t)), make(chan struct{}, 1), make(chan struct{})}
	i := newIntake(t, slow, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(i.url, "http://"))
	require.NoError(t, err)
	message := notification()
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nProvider-Signature: %s\r\nContent-Length: %d\r\n\r\n%s",
		mainNotifications, signed(newSecret, message, 0), len(message), message)
	require.NoError(t, err)
	<-slow.entered
	require.NoError(t, conn.(*net.TCPConn).SetLinger(0))
	require.NoError(t, conn.Close())
	time.Sleep(100 * time.Millisecond) // for the server to notice, which must not matter
	close(slow.release)
	require.Eventually(t, func() bool { return len(i.events("notice.stored")) == 1 }, 5*time.Second, 10*time.Millisecond)
	parked, err := slow.Parked(t.Context(), "", 10)
	require.NoError(t, err)
	require.Len(t, parked, 1)
}
