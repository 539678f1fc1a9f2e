package limiter

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"refundgate/refund"
)

// Whatever comes and goes, the place in line that a call is told is the number
// of those that were accepted before it, and as many of the other group.
func TestPropertyAheadCountsThoseBefore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var r room
		r.init(new(endpoints))
		var waiting []*waiter
		for i := range rapid.IntRange(1, 120).Draw(t, "calls") {
			w := &waiter{call: Call{
				Key: refund.CallKey{
					RefundID: fmt.Sprintf("r-%d", i), Generation: 1, Seq: 1,
					Kind: rapid.SampledFrom([]refund.CallKind{refund.KindSubmit, refund.KindCheck}).Draw(t, "kind"),
				},
				Group:      rapid.SampledFrom([]refund.Group{refund.GroupFirst, refund.GroupFollowUp}).Draw(t, "group"),
				AcceptedAt: time.Unix(int64(rapid.IntRange(0, 50).Draw(t, "accepted")), 0),
			}}
			r.add(w)
			waiting = append(waiting, w)
			if rapid.Bool().Draw(t, "advance") {
				for l := range r.all() {
					l.advance()
				}
			}
		}
		for _, i := range rapid.SliceOfDistinct(rapid.IntRange(0, len(waiting)-1), rapid.ID).Draw(t, "gone") {
			r.remove(waiting[i])
			_, ok := r.ahead(waiting[i].call.Key, MaxAhead)
			require.False(t, ok, "it doesn't wait any more")
			waiting[i] = nil
		}
		limit := rapid.IntRange(0, 150).Draw(t, "limit")
		for _, w := range waiting {
			if w == nil {
				continue
			}
			before, others := 0, 0
			for _, x := range waiting {
				switch {
				case x == nil:
				case x.call.Group != w.call.Group:
					others++
				case x.before(w):
					before++
				}
			}
			got, ok := r.ahead(w.call.Key, limit)
			require.True(t, ok)
			require.Equal(t, min(before+min(before, others), limit), got)
		}
	})
}
