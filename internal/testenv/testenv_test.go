package testenv_test

import (
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"refundgate/internal/devenv"
	"refundgate/internal/testenv"
	"refundgate/refund"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestMariaDBGivesEachTestItsOwnDatabase(t *testing.T) {
	t.Parallel()
	var used string
	t.Run("first", func(t *testing.T) {
		used = testenv.MariaDB(t)
		other := testenv.MariaDB(t)
		require.NotEqual(t, used, other)
		for _, dsn := range []string{used, other} {
			db, err := sql.Open("mysql", dsn)
			require.NoError(t, err)
			_, err = db.ExecContext(t.Context(), "CREATE TABLE refunds (id INT)")
			require.NoError(t, err, "the database was not empty")
			require.NoError(t, db.Close())
		}
	})
	db, err := sql.Open("mysql", used)
	require.NoError(t, err)
	defer db.Close()
	require.ErrorContains(t, db.PingContext(t.Context()), "Unknown database", "the database outlived its test")
}

func TestTemporalGivesEachTestItsOwnNamespace(t *testing.T) {
	t.Parallel()
	hostPort, first := testenv.Temporal(t)
	sameHostPort, second := testenv.Temporal(t)
	require.Equal(t, hostPort, sameHostPort)
	for _, namespace := range []string{first, second} {
		c, err := client.DialContext(t.Context(), client.Options{HostPort: hostPort, Namespace: namespace})
		require.NoError(t, err)
		defer c.Close()
		_, err = c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
			ID:                                       refund.WorkflowID("r-1"),
			TaskQueue:                                refund.TaskQueue,
			WorkflowExecutionErrorWhenAlreadyStarted: true,
		}, refund.WorkflowType)
		require.NoError(t, err)
	}
}

func TestOwnServersCanBeStoppedAndStarted(t *testing.T) {
	t.Parallel()
	db := testenv.OwnMariaDB(t)
	require.NoError(t, db.Kill())
	require.NoError(t, db.Start(t.Context()))

	server := testenv.OwnTemporal(t)
	require.NoError(t, server.Kill())
	require.NoError(t, server.Start(t.Context()))
	c, err := client.DialContext(t.Context(), client.Options{HostPort: server.HostPort(), Namespace: devenv.DefaultNamespace})
	require.NoError(t, err)
	c.Close()
}

func TestBinaryRuns(t *testing.T) {
	t.Parallel()
	path := testenv.Binary(t)
	require.Equal(t, path, testenv.Binary(t), "built twice")
	out, err := exec.Command(path, "--help").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "refundgate")
}

// dieEnv makes TestDiesWhenToldTo end the process the way a panic does.
const dieEnv = "TESTENV_TEST_DIE"

func TestDiesWhenToldTo(t *testing.T) {
	testenv.MariaDB(t)
	if os.Getenv(dieEnv) != "" {
		os.Exit(3)
	}
}

// endEnv makes TestEndsTheServer end one of the shared servers.
const endEnv = "TESTENV_TEST_END"

func TestEndsTheServer(t *testing.T) {
	which := os.Getenv(endEnv)
	if which == "" {
		return // for TestServerThatEndsByItself
	}
	end := func(pid int, alive func() error) {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		require.Eventually(t, func() bool { return alive() != nil }, 20*time.Second, 10*time.Millisecond)
	}
	switch which {
	case "shared MariaDB":
		testenv.MariaDB(t)
		end(testenv.SharedServer())
		t.Run("the next", func(t *testing.T) { testenv.MariaDB(t) })
	case "shared Temporal":
		testenv.Temporal(t)
		end(testenv.SharedServer())
		t.Run("the next", func(t *testing.T) { testenv.Temporal(t) })
	case "own MariaDB":
		db := testenv.OwnMariaDB(t)
		end(db.Pid(), db.Died)
	case "own Temporal":
		server := testenv.OwnTemporal(t)
		end(server.Pid(), server.Died)
	}
}

// TestServerThatEndsByItself: the run fails and says so loudly, with how the
// server ended and what it said last: as it happens, in the tests that had it,
// in the next that asks for it, and at the end.
func TestServerThatEndsByItself(t *testing.T) {
	t.Parallel()
	for which, told := range map[string]int{"shared MariaDB": 4, "shared Temporal": 4, "own MariaDB": 1, "own Temporal": 1} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestEndsTheServer$")
			cmd.Env = append(os.Environ(), endEnv+"="+which)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, string(out))
			require.Equal(t, 1, cmd.ProcessState.ExitCode())
			_, name, _ := strings.Cut(which, " ")
			require.Regexp(t, name+` (in|on) \S+ ended by itself \(signal: killed\); its last words:\n`, string(out))
			require.Equal(t, told, strings.Count(string(out), "ended by itself"), string(out))
			require.Equal(t, max(0, told-2), strings.Count(string(out), "!!!! testenv:"), string(out))
			require.NotRegexp(t, "CREATE DATABASE|creating namespace", string(out), "the next test isn't let run into it")
			if name == "MariaDB" { // which says something in any case
				require.Contains(t, string(out), "ready for connections")
			}
		})
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	run := func(tests string, env ...string) (exitCode int) {
		cmd := exec.Command(os.Args[0], "-test.run="+tests)
		cmd.Env = append(os.Environ(), append(env, "TMPDIR="+tmp)...)
		out, err := cmd.CombinedOutput()
		if _, exited := errors.AsType[*exec.ExitError](err); !exited {
			require.NoError(t, err, string(out))
		}
		return cmd.ProcessState.ExitCode()
	}
	left := func() []os.DirEntry {
		entries, err := os.ReadDir(tmp)
		require.NoError(t, err)
		return entries
	}

	require.Equal(t, 3, run("^TestDiesWhenToldTo$", dieEnv+"=1"))
	require.Len(t, left(), 1, "this test needs something that is left behind")
	require.Equal(t, 0, run("^(TestMariaDBGives|TestTemporalGives)"))
	require.Empty(t, left())
}
