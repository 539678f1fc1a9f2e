package reference_test

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/provider"
	"refundgate/refund"
)

const (
	reportHeader = "refund_id,reference,payment_id,amount,currency,status,settled_at\n"
	reportRow    = "re_1,r-1,pay_1,1250,TWD,succeeded,2026-03-01T12:00:00Z\n"
)

// imported is what became of a report.
type imported struct {
	notices []refund.Notice
	rows    []*provider.RowError
	end     error // another error, which ends it
}

func collect(t *testing.T, seq iter.Seq2[refund.Notice, error]) imported {
	t.Helper()
	var got imported
	for n, err := range seq {
		require.NoError(t, got.end, "nothing follows the end")
		var row *provider.RowError
		switch {
		case err == nil:
			requireSoundNotice(t, n, refund.SourceSettlement)
			got.notices = append(got.notices, n)
		case errors.As(err, &row):
			require.Empty(t, n)
			got.rows = append(got.rows, row)
		default:
			require.Empty(t, n)
			got.end = err
		}
	}
	return got
}

func read(t *testing.T, report string) imported {
	t.Helper()
	return collect(t, newNotices().Settlement(strings.NewReader(report)))
}

func TestSettlementRowsAreRead(t *testing.T) {
	t.Parallel()
	row := func(columns string) refund.Notice {
		got := read(t, reportHeader+columns+"\n")
		require.Empty(t, got.rows, columns)
		require.Len(t, got.notices, 1, columns)
		return got.notices[0]
	}
	want := refund.Notice{
		Account: "acme", Source: refund.SourceSettlement,
		// From an independent computation: printf '4:re_1,3:r-1,...' | sha256sum
		EventID:          "749f468b6d71aa093437abf2bcc5c6dfb54e5641ff7d852c3c69bf1879d29c21",
		ProviderRefundID: "re_1", Reference: "r-1", PaymentID: "pay_1",
		Amount:  refund.Money{Value: 1250, Currency: "TWD"},
		Outcome: refund.OutcomeSucceeded,
		SaidAt:  time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	}
	require.Equal(t, want, row(strings.TrimSpace(reportRow)))
	for columns, change := range map[string]func(*refund.Notice){
		"re_1,r-1,pay_1,1250,TWD,pending,2026-03-01T12:00:00Z":      func(n *refund.Notice) { n.Outcome = refund.OutcomePending },
		"re_1,r-1,pay_1,1250,TWD,failed,2026-03-01T12:00:00Z":       func(n *refund.Notice) { n.Outcome, n.Code = refund.OutcomeRejected, "failed" },
		"re_1,r-1,pay_1,1250,TWD,charged back,2026-03-01T12:00:00Z": func(n *refund.Notice) { n.Outcome, n.Code = refund.OutcomeUnknown, "charged_back" },
		"re_1,r-1,pay_1,1250,TWD,SUCCEEDED,2026-03-01T12:00:00Z":    func(n *refund.Notice) { n.Outcome, n.Code = refund.OutcomeUnknown, "SUCCEEDED" },
		"re_1,,,1250,TWD,succeeded,2026-03-01T12:00:00Z":            func(n *refund.Notice) { n.Reference, n.PaymentID = "", "" },
		",r-1,pay_1,1250,TWD,succeeded,2026-03-01T12:00:00Z":        func(n *refund.Notice) { n.ProviderRefundID = "" },
		"re_1,r-1,pay_1,99,JPY,succeeded,2026-03-01T12:00:00Z":      func(n *refund.Notice) { n.Amount = refund.Money{Value: 99, Currency: "JPY"} },
		"re_1,r-1,pay_1,1250,TWD,succeeded,2026-03-01T20:00:00.5+08:00": func(n *refund.Notice) {
			n.SaidAt = n.SaidAt.Add(500 * time.Millisecond)
		},
		`re_1,"by hand, ""Mrs 退""",pay_1,1250,TWD,succeeded,2026-03-01T12:00:00Z`: func(n *refund.Notice) { n.Reference = "by?hand???Mrs????" },
	} {
		n, got := want, row(columns)
		change(&n)
		n.EventID = got.EventID
		require.Equal(t, n, got, columns)
		require.NotEqual(t, want.EventID, got.EventID, "%s: other content is another notice", columns)
	}
}

