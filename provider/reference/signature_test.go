package reference_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/provider/standin"
)

const eventBody = `{"id":"evt_1","type":"refund.succeeded","created_at":"2026-03-01T11:59:58Z","data":` +
	`{"id":"re_1","reference":"r-1","payment_id":"pay_1","amount":1250,"currency":"TWD","status":"succeeded","created_at":"2026-03-01T11:59:57Z"}}`

func signed(body string, at time.Time, secrets ...string) http.Header {
	return http.Header{"Provider-Signature": {standin.Sign(at, []byte(body), secrets...)}}
}

func TestOnlyTheProvidersSignatureLetsIn(t *testing.T) {
	t.Parallel()
	good := standin.Sign(noticeTime, []byte(eventBody), webhookSecret)
	stamp, mac, _ := strings.Cut(good, ",")
	otherStamp, _, _ := strings.Cut(standin.Sign(noticeTime.Add(time.Second), nil, "k"), ",")
	for name, c := range map[string]struct {
		header http.Header
		in     bool
	}{
		"right":                    {http.Header{"Provider-Signature": {good}}, true},
		"with spaces":              {http.Header{"Provider-Signature": {stamp + ", " + mac}}, true},
		"signature first":          {http.Header{"Provider-Signature": {mac + "," + stamp}}, true},
		"capital digits":           {http.Header{"Provider-Signature": {stamp + ",v1=" + strings.ToUpper(mac[3:])}}, true},
		"beside another version":   {http.Header{"Provider-Signature": {stamp + ",v0=zz," + mac + ",v2=abc"}}, true},
		"second of two keys":       {signed(eventBody, noticeTime, "other", webhookSecret), true},
		"none":                     {http.Header{}, false},
		"empty":                    {http.Header{"Provider-Signature": {""}}, false},
		"two headers":              {http.Header{"Provider-Signature": {good, good}}, false},
		"other key":                {signed(eventBody, noticeTime, "other"), false},
		"empty key":                {signed(eventBody, noticeTime, ""), false},
		"other body":               {signed(eventBody+" ", noticeTime, webhookSecret), false},
		"other time than signed":   {http.Header{"Provider-Signature": {otherStamp + "," + mac}}, false},
		"no time":                  {http.Header{"Provider-Signature": {mac}}, false},
		"two times":                {http.Header{"Provider-Signature": {stamp + "," + stamp + "," + mac}}, false},
		"time in words":            {http.Header{"Provider-Signature": {"t=now," + mac}}, false},
		"negative time":            {http.Header{"Provider-Signature": {"t=-1," + mac}}, false},
		"endless time":             {http.Header{"Provider-Signature": {"t=9223372036854775807," + mac}}, false},
		"time only":                {http.Header{"Provider-Signature": {stamp}}, false},
		"no hex":                   {http.Header{"Provider-Signature": {stamp + ",v1=zz," + mac}}, false},
		"cut off":                  {http.Header{"Provider-Signature": {good[:len(good)-2]}}, false},
		"empty signature":          {http.Header{"Provider-Signature": {stamp + ",v1="}}, false},
		"other version only":       {http.Header{"Provider-Signature": {strings.Replace(good, "v1=", "v0=", 1)}}, false},
		"endless":                  {http.Header{"Provider-Signature": {good + strings.Repeat(",v1=00", 1000)}}, false},
		"in another header":        {http.Header{"Signature": {good}}, false},
		"of a body with line ends": {signed(eventBody+"\n", noticeTime, webhookSecret), false},
	} {
		n, err := newNotices("", webhookSecret).Notification(c.header, []byte(eventBody), noticeTime)
		if c.in {
			require.NoError(t, err, name)
			require.Equal(t, "evt_1", n.EventID, name)
			continue
		}
		require.ErrorIs(t, err, provider.ErrSignature, name)
		require.Empty(t, n, name)
		requireQuotesNothing(t, err, "r-1", "pay_1", mac[3:])
	}
	_, err := newNotices(webhookSecret).Notification(http.Header{"Provider-Signature": {mac}}, []byte(eventBody), noticeTime)
	require.ErrorContains(t, err, "can't be read", "without its time it isn't even tried")
	for _, none := range [][]string{nil, {""}} {
		_, err := newNotices(none...).Notification(signed(eventBody, noticeTime, ""), []byte(eventBody), noticeTime)
		require.ErrorIs(t, err, provider.ErrSignature, "without a secret nobody is let in")
	}
}

func requireQuotesNothing(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, s := range append(texts, webhookSecret) {
		require.NotContains(t, err.Error(), s)
	}
}

func TestSecretsAreExchangedWithoutAGap(t *testing.T) {
	t.Parallel()
	header := func(secrets ...string) http.Header { return signed(eventBody, noticeTime, secrets...) }
	for _, c := range []struct {
		provider, ours []string
		in             bool
	}{
		{[]string{"old"}, []string{"old"}, true},
		{[]string{"old"}, []string{"old", "new"}, true},
		{[]string{"old", "new"}, []string{"old", "new"}, true},
		{[]string{"old", "new"}, []string{"new"}, true},
		{[]string{"new"}, []string{"old", "new"}, true},
		{[]string{"old"}, []string{"new"}, false},
	} {
		_, err := newNotices(c.ours...).Notification(header(c.provider...), []byte(eventBody), noticeTime)
		require.Equal(t, c.in, err == nil, "%v to %v: %v", c.provider, c.ours, err)
	}
}

func TestCase28_ClockMayBeOffByFiveMinutesEitherWay(t *testing.T) {
	t.Parallel()
	for offset, in := range map[time.Duration]bool{
		0:                            true,
		5 * time.Minute:              true,
		-5 * time.Minute:             true,
		5*time.Minute + time.Second:  false,
		-5*time.Minute - time.Second: false,
		6 * time.Minute:              false,
		-6 * time.Minute:             false,
		100 * 365 * 24 * time.Hour:   false,
		-56 * 365 * 24 * time.Hour:   false, // near the beginning of Unix time
	} {
		notices := newNotices(webhookSecret)
		_, err := notices.Notification(signed(eventBody, noticeTime.Add(offset), webhookSecret), []byte(eventBody), noticeTime)
		require.Equal(t, in, err == nil, "%v: %v", offset, err)
		if in {
			continue
		}
		require.ErrorIs(t, err, provider.ErrSignature)
		again, err := notices.Notification(signed(eventBody, noticeTime, webhookSecret), []byte(eventBody), noticeTime)
		require.NoError(t, err, "a redelivery with a fresh signature")
		require.Equal(t, "evt_1", again.EventID)
	}
}
