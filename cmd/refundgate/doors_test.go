package main

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/ledger"
	"refundgate/refund"
	"refundgate/starter"
)

// put writes a row into the inbox, as an order service does in a transaction of
// its own.
func (s *system) put(r refund.Refund) error {
	payload, err := json.Marshal(r)
	if err == nil {
		_, err = s.db.ExecContext(s.t.Context(), `INSERT INTO refund_inbox (refund_id, payload) VALUES (?, ?)`, r.ID, payload)
	}
	return err
}

// TestCase06_OneIDFiftyTimesOverAllThreeDoors: two intake processes, their
// inbox relays, and direct starts, all at once: one case, one send.
func TestCase06_OneIDFiftyTimesOverAllThreeDoors(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	first := s.start("serve")
	first.waitFor("intake:")
	url := s.intake
	s.configure(map[string]string{"demo": s.provider.URL()})
	s.start("serve").waitFor("intake:")
	intakes := []string{url, s.intake}
	s.start("worker").waitFor("egress: owner")
	direct := starter.Client{Temporal: s.dial()}

	r := newRefund("r-1", "demo")
	errs := make([]error, 50)
	var all sync.WaitGroup
	for n := range errs {
		all.Go(func() {
			switch n % 3 {
			case 0:
				other := *s
				other.intake = intakes[n/3%2]
				if status, answer := other.request("POST", "/v1/refunds", r); status != 202 && status != 200 {
					errs[n] = errors.New(answer["title"].(string))
				}
			case 1:
				errs[n] = s.put(r)
			case 2:
				errs[n] = direct.Submit(t.Context(), r)
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))

	c := s.settled("r-1", time.Minute)
	require.Equal(t, refund.StatusSucceeded, c.Status)
	s.requireMatched("r-1")
	executions, err := s.control.Executions(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int{"r-1": 1}, executions)
	require.Eventually(t, func() bool {
		load, err := s.ledger.InboxLoad(t.Context())
		require.NoError(t, err)
		return load == ledger.InboxLoad{}
	}, 30*time.Second, 100*time.Millisecond)
	closed, err := direct.Wait(t.Context(), "r-1")
	require.NoError(t, err)
	require.Equal(t, refund.StatusSucceeded, closed.Status)
}

// TestDirectStart_Conflicts: by a running workflow and, once that has ended, by
// the ledger.
func TestDirectStart_Conflicts(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	direct := starter.Client{Temporal: s.dial()}
	r := newRefund("r-1", "demo")
	other := r
	other.Reason += " and late"
	bad := r
	bad.Amount.Value = 0
	var invalid *refund.InvalidError
	require.ErrorAs(t, direct.Submit(t.Context(), bad), &invalid)

	// No worker runs.
	require.NoError(t, direct.Submit(t.Context(), r))
	require.NoError(t, direct.Submit(t.Context(), r))
	require.ErrorIs(t, direct.Submit(t.Context(), other), ledger.ErrConflict)

	s.start("worker").waitFor("egress: owner")
	_, err := direct.Wait(t.Context(), "r-1")
	require.NoError(t, err)
	require.NoError(t, direct.Submit(t.Context(), r), "the run finds the case closed")
	_, err = direct.Wait(t.Context(), "r-1")
	require.NoError(t, err)
	require.NoError(t, direct.Submit(t.Context(), other))
	_, err = direct.Wait(t.Context(), "r-1")
	require.ErrorContains(t, err, "other content")
	s.requireMatched("r-1")
}

// TestInboxCommands: a row that can't be accepted is listed with the reason,
// and handed back after it was corrected.
func TestInboxCommands(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start("serve").waitFor("intake:")
	require.Equal(t, "ROW  REFUND  WRITTEN  REFUSED  WHY\n0 set aside, 0 waiting to be accepted\n", s.done("inbox", "list"))
	require.NoError(t, s.put(newRefund("r-1", "typo")))
	require.Eventually(t, func() bool { return strings.Contains(s.done("inbox", "list"), "1 set aside") }, 30*time.Second, 100*time.Millisecond)
	require.Contains(t, s.done("inbox", "list"), `invalid-refund: The refund was refused; account is not a configured account`)
	var listed struct {
		Rows             []ledger.InboxRow
		Refused, Waiting int
	}
	require.NoError(t, json.Unmarshal([]byte(s.done("inbox", "list", "-o", "json")), &listed))
	require.Len(t, listed.Rows, 1)
	require.Equal(t, 1, listed.Refused)

	_, err := s.db.ExecContext(t.Context(), `UPDATE refund_inbox SET payload = JSON_SET(payload, '$.account', 'demo')`)
	require.NoError(t, err)
	require.Equal(t, "row 1 is tried again\n", s.done("inbox", "retry", "1"))
	require.Eventually(t, func() bool { _, err := s.ledger.Case(t.Context(), "r-1"); return err == nil }, 30*time.Second, 100*time.Millisecond)

	_, stderr, code := refundgate(t, "", "inbox", "retry", "1", "--config", s.config)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "row 1 is not set aside; see refundgate inbox list")
	for _, wrong := range [][]string{{"retry"}, {"retry", "x"}, {"retry", "0"}, {"list", "--limit", "0"}, {"list", "x"}} {
		_, _, code := refundgate(t, "", append([]string{"inbox", "--config", s.config}, wrong...)...)
		require.Equal(t, 2, code, wrong)
	}
}
