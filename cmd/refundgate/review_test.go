package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/provider/standin"
	"refundgate/refund"
)

const notificationSecret = "secret-of-the-notifications"

// extend adds to the system's configuration: a notification secret for the
// account, and how soon its cases go to review.
func (s *system) extend(deadline string) {
	s.t.Helper()
	secret := filepath.Join(s.t.TempDir(), "notification-secret")
	require.NoError(s.t, os.WriteFile(secret, []byte(notificationSecret+"\n"), 0o600))
	b, err := os.ReadFile(s.config)
	require.NoError(s.t, err)
	b = fmt.Appendf(b, "    notification_secrets: [{file: %q}]\npolicy: {deadline: %s}\n", secret, deadline)
	require.NoError(s.t, os.WriteFile(s.config, b, 0o600))
}

// cli runs a command with the system's configuration.
func (s *system) cli(stdin string, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	return refundgate(s.t, stdin, append(args, "--config", s.config)...)
}

// done runs a command that must work, and returns what it printed.
func (s *system) done(args ...string) string {
	s.t.Helper()
	out, errs, code := s.cli("", args...)
	require.Zero(s.t, code, "%v: %s", args, errs)
	return out
}

// failed runs a command that must not work, and returns what it said.
func (s *system) failed(code int, args ...string) string {
	s.t.Helper()
	out, errs, got := s.cli("", args...)
	require.Equal(s.t, code, got, "%v: %s", args, errs)
	require.Empty(s.t, out)
	return errs
}

// submitByHand submits a refund on the command line.
func (s *system) submitByHand(id string) {
	s.t.Helper()
	s.done("submit", "--id", id, "--account", "demo", "--order", "o-1", "--payment", "pay-"+id,
		"--amount", "1250", "--currency", "TWD", "--reason", "damaged", "--by", "shop")
}

// becomes waits until the case has the status.
func (s *system) becomes(id string, status refund.Status) refund.Case {
	s.t.Helper()
	var c refund.Case
	require.Eventually(s.t, func() bool {
		var err error
		c, err = s.ledger.Case(s.t.Context(), id)
		return err == nil && c.Status == status
	}, time.Minute, 50*time.Millisecond)
	return c
}

