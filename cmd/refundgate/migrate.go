package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"refundgate/ledger"
)

func newMigrate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Create or upgrade the MySQL schema",
		Long: `Brings the schema of the configured database to this version's. Running it again
changes nothing, and several may run at once. The database itself must exist.`,
		Example: `  REFUNDGATE_MYSQL_DSN='user:password@tcp(db:3306)/refundgate' refundgate migrate`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			if cfg.MySQL.DSN == "" {
				return errors.New("no database is configured; set mysql.dsn in the configuration or REFUNDGATE_MYSQL_DSN")
			}
			if err := ledger.Migrate(cmd.Context(), cfg.MySQL.DSN.Reveal()); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "schema: up to date")
			return nil
		},
	}
}
