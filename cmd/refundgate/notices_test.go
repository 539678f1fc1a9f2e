package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// hookUp has the provider send its notifications to the intake.
func (s *system) hookUp(w standin.Webhooks) {
	s.t.Helper()
	w.Enabled, w.URL, w.Secrets = true, s.intake+"/v1/providers/demo/notifications", []string{notificationSecret}
	require.NoError(s.t, s.control.SetWebhooks(s.t.Context(), w))
}

// The provider commits, the answer is lost and checks learn nothing: its
// notification, which comes twice, settles the case, and nothing is sent again.
func TestCase01_NotificationSettles(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.extend("15m")
	require.NoError(t, s.control.SetPlan(t.Context(),
		standin.Rule{Match: standin.Match{Method: http.MethodPost}, Fault: standin.Fault{Kind: standin.AcceptThenDrop}},
		standin.Rule{Match: standin.Match{Method: http.MethodGet}, Fault: standin.Fault{Kind: standin.Drop}},
	))
	s.hookUp(standin.Webhooks{Duplicate: true, DelayMS: 1500})
	serve := s.start("serve")
	serve.waitFor("intake:")
	s.start("worker").waitFor("egress: owner")
	s.submit("r-1", "demo")

	c := s.becomes("r-1", refund.StatusSucceeded)
	require.Len(t, c.Notices, 1)
	require.NotEmpty(t, c.ProviderRefundID)
	executions, err := s.control.Executions(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, executions["r-1"])
	require.Contains(t, s.done("refunds", "show", "r-1"), c.Notices[0].EventID)
	require.NoError(t, serve.stop())
	require.NotContains(t, serve.log(), notificationSecret)
	require.Contains(t, serve.log(), `"event":"notice.stored"`)
}

// No answers, no checks, no notifications: the settlement report ends the case.
// Importing it again changes nothing; a bad row is told with its line, and the
// others count.
func TestSettlementImport(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.extend("12s") // a new owner of the egress waits for five of them
	require.NoError(t, s.control.SetPlan(t.Context(),
		standin.Rule{Match: standin.Match{Method: http.MethodPost}, Fault: standin.Fault{Kind: standin.AcceptThenDrop}},
		standin.Rule{Match: standin.Match{Method: http.MethodGet}, Fault: standin.Fault{Kind: standin.Drop}},
	))
	s.start("serve").waitFor("intake:")
	s.start("worker").waitFor("egress: owner")
	s.submit("r-1", "demo")
	c := s.becomes("r-1", refund.StatusReview)
	require.Equal(t, refund.ReviewDeadlineUnknown, c.ReviewReason)

	report, err := s.control.Settlement(t.Context())
	require.NoError(t, err)
	more := string(report) +
		"re_9,nobody,pay-9,1250,TWD,succeeded,2026-03-01T12:00:00Z\n" +
		"re_8,r-1,pay-r-1,12.50,TWD,succeeded,2026-03-01T12:00:00Z\n"
	file := filepath.Join(t.TempDir(), "report.csv")
	require.NoError(t, os.WriteFile(file, []byte(more), 0o600))
	lines := strings.Count(more, "\n")

	out, errs, code := s.cli("", "settlement", "import", file, "--account", "demo")
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "3 rows: 1 applied, 0 already known, 1 parked, 0 contradicting their case, 1 bad\n")
	require.Contains(t, out, "line 4: the amount must be an integer in minor units")
	require.Contains(t, errs, "1 of 3 rows could not be read; the others are stored")
	require.Equal(t, 4, lines)
	s.becomes("r-1", refund.StatusSucceeded)

	out, errs, code = s.cli(string(report), "settlement", "import", "-", "--account", "demo", "-o", "json")
	require.Zero(t, code, errs)
	require.JSONEq(t, `{"applied":0,"already_known":1,"parked":0,"contradicting":0,"bad":[]}`, out)

	var listed struct {
		Notices []refund.Notice `json:"notices"`
		More    bool            `json:"more"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.done("notices", "list", "-o", "json")), &listed))
	require.Len(t, listed.Notices, 1)
	require.Equal(t, "nobody", listed.Notices[0].Reference)
	require.False(t, listed.More)
	require.Contains(t, s.done("notices", "list", "--account", "demo"), "no_match")
	require.NotContains(t, s.done("notices", "list", "--account", "other"), "no_match")
}
