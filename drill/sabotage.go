package drill

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-sql-driver/mysql"

	"refundgate/drill/record"
	"refundgate/refund"
)

// Sabotage is a promise that is broken on purpose, to see that the drill
// notices. Nothing in the program under test helps with it.
type Sabotage string

// The kinds of sabotage.
const (
	// SabotageSecondClient: somebody else sends a request to the provider,
	// under the same key, past the gate.
	SabotageSecondClient Sabotage = "second-client"
	// SabotageDoubleRate: the workers are configured with twice the rate.
	SabotageDoubleRate Sabotage = "double-rate"
	// SabotageLostRow: the ledger loses the row of a call.
	SabotageLostRow Sabotage = "lost-row"
	// SabotageNewKey: a refund is sent again under another key.
	SabotageNewKey Sabotage = "new-key"
	// SabotageTwoOwners: a second worker owns the same account, by a lock of
	// its own.
	SabotageTwoOwners Sabotage = "two-owners"
)

// Sabotages lists the kinds.
var Sabotages = []Sabotage{SabotageSecondClient, SabotageDoubleRate, SabotageLostRow, SabotageNewKey, SabotageTwoOwners}

// Breaks is the check that has to fail.
func (s Sabotage) Breaks() string {
	return map[Sabotage]string{
		SabotageSecondClient: record.CheckOneToOne,
		SabotageDoubleRate:   record.CheckGap,
		SabotageLostRow:      record.CheckLedger,
		SabotageNewKey:       record.CheckExecutions,
		SabotageTwoOwners:    record.CheckOwner,
	}[s]
}

func joinSabotages() string {
	var names []string
	for _, s := range Sabotages {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

// breakFromTheStart breaks what has to be broken before the first call.
func (d *drill) breakFromTheStart(ctx context.Context) error {
	if d.opts.Sabotage != SabotageTwoOwners {
		return nil
	}
	dsn, err := d.twin(ctx)
	if err != nil {
		return fmt.Errorf("making a second owner: %w", err)
	}
	p, err := d.runOn(ctx, dsn, "egress-twin", "worker", "--roles", "egress", "--config", d.file("intake"))
	if err != nil {
		return err
	}
	_, err = p.await(ctx, "egress: owner")
	return err
}

// breakAtTheEnd breaks what can be broken once the scenario's calls are made.
func (d *drill) breakAtTheEnd(ctx context.Context, st *stage) error {
	id := st.all[len(st.all)-1]
	switch d.opts.Sabotage {
	case SabotageSecondClient:
		return d.sendPastTheGate(ctx, id, refund.IdempotencyKey(id, 1))
	case SabotageNewKey:
		return d.sendPastTheGate(ctx, id, refund.IdempotencyKey(id, 1)+"-again")
	case SabotageLostRow:
		return d.loseRow(ctx, id)
	}
	return nil
}

// sendPastTheGate sends a refund to the provider as the gate's calls do.
func (d *drill) sendPastTheGate(ctx context.Context, id, key string) error {
	body := fmt.Sprintf(`{"reference":%q,"payment_id":%q,"amount":1250,"currency":"TWD","reason":"drill"}`, id, "pay-"+id)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.providerURL+"/v1/refunds", bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer somebody-else")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := d.web.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (d *drill) loseRow(ctx context.Context, id string) error {
	db, err := sql.Open("mysql", d.dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, `DELETE FROM provider_calls WHERE refund_id = ?`, id)
	return err
}

// twin makes a second database whose tables are the first one's, except for
// those about who owns the egress, and returns its address. Locks have the
// database's name in theirs, so who works on the twin has a lock of its own.
func (d *drill) twin(ctx context.Context) (dsn string, err error) {
	name := databaseName + "_twin"
	if err := d.database.CreateDatabase(ctx, name); err != nil {
		return "", err
	}
	cfg, err := mysql.ParseDSN(d.dsn)
	if err != nil {
		return "", err
	}
	cfg.DBName = name
	db, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.QueryContext(ctx, `SELECT table_name FROM information_schema.tables WHERE table_schema = ?`, databaseName)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var tables []string
	for rows.Next() {
		var table string
		if err := rows.Scan(&table); err != nil {
			return "", err
		}
		tables = append(tables, table)
	}
	if err := rows.Err(); err != nil {
		return "", err
	}
	for _, table := range tables {
		statement := "CREATE VIEW `%[1]s` AS SELECT * FROM `%[2]s`.`%[1]s`"
		if strings.HasPrefix(table, "egress_") {
			statement = "CREATE TABLE `%[1]s` LIKE `%[2]s`.`%[1]s`"
		}
		if _, err := db.ExecContext(ctx, fmt.Sprintf(statement, table, databaseName)); err != nil {
			return "", err
		}
	}
	return cfg.FormatDSN(), nil
}
