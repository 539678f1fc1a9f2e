package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// allResets asks for every way of resetting at every event; see `make resets`.
// Without it the ways take turns from event to event.
const allResets = "REFUNDGATE_ALL_RESETS"

// resetWay is how an operator resets a run: with which program, and with which
// of the later signals and updates applied again.
type resetWay struct {
	name string
	tool string
	more []string
	// drops: not everything is applied again. A run that waits for people then
	// doesn't know what they have decided, until it is told to read the ledger.
	drops bool
}

var resetWays = []resetWay{
	{"tctl", "tctl", nil, false},
	{"temporal", "temporal", nil, false},
	{"tctl, signals only", "tctl", []string{"--reset_reapply_type", "Signal"}, true},
	{"temporal, no signals", "temporal", []string{"--reapply-exclude", "Signal"}, true},
	{"tctl, nothing again", "tctl", []string{"--reset_reapply_type", "None"}, true},
	{"temporal, no updates", "temporal", []string{"--reapply-exclude", "Update"}, true},
	{"temporal, nothing again", "temporal", []string{"--reapply-exclude", "All"}, true},
}

func (w resetWay) to(s *seat, id, run string, event int64) {
	s.t.Helper()
	option := map[string]string{"tctl": "--event_id", "temporal": "--event-id"}[w.tool]
	s.mustTool(w.tool, append([]string{"workflow", "reset", "-w", refund.WorkflowID(id), "-r", run, option, fmt.Sprint(event), "--reason", "a test"}, w.more...)...)
}

// resetTypes are resets to a kind of event instead of one event.
var resetTypes = []resetWay{
	{"tctl, first task", "tctl", []string{"--reset_type", "FirstWorkflowTask"}, false},
	{"temporal, first task", "temporal", []string{"--type", "FirstWorkflowTask"}, false},
	{"tctl, last task", "tctl", []string{"--reset_type", "LastWorkflowTask"}, false},
	{"temporal, last task", "temporal", []string{"--type", "LastWorkflowTask"}, false},
}

