package reference_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/refund"
)

// event returns the body of a notification of ours; replace is pairs of old
// and new text in it.
func event(replace ...string) string { return strings.NewReplacer(replace...).Replace(eventBody) }

// status gives a notification a status and the type that goes with it.
func status(s string) []string {
	return []string{"refund.succeeded", "refund." + s, `"status":"succeeded"`, `"status":"` + s + `"`}
}

func notify(body string) (refund.Notice, error) {
	return newNotices(webhookSecret).Notification(signed(body, noticeTime, webhookSecret), []byte(body), noticeTime)
}

func TestNotificationsAreRead(t *testing.T) {
	t.Parallel()
	want := refund.Notice{
		Account: "acme", Source: refund.SourceNotification, EventID: "evt_1",
		ProviderRefundID: "re_1", Reference: "r-1", PaymentID: "pay_1",
		Amount:  refund.Money{Value: 1250, Currency: "TWD"},
		Outcome: refund.OutcomeSucceeded,
		SaidAt:  time.Date(2026, 3, 1, 11, 59, 58, 0, time.UTC),
	}
	with := func(change func(*refund.Notice)) refund.Notice {
		n := want
		change(&n)
		return n
	}
	means := func(o refund.Outcome, code string) refund.Notice {
		return with(func(n *refund.Notice) { n.Outcome, n.Code = o, code })
	}
	failure := func(f string) []string {
		return []string{"refund.succeeded", "refund.failed", `"status":"succeeded"`, `"status":"failed","failure":` + f}
	}
	onlyID := with(func(n *refund.Notice) { n.Reference = "" })
	onlyReference := with(func(n *refund.Notice) { n.ProviderRefundID = "" })
	for name, c := range map[string]struct {
		body string
		want refund.Notice
	}{
		"succeeded":           {eventBody, want},
		"pending":             {event(status("pending")...), means(refund.OutcomePending, "")},
		"failed":              {event(failure(`{"code":"card_closed","message":"no"}`)...), means(refund.OutcomeRejected, "card_closed")},
		"failed, no code":     {event(status("failed")...), means(refund.OutcomeRejected, "failed")},
		"failed, null":        {event(failure(`null`)...), means(refund.OutcomeRejected, "failed")},
		"failed, wild code":   {event(failure(`{"code":"a\nb ` + webhookSecret + strings.Repeat("c", 99) + `"}`)...), means(refund.OutcomeRejected, "a_b_***"+strings.Repeat("c", 57))},
		"unlisted status":     {event(status("on hold")...), means(refund.OutcomeUnknown, "on_hold")},
		"status in capitals":  {event(`"status":"succeeded"`, `"status":"Succeeded"`), means(refund.OutcomeUnknown, "refund.succeeded/Succeeded")},
		"unlisted type":       {event("refund.succeeded", "payout.paid"), means(refund.OutcomeUnknown, "payout.paid/succeeded")},
		"they disagree":       {event("refund.succeeded", "refund.failed"), means(refund.OutcomeUnknown, "refund.failed/succeeded")},
		"endless type":        {event("refund.succeeded", strings.Repeat("退", 99)), means(refund.OutcomeUnknown, strings.Repeat("退", 21))},
		"succeeded, failure":  {event(`"status":"succeeded"`, `"status":"succeeded","failure":{"code":"x"}`), means(refund.OutcomeUnknown, refund.CodeContradiction)},
		"unknown members":     {event(`"id":"re_1"`, `"id":"re_1","new":[{}]`, `"type"`, `"new":1,"type"`), want},
		"other zone":          {event("11:59:58Z", "19:59:58.1234567+08:00"), with(func(n *refund.Notice) { n.SaidAt = n.SaidAt.Add(123456 * time.Microsecond) })},
		"no payment":          {event(`"payment_id":"pay_1",`, ""), with(func(n *refund.Notice) { n.PaymentID = "" })},
		"Case25 only id":      {event(`"reference":"r-1",`, ""), onlyID},
		"null reference":      {event(`"r-1"`, "null"), onlyID},
		"empty reference":     {event(`"r-1"`, `""`), onlyID},
		"Case25 only ref":     {event(`"id":"re_1",`, ""), onlyReference},
		"null id":             {event(`"re_1"`, "null"), onlyReference},
		"another's reference": {event(`"r-1"`, `"Ticket 17/退"`), with(func(n *refund.Notice) { n.Reference = "Ticket?17???" })},
		"endless reference":   {event(`"r-1"`, `"`+strings.Repeat("r", 70)+`"`), with(func(n *refund.Notice) { n.Reference = strings.Repeat("r", 63) + "?" })},
		"another's payment":   {event(`"pay_1"`, `".pay_1"`), with(func(n *refund.Notice) { n.PaymentID = ".pay_1?" })},
		"Case29 yen":          {event(`"TWD"`, `"JPY"`), with(func(n *refund.Notice) { n.Amount.Currency = "JPY" })},
		"another amount":      {event("1250", "99"), with(func(n *refund.Notice) { n.Amount.Value = 99 })},
		"largest amount":      {event("1250", "1000000000000000"), with(func(n *refund.Notice) { n.Amount.Value = refund.MaxAmount })},
	} {
		n, err := notify(c.body)
		require.NoError(t, err, name)
		require.Equal(t, c.want, n, name)
		requireSoundNotice(t, n, refund.SourceNotification)
	}
}