// F2: the review desk on the command line, from the list to the settlement.
// Every decision is on the trail, once, with who and why.
func TestReviewDesk(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.extend("5s")
	s.start("worker", "--roles", "orchestrator") // nothing is sent
	s.submitByHand("r-1")
	s.submitByHand("r-2")
	by := []string{"--by", "alice", "--reason", "looked into it"}
	action := func(name, id string, more ...string) []string {
		return append(append([]string{"review", name, id}, by...), more...)
	}

	require.Contains(t, s.failed(exitFailed, action("settle", "r-1", "--status", "succeeded", "--evidence", "line 88")...),
		"settle is refused: it is queued, not in review; see `refundgate refunds show r-1`")
	s.becomes("r-1", refund.StatusReview)
	s.becomes("r-2", refund.StatusReview)

	out := s.done("review", "list", "--unassigned", "--reason", "deadline_unsent")
	require.Less(t, strings.Index(out, "r-1"), strings.Index(out, "r-2"), "the longest waiting first")
	require.Contains(t, s.done("review", "list", "--limit", "1"), "more: --cursor ")
	out = s.done(action("assign", "r-1", "--owner", "bob")...)
	require.Regexp(t, `^r-1: assign recorded; review \(deadline_unsent\), owner bob, version \d+\n$`, out)
	var page struct {
		Cases []refund.Case `json:"cases"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.done("review", "list", "--owner", "bob", "-o", "json")), &page))
	require.Len(t, page.Cases, 1)
	require.Equal(t, "r-1", page.Cases[0].Refund.ID)
	version := page.Cases[0].Version

	s.done(action("note", "r-1", "--action-id", "note-1")...)
	s.done(action("note", "r-1", "--action-id", "note-1")...)
	require.Contains(t, s.failed(exitFailed, action("note", "r-1", "--version", fmt.Sprint(version))...), "it has changed since version")
	s.done(action("check", "r-1")...)
	s.done(action("assign", "r-1", "--nobody")...)
	require.Contains(t, s.failed(exitFailed, action("correct", "r-1", "--payment", "pay-9")...), "it is in review, not rejected")

	var c refund.Case
	out = s.done(action("settle", "r-1", "--status", "not_refunded", "--evidence", "ticket 4711", "-o", "json")...)
	require.NoError(t, json.Unmarshal([]byte(out), &c))
	require.Equal(t, refund.StatusNotRefunded, c.Status)
	require.Contains(t, s.failed(exitFailed, action("settle", "r-1", "--status", "succeeded", "--evidence", "line 88")...), "it is already not_refunded")
	s.done(action("note", "r-1")...) // also on a closed case

	trail := s.done("refunds", "show", "r-1")
	for want, times := range map[string]int{
		"alice  review.assign  to bob: looked into it": 1, "alice  review.assign  to nobody: looked into it": 1,
		"alice  review.note    looked into it": 2, "alice  review.check   looked into it": 1,
		"alice  review.settle  as not_refunded: looked into it; evidence: ticket 4711": 1,
	} {
		require.Equal(t, times, strings.Count(strings.Join(strings.Fields(trail), " "), strings.Join(strings.Fields(want), " ")), "%s in\n%s", want, trail)
	}
}

// C8, C10 and the rest of F2 with the provider: a rejected refund is corrected
// and sent under a key of its own.
func TestCorrectedRefundIsSent(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	require.NoError(t, s.control.SetPlan(t.Context(), standin.Rule{
		Match: standin.Match{Method: http.MethodPost, Reference: "r-1"}, Times: 1, Fault: standin.Fault{Kind: standin.Reject, Code: "unknown_payment"},
	}))
	s.start("worker").waitFor("egress: owner")
	s.submitByHand("r-1")
	s.becomes("r-1", refund.StatusRejected)

	out := s.done("review", "correct", "r-1", "--payment", "pay_2", "--by", "alice", "--reason", "typo")
	require.Regexp(t, `^r-1: correct recorded; queued, owner nobody, version \d+\n$`, out)
	c := s.becomes("r-1", refund.StatusSucceeded)
	require.Equal(t, 2, c.Generation)
	require.Equal(t, "pay_2", c.Refund.PaymentID)
	record, err := s.control.Record(t.Context())
	require.NoError(t, err)
	var keys []string
	for _, r := range record {
		if r.Method == http.MethodPost {
			keys = append(keys, r.Key)
		}
	}
	require.Equal(t, []string{"refund-r-1", "refund-r-1.g2"}, keys)
	shown := s.done("refunds", "show", "r-1")
	require.Contains(t, shown, "generation     2")
	require.Contains(t, shown, "submit 1 of generation 2 (first)")
	require.JSONEq(t, `{"cases":[]}`, s.done("review", "list", "-o", "json"))

	// The first submission again is the same refund, and starts nothing.
	temporal, err := client.NewLazyClient(client.Options{HostPort: s.temporal, Namespace: s.ns})
	require.NoError(t, err)
	defer temporal.Close()
	lastRun := func() string {
		shown, err := temporal.DescribeWorkflow(t.Context(), "refund-r-1", "")
		require.NoError(t, err)
		return shown.WorkflowExecution.RunID
	}
	before := lastRun()
	require.Contains(t, s.done("submit", "--id", "r-1", "--account", "demo", "--order", "o-1", "--payment", "pay-r-1",
		"--amount", "1250", "--currency", "TWD", "--reason", "damaged", "--by", "shop"), "r-1: known already, succeeded")
	require.Equal(t, before, lastRun())
}

func TestReviewWrongUse(t *testing.T) {
	t.Parallel()
	s := newSystemOn(t, testenv.MariaDB(t), "127.0.0.1:1", "default")
	by := []string{"--by", "alice", "--reason", "why"}
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"nobody says it":        {[]string{"review", "note", "r-1"}, `required flag(s) "by", "reason" not set`},
		"of no case":            {append([]string{"review", "note"}, by...), "accepts 1 arg(s)"},
		"bad id":                {append([]string{"review", "note", "a/b"}, by...), "the refund id must be"},
		"to whom":               {append([]string{"review", "assign", "r-1"}, by...), "at least one of the flags in the group [owner nobody] is required"},
		"to an empty name":      {append([]string{"review", "assign", "r-1", "--owner", ""}, by...), "say --nobody"},
		"to two":                {append([]string{"review", "assign", "r-1", "--owner", "bob", "--nobody"}, by...), "none of the others can be"},
		"without evidence":      {append([]string{"review", "settle", "r-1", "--status", "succeeded"}, by...), `required flag(s) "evidence" not set`},
		"as rejected":           {append([]string{"review", "settle", "r-1", "--status", "rejected", "--evidence", "x"}, by...), "status: must be succeeded or not_refunded"},
		"nothing corrected":     {append([]string{"review", "correct", "r-1"}, by...), "at least one of the flags in the group [payment amount payment-amount refund-reason] is required"},
		"amount of what":        {append([]string{"review", "correct", "r-1", "--amount", "5"}, by...), "go with --currency"},
		"bad action id":         {append([]string{"review", "note", "r-1", "--action-id", "a b"}, by...), "--action-id must be"},
		"negative version":      {append([]string{"review", "note", "r-1", "--version", "-1"}, by...), "version: must not be negative"},
		"list of two owners":    {[]string{"review", "list", "--owner", "bob", "--unassigned"}, "none of the others can be"},
		"list of no reason":     {[]string{"review", "list", "--reason", "deadline"}, `there is no reason "deadline"`},
		"list's limit":          {[]string{"review", "list", "--limit", "0"}, "--limit is from 1 to 200"},
		"list's cursor":         {[]string{"review", "list", "--cursor", "x"}, "--cursor"},
		"import of nothing":     {[]string{"settlement", "import", "--account", "demo"}, "accepts 1 arg(s)"},
		"import for nobody":     {[]string{"settlement", "import", "-"}, `required flag(s) "account" not set`},
		"import for a stranger": {[]string{"settlement", "import", "-", "--account", "acme"}, `account "acme" is not in the configuration; there is demo`},
		"import of no file":     {[]string{"settlement", "import", "/nowhere.csv", "--account", "demo"}, "/nowhere.csv"},
		"import of another":     {[]string{"settlement", "import", "-", "--account", "demo"}, "this is no settlement report: the first line must be refund_id,"},
		"notices' limit":        {[]string{"notices", "list", "--limit", "1001"}, "--limit is from 1 to 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, s.failed(exitUsage, tt.args...), tt.says)
		})
	}
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"no such case":    {append([]string{"review", "note", "nobody"}, by...), `there is no refund "nobody"`},
		"none to correct": {append([]string{"review", "correct", "nobody", "--payment", "p"}, by...), `there is no refund "nobody"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, s.failed(exitFailed, tt.args...), tt.says)
		})
	}
}

// Temporal is away: an action on an open case is not recorded, and the message
// says how to repeat it. A correction needs no workflow to be recorded.
func TestReviewWithoutTemporal(t *testing.T) {
	t.Parallel()
	s := newSystemOn(t, testenv.MariaDB(t), "127.0.0.1:1", "default")
	_, _, err := s.ledger.Accept(t.Context(), ledger.Submission{Refund: newRefund("r-1", "demo"), Deadline: time.Hour})
	require.NoError(t, err)
	says := s.failed(exitFailed, "review", "note", "r-1", "--by", "alice", "--reason", "why")
	require.Contains(t, says, "it is not certain whether action ")
	require.Regexp(t, `repeat the command with --action-id [A-Z2-7]{26}`, says)
	c, err := s.ledger.Case(t.Context(), "r-1")
	require.NoError(t, err)
	require.Empty(t, c.Decisions)
}