// CASE 38, F3: workflows are reset, with the real tctl and the real temporal,
// to every workflow task that they ever completed. Whatever is run again, the
// ledger answers: nothing is sent twice, no attempt comes back, the deadline
// stands, and a decision that is delivered again is not carried out again.
func TestCase38_ResetMatrix(t *testing.T) {
	t.Parallel()
	b := newBench(t, quickly, map[string]string{
		"finished": "", "unknown": neverAbsent, "corrected": neverAbsent, "held": "", "refused": neverAbsent, "reviewed": "", "settled": "",
	})
	b.run()
	var table resetTable
	t.Cleanup(func() { t.Log("\n" + table.String()) })

	t.Run("finished", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "finished")
		s.plan(sends(1, standin.Fault{Kind: standin.Busy}), sends(1, standin.Fault{Kind: standin.AcceptThenDrop}))
		s.accept("finished")
		s.ended("finished", "")
		before := s.truth("finished")
		require.Equal(t, refund.StatusSucceeded, before.Case.Status)
		require.Equal(t, []string{"POST", "POST", "GET"}, before.Wire, "a success after a retry and a check")
		s.resets(&table, "finished", func(run string, _ time.Time) {
			s.ended("finished", run)
			require.Equal(t, before, s.truth("finished"))
		})
		s.requireMatched("finished")
	})

	// Under way: executed, and the checks don't find it. Only new checks go
	// out, and only when they are due.
	t.Run("unknown", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "unknown")
		s.plan(sends(0, standin.Fault{Kind: standin.AcceptThenDrop}), checks(0, nothingFound))
		s.accept("unknown")
		s.until("unknown", "two checks", func(c refund.Case) bool { return len(c.Calls) >= 3 && c.Calls[2].Done() })
		c := s.resetsUnderWay(&table, "unknown")
		require.Equal(t, 1, c.Generation)
		s.requireMatched("unknown")
	})

	// The run of a rejected generation is reset, while its corrected one is
	// under way: it must not end that one as rejected.
	t.Run("corrected", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "corrected")
		s.plan(sends(1, standin.Fault{Kind: standin.Reject, Code: "unknown_payment"}), sends(0, standin.Fault{Kind: standin.AcceptThenDrop}), checks(0, nothingFound))
		s.accept("corrected")
		s.ended("corrected", "")
		first := s.runID("corrected")
		s.acted("corrected", refund.ActionCorrect, map[string]any{"by": "mei", "reason": "typo", "payment_id": "pay-2"})
		s.until("corrected", "a check of the second generation", func(c refund.Case) bool { return len(c.Calls) >= 3 && c.Calls[2].Done() })
		c := s.resetsUnderWay(&table, "corrected", first)
		require.Equal(t, 2, c.Generation)
	})

	// In review, with every kind of decision made by update and by signal.
	t.Run("reviewed", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "reviewed")
		s.review("reviewed")
		before := s.truth("reviewed")
		require.Equal(t, 1, before.Executions)
		require.Len(t, before.Case.Decisions, 8)
		s.resets(&table, "reviewed", func(string, time.Time) {
			s.parked("reviewed")
			require.Equal(t, before, s.truth("reviewed"))
		})
		// It is as good as ever: a person settles it.
		s.acted("reviewed", refund.ActionSettle, map[string]any{"by": "mei", "reason": "found", "status": "succeeded", "evidence": "line 88"})
		s.ended("reviewed", "")
		require.Equal(t, refund.StatusSucceeded, s.caseOf("reviewed").Status)
		s.requireMatched("reviewed")
	})

	// A retry was due after a pause, and then people got the case, because the
	// provider contradicts itself. No reset has the retry made after all.
	t.Run("held", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "held")
		s.plan(sends(1, standin.Fault{Kind: standin.Busy, RetryAfter: "4"}))
		s.accept("held")
		c := s.until("held", "the first send", func(c refund.Case) bool { return len(c.Calls) == 1 && c.Calls[0].Done() })
		s.imported("refund_id,reference,payment_id,amount,currency,status,settled_at\nre_1,held,pay-held,1000,TWD,succeeded,2026-03-01T12:00:00Z\n")
		s.becomes("held", refund.StatusReview)
		s.parked("held")
		time.Sleep(time.Until(*c.Calls[0].Result.RetryAt))
		before := s.truth("held")
		s.resets(&table, "held", func(string, time.Time) {
			s.parked("held")
			require.Equal(t, before, s.truth("held"))
		})
		require.Equal(t, []string{"POST"}, before.Wire)
		require.Zero(t, s.truth("held").Executions)
	})

	// What was refused stays refused, although the case would allow it by now:
	// whoever ordered it has been told that it was not done.
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "refused")
		s.plan(sends(0, standin.Fault{Kind: standin.AcceptThenDrop}), checks(0, nothingFound))
		s.accept("refused")
		s.becomes("refused", refund.StatusUnknown)
		settle := map[string]any{"by": "mei", "reason": "over HTTP", "status": "not_refunded", "evidence": "ticket 1"}
		status, answer := s.act("refused", refund.ActionSettle, "", settle)
		require.Equal(t, http.StatusConflict, status, answer)
		for action, input := range map[refund.Action]string{
			refund.ActionSettle: `{"by":"mei","reason":"by signal","status":"not_refunded","evidence":"ticket 1"}`,
			refund.ActionResend: `{"by":"mei","reason":"by signal"}`,
		} {
			out, err := s.signalByHand("refused", string(action), input)
			require.NoError(t, err, out)
			s.eventually("the refusal in the details", func() bool {
				return strings.Contains(s.details("refused"), fmt.Sprintf("The signal %s was refused", action))
			})
		}
		// The report names another amount, and the case goes to review.
		s.imported(strings.Replace(s.report(), ",1250,", ",1000,", 1))
		s.becomes("refused", refund.StatusReview)
		s.parked("refused")
		before := s.truth("refused")
		require.Empty(t, before.Case.Decisions)
		s.resets(&table, "refused", func(string, time.Time) {
			s.parked("refused")
			require.Equal(t, before, s.truth("refused"))
		})
	})

	t.Run("settled", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "settled")
		s.review("settled")
		s.signalled("settled", refund.ActionSettle, `{"by":"mei","reason":"found","status":"succeeded","evidence":"line 88"}`)
		s.ended("settled", "")
		before := s.truth("settled")
		require.Equal(t, refund.StatusSucceeded, before.Case.Status)
		require.Len(t, before.Case.Decisions, 9)
		s.resets(&table, "settled", func(run string, _ time.Time) {
			s.ended("settled", run)
			require.Equal(t, before, s.truth("settled"))
		})
		s.requireMatched("settled")
	})
}

