package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The questions of SPEC F5, as they are asked and answered.
func TestPlanAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args string
		says []string
	}{
		"one call each": {
			"--backlog 240 --inflow 2 --rate 5 --calls-per-refund 1",
			[]string{"each takes 1 call,", "backlog x calls / (rate - inflow x calls)", "= 240 x 1 / (5 - 2 x 1) = 80 s\n"},
		},
		"two calls each": {
			"--backlog 240 --inflow 2 --rate 5 --calls-per-refund 2",
			[]string{"= 240 x 2 / (5 - 2 x 2) = 480 s (8m0s)\n"},
		},
		"a promise that is not kept": {
			"--backlog 600 --inflow 3 --rate 10 --calls-per-refund 2 --within 2m",
			[]string{"= 300 s (5m0s)\n", "= 2 x (600 / 120 + 3) = 16 calls/s; the 10 that go out are not enough\n"},
		},
		"a promise that is kept": {
			"--backlog 600 --inflow 3 --rate 16 --calls-per-refund 2 --within 2m --latency-p50 500ms --latency-p99 500ms",
			[]string{"= 120 s (2m0s)\n", "= 16 calls/s; the 16 that go out are enough\n", "and 8 places in flight\n", "carry 20 calls/s, more than may start: the starts bind"},
		},
		"it grows": {
			"--backlog 240 --inflow 3 --rate 5 --calls-per-refund 2",
			[]string{"it never drains: the backlog grows by 0.5 refunds/s;", "at 2 calls each it needs more than 6 calls/s\n"},
		},
		"it stands still": {
			"--backlog 240 --inflow 5 --rate 5 --calls-per-refund 1",
			[]string{"it never drains: as much comes in as goes out;", "needs more than 5 calls/s\n"},
		},
		"places bind": {
			"--backlog 240 --inflow 2 --rate 5 --calls-per-refund 1 --latency-p50 3s --latency-p99 3s",
			[]string{"10 places in flight at 3s a call carry 3.33 calls/s, fewer than may start: the places bind", "= 180 s (3m0s)\n"},
		},
		"more places": {
			"--backlog 240 --inflow 2 --rate 5 --calls-per-refund 1 --latency-p50 3s --max-in-flight 12",
			[]string{"12 places in flight", "carry 4.", "the places bind"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, code := refundgate(t, "", append([]string{"plan"}, strings.Fields(tt.args)...)...)
			require.Zero(t, code, errs)
			for _, want := range tt.says {
				require.Contains(t, out, want)
			}
		})
	}
}

func TestPlanJSON(t *testing.T) {
	t.Parallel()
	out, errs, code := refundgate(t, "", strings.Fields("plan -o json --backlog 600 --inflow 3 --rate 10 --calls-per-refund 2 --within 2m")...)
	require.Zero(t, code, errs)
	require.JSONEq(t, `{
		"backlog": 600, "inflow_per_second": 3, "starts_per_second": 10, "calls_per_refund": 2,
		"calls_per_second": 10, "bound_by": "starts", "drains": true, "drain_seconds": 300, "needs_more_than_per_second": 6,
		"within": {"seconds": 120, "needed_per_second": 16, "suffices": false}
	}`, out)
	out, errs, code = refundgate(t, "", strings.Fields("plan -o json --backlog 240 --inflow 3 --rate 5 --calls-per-refund 2")...)
	require.Zero(t, code, errs)
	require.JSONEq(t, `{
		"backlog": 240, "inflow_per_second": 3, "starts_per_second": 5, "calls_per_refund": 2,
		"calls_per_second": 5, "bound_by": "starts", "drains": false, "grows_per_second": 0.5, "needs_more_than_per_second": 6
	}`, out)
}

// The simulated seed case lies within 5 % of the formula, says so, and says the
// same when it is asked again.
func TestPlanSimulates(t *testing.T) {
	t.Parallel()
	args := strings.Fields("plan --backlog 240 --inflow 2 --rate 5 --calls-per-refund 2 --simulate --runs 5")
	out, errs, code := refundgate(t, "", args...)
	require.Zero(t, code, errs)
	require.Contains(t, out, "Simulated 5 times, seeds from 1, even arrivals")
	require.Regexp(t, `drain time, median run +4[5-9]\d s .* 480 s \(8m0s\) +(0\.9[5-9]|1\.0[0-5])\n`, out)
	require.Regexp(t, `calls per refund +2 +2 +1\.00\n`, out)
	again, _, _ := refundgate(t, "", args...)
	require.Equal(t, out, again)

	out, errs, code = refundgate(t, "", append(args, "-o", "json")...)
	require.Zero(t, code, errs)
	var answer planAnswer
	require.NoError(t, json.Unmarshal([]byte(out), &answer))
	require.InEpsilon(t, 480, *answer.Simulation.P50Seconds, 0.05)
	require.InEpsilon(t, 1, *answer.Simulation.Ratio, 0.05)
	require.Equal(t, 5, answer.Simulation.Drained)

	// Failures cost calls, and the formula is told of them.
	out, errs, code = refundgate(t, "", append(args, "--busy", "0.05", "--arrivals", "poisson", "--seed", "7", "--inflow", "1")...)
	require.Zero(t, code, errs)
	require.Contains(t, out, "Busy 5 %, rejected 0 %, lost 0 % of the calls.")
	require.Regexp(t, `At the 2\.\d+ calls that a refund took, the formula says \d+ s`, out)

	// What can't drain is given up, and people have what is too old.
	out, errs, code = refundgate(t, "", strings.Fields("plan --backlog 240 --inflow 10 --rate 5 --calls-per-refund 1 --simulate --runs 1")...)
	require.Zero(t, code, errs)
	require.Regexp(t, `drain time, median run +none +never +-\n`, out)
	require.Contains(t, out, "1 of 1 runs did not drain and were given up after 3600 s (1h0m0s).")
	require.Contains(t, out, "What has no result after 15m0s goes to people")
}

