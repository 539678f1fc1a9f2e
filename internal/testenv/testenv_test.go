package testenv_test

import (
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"testing"

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