// neverAbsent are the settings of an account whose provider promises nothing by
// "not found": its cases stay unknown.
const neverAbsent = "contract: {not_found_after: 0s}"

// nothingFound answers a check as if there were no such refund.
var nothingFound = standin.Fault{Kind: standin.Answer, Status: http.StatusOK, Body: `{"data":[]}`}

// resetsUnderWay resets a case that is unknown, and then lets the provider tell
// how it ended. The run to reset is the latest one, unless it is given.
func (s *seat) resetsUnderWay(table *resetTable, id string, base ...string) refund.Case {
	s.t.Helper()
	before := s.truth(id)
	s.resets(table, id, func(string, time.Time) {
		s.t.Helper()
		if s.rests(id) == enums.WORKFLOW_EXECUTION_STATUS_COMPLETED {
			// An old run that is reset to its own end only ends once more, with
			// its old result. The case is open all the same: a start goes on.
			out, err := s.startByHand(s.caseOf(id).Refund, "--workflowidreusepolicy", "AllowDuplicate")
			require.NoError(s.t, err, out)
		}
		goesOn := time.Now()
		s.until(id, "the new run checks", func(c refund.Case) bool {
			last := c.Calls[len(c.Calls)-1]
			return last.Done() && last.IntentAt.After(goesOn)
		})
		require.Equal(s.t, enums.WORKFLOW_EXECUTION_STATUS_RUNNING, s.rests(id))
		after := s.truth(id)
		require.Equal(s.t, before.count(http.MethodPost), after.count(http.MethodPost))
		require.Equal(s.t, 1, after.Executions)
		require.Equal(s.t, before.Case.Calls[:2], after.Case.Calls[:2])
		require.Equal(s.t, before.Trail, after.Trail)
		require.Equal(s.t, refund.StatusUnknown, after.Case.Status)
		require.Equal(s.t, before.Case.Attempts, after.Case.Attempts)
		require.Equal(s.t, before.Case.DeadlineAt, after.Case.DeadlineAt)
		require.Equal(s.t, before.Case.Decisions, after.Case.Decisions)
	}, base...)
	s.plan() // the provider is well again, and the next check finds it
	c := s.settled(id, time.Minute)
	require.Equal(s.t, refund.StatusSucceeded, c.Status)
	require.Equal(s.t, 1, c.Attempts)
	requireDue(s.t, c)
	return c
}

// review brings a case into review and makes every kind of decision about it,
// by update and by signal. It was executed, but nobody here knows.
func (s *seat) review(id string) {
	s.t.Helper()
	s.plan(sends(3, standin.Fault{Kind: standin.Busy}), sends(0, standin.Fault{Kind: standin.AcceptThenDrop}), checks(0, standin.Fault{Kind: standin.Garbage}))
	s.accept(id)
	s.becomes(id, refund.StatusReview)
	carriedOut := func(n int) {
		s.t.Helper()
		s.until(id, "the ordered call", func(c refund.Case) bool { return len(c.Calls) == n && c.Calls[n-1].Done() })
	}
	by := map[string]any{"by": "mei", "reason": "over HTTP"}
	s.acted(id, refund.ActionNote, by)
	s.signalled(id, refund.ActionNote, `{"by":"mei","reason":"by signal"}`)
	s.acted(id, refund.ActionAssign, map[string]any{"by": "mei", "reason": "over HTTP", "owner": "bo"})
	s.signalled(id, refund.ActionAssign, `{"by":"mei","reason":"by signal","owner":"mei"}`)
	s.acted(id, refund.ActionResend, by)
	carriedOut(4)
	s.signalled(id, refund.ActionResend, `{"by":"mei","reason":"by signal"}`)
	carriedOut(5)
	s.acted(id, refund.ActionCheck, by)
	carriedOut(6)
	s.signalled(id, refund.ActionCheck, `{"by":"mei","reason":"by signal"}`)
	carriedOut(7)
	s.parked(id)
}

