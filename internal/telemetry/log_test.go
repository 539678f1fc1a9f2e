package telemetry

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNames holds every constant of events.go to its value.
func TestNames(t *testing.T) {
	t.Parallel()
	want := []string{
		"refund.accepted", "refund.duplicate", "refund.conflict", "refund.review", "refund.settled",
		"call.started", "call.finished", "call.timeout", "call.not_sent", "call.hidden_retry_blocked",
		"retry.scheduled", "breaker.transition", "gate.paused", "gate.resumed",
		"egress.owner_acquired", "egress.standby", "egress.owner_lost", "egress.released",
		"idempotency.duplicate_stopped", "intake.refused",
		"tls.reloaded", "tls.reload_failed",
		"notice.stored", "notice.duplicate", "notice.refused", "review.action", "review.digest", "backlog.late", "backlog.on_time",
		"event", "refund_id", "account", "kind", "seq", "call_key", "budget", "attempt", "wait_ms", "from", "to",
	}
	require.Equal(t, want, literals(t, "events.go"))
}

// TestMetricNames holds every constant of metrics.go to its value.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	want := []string{
		"refundgate_call_starts_total", "refundgate_call_outcomes_total", "refundgate_call_duration_seconds", "refundgate_connect_duration_seconds",
		"refundgate_start_gap_seconds", "refundgate_in_flight", "refundgate_waiting", "refundgate_breaker_state",
		"refundgate_hidden_retries_blocked_total", "refundgate_egress_owner",
		"refundgate_settled_total", "refundgate_open_cases", "refundgate_oldest_open_age_seconds",
		"refundgate_intake_requests_total",
		"refundgate_inbox_rows", "refundgate_inbox_oldest_age_seconds",
		"refundgate_drain_per_second", "refundgate_calls_per_case", "refundgate_expected_wait_seconds", "refundgate_backlog_late",
		"account", "kind", "origin", "outcome", "group", "state", "status", "result",
	}
	require.Equal(t, want, literals(t, "metrics.go"))
}

// literals returns the string literals of a file, in its order.
func literals(t *testing.T, name string) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok {
			value, err := strconv.Unquote(lit.Value)
			require.NoError(t, err)
			all = append(all, value)
		}
		return true
	})
	return all
}

func TestEventLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := NewLogger(&out, FormatJSON, slog.LevelInfo)
	taipei := time.FixedZone("CST", 8*60*60)
	at := time.Date(2025, 1, 2, 8, 0, 0, 0, taipei)

	Event(t.Context(), log, slog.LevelWarn, EventCallTimeout, slog.String(KeyRefundID, "r-1"), slog.Time("due", at))
	Event(t.Context(), log, slog.LevelDebug, EventCallStarted)

	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line), "exactly one line: %s", out.String())
	require.Regexp(t, `Z$`, line["time"])
	delete(line, "time")
	require.Equal(t, map[string]any{
		"level": "WARN", "msg": "call.timeout", "event": "call.timeout",
		"refund_id": "r-1", "due": "2025-01-02T00:00:00Z",
	}, line)
}

func TestTextFormat(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	Event(t.Context(), NewLogger(&out, FormatText, slog.LevelInfo), slog.LevelInfo, EventStandby, slog.String(KeyAccount, "main"))
	require.True(t, strings.HasSuffix(out.String(), "level=INFO msg=egress.standby event=egress.standby account=main\n"), out.String())
}

func TestTemporalLogger(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	TemporalLogger(NewLogger(&out, FormatJSON, slog.LevelInfo)).Warn("slow", "queue", "refunds")
	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line))
	require.Equal(t, "temporal", line["component"])
	require.Equal(t, "refunds", line["queue"])
}

func TestFormatFlag(t *testing.T) {
	t.Parallel()
	var f Format
	require.NoError(t, f.Set("text"))
	require.Equal(t, FormatText, f)
	require.EqualError(t, f.Set("xml"), `the log format is json or text, not "xml"`)
	require.Equal(t, "text", f.String(), "a refused value changes nothing")
}
