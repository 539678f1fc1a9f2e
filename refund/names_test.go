package refund_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

// Stored data, running workflows, dashboards and other programs hold these
// values. A change here breaks them.
func TestNamesAreFixed(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"refunds": refund.TaskQueue, "refund-egress.acme": refund.EgressQueue("acme"),
		"Refund": refund.WorkflowType, "refund-r-1": refund.WorkflowID("r-1"),
		"SubmitRefund": refund.ActivitySubmit, "CheckRefund": refund.ActivityCheck,
		"OpenCase": refund.ActivityOpen, "SaveCase": refund.ActivitySave,
		"RecordCall": refund.ActivityRecord, "ResolveCall": refund.ActivityResolve,
		"ActOnCase": refund.ActivityAct,
		"case":      refund.QueryCase, "notice": refund.SignalNotice,
		"RefundStatus": refund.AttributeStatus, "RefundAccount": refund.AttributeAccount,
		"RefundReviewReason": refund.AttributeReview, "RefundOwner": refund.AttributeOwner,
		"RefundOrderId": refund.AttributeOrder, "RefundAttempts": refund.AttributeTries, "RefundDeadline": refund.AttributeDue,
		"RefundConflict": refund.ErrorTypeConflict, "RefundInvalid": refund.ErrorTypeInvalid, "ActionRefused": refund.ErrorTypeRefused,
		"submit": string(refund.KindSubmit), "check": string(refund.KindCheck),
		"first": string(refund.OriginFirst), "retry": string(refund.OriginRetry), "manual": string(refund.OriginManual),
		"follow-up": string(refund.GroupFollowUp),
		"connect":   string(refund.BudgetConnect), "overall": string(refund.BudgetOverall), "deadline": string(refund.BudgetDeadline),
	} {
		require.Equal(t, want, got)
	}
	require.Equal(t, "check", string(refund.OriginCheck))
	require.Equal(t, "first", string(refund.GroupFirst))
	require.Equal(t, []refund.Status{"queued", "retrying", "unknown", "pending", "review", "succeeded", "rejected", "not_refunded"}, refund.Statuses)
	require.Equal(t, []refund.Outcome{"succeeded", "pending", "rejected", "busy", "not_found", "unknown", "not_sent"}, refund.Outcomes)
	require.Equal(t, []refund.ReviewReason{
		"deadline_unsent", "deadline_unknown", "deadline_pending", "deadline_busy", "attempts_exhausted", "checks_exhausted",
		"key_expired", "resend_not_safe", "idempotency_mismatch", "ambiguous_reject", "unsupported",
		"late_failure", "contradiction",
	}, refund.ReviewReasons)
	require.Equal(t, []string{
		"timeout", "disconnected", "unreadable", "contradiction", "lost", "connect_failed", "cancelled", "deadline", "shutdown",
		"not_owner", "breaker_open", "stopped", "stale_intent", "exhausted", "closed", "abandoned", "storage", "unsupported", "key_taken", "no_request",
	}, []string{
		refund.CodeTimeout, refund.CodeDisconnected, refund.CodeUnreadable, refund.CodeContradiction, refund.CodeLost, refund.CodeConnect,
		refund.CodeCancelled, refund.CodeDeadline, refund.CodeShutdown, refund.CodeNotOwner, refund.CodeBreaker, refund.CodeStopped, refund.CodeStale, refund.CodeExhausted,
		refund.CodeClosed, refund.CodeAbandoned, refund.CodeStorage, refund.CodeUnsupported, refund.CodeKeyTaken, refund.CodeNoRequest,
	})
}

func TestNamesOfReviewAreFixed(t *testing.T) {
	t.Parallel()
	for _, r := range refund.ReviewReasons {
		require.NotEmpty(t, r.InWords(), r)
	}
	require.Equal(t, []refund.Action{"assign", "note", "check", "resend", "settle", "correct"}, refund.Actions)
	require.Equal(t, []refund.Source{"notification", "settlement"}, []refund.Source{refund.SourceNotification, refund.SourceSettlement})
	require.Equal(t, []refund.NoticeProblem{"no_match", "two_cases", "content"},
		[]refund.NoticeProblem{refund.ProblemNoMatch, refund.ProblemTwoCases, refund.ProblemContent})
}

// CASE 10, 11: one key for the life of a generation, in a space of its own.
func TestCase10_IdempotencyKeys(t *testing.T) {
	t.Parallel()
	require.Equal(t, "refund-r-1", refund.IdempotencyKey("r-1", 1))
	require.Equal(t, "refund-r-1.g2", refund.IdempotencyKey("r-1", 2))
	require.Equal(t, "r-1/g1/submit/2", refund.CallKey{RefundID: "r-1", Generation: 1, Kind: refund.KindSubmit, Seq: 2}.String())
}

func TestGroups(t *testing.T) {
	t.Parallel()
	require.Equal(t, refund.GroupFirst, refund.OriginFirst.Group())
	for _, o := range []refund.Origin{refund.OriginRetry, refund.OriginCheck, refund.OriginManual} {
		require.Equal(t, refund.GroupFollowUp, o.Group(), o)
	}
	for _, s := range refund.Statuses {
		require.True(t, s.Valid())
	}
	require.False(t, refund.Status("done").Valid())
	require.True(t, refund.StatusNotRefunded.Final())
	require.False(t, refund.StatusReview.Final())
}