// resets resets the workflow's latest run, or the given one, to each task that
// it completed, and then its later runs to the first and the last one.
// requireSame is told the new run and when it was made.
func (s *seat) resets(table *resetTable, id string, requireSame func(run string, reset time.Time), run ...string) {
	s.t.Helper()
	base := append(run, s.runID(id))[0]
	reset := func(way resetWay, event string, do func()) {
		s.t.Helper()
		before, last, at := s.truth(id), s.runID(id), time.Now()
		do()
		next := s.newRun(id, last)
		if way.drops {
			// It may have ended already, and then needn't be told.
			_, _ = s.signalByHand(id, refund.SignalNotice, "null")
		}
		requireSame(next, at)
		table.add(id, event, way, before, s.truth(id), time.Since(at))
	}
	n := 0
	for _, event := range s.history(id, base) {
		if event.GetEventType() != enums.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
			continue
		}
		ways := resetWays
		if os.Getenv(allResets) == "" {
			ways = resetWays[n%len(resetWays):][:1]
		}
		n++
		for _, way := range ways {
			reset(way, fmt.Sprint(event.GetEventId()), func() { way.to(s, id, base, event.GetEventId()) })
		}
	}
	require.Positive(s.t, n)
	for _, way := range resetTypes {
		reset(way, "-", func() {
			s.mustTool(way.tool, append([]string{"workflow", "reset", "-w", refund.WorkflowID(id), "--reason", "a test"}, way.more...)...)
		})
	}
}

// resetTable collects what the resets did to the cases.
type resetTable struct {
	mu   sync.Mutex
	rows []string
}

func (r *resetTable) add(id, event string, way resetWay, before, after truth, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, fmt.Sprintf("%s\t%s\t%s\t%d -> %d\t%d -> %d\t%d\t%d\t%d -> %d\t%s -> %s\t%.1f s", id, event, way.name,
		before.count(http.MethodPost), after.count(http.MethodPost), before.count(http.MethodGet), after.count(http.MethodGet),
		after.Executions, after.Case.Attempts, len(before.Case.Decisions), len(after.Case.Decisions),
		before.Case.Status, after.Case.Status, took.Seconds()))
}

// String returns the table for people.
func (r *resetTable) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CASE\tEVENT\tRESET BY\tSENDS\tCHECKS\tEXECUTED\tATTEMPTS\tDECISIONS\tSTATUS\tTOOK")
	for _, row := range r.rows {
		fmt.Fprintln(tw, row)
	}
	_ = tw.Flush() // a strings.Builder takes everything
	return b.String()
}

// requireDue holds the checks of a case to their schedule, whichever run made
// them: no reset makes one early.
func requireDue(t *testing.T, c refund.Case) {
	t.Helper()
	const initial, longest, tolerance = 300 * time.Millisecond, time.Second, 20 * time.Millisecond
	wait := initial
	for i, call := range c.Calls {
		if call.Key.Kind == refund.KindSubmit {
			wait = initial
			continue
		}
		if previous := c.Calls[i-1]; previous.FinishedAt != nil && call.StartedAt != nil {
			require.GreaterOrEqual(t, call.StartedAt.Sub(*previous.FinishedAt), wait/2-tolerance, "%s came early", call.Key)
		}
		wait = min(2*wait, longest)
	}
}