// However a file was saved, it says the same.
func TestSettlementIsTheSameHoweverItWasSaved(t *testing.T) {
	t.Parallel()
	plain := reportHeader + reportRow + strings.ReplaceAll(reportRow, "_1", "_2")
	want := read(t, plain)
	require.Len(t, want.notices, 2)
	require.NotEqual(t, want.notices[0].EventID, want.notices[1].EventID)
	for name, report := range map[string]string{
		"BOM":               "\uFEFF" + plain,
		"CRLF":              strings.ReplaceAll(plain, "\n", "\r\n"),
		"BOM and CRLF":      "\uFEFF" + strings.ReplaceAll(plain, "\n", "\r\n"),
		"no last line end":  strings.TrimSpace(plain),
		"empty lines":       strings.ReplaceAll(plain, "\n", "\n\r\n\n"),
		"all quoted":        `"` + strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(plain), ",", `","`), "\n", "\"\n\"") + "\"\n",
		"BOM and quoted":    "\uFEFF" + strings.Replace(plain, "refund_id", `"refund_id"`, 1),
		"some quoted":       strings.ReplaceAll(plain, "TWD", `"TWD"`),
		"in small pieces":   plain,
		"a bad row between": reportHeader + reportRow + "x\n" + strings.ReplaceAll(reportRow, "_1", "_2"),
	} {
		var r io.Reader = strings.NewReader(report)
		if name == "in small pieces" {
			r = iotest.OneByteReader(r)
		}
		got := collect(t, newNotices().Settlement(r))
		require.Equal(t, want.notices, got.notices, name)
		require.Equal(t, name == "a bad row between", len(got.rows) > 0, name)
	}
	require.Equal(t, want.notices[0], read(t, reportHeader+reportRow+reportRow).notices[1], "twice in one file")
}

func TestBadSettlementRowsAreReportedAndTheOthersCount(t *testing.T) {
	t.Parallel()
	amount := "integer in minor units"
	for bad, want := range map[string]string{
		"re_1,r-1,pay_1,1250,TWD,succeeded":                       "6 columns instead of 7",
		"re_1,r-1,pay_1,1250,TWD,succeeded,2026-03-01T12:00:00Z,": "8 columns instead of 7",
		"re_1;r-1;pay_1;1250;TWD;succeeded;2026-03-01T12:00:00Z":  "1 columns instead of 7",
		" ": "1 columns instead of 7",
		"re_1,r-1,pay_1,12.50,TWD,succeeded,2026-03-01T12:00:00Z":                amount,
		"re_1,r-1,pay_1,\"12,50\",TWD,succeeded,2026-03-01T12:00:00Z":            amount,
		"re_1,r-1,pay_1,1e3,TWD,succeeded,2026-03-01T12:00:00Z":                  amount,
		"re_1,r-1,pay_1,-1250,TWD,succeeded,2026-03-01T12:00:00Z":                amount,
		"re_1,r-1,pay_1,+1250,TWD,succeeded,2026-03-01T12:00:00Z":                amount,
		"re_1,r-1,pay_1,0,TWD,succeeded,2026-03-01T12:00:00Z":                    amount,
		"re_1,r-1,pay_1,01250,TWD,succeeded,2026-03-01T12:00:00Z":                amount,
		"re_1,r-1,pay_1,,TWD,succeeded,2026-03-01T12:00:00Z":                     amount,
		"re_1,r-1,pay_1, 1250,TWD,succeeded,2026-03-01T12:00:00Z":                amount,
		"re_1,r-1,pay_1,１２５０,TWD,succeeded,2026-03-01T12:00:00Z":                 amount,
		"re_1,r-1,pay_1,9999999999999999,TWD,succeeded,2026-03-01T12:00:00Z":     amount,
		"re_1,r-1,pay_1,18446744073709552866,TWD,succeeded,2026-03-01T12:00:00Z": amount,
		"re_1,r-1,pay_1,1250,NTD,succeeded,2026-03-01T12:00:00Z":                 "currency must be",
		"re_1,r-1,pay_1,1250,,succeeded,2026-03-01T12:00:00Z":                    "currency must be",
		"re_1,r-1,pay_1,1250,TWD,,2026-03-01T12:00:00Z":                          "status is missing",
		"re_1,r-1,pay_1,1250,TWD,succeeded,":                                     "RFC 3339",
		"re_1,r-1,pay_1,1250,TWD,succeeded,2026-03-01":                           "RFC 3339",
		"re_1,r-1,pay_1,1250,TWD,succeeded,03/01/2026 12:00":                     "RFC 3339",
		"re_1,r-1,pay_1,1250,TWD,succeeded,2026-03-01T12:00:00":                  "RFC 3339", // cut off, or without its zone
		"re_1,r-1,pay_1,1250,TWD,succeeded,2026-02-30T12:00:00Z":                 "RFC 3339",
		",,pay_1,1250,TWD,succeeded,2026-03-01T12:00:00Z":                        "neither id nor reference",
		"../re_1,r-1,pay_1,1250,TWD,succeeded,2026-03-01T12:00:00Z":              "the refund's id must be",
		`"re_1,r-1,pay_1,1250,TWD,succeeded,2026-03-01T12:00:00Z`:                "quotation mark",
		`re_1,r"1,pay_1,1250,TWD,succeeded,2026-03-01T12:00:00Z`:                 "quotation mark",
		"re_1,r-1,pay_1,1250,TWD," + strings.Repeat("s", 4096):                   "over 4096 bytes",
		strings.Repeat("re_1,", 100_000):                                         "over 4096 bytes",
	} {
		got := read(t, reportHeader+bad+"\n"+reportRow+bad)
		require.NoError(t, got.end, "%.80s", bad)
		require.Len(t, got.notices, 1, "%.80s", bad)
		require.Equal(t, "re_1", got.notices[0].ProviderRefundID)
		require.Len(t, got.rows, 2, "%.80s", bad)
		for i, line := range []int{2, 4} {
			require.Equal(t, line, got.rows[i].Line)
			require.ErrorContains(t, got.rows[i], want)
			require.ErrorContains(t, got.rows[i], fmt.Sprintf("line %d: ", line))
			requireQuotesNothing(t, got.rows[i], "r-1", "pay_1", "re_1")
		}
	}
}

