package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// bench is a system with several provider accounts. Each has a stand-in of its
// own, so that subtests share the processes and don't meet at the provider.
type bench struct {
	*system
	standins map[string]*standin.Server
	engine   client.Client
}

// seat is a bench as one subtest has it, with an account to itself.
type seat struct {
	*system
	account string
	engine  client.Client
}

// quickly is a policy whose waits are fractions of a second; the budget of the
// calls is the default one.
const quickly = `{backoff: [{min: 50ms, max: 100ms}, {min: 50ms, max: 100ms}],
  checks: {max: 1000, initial: 300ms, cap: 1s}, not_sent: {initial: 100ms, cap: 1s}}`

// newBench prepares a bench on the shared servers. No process runs yet.
func newBench(t *testing.T, policy string, accounts map[string]string) *bench {
	t.Helper()
	return newSystem(t).benched(policy, accounts)
}

// benched gives the system accounts by name, each with settings of its own in
// YAML, and the policy. Its one client may do everything.
func (s *system) benched(policy string, accounts map[string]string) *bench {
	t := s.t
	t.Helper()
	b := &bench{system: s, standins: map[string]*standin.Server{}}
	urls := map[string]string{}
	for name := range accounts {
		p, err := standin.New(standin.Options{})
		require.NoError(t, err)
		require.NoError(t, p.Start("127.0.0.1:0"))
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		b.standins[name], urls[name] = p, p.URL()
	}
	s.configure(urls)
	secret := filepath.Join(t.TempDir(), "notification-secret")
	require.NoError(t, os.WriteFile(secret, []byte(notificationSecret), 0o600))
	file, err := os.ReadFile(s.config)
	require.NoError(t, err)
	text := strings.Replace(string(file), `"refunds:read"]`, `"refunds:read", "review"]`, 1)
	for name, own := range accounts {
		if own != "" {
			text = strings.Replace(text, "\n  "+name+":\n", "\n  "+name+":\n    "+own+"\n", 1)
		}
	}
	// The faults are on purpose; a breaker that opens would only cost time.
	text += fmt.Sprintf("defaults: {notification_secrets: [{file: %q}], breaker: {window: 1000}}\npolicy: %s\n", secret, policy)
	require.NoError(t, os.WriteFile(s.config, []byte(text), 0o600))

	b.engine, err = client.NewLazyClient(client.Options{
		HostPort: s.temporal, Namespace: s.ns, Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	t.Cleanup(b.engine.Close)
	return b
}

// run starts the bench's two processes.
func (b *bench) run() {
	b.t.Helper()
	serve, worker := b.start("serve"), b.start("worker")
	serve.waitFor("intake:")
	worker.waitFor("egress: owner")
}

// at returns the bench as the subtest has it.
func (b *bench) at(t *testing.T, account string) *seat {
	t.Helper()
	s := *b.system
	s.t, s.provider = t, b.standins[account]
	require.NotNil(t, s.provider, "there is no account %s", account)
	s.control = standin.NewClient(s.provider.URL())
	return &seat{system: &s, account: account, engine: b.engine}
}

// plan sets what goes wrong at the seat's stand-in.
func (s *seat) plan(rules ...standin.Rule) {
	s.t.Helper()
	require.NoError(s.t, s.control.SetPlan(s.t.Context(), rules...))
}

// sends and checks are a fault's rule for the next requests of a kind; 0 times
// is from now on.
func sends(times int, f standin.Fault) standin.Rule {
	return standin.Rule{Match: standin.Match{Method: http.MethodPost}, Fault: f, Times: times}
}

func checks(times int, f standin.Fault) standin.Rule {
	return standin.Rule{Match: standin.Match{Method: http.MethodGet}, Fault: f, Times: times}
}

// hook has the seat's stand-in send its notifications to the intake.
func (s *seat) hook(w standin.Webhooks) {
	s.t.Helper()
	w.Enabled, w.URL, w.Secrets = true, s.intake+"/v1/providers/"+s.account+"/notifications", []string{notificationSecret}
	require.NoError(s.t, s.control.SetWebhooks(s.t.Context(), w))
}

// accept submits a refund and requires that it is accepted.
func (s *seat) accept(id string) {
	s.t.Helper()
	s.submit(id, s.account)
}

// caseOf reads the case from the ledger.
func (s *seat) caseOf(id string) refund.Case {
	s.t.Helper()
	c, err := s.ledger.Case(s.t.Context(), id)
	require.NoError(s.t, err)
	return c
}

// eventually waits until is returns true. Unlike require.Eventually's, is runs
// on the test's goroutine and may require things.
func (s *seat) eventually(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(25 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.FailNow(s.t, "waited in vain: "+what)
		}
	}
}

// until waits until the case is as it should be.
func (s *seat) until(id, what string, is func(refund.Case) bool) (c refund.Case) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("%s: %s (%s), decisions %v, calls %v", id, c.Status, c.ReviewReason, actionsOf(c), describeCalls(c))
		}
	}()
	s.eventually(what, func() bool {
		var err error
		c, err = s.ledger.Case(s.t.Context(), id) // the database may be away
		return err == nil && is(c)
	})
	return c
}

