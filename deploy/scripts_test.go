package deploy

import (
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/sdk/client"

	"refundgate/internal/testenv"
	"refundgate/refund"
)

func runScript(t *testing.T, script string, env ...string) {
	t.Helper()
	cmd := exec.Command("sh", script)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestTemporalRegistration(t *testing.T) {
	t.Parallel()
	bin, err := filepath.Abs("../.bin") // where `make tools` puts the CLI
	require.NoError(t, err)
	hostPort, _ := testenv.Temporal(t)
	const namespace = "registered-by-script"
	env := []string{"TEMPORAL_ADDRESS=" + hostPort, "TEMPORAL_NAMESPACE=" + namespace, "PATH=" + os.Getenv("PATH") + ":" + bin}
	runScript(t, "temporal/register.sh", env...)
	runScript(t, "temporal/register.sh", env...)

	c, err := client.DialContext(t.Context(), client.Options{HostPort: hostPort, Namespace: namespace})
	require.NoError(t, err)
	defer c.Close()
	found, err := c.OperatorService().ListSearchAttributes(t.Context(), &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
	require.NoError(t, err)
	for name, kind := range map[string]enums.IndexedValueType{
		refund.AttributeStatus:  enums.INDEXED_VALUE_TYPE_KEYWORD,
		refund.AttributeAccount: enums.INDEXED_VALUE_TYPE_KEYWORD,
		refund.AttributeReview:  enums.INDEXED_VALUE_TYPE_KEYWORD,
		refund.AttributeOwner:   enums.INDEXED_VALUE_TYPE_KEYWORD,
		refund.AttributeOrder:   enums.INDEXED_VALUE_TYPE_KEYWORD,
		refund.AttributeTries:   enums.INDEXED_VALUE_TYPE_INT,
		refund.AttributeDue:     enums.INDEXED_VALUE_TYPE_DATETIME,
	} {
		require.Equal(t, kind, found.GetCustomAttributes()[name], name)
	}
}

// The image's MySQL is not available here; MariaDB takes the same statements.
func TestMySQLUsers(t *testing.T) {
	t.Parallel()
	server := testenv.OwnMariaDB(t)
	root, err := mysql.ParseDSN(server.DSN(""))
	require.NoError(t, err)
	home := t.TempDir() // tells the client where the server is
	require.NoError(t, os.WriteFile(filepath.Join(home, ".my.cnf"), []byte("[client]\nsocket="+root.Addr+"\n"), 0o600))
	runScript(t, "mysql/init.sh", "HOME="+home,
		"MYSQL_ROOT_PASSWORD=", "REFUNDGATE_MYSQL_PASSWORD=ours", "TEMPORAL_MYSQL_PASSWORD=theirs")

	connect := func(user, password, database string) error {
		cfg := root.Clone()
		cfg.User, cfg.Passwd, cfg.DBName = user, password, database
		db, err := sql.Open("mysql", cfg.FormatDSN())
		require.NoError(t, err)
		defer db.Close()
		_, err = db.ExecContext(t.Context(), "CREATE TABLE t (id INT)")
		return err
	}
	require.NoError(t, connect("refundgate", "ours", "refundgate"))
	require.NoError(t, connect("temporal", "theirs", "temporal"))
	require.NoError(t, connect("temporal", "theirs", "temporal_visibility"))
	require.ErrorContains(t, connect("refundgate", "theirs", "refundgate"), "Access denied")
	require.ErrorContains(t, connect("refundgate", "ours", "temporal"), "Access denied")
	require.ErrorContains(t, connect("temporal", "theirs", "refundgate"), "Access denied")
}