// An account's own budgets and policy stand in for the flags.
func TestPlanTakesTheAccount(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "refundgate.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
policy: {deadline: 1m}
accounts:
  acme:
    base_url: "https://provider.test"
    api_key_env: KEY
    starts_per_second: 4
    max_in_flight: 3
    endpoints: {check: {starts_per_second: 2}}
`), 0o600))
	plan := func(args string) string {
		out, errs, code := refundgate(t, "", append([]string{"plan", "--config", path, "--account", "acme", "--calls-per-refund", "1"}, strings.Fields(args)...)...)
		require.Zero(t, code, errs)
		return out
	}
	require.Contains(t, plan("--backlog 240 --inflow 1"), "= 240 x 1 / (4 - 1 x 1) = 80 s")
	out := plan("--backlog 400 --inflow 0 --latency-p50 1s --latency-p99 1s --simulate --runs 1")
	require.Contains(t, out, "3 places in flight at 1s a call carry 3 calls/s, fewer than may start")
	require.Contains(t, out, "What has no result after 1m0s goes to people")
	require.Contains(t, plan("--backlog 10 --inflow 0 --rate 1 --max-in-flight 1 --simulate --runs 1"), "drain time, median run          10 s")
}

func TestPlanWrongUse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ args, says string }{
		"nothing":              {"", `required flag(s) "backlog", "calls-per-refund", "inflow" not set`},
		"no rate":              {"--backlog 1 --inflow 1 --calls-per-refund 1", "--rate is required"},
		"zero rate":            {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 0", "--rate must be from 0.01 to 1000 calls per second; it is 0"},
		"negative backlog":     {"--backlog -1 --inflow 1 --calls-per-refund 1 --rate 5", "--backlog must be from 0"},
		"huge backlog":         {"--backlog 10000000000 --inflow 1 --calls-per-refund 1 --rate 5", "--backlog must be from 0"},
		"no number":            {"--backlog x --inflow 1 --calls-per-refund 1 --rate 5", "--backlog"},
		"inflow that is none":  {"--backlog 1 --inflow NaN --calls-per-refund 1 --rate 5", "--inflow must be from 0 to 1000 refunds per second; it is NaN"},
		"no call each":         {"--backlog 1 --inflow 1 --calls-per-refund 0.5 --rate 5", "--calls-per-refund must be from 1"},
		"two at once":          {"--backlog -1 --inflow 1 --calls-per-refund 0 --rate 5", "--calls-per-refund must be from 1"},
		"a promise of nothing": {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --within 0s", "--within must be more than zero"},
		"no places":            {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --max-in-flight 0", "--max-in-flight must be from 1 to 1000"},
		"places alone":         {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --max-in-flight 5", "--max-in-flight goes with --latency-p50"},
		"half a latency":       {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --latency-p99 5s", "--latency-p99 goes with --latency-p50"},
		"latency upside down":  {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --latency-p50 5s --latency-p99 1s", "--latency-p99"},
		"no latency":           {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --latency-p50 0s", "--latency-p50"},
		"busy alone":           {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --busy 0.1", "--busy goes with --simulate"},
		"too busy":             {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --simulate --busy 1.1", "--busy must be a share from 0 to 1"},
		"too much at once":     {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --simulate --busy 0.6 --lost 0.6", "--busy, --reject and --lost must be 1 together at most"},
		"no runs":              {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --simulate --runs 0", "--runs must be from 1"},
		"odd arrivals":         {"--backlog 1 --inflow 1 --calls-per-refund 1 --rate 5 --simulate --arrivals odd", "--arrivals are even or poisson"},
		"too much to simulate": {"--backlog 1000000 --inflow 1 --calls-per-refund 1 --rate 5 --simulate", "--simulate takes a --backlog of 100000 refunds at most"},
		"unknown account":      {"--backlog 1 --inflow 1 --calls-per-refund 1 --account acme", `account "acme" is not in the configuration`},
		"stray argument":       {"now --backlog 1", "unknown command"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := refundgate(t, "", append([]string{"plan"}, strings.Fields(tt.args)...)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.Contains(t, stderr, tt.says)
			require.Contains(t, stderr, "--help'.")
		})
	}
}

// What the README shows is what the command prints.
func TestPlanInTheReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	shown := 0
	for block := range strings.SplitSeq(string(readme), "```console\n$ refundgate plan ") {
		args, rest, _ := strings.Cut(block, "\n")
		want, _, _ := strings.Cut(rest, "```")
		if !strings.HasPrefix(args, "--") {
			continue // what comes before the first of them
		}
		shown++
		out, errs, code := refundgate(t, "", append([]string{"plan"}, strings.Fields(args)...)...)
		require.Zero(t, code, errs)
		require.Equal(t, want, out)
	}
	require.Equal(t, 2, shown)
}