func TestOnlyTheContractsHeaderIsASettlementReport(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"":   "it lacks refund_id, reference, payment_id, amount, currency, status, settled_at",
		"\n": "it lacks refund_id,",
		"refund_id,reference,payment_id,amount,currency,status\n":            "it lacks settled_at",
		"refund_id,reference,payment_id,total,currency,status,settled_at\n":  "it lacks amount",
		strings.ToUpper(reportHeader):                                        "it lacks refund_id,",
		strings.ReplaceAll(reportHeader, ",", ";"):                           "it lacks refund_id,",
		"reference,refund_id,payment_id,amount,currency,status,settled_at\n": "the first line must be refund_id,reference",
		strings.Replace(reportHeader, "\n", ",fee\n", 1):                     "the first line must be refund_id,reference",
		strings.Replace(reportHeader, "amount", "amount,amount", 1):          "the first line must be refund_id,reference",
		reportRow:                       "it lacks refund_id,",
		strings.Repeat("x", 10_000):     "it lacks refund_id,",
		"\"" + reportHeader:             "it lacks refund_id,",
		"\xff\xfer\x00e\x00f\x00u\x00n": "it lacks refund_id,",
	} {
		got := read(t, header+reportRow)
		require.Empty(t, got.notices, header)
		require.Empty(t, got.rows, header)
		var malformed *provider.MalformedError
		require.ErrorAs(t, got.end, &malformed, header)
		require.Contains(t, malformed.Message, want)
		require.NotContains(t, malformed.Message, "re_1")
	}
}

func TestReadingASettlementCanEndEarly(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is gone")
	for text, whole := range map[string]int{
		"":                       0,
		reportHeader[:10]:        0,
		reportHeader + reportRow: 1,
		reportHeader + reportRow + reportRow[:20]: 1,
	} {
		got := collect(t, newNotices().Settlement(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken))))
		require.ErrorIs(t, got.end, broken)
		require.Len(t, got.notices, whole, "what was whole has come")
		require.Empty(t, got.rows)
	}
	n := 0
	for _, err := range newNotices().Settlement(strings.NewReader(reportHeader + strings.Repeat(reportRow+"x\n", 5))) {
		require.Equal(t, n%2 == 0, err == nil)
		if n++; n == 4 {
			break
		}
	}
	require.Equal(t, 4, n)
	for _, err := range newNotices().Settlement(strings.NewReader("x")) {
		require.Error(t, err)
		break
	}
}

// FuzzSettlement holds every report to this: each row is a sound notice or an
// error with its line, and reading it again gives the same.
func FuzzSettlement(f *testing.F) {
	f.Add(reportRow)
	f.Add("\uFEFF" + reportRow + "x\r\n" + strings.ReplaceAll(reportRow, "1", "2"))
	f.Add(strings.ReplaceAll(reportRow, "succeeded", `"on "" hold"`))
	f.Add(strings.ReplaceAll(reportRow, "r-1", "退款\x00\xff"))
	f.Add(strings.Repeat("x", 5000) + "\n" + reportRow)
	f.Add("\"\n\"\n,,,,,,\n")
	f.Fuzz(func(t *testing.T, rows string) {
		got := read(t, reportHeader+rows)
		require.NoError(t, got.end)
		last := 1
		for _, r := range got.rows {
			require.Greater(t, r.Line, last)
			last = r.Line
			require.Less(t, len(r.Error()), 200)
		}
		require.LessOrEqual(t, len(got.notices)+len(got.rows), strings.Count(rows, "\n")+1)
		require.Equal(t, got, read(t, reportHeader+rows))
		_ = read(t, rows) // without its header
		if len(got.notices) > 0 && len(got.rows) == 0 {
			// A row stands for itself, whatever stands around it.
			whole := read(t, reportHeader+reportRow+rows)
			require.Equal(t, got.notices, whole.notices[1:])
		}
	})
}