// F3: the workflow is started a second time with tctl, while it runs and after
// it has ended, with the same content and with other content, and after it was
// terminated. It is one refund.
func TestCase38_StartedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, quickly, map[string]string{"open": neverAbsent, "lost": ""})
	b.run()

	t.Run("start and terminate", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "open")
		s.plan(sends(0, standin.Fault{Kind: standin.AcceptThenDrop}), checks(0, nothingFound))
		r := newRefund("r-1", "open")
		other := r
		other.Amount.Value++

		// As documented: nobody has submitted it before.
		out, err := s.startByHand(r)
		require.NoError(t, err, out)
		first := s.until("r-1", "a check", func(c refund.Case) bool { return len(c.Calls) >= 2 })
		require.Equal(t, r, first.Refund)
		goesOn := func() {
			t.Helper()
			n := len(s.caseOf("r-1").Calls)
			s.until("r-1", "a further check", func(c refund.Case) bool { return len(c.Calls) > n })
			tr := s.truth("r-1")
			require.Equal(t, 1, tr.count(http.MethodPost))
			require.Equal(t, 1, tr.Executions)
			require.Equal(t, first.DeadlineAt, tr.Case.DeadlineAt)
			require.Equal(t, first.AcceptedAt, tr.Case.AcceptedAt)
			require.Equal(t, 1, tr.Case.Attempts)
			require.Equal(t, refund.StatusUnknown, tr.Case.Status)
		}

		run := s.runID("r-1")
		out, err = s.startByHand(r) // tctl doesn't say that it runs already
		require.NoError(t, err, out)
		require.Equal(t, run, s.runID("r-1"))
		goesOn()

		out, err = s.startByHand(r, "--workflowidreusepolicy", "TerminateIfRunning")
		require.NoError(t, err, out)
		require.NotEqual(t, run, s.runID("r-1"))
		goesOn()

		s.terminate("r-1")
		out, err = s.startByHand(r)
		require.NoError(t, err, out)
		goesOn()

		// With other content the second start fails, and changes nothing.
		s.terminate("r-1")
		out, err = s.startByHand(other)
		require.NoError(t, err, out)
		require.Equal(t, enums.WORKFLOW_EXECUTION_STATUS_FAILED, s.over("r-1"))
		history := s.history("r-1", "")
		require.Equal(t, refund.ErrorTypeConflict, history[len(history)-1].GetWorkflowExecutionFailedEventAttributes().GetFailure().GetApplicationFailureInfo().GetType())
		require.Equal(t, r, s.caseOf("r-1").Refund)
		out, err = s.startByHand(r)
		require.NoError(t, err, out)
		goesOn()

		s.plan()
		s.ended("r-1", "")
		require.Equal(t, refund.StatusSucceeded, s.caseOf("r-1").Status)
		before := s.truth("r-1")
		for _, again := range []refund.Refund{r, other} {
			out, err = s.startByHand(again, "--workflowidreusepolicy", "AllowDuplicate")
			require.NoError(t, err, out)
			want := enums.WORKFLOW_EXECUTION_STATUS_COMPLETED
			if again == other {
				want = enums.WORKFLOW_EXECUTION_STATUS_FAILED
			}
			require.Equal(t, want, s.over("r-1"))
			require.Equal(t, before, s.truth("r-1"))
		}
		s.requireMatched("r-1")
	})

	// A signal to a run that is gone fails, and whoever sent it knows. The
	// same action through the API or the command line starts a new run.
	t.Run("signals lost with a closed run", func(t *testing.T) {
		t.Parallel()
		s := b.at(t, "lost")
		s.plan(sends(3, standin.Fault{Kind: standin.Busy}))
		s.accept("r-2")
		s.becomes("r-2", refund.StatusReview)
		s.parked("r-2")
		before := s.truth("r-2")
		run := s.runID("r-2")

		s.terminate("r-2")
		out, err := s.signalByHand("r-2", string(refund.ActionNote), `{"by":"mei","reason":"by signal"}`)
		require.Error(t, err, out)
		require.Equal(t, before, s.truth("r-2"))

		s.acted("r-2", refund.ActionNote, map[string]any{"by": "mei", "reason": "over HTTP"})
		next := s.newRun("r-2", run)
		s.terminate("r-2")
		s.done("review", "assign", "r-2", "--owner", "bo", "--by", "mei", "--reason", "on the command line")
		s.newRun("r-2", next)
		s.parked("r-2")
		after := s.truth("r-2")
		require.Equal(t, before.Wire, after.Wire)
		require.Equal(t, refund.StatusReview, after.Case.Status)
		require.Equal(t, []string{"note: over HTTP", "assign: on the command line"}, decisionsOf(after.Case))
		require.Equal(t, "bo", after.Case.Owner)
	})
}

func decisionsOf(c refund.Case) []string {
	var all []string
	for _, d := range c.Decisions {
		all = append(all, fmt.Sprintf("%s: %s", d.Action, d.Reason))
	}
	return all
}

