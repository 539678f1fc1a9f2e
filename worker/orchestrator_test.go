package worker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
	"refundgate/refund"
)

// A directly started workflow is opened, sent, saved and closed, by any of
// several orchestrators; one that stops loses nothing.
func TestOrchestrator(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	leaving := r.orchestrate()
	r.orchestrate()
	r.egress("one", nil)
	ids := r.submit("r", 20)
	r.waitWire(1)
	leaving.stop()

	require.Len(t, sent(r.settled(ids)), 20)
	for _, id := range ids {
		c, err := r.ledger.Case(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, refund.StatusSucceeded, c.Status)
		require.Equal(t, 1, c.Attempts)
		require.NotEmpty(t, c.ProviderRefundID)
	}
}

func TestOrchestrator_TemporalRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hostPort, _ := testenv.Temporal(t)
	r.temporal = dial(t, hostPort, "no-such-namespace")
	p := r.orchestrate()
	p.wait()
	require.ErrorContains(t, p.err, "starting the orchestrator")
}