func TestMalformedNotificationsAreRefusedInWords(t *testing.T) {
	t.Parallel()
	amount := "integer in minor units"
	for body, want := range map[string]string{
		"":                       "not one JSON object",
		"null":                   "not one JSON object",
		"[]":                     "not one JSON object",
		eventBody + eventBody:    "not one JSON object",
		eventBody[:60]:           "not one JSON object",
		strings.Repeat("[", 2e4): "not one JSON object",
		event(`"type"`, `"type":"refund.failed","type"`):           "not one JSON object", // it says two things
		event(`"id":"evt_1",`, ""):                                 "id must be",
		event(`"evt_1"`, "7"):                                      "id must be",
		event(`evt_1`, "evt 1"):                                    "id must be",
		event(`evt_1`, strings.Repeat("e", 129)):                   "id must be",
		event(`"type":"refund.succeeded",`, ""):                    "type is missing",
		event(`"refund.succeeded"`, `""`):                          "type is missing",
		`{"id":"evt_1","type":"refund.succeeded"}`:                 "data must be a refund",
		event(`"data":{`, `"data":null,"x":{`):                     "data must be a refund",
		event(`"data":{`, `"data":[],"x":{`):                       "data must be a refund",
		event(`"status":`, `"amount":1,"status":`):                 "data must be a refund", // it says two things
		event(`"re_1"`, "7"):                                       "data: id must be a text",
		event(`"r-1"`, "[]"):                                       "data: reference must be a text",
		event(`"pay_1"`, "{}"):                                     "data: payment_id must be a text",
		event(`"re_1"`, `"../re_1"`):                               "the refund's id must be",
		event(`"re_1"`, `""`, `"r-1"`, `""`):                       "neither id nor reference",
		event(`"amount":1250,`, ""):                                amount,
		event("1250", "null"):                                      amount,
		event("1250", "12.50"):                                     amount,
		event("1250", "1e3"):                                       amount,
		event("1250", `"1250"`):                                    amount,
		event("1250", "-1250"):                                     amount,
		event("1250", "0"):                                         amount,
		event("1250", "1000000000000001"):                          amount,
		event("1250", "18446744073709552866"):                      amount,
		event(`"TWD"`, `"twd"`):                                    "currency must be",
		event(`"currency":"TWD",`, ""):                             "currency must be",
		event(`"status":"succeeded",`, ""):                         "status is missing",
		event(`"status":"succeeded"`, `"status":1`):                "data: status must be a text",
		event(`"status":`, `"failure":"x","status":`):              "failure",
		event(`"created_at":"2026-03-01T11:59:58Z",`, ""):          "created_at is missing",
		event("2026-03-01T11:59:58Z", "yesterday"):                 "time must be RFC 3339",
		event("2026-03-01T11:59:58Z", "1772366398"):                "time must be RFC 3339",
		event("2026-03-01T11:59:58Z", "2026-03-01"):                "time must be RFC 3339",
		event("11:59:58Z", "11:59:58"):                             "time must be RFC 3339",
		event("2026-03-01T11", "0001-03-01T11"):                    "time must be RFC 3339",
		event("2026-03-01T11:59:58Z", "9999-12-31T23:59:58-01:00"): "time must be RFC 3339",
		`{"id":"` + strings.Repeat("x", provider.MaxNotification):  "over 65536 bytes",
	} {
		n, err := notify(body)
		var malformed *provider.MalformedError
		require.ErrorAs(t, err, &malformed, "%.200s", body)
		require.Contains(t, malformed.Message, want, "%.200s", body)
		requireQuotesNothing(t, err, "r-1", "pay_1", "evt", "re_1")
		require.Empty(t, n)
	}
}

// FuzzNotification holds what is let in to what is promised of every notice,
// and a definite outcome to its word.
func FuzzNotification(f *testing.F) {
	f.Add([]byte(eventBody))
	for _, s := range []string{"pending", "failed", "held"} {
		f.Add([]byte(event(status(s)...)))
	}
	f.Add([]byte(event(`"re_1"`, "null", `"pay_1"`, `"退 款"`)))
	f.Add([]byte(event(`"status":"succeeded"`, `"status":"failed","failure":{"code":"\u0000x"}`)))
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := notify(string(body))
		if err != nil {
			var malformed *provider.MalformedError
			require.ErrorAs(t, err, &malformed)
			require.Less(t, len(err.Error()), 200)
			require.Empty(t, n)
			return
		}
		requireSoundNotice(t, n, refund.SourceNotification)
		if n.Outcome != refund.OutcomeUnknown {
			require.Contains(t, string(body), map[refund.Outcome]string{
				refund.OutcomeSucceeded: "succeeded", refund.OutcomePending: "pending", refund.OutcomeRejected: "failed",
			}[n.Outcome])
		}
		_, err = newNotices("another").Notification(signed(string(body), noticeTime, webhookSecret), body, noticeTime)
		require.ErrorIs(t, err, provider.ErrSignature)
	})
}
