package standin

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// maxRecordWait bounds how long GET /control/record?wait_for= waits.
const maxRecordWait = 30 * time.Second

// The bodies of the control API, shared with the Client.
type (
	planBody struct {
		Rules []Rule `json:"rules"`
	}
	recordBody struct {
		Requests []Request `json:"requests"`
	}
	statusBody struct {
		Status string `json:"status"`
		Code   string `json:"code,omitempty"`
	}
	refundsBody struct {
		Refunds    []Refund       `json:"refunds"`
		Executions map[string]int `json:"executions"`
	}
	webhooksBody struct {
		Settings   Webhooks   `json:"settings"`
		Deliveries []Delivery `json:"deliveries"`
	}
	errorBody struct {
		Error string `json:"error"`
	}
)

func (s *Server) controlRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /control/plan", s.putPlan)
	mux.HandleFunc("GET /control/plan", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, planBody{s.plan.list()})
	})
	mux.HandleFunc("DELETE /control/plan", func(w http.ResponseWriter, _ *http.Request) {
		done(w, s.plan.set(nil))
	})
	mux.HandleFunc("GET /control/record", s.getRecord)
	mux.HandleFunc("DELETE /control/record", func(w http.ResponseWriter, _ *http.Request) {
		s.record.clear()
		done(w, nil)
	})
	mux.HandleFunc("GET /control/refunds", s.getRefunds)
	mux.HandleFunc("POST /control/refunds", s.postRefund)
	mux.HandleFunc("PUT /control/refunds/{id}/status", s.putStatus)
	mux.HandleFunc("PUT /control/payments/{id}", s.putPayment)
	mux.HandleFunc("PUT /control/webhooks", s.putWebhooks)
	mux.HandleFunc("GET /control/webhooks", func(w http.ResponseWriter, _ *http.Request) {
		settings, deliveries := s.hooks.list()
		writeJSON(w, webhooksBody{settings, deliveries})
	})
	mux.HandleFunc("POST /control/webhooks/{event}/redeliver", func(w http.ResponseWriter, r *http.Request) {
		done(w, s.hooks.redeliver(r.PathValue("event")))
	})
	mux.HandleFunc("GET /control/settlement.csv", s.getSettlement)
	return mux
}

func (s *Server) putPlan(w http.ResponseWriter, r *http.Request) {
	var body planBody
	if err := readJSON(r, &body); err != nil {
		done(w, err)
		return
	}
	done(w, s.plan.set(body.Rules))
}

func (s *Server) getRecord(w http.ResponseWriter, r *http.Request) {
	if raw := r.URL.Query().Get("wait_for"); raw != "" {
		n, err := strconv.Atoi(raw)
		if err != nil {
			done(w, errors.New("wait_for must be a number"))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), maxRecordWait)
		defer cancel()
		writeJSON(w, recordBody{s.record.wait(ctx, n)})
		return
	}
	writeJSON(w, recordBody{s.record.list()})
}

func (s *Server) getRefunds(w http.ResponseWriter, _ *http.Request) {
	body := refundsBody{Refunds: []Refund{}, Executions: map[string]int{}}
	for _, r := range s.refunds.list(func(refundState) bool { return true }) {
		body.Refunds = append(body.Refunds, r.Refund)
		body.Executions[r.Reference]++
	}
	writeJSON(w, body)
}

// postRefund makes a refund without a request of the API, as somebody at the
// provider's dashboard would.
func (s *Server) postRefund(w http.ResponseWriter, r *http.Request) {
	var body Refund
	if err := readJSON(r, &body); err != nil {
		done(w, err)
		return
	}
	body.Status = cmp.Or(body.Status, statusSucceeded)
	switch {
	case body.PaymentID == "" || body.Amount <= 0 || !currencyCode.MatchString(body.Currency):
		done(w, errors.New("a refund needs a payment_id, a positive amount in minor units and a currency such as TWD"))
		return
	case !known(body.Status):
		done(w, errStatus)
		return
	}
	made, err := s.refunds.add(body)
	if err != nil {
		done(w, err)
		return
	}
	writeJSON(w, made)
}

func (s *Server) putStatus(w http.ResponseWriter, r *http.Request) {
	var body statusBody
	if err := readJSON(r, &body); err != nil {
		done(w, err)
		return
	}
	if !known(body.Status) {
		done(w, errStatus)
		return
	}
	if body.Code != "" && body.Status != statusFailed {
		done(w, errors.New("only a failed refund has a code"))
		return
	}
	done(w, s.refunds.setStatus(r.PathValue("id"), body.Status, body.Code))
}

func (s *Server) putPayment(w http.ResponseWriter, r *http.Request) {
	var body Payment
	if err := readJSON(r, &body); err != nil {
		done(w, err)
		return
	}
	if body.Amount <= 0 || !currencyCode.MatchString(body.Currency) {
		done(w, errors.New("a payment needs a positive amount in minor units and a currency such as TWD"))
		return
	}
	done(w, s.refunds.setPayment(r.PathValue("id"), body))
}

func (s *Server) putWebhooks(w http.ResponseWriter, r *http.Request) {
	var body Webhooks
	if err := readJSON(r, &body); err != nil {
		done(w, err)
		return
	}
	done(w, s.hooks.set(body))
}

var errStatus = errors.New("status must be succeeded, pending or failed")

func known(status string) bool {
	return status == statusSucceeded || status == statusPending || status == statusFailed
}

// getSettlement writes the report: every refund that is over.
func (s *Server) getSettlement(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	out := csv.NewWriter(w)
	rows := [][]string{{"refund_id", "reference", "payment_id", "amount", "currency", "status", "settled_at"}}
	for _, r := range s.refunds.list(func(r refundState) bool { return r.Status != statusPending }) {
		rows = append(rows, []string{
			r.ID, r.Reference, r.PaymentID, strconv.FormatInt(r.Amount, 10), r.Currency, r.Status,
			r.SettledAt.Format(time.RFC3339),
		})
	}
	_ = out.WriteAll(rows) // the client may have gone
}

// readJSON reads one JSON value and nothing else; an unknown member is an
// error that names it.
func readJSON(r *http.Request, v any) error {
	dec := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("reading the body: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("reading the body: more than one JSON value")
	}
	return nil
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}

// done answers a request that returns nothing.
func done(w http.ResponseWriter, err error) {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	status := http.StatusBadRequest
	if errors.Is(err, errNoRefund) || errors.Is(err, errNoEvent) {
		status = http.StatusNotFound
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(errorBody{err.Error()}) // the client may have gone
}
