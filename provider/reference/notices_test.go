package reference_test

import (
	"regexp"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"refundgate/provider/reference"
	"refundgate/refund"
)

const webhookSecret = "whsec_5bd1e995"

var noticeTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newNotices(secrets ...string) *reference.Notices {
	return reference.NewNotices("acme", nil, func() []string { return secrets })
}

var asciiID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// requireSoundNotice holds a notice to what provider.Notices promises of each.
func requireSoundNotice(t *testing.T, n refund.Notice, source refund.Source) {
	t.Helper()
	require.Equal(t, "acme", n.Account)
	require.Equal(t, source, n.Source)
	require.Regexp(t, asciiID, n.EventID)
	require.NotEmpty(t, n.ProviderRefundID+n.Reference)
	if n.ProviderRefundID != "" {
		require.Regexp(t, asciiID, n.ProviderRefundID)
	}
	for _, s := range []string{n.Reference, n.PaymentID} {
		require.LessOrEqual(t, len(s), 64)
		require.NotRegexp(t, `[^!-~]`, s, "printable ASCII")
	}
	require.LessOrEqual(t, len(n.Code), 64)
	require.True(t, utf8.ValidString(n.Code))
	require.NotRegexp(t, `[\x00-\x20]`, n.Code)
	// The amount is one of a refund that we could have made.
	require.NoError(t, refund.Refund{
		ID: "r-1", Account: "acme", OrderID: "o-1", PaymentID: "pay_1", Amount: n.Amount, Reason: "x", RequestedBy: "x",
	}.Validate())
	require.Equal(t, time.UTC, n.SaidAt.Location())
	require.Equal(t, n.SaidAt.Truncate(time.Microsecond), n.SaidAt)
	require.True(t, n.SaidAt.Year() >= 2000 && n.SaidAt.Year() <= 9999)
	allowed := []refund.Outcome{refund.OutcomeSucceeded, refund.OutcomePending, refund.OutcomeRejected, refund.OutcomeUnknown}
	require.True(t, slices.Contains(allowed, n.Outcome), "outcome %q", n.Outcome)
	require.Equal(t, n.Outcome == refund.OutcomeRejected || n.Outcome == refund.OutcomeUnknown, n.Code != "")
	// The ledger's, not the provider's.
	require.Zero(t, n.ReceivedAt)
	require.Empty(t, n.RefundID)
	require.Empty(t, n.Problem)
}
