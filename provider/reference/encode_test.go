package reference

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

func ours() refund.Refund {
	return refund.Refund{
		ID: "r-1", Account: "acme", OrderID: "o-1", PaymentID: "pay_1",
		Amount: refund.Money{Value: 1250, Currency: "TWD"},
		Reason: "damaged", RequestedBy: "shop",
	}
}

func testAdapter(t *testing.T) *Adapter {
	t.Helper()
	a, err := New(Config{BaseURL: "http://127.0.0.1:1", APIKey: func() string { return "sk_test" }})
	require.NoError(t, err)
	return a
}

func TestEncodeIsTheContractsBody(t *testing.T) {
	t.Parallel()
	r := ours()
	r.Reason = "a <b> & \"c\""
	body, err := testAdapter(t).Encode(r)
	require.NoError(t, err)
	require.Equal(t, `{"reference":"r-1","payment_id":"pay_1","amount":1250,"currency":"TWD","reason":"a <b> & \"c\""}`, string(body))
}

func TestEncodeRefusesWhatTheProviderCannotTake(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*refund.Refund){
		"no id":            func(r *refund.Refund) { r.ID = "" },
		"300-character id": func(r *refund.Refund) { r.ID = strings.Repeat("x", 300) },
		"no payment":       func(r *refund.Refund) { r.PaymentID = "" },
		"no amount":        func(r *refund.Refund) { r.Amount.Value = 0 },
		"negative amount":  func(r *refund.Refund) { r.Amount.Value = -1 },
		"absurd amount":    func(r *refund.Refund) { r.Amount.Value = refund.MaxAmount + 1 },
		"no currency":      func(r *refund.Refund) { r.Amount.Currency = "" },
		"made-up currency": func(r *refund.Refund) { r.Amount.Currency = "XXX" },
	} {
		r := ours()
		spoil(&r)
		body, err := testAdapter(t).Encode(r)
		require.Error(t, err, name)
		require.Nil(t, body, name)
	}
}

func TestCase32_ReasonIsCleanedAndNeverCutInsideACharacter(t *testing.T) {
	t.Parallel()
	const (
		family   = "👨\u200D👩\u200D👧"
		thumb    = "👍🏽"
		flag     = "🇹🇼"
		accented = "e\u0301"
		heart    = "❤\uFE0F"
	)
	fill := func(n int) string { return strings.Repeat("退", n) }
	for name, c := range map[string]struct{ in, want string }{
		"plain":                 {"damaged", "damaged"},
		"line ends":             {"a\r\nb\n\n\tc\u2028d", "a b c d"},
		"control characters":    {"\x00a\x1b[31mb\x7f", "a [31mb"},
		"edges":                 {"  a  ", "a"},
		"nothing":               {"\n \t", ""},
		"broken UTF-8":          {"a\xffb", "a\uFFFDb"},
		"exactly fits":          {fill(255), fill(255)},
		"600 CJK characters":    {fill(600), fill(255)},
		"emoji fits":            {fill(254) + "🎁", fill(254) + "🎁"},
		"family on the edge":    {fill(252) + family + "x", fill(252)},
		"skin tone on the edge": {fill(254) + thumb, fill(254)},
		"flag on the edge":      {fill(254) + flag, fill(254)},
		"second flag on edge":   {fill(252) + flag + flag, fill(252) + flag},
		"accent on the edge":    {fill(254) + accented, fill(254)},
		"selector on the edge":  {fill(254) + heart, fill(254)},
		"space on the edge":     {fill(254) + " x", fill(254)},
		"only accents":          {strings.Repeat("\u0301", 300), strings.Repeat("\u0301", 255)},
	} {
		got := cleanReason(c.in)
		require.Equal(t, c.want, got, name)
		require.Equal(t, got, cleanReason(got), "%s: cleaning twice changes nothing", name)
	}
}

func FuzzCleanReason(f *testing.F) {
	f.Add("damaged\n")
	f.Add(strings.Repeat("👨\u200D👩\u200D👧", 100))
	f.Add("\xff\xfe\x00")
	f.Fuzz(func(t *testing.T, s string) {
		r := ours()
		r.Reason = s
		first, err := testAdapter(t).Encode(r)
		require.NoError(t, err)
		second, err := testAdapter(t).Encode(r)
		require.NoError(t, err)
		require.Equal(t, first, second)

		var sent submission
		require.NoError(t, json.Unmarshal(first, &sent))
		require.LessOrEqual(t, utf8.RuneCountInString(sent.Reason), maxReason)
		require.NotContains(t, sent.Reason, "\n")
		require.Equal(t, r.Amount.Value, sent.Amount)
	})
}
