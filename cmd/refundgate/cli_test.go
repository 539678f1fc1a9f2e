package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
	"refundgate/ledger"
	"refundgate/refund"
)

// refundgate runs the program once and returns what it printed and its exit
// code. Nothing of the test's own environment reaches it.
func refundgate(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Binary(t), args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		cmd.Env = append(cmd.Env, name+"="+os.Getenv(name))
	}
	if err := cmd.Run(); cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestWrongUseExitsWithTwoAndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	for name, tt := range map[string]struct {
		args  []string
		stdin string
		says  string
	}{
		"unknown command":     {args: []string{"sumbit"}, says: `unknown command "sumbit"`},
		"unknown flag":        {args: []string{"serve", "--prot", "1"}, says: "unknown flag: --prot"},
		"unknown role":        {args: []string{"worker", "--roles", "egres"}, says: "roles are orchestrator and egress"},
		"unknown account":     {args: []string{"worker", "--account", "acme"}, says: `account "acme" is not in the configuration; there is demo`},
		"stray argument":      {args: []string{"serve", "now"}, says: `unknown command "now"`},
		"no id":               {args: []string{"refunds", "show"}, says: "accepts 1 arg(s)"},
		"bad id":              {args: []string{"refunds", "show", "a/b"}, says: "the refund id must be"},
		"unknown status":      {args: []string{"refunds", "list", "--status", "done"}, says: "statuses are"},
		"bad limit":           {args: []string{"refunds", "list", "--limit", "0"}, says: "--limit is from 1 to 200"},
		"bad cursor":          {args: []string{"refunds", "list", "--cursor", "x"}, says: "--cursor"},
		"bad output":          {args: []string{"refunds", "list", "-o", "xml"}, says: "text or json"},
		"empty submit":        {args: []string{"submit"}, says: "refund_id: is required"},
		"every field is told": {args: []string{"submit", "--id", "x", "--account", "demo", "--amount", "-5"}, says: "amount.value: must be positive"},
		"file and flags":      {args: []string{"submit", "--id", "x", "-f", "y"}, says: "none of the others can be"},
		"missing file":        {args: []string{"submit", "-f", "/nowhere.json"}, says: "/nowhere.json"},
		"decimals":            {args: []string{"submit", "-f", "-"}, stdin: `{"refund_id":"x","amount":{"value":12.50,"currency":"TWD"}}`, says: "integer in minor units"},
		"unknown member":      {args: []string{"submit", "-f", "-"}, stdin: `{"refund":"x"}`, says: "refund"},
		"release by nobody":   {args: []string{"egress", "release", "--account", "demo"}, says: `required flag(s) "by", "reason" not set`},
		"release of nothing":  {args: []string{"egress", "release", "--account", "acme", "--by", "a", "--reason", "b"}, says: `account "acme" is not in the configuration`},
		"once alone":          {args: []string{"dev", "--once"}, says: "--once goes with --samples"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := refundgate(t, tt.stdin, append(tt.args, "--config", s.config)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.Contains(t, stderr, tt.says)
			require.Contains(t, stderr, "--help'.")
		})
	}
}