// F2, F3: a refund's whole life by tctl alone, as it is documented: start it
// with plain JSON, and decide by signals.
func TestByHandWithTctl(t *testing.T) {
	t.Parallel()
	b := newBench(t, quickly, map[string]string{"demo": ""})
	b.run()
	s := b.at(t, "demo")
	s.plan(sends(3, standin.Fault{Kind: standin.Busy}), sends(0, standin.Fault{Kind: standin.AcceptThenDrop}), checks(0, standin.Fault{Kind: standin.Garbage}))
	out, err := s.tool("tctl", "workflow", "start", "--taskqueue", "refunds", "--workflow_type", "Refund", "--workflow_id", "refund-r-1", "--input",
		`{"refund_id":"r-1","account":"demo","order_id":"o-1","payment_id":"pay-1","amount":{"value":1250,"currency":"TWD"},"reason":"damaged","requested_by":"shop"}`)
	require.NoError(t, err, out)
	s.becomes("r-1", refund.StatusReview)
	s.parked("r-1")

	// What is no action is refused, and where operators look it says why.
	refused := func(action refund.Action, input, says string) {
		t.Helper()
		before := s.truth("r-1")
		out, err := s.signalByHand("r-1", string(action), input)
		require.NoError(t, err, out)
		s.eventually(fmt.Sprintf("%q in the details", says), func() bool { return strings.Contains(s.details("r-1"), says) })
		s.parked("r-1")
		require.Equal(t, before, s.truth("r-1"))
	}
	refused(refund.ActionNote, `{"by":"mei"}`, "The signal note was refused: invalid action: reason: is required")
	refused(refund.ActionSettle, `{"by":"mei","reason":"found","status":"succeeded"}`, "The signal settle was refused: invalid action: evidence: is required")
	refused(refund.ActionSettle, `{"by":"mei","reason":"found","status":"rejected","evidence":"line 88"}`, "status: must be succeeded or not_refunded")
	refused(refund.ActionAssign, `{"by":"mei","reason":"mine","owner":"mei","version":9999}`, "it has changed since version 9999")

	s.signalled("r-1", refund.ActionNote, `{"by":"mei","reason":"asked the provider"}`)
	s.signalled("r-1", refund.ActionNote, `{"by":"mei","reason":"asked the provider"}`) // who says it twice has said it twice
	s.signalled("r-1", refund.ActionAssign, `{"by":"mei","reason":"mine","owner":"mei"}`)
	require.Equal(t, "mei", s.caseOf("r-1").Owner)
	s.signalled("r-1", refund.ActionResend, `{"by":"mei","reason":"nothing arrived"}`)
	s.until("r-1", "the resend", func(c refund.Case) bool { return len(c.Calls) == 4 && c.Calls[3].Done() })
	s.signalled("r-1", refund.ActionCheck, `{"by":"mei","reason":"their outage is over"}`)
	c := s.until("r-1", "the check", func(c refund.Case) bool { return len(c.Calls) == 5 && c.Calls[4].Done() })
	require.Equal(t, refund.StatusReview, c.Status)
	require.Equal(t, 3, c.Attempts, "a person's resend is no attempt")
	require.Equal(t, refund.OriginManual, c.Calls[3].Origin)
	require.Equal(t, refund.OriginManual, c.Calls[4].Origin)
	s.signalled("r-1", refund.ActionSettle, `{"by":"mei","reason":"found","status":"succeeded","evidence":"line 88"}`)
	s.ended("r-1", "")

	trail := strings.Join(strings.Fields(s.done("refunds", "show", "r-1")), " ")
	for _, says := range []string{
		"mei review.note asked the provider", "mei review.assign to mei: mine", "mei review.resend nothing arrived",
		"mei review.check their outage is over", "mei review.settle as succeeded: found; evidence: line 88",
	} {
		require.Contains(t, trail, says)
	}
	require.Equal(t, 2, strings.Count(trail, "asked the provider"))
	tr := s.truth("r-1")
	require.Equal(t, 1, tr.Executions)
	s.requireMatched("r-1")
	require.Equal(t, []string{"note", "note", "assign", "resend", "check", "settle"}, actionsOf(tr.Case))
}

func actionsOf(c refund.Case) []string {
	var all []string
	for _, d := range c.Decisions {
		all = append(all, string(d.Action))
	}
	return all
}
