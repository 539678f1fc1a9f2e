// Bare is what refundgate's intake is compared with: an HTTP server whose one
// handler reads a refund with encoding/json and inserts one row, by the same
// driver and with as many connections. It knows no tokens, checks nothing and
// takes no lock: what refundgate does on top is what the comparison shows.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"refundgate/refund"
)

// maxConns is the size of refundgate's own pool.
const maxConns = 16

// schema has the columns of refundgate's table that a refund fills.
const schema = `
CREATE TABLE refunds (
	refund_id    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
	account      VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	order_id     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	payment_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	amount       BIGINT NOT NULL,
	currency     CHAR(3) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	reason       VARCHAR(1000) NOT NULL,
	requested_by VARCHAR(128) NOT NULL,
	accepted_at  DATETIME(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4`

func main() {
	dsn := flag.String("dsn", "", "the data source name of an empty database")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *dsn); err != nil {
		fmt.Fprintf(os.Stderr, "bare: %v\n", err)
		os.Exit(1)
	}
}

// serve creates the table and serves until ctx ends.
func serve(ctx context.Context, dsn string) error {
	pool, err := open(dsn)
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	if _, err := pool.ExecContext(ctx, schema); err != nil {
		return fmt.Errorf("creating the table: %w", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/refunds", handler(pool))
	server := &http.Server{Handler: mux}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopped()
	fmt.Printf("bare: http://%s\n", ln.Addr())
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func open(dsn string) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	cfg.InterpolateParams = true // one round trip per statement, as refundgate
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(maxConns)
	pool.SetMaxIdleConns(maxConns)
	return pool, nil
}

func handler(pool *sql.DB) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		var r refund.Refund
		if err := json.NewDecoder(req.Body).Decode(&r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, err := pool.ExecContext(req.Context(), `
			INSERT INTO refunds (refund_id, account, order_id, payment_id, amount, currency, reason, requested_by, accepted_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			r.ID, r.Account, r.OrderID, r.PaymentID, r.Amount.Value, r.Amount.Currency, r.Reason, r.RequestedBy, time.Now().UTC())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
}