// act posts an action to the API; key is its Idempotency-Key.
func (s *seat) act(id string, action refund.Action, key string, body any) (status int, answer map[string]any) {
	s.t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(s.t, err)
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, fmt.Sprintf("%s/v1/refunds/%s/actions/%s", s.intake, id, action), bytes.NewReader(raw))
	require.NoError(s.t, err)
	req.Header.Set("Authorization", "Bearer "+testToken)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	require.NoError(s.t, json.NewDecoder(resp.Body).Decode(&answer))
	return resp.StatusCode, answer
}

// acted is act for an action that must work.
func (s *seat) acted(id string, action refund.Action, body any) {
	s.t.Helper()
	status, answer := s.act(id, action, "", body)
	require.Equal(s.t, http.StatusOK, status, answer)
}

// tool runs one of the operators' own programs, temporal or tctl, against the
// system's namespace and returns what it printed.
func (s *seat) tool(name string, args ...string) (string, error) {
	s.t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path = filepath.Join("..", "..", ".bin", name) // `make tools` puts it there
	}
	where := []string{"--address", s.temporal, "--namespace", s.ns}
	if name == "tctl" { // which takes them before the command
		args = append(where, args...)
	} else {
		args = append(args, append(where, "--disable-config-file", "--disable-config-env")...)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	return string(out), err
}

