package devenv

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// victimEnv makes the test binary start a MariaDB in the directory it names,
// print the server's process id and wait to be killed.
const victimEnv = "DEVENV_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		db, err := StartMariaDB(context.Background(), MariaDBOptions{Dir: dir, NoSync: true})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(db.proc.cmd.Process.Pid)
		select {}
	}
	os.Exit(m.Run())
}

func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim := exec.Command(os.Args[0])
	victim.Env = append(os.Environ(), victimEnv+"="+dir)
	victim.Stderr = os.Stderr
	out, err := victim.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, victim.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)

	pgid, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	require.Equal(t, pid, pgid, "a Ctrl-C in the terminal would reach the server")

	require.NoError(t, victim.Process.Kill())
	_ = victim.Wait()
	startMariaDB(t, dir) // refused for as long as the old server lives
}

func TestProcessKeepsItsLastWords(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p, err := startProcess(exec.Command("sh", "-c", "echo something broke >&2; exit 3"), &log)
	require.NoError(t, err)
	err = p.waitReady(t.Context(), func(context.Context) error { return os.ErrNotExist })
	require.ErrorContains(t, err, "something broke")
	require.ErrorContains(t, err, "exit status 3")
	require.Equal(t, "something broke\n", log.String())
}

func TestProcessThatWillNotStopIsKilled(t *testing.T) {
	t.Parallel()
	ready := filepath.Join(t.TempDir(), "ready")
	p, err := startProcess(exec.Command("sh", "-c", "trap '' TERM; touch "+ready+"; while :; do sleep 0.1; done"), nil)
	require.NoError(t, err)
	require.NoError(t, p.waitReady(t.Context(), func(context.Context) error {
		_, err := os.Stat(ready)
		return err
	}))
	require.ErrorContains(t, p.stop(50*time.Millisecond), "was killed")
	require.ErrorIs(t, syscall.Kill(p.cmd.Process.Pid, 0), syscall.ESRCH)
}

func TestTailIsBounded(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	tail := &tail{next: &log}
	require.Equal(t, "(no output)", tail.String())
	for i := range 1000 {
		_, err := fmt.Fprintf(tail, "line %d\n", i)
		require.NoError(t, err)
	}
	require.Len(t, tail.last, maxTail)
	require.True(t, strings.HasSuffix(tail.String(), "line 999"))
	require.Contains(t, log.String(), "line 0\n")
}

func TestFindProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "refundgate-test-program")
	require.NoError(t, os.WriteFile(program, nil, 0o600))

	_, err := findProgram([]string{"refundgate-test-program"}, dir)
	require.ErrorIs(t, err, ErrNotInstalled, "a file that can't be executed is no program")

	require.NoError(t, os.Chmod(program, 0o700))
	path, err := findProgram([]string{"refundgate-no-such-program", "refundgate-test-program"}, dir)
	require.NoError(t, err)
	require.Equal(t, program, path)
}
