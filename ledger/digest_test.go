package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

func TestReviewDigest(t *testing.T) {
	t.Parallel()
	l := openLedger(t, migrated(t), Options{Now: ticking(time.Now())})
	d, err := l.ReviewDigest(t.Context())
	require.NoError(t, err)
	require.Equal(t, Digest{ByReason: map[refund.ReviewReason]int{}, ByAccount: map[string]int{}}, d)

	accept(t, l, newRefund("open")) // older, and none of people's business
	var oldest time.Time
	for i, tc := range []struct {
		account string
		reason  refund.ReviewReason
	}{
		{account, refund.ReviewChecks}, {account, refund.ReviewContradiction}, {"other", refund.ReviewChecks}, {"other", refund.ReviewChecks},
	} {
		r := newRefund(fmt.Sprintf("r-%d", i))
		r.Account = tc.account
		c := accept(t, l, r)
		if i == 0 {
			oldest = c.AcceptedAt
		}
		require.NoError(t, l.Save(t.Context(), Change{RefundID: r.ID, Status: refund.StatusReview, ReviewReason: tc.reason}))
	}
	mustAct(t, l, newAct("r-0", "a-1", refund.ActionAssign))
	addNotice(t, l, newNotice("parked", "nobody"))
	addNotice(t, l, newNotice("matched", "r-0"))

	d, err = l.ReviewDigest(t.Context())
	require.NoError(t, err)
	require.Equal(t, Digest{
		InReview:         4,
		ByReason:         map[refund.ReviewReason]int{refund.ReviewChecks: 3, refund.ReviewContradiction: 1},
		ByAccount:        map[string]int{account: 2, "other": 2},
		Unassigned:       3,
		OldestAcceptedAt: &oldest,
		Parked:           1,
	}, d)
}