// mustTool is tool for a command that must work.
func (s *seat) mustTool(name string, args ...string) string {
	s.t.Helper()
	out, err := s.tool(name, args...)
	require.NoError(s.t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return out
}

// current is the latest run of the refund's workflow.
func (s *seat) current(id string) *workflowservice.DescribeWorkflowExecutionResponse {
	s.t.Helper()
	res, err := s.engine.DescribeWorkflow(s.t.Context(), refund.WorkflowID(id), "")
	require.NoError(s.t, err)
	return res.RawResponse
}

func (s *seat) runID(id string) string {
	s.t.Helper()
	return s.current(id).GetWorkflowExecutionInfo().GetExecution().GetRunId()
}

// newRun waits until the latest run is another one than that.
func (s *seat) newRun(id, than string) string {
	s.t.Helper()
	var run string
	s.eventually("a new run of "+id, func() bool {
		run = s.runID(id)
		return run != than
	})
	return run
}

// ended waits until the run, or the latest one, has completed, and requires
// that its result is how the case stands.
func (s *seat) ended(id, run string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	var got refund.Closing
	s.eventually("a workflow of "+id, func() bool {
		_, err := s.engine.DescribeWorkflow(ctx, refund.WorkflowID(id), run)
		return err == nil
	})
	require.NoError(s.t, s.engine.GetWorkflow(ctx, refund.WorkflowID(id), run).Get(ctx, &got))
	c := s.caseOf(id)
	require.Equal(s.t, c.Status, got.Status)
	require.Equal(s.t, c.Attempts, got.Attempts)
	require.Equal(s.t, c.ProviderRefundID, got.ProviderRefundID)
	require.False(s.t, c.Open())
}

// rests waits until the latest run has no task to work on, and returns whether
// it runs.
func (s *seat) rests(id string) (status enums.WorkflowExecutionStatus) {
	s.t.Helper()
	s.eventually("the workflow of "+id+" has no task", func() bool {
		d := s.current(id)
		status = d.GetWorkflowExecutionInfo().GetStatus()
		return d.GetPendingWorkflowTask() == nil
	})
	return status
}

// parked waits until the latest run has nothing to do but wait for people.
func (s *seat) parked(id string) {
	s.t.Helper()
	s.eventually("the workflow of "+id+" waits for people", func() bool {
		d := s.current(id)
		require.Equal(s.t, enums.WORKFLOW_EXECUTION_STATUS_RUNNING, d.GetWorkflowExecutionInfo().GetStatus(), "%s has ended: %+v", id, decisionsOf(s.caseOf(id)))
		return d.GetPendingWorkflowTask() == nil && len(d.GetPendingActivities()) == 0
	})
}

// details is what the Web UI shows of the latest run.
func (s *seat) details(id string) string {
	s.t.Helper()
	var meta sdkpb.WorkflowMetadata
	val, err := s.engine.QueryWorkflow(s.t.Context(), refund.WorkflowID(id), "", "__temporal_workflow_metadata")
	require.NoError(s.t, err)
	require.NoError(s.t, val.Get(&meta))
	return meta.GetCurrentDetails()
}

// history returns a run's events.
func (s *seat) history(id, run string) []*historypb.HistoryEvent {
	s.t.Helper()
	var events []*historypb.HistoryEvent
	iter := s.engine.GetWorkflowHistory(s.t.Context(), refund.WorkflowID(id), run, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for iter.HasNext() {
		event, err := iter.Next()
		require.NoError(s.t, err)
		events = append(events, event)
	}
	return events
}

// terminate ends the latest run the hard way, with tctl.
func (s *seat) terminate(id string) {
	s.t.Helper()
	s.mustTool("tctl", "workflow", "terminate", "--workflow_id", refund.WorkflowID(id), "--reason", "a test")
	require.Equal(s.t, enums.WORKFLOW_EXECUTION_STATUS_TERMINATED, s.over(id))
}

// over waits until the latest run is over, and returns how it ended.
func (s *seat) over(id string) (status enums.WorkflowExecutionStatus) {
	s.t.Helper()
	s.eventually("the end of "+id, func() bool {
		status = s.current(id).GetWorkflowExecutionInfo().GetStatus()
		return status != enums.WORKFLOW_EXECUTION_STATUS_RUNNING
	})
	return status
}

// startByHand starts the refund's workflow as the documentation says, with
// tctl and plain JSON.
func (s *seat) startByHand(r refund.Refund, more ...string) (string, error) {
	s.t.Helper()
	input, err := json.Marshal(r)
	require.NoError(s.t, err)
	return s.tool("tctl", append([]string{
		"workflow", "start", "--taskqueue", refund.TaskQueue, "--workflow_type", refund.WorkflowType,
		"--workflow_id", refund.WorkflowID(r.ID), "--input", string(input),
	}, more...)...)
}

// signalByHand signals the refund's workflow with tctl.
func (s *seat) signalByHand(id, name, input string) (string, error) {
	s.t.Helper()
	return s.tool("tctl", "workflow", "signal", "--workflow_id", refund.WorkflowID(id), "--name", name, "--input", input)
}

// signalled is signalByHand for a signal that must become a decision.
func (s *seat) signalled(id string, action refund.Action, input string) {
	s.t.Helper()
	before := len(s.caseOf(id).Decisions)
	out, err := s.signalByHand(id, string(action), input)
	require.NoError(s.t, err, out)
	s.until(id, "a decision by the signal "+string(action), func(c refund.Case) bool { return len(c.Decisions) > before })
}

// truth is everything that a replay must leave as it is: what the ledger knows
// of the case, what the provider received, and the money that it moved.
type truth struct {
	Case       refund.Case
	Trail      []refund.Event
	Wire       []string
	Executions int
}

func (s *seat) truth(id string) truth {
	s.t.Helper()
	ctx := s.t.Context()
	tr := truth{Case: s.caseOf(id)}
	var err error
	tr.Trail, err = s.ledger.Events(ctx, id)
	require.NoError(s.t, err)
	record, err := s.control.Record(ctx)
	require.NoError(s.t, err)
	for _, r := range record {
		if r.Reference == id {
			tr.Wire = append(tr.Wire, r.Method)
		}
	}
	executions, err := s.control.Executions(ctx)
	require.NoError(s.t, err)
	tr.Executions = executions[id]
	return tr
}

// count returns how many requests of the method were on the wire.
func (tr truth) count(method string) int {
	n := 0
	for _, m := range tr.Wire {
		if m == method {
			n++
		}
	}
	return n
}