func TestWhatDoesNotWorkExitsWithOne(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	write := func(content string) string {
		path := filepath.Join(t.TempDir(), "refundgate.yaml")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	const account = "accounts: {a: {base_url: \"https://provider.test\", api_key_env: KEY}}\n"
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"no database":           {[]string{"migrate"}, "no database is configured"},
		"no file":               {[]string{"migrate", "--config", "/nowhere.yaml"}, "/nowhere.yaml"},
		"unknown key":           {[]string{"serve", "--config", write("mysqll: {}\n")}, "mysqll"},
		"zero rate":             {[]string{"serve", "--config", write(account + "defaults: {starts_per_second: 0}\n")}, "starts_per_second"},
		"budget over deadline":  {[]string{"serve", "--config", write(account + "defaults: {call_timeout: 20m}\n")}, "call_timeout"},
		"unreachable database":  {[]string{"migrate", "--config", write("mysql: {dsn: \"u@tcp(127.0.0.1:1)/x\"}\n")}, "connect"},
		"nothing to serve":      {[]string{"serve", "--config", write("mysql: {dsn: \"" + s.dsn + "\"}\n")}, "at least one entry"},
		"nothing to release":    {[]string{"egress", "release", "--account", "demo", "--by", "a", "--reason", "b", "--config", s.config}, "held by nobody"},
		"there is no such case": {[]string{"refunds", "show", "nobody", "--config", s.config}, `there is no refund "nobody"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := refundgate(t, "", tt.args...)
			require.Equal(t, exitFailed, code, stderr)
			require.Empty(t, stdout)
			require.Contains(t, stderr, tt.says)
		})
	}
}

// A refund's way through the command line, while nothing else runs: accepted,
// repeated, in conflict, listed, shown.
func TestSubmitListShow(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	cli := func(stdin string, args ...string) (string, string, int) {
		return refundgate(t, stdin, append(args, "--config", s.config)...)
	}
	args := []string{
		"submit", "--id", "cli-1", "--account", "demo", "--order", "o-1", "--payment", "pay-1",
		"--amount", "1250", "--currency", "TWD", "--reason", "damaged", "--by", "alice",
	}
	out, errs, code := cli("", args...)
	require.Zero(t, code, errs)
	require.Contains(t, out, "cli-1: accepted, queued, deadline 20")
	out, errs, code = cli("", args...)
	require.Zero(t, code, errs)
	require.Contains(t, out, "known already")
	args[10] = "1251"
	_, errs, code = cli("", args...)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "accepted before with other content")

	raw, err := json.Marshal(newRefund("cli-2", "demo"))
	require.NoError(t, err)
	out, errs, code = cli(string(raw), "submit", "-f", "-", "-o", "json")
	require.Zero(t, code, errs)
	var c refund.Case
	require.NoError(t, json.Unmarshal([]byte(out), &c))
	require.Equal(t, "cli-2", c.Refund.ID)

	out, errs, code = cli("", "refunds", "list")
	require.Zero(t, code, errs)
	require.Contains(t, out, "12.50 TWD")
	require.Less(t, strings.Index(out, "cli-2"), strings.Index(out, "cli-1"), "latest first")
	out, errs, code = cli("", "refunds", "show", "cli-1")
	require.Zero(t, code, errs)
	for _, want := range []string{"Refund cli-1: queued", "12.50 TWD", `"damaged", by "alice"`, "Trail:", "accepted"} {
		require.Contains(t, out, want)
	}
	out, errs, code = cli("", "egress", "status", "-o", "json")
	require.Zero(t, code, errs)
	require.JSONEq(t, `[{"account":"demo","state":"never_owned","starts_per_second":5,"max_in_flight":10}]`, out)

	// Temporal has the workflow, though no worker has run.
	backlog, err := s.ledger.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, backlog)
}

// Temporal is away: the refund is accepted all the same, and said to be.
func TestSubmitWithoutTemporal(t *testing.T) {
	t.Parallel()
	s := newSystemOn(t, testenv.MariaDB(t), "127.0.0.1:1", "default")
	raw, err := json.Marshal(newRefund("later", "demo"))
	require.NoError(t, err)
	out, errs, code := refundgate(t, string(raw), "submit", "-f", "-", "--config", s.config)
	require.Zero(t, code, errs)
	require.Contains(t, out, "later: accepted")
	require.Contains(t, errs, "will be started")
	backlog, err := s.ledger.Unstarted(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, backlog, 1)
	_, err = s.ledger.Case(t.Context(), "nobody")
	require.ErrorIs(t, err, ledger.ErrNotFound)
}

// What the README promises first: one command, everything real, five samples.
func TestDevRunsTheSamples(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	out, errs, code := refundgate(t, "", "dev", "--samples", "--once", "--data", dir)
	require.Zero(t, code, "%s\n%s", out, errs)
	for _, want := range []string{
		"Temporal Web UI", "intake API", "stand-in provider", "egress: owner",
		"fast: succeeded  slow: succeeded  dropped: succeeded  rejected: rejected  busy: succeeded",
	} {
		require.Contains(t, out, want)
	}
	info, err := os.Stat(filepath.Join(dir, "token"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	// A second run finds the state of the first.
	out, errs, code = refundgate(t, "", "dev", "--samples", "--once", "--data", dir)
	require.Zero(t, code, "%s\n%s", out, errs)
}

// CASE 29: the command line refuses what the account's provider can't be asked
// for as the intake does, before it connects to anything.
func TestCase29_SubmitRefusesExcessPrecision(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "refundgate.yaml")
	require.NoError(t, os.WriteFile(path, []byte("accounts: {whole: {base_url: \"https://provider.test\", exponents: {TWD: 0}}}\n"), 0o600))
	submit := func(amount string) (stderr string, code int) {
		_, stderr, code = refundgate(t, "", "submit", "--id", "r-1", "--account", "whole", "--order", "o-1", "--payment", "pay-1",
			"--amount", amount, "--currency", "TWD", "--reason", "damaged", "--by", "alice", "--config", path)
		return stderr, code
	}
	stderr, code := submit("1250")
	require.Equal(t, exitUsage, code, stderr)
	require.Contains(t, stderr, "amount.value: must be a multiple of 100: the account's provider takes nothing smaller than 1.00 TWD")
	stderr, code = submit("1300")
	require.Equal(t, exitFailed, code, stderr)
	require.Contains(t, stderr, "no database is configured")
}
