package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"refundgate/internal/testenv"
)

// TestDevWritesNoPassword: a database password that dev was given stays where it
// came from. It is in no file of the data directory and in no output, and the
// commands beside it find it there.
func TestDevWritesNoPassword(t *testing.T) {
	t.Parallel()
	const password = "p4ss-of-the-database"
	for name, from := range map[string]func(dsn *mysql.Config, file string) (section string, env []string){
		"file": func(dsn *mysql.Config, file string) (string, []string) {
			return fmt.Sprintf("mysql:\n  dsn: %q\n  password_file: %q\n", dsn.FormatDSN(), file), nil
		},
		"environment": func(dsn *mysql.Config, _ string) (string, []string) {
			return fmt.Sprintf("mysql:\n  dsn: %q\n  password_env: DEV_DB_PASSWORD\n", dsn.FormatDSN()), []string{"DEV_DB_PASSWORD=" + password}
		},
		"whole DSN": func(dsn *mysql.Config, _ string) (string, []string) {
			dsn.Passwd = password
			return "", []string{"REFUNDGATE_MYSQL_DSN=" + dsn.FormatDSN()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			dsn, err := mysql.ParseDSN(s.dsn)
			require.NoError(t, err)
			dsn.User = dsn.DBName // as unique as that
			for _, statement := range []string{
				fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY '%s'", dsn.User, password),
				fmt.Sprintf("GRANT ALL ON `%s`.* TO '%s'@'%%'", dsn.DBName, dsn.User),
				fmt.Sprintf("GRANT PROCESS ON *.* TO '%s'@'%%'", dsn.User),
			} {
				_, err := s.db.ExecContext(t.Context(), statement)
				require.NoError(t, err)
			}
			dir := t.TempDir()
			secret, data := filepath.Join(dir, "password"), filepath.Join(dir, "data")
			require.NoError(t, os.WriteFile(secret, []byte(password+"\n"), 0o600))
			here, err := os.Getwd()
			require.NoError(t, err)
			relative, err := filepath.Rel(here, secret) // the commands beside it run elsewhere
			require.NoError(t, err)
			section, env := from(dsn, relative)
			s.config = filepath.Join(dir, "refundgate.yaml")
			require.NoError(t, os.WriteFile(s.config, fmt.Appendf(nil, "%stemporal:\n  address: %q\n  namespace: %q\n", section, s.temporal, s.ns), 0o600))

			p := s.startWith(env, "dev", "--data", data)
			p.waitFor("  configuration")
			beside := exec.Command(testenv.Binary(t), "refunds", "list", "--config", filepath.Join(data, "refundgate.yaml"))
			beside.Env, beside.Dir = append(os.Environ(), env...), t.TempDir()
			out, err := beside.CombinedOutput()
			require.NoError(t, err, string(out))
			p.waitFor("egress: owner")
			require.NoError(t, p.stop())

			require.NotContains(t, string(out), password)
			require.NotContains(t, strings.Join(p.lines(), "\n"), password)
			require.NotContains(t, p.log(), password)
			read := 0
			require.NoError(t, filepath.WalkDir(data, func(path string, entry os.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				content, err := os.ReadFile(path)
				require.NotContains(t, string(content), password, path)
				read++
				return err
			}))
			require.GreaterOrEqual(t, read, 3, "configuration, log, token")
		})
	}
}
