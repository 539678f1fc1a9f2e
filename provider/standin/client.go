package standin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Client speaks the control API of a stand-in, in this process or another.
type Client struct {
	url  string
	http *http.Client
}

// NewClient returns a client for the stand-in at a root URL such as
// "http://127.0.0.1:43210".
func NewClient(rootURL string) *Client {
	return &Client{
		url:  strings.TrimSuffix(rootURL, "/"),
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// SetPlan replaces the fault plan and starts its counters and its clock. No
// rules: the provider behaves.
func (c *Client) SetPlan(ctx context.Context, rules ...Rule) error {
	return c.call(ctx, http.MethodPut, "plan", planBody{rules}, nil)
}

// Plan returns the rules with their hits.
func (c *Client) Plan(ctx context.Context) ([]Rule, error) {
	var body planBody
	err := c.call(ctx, http.MethodGet, "plan", nil, &body)
	return body.Rules, err
}

// Record returns what has arrived so far, in order of arrival.
func (c *Client) Record(ctx context.Context) ([]Request, error) {
	var body recordBody
	err := c.call(ctx, http.MethodGet, "record", nil, &body)
	return body.Requests, err
}

// WaitRecord returns the record once n requests have arrived, or an error
// when ctx ends before.
func (c *Client) WaitRecord(ctx context.Context, n int) ([]Request, error) {
	for {
		var body recordBody
		if err := c.call(ctx, http.MethodGet, "record?wait_for="+strconv.Itoa(n), nil, &body); err != nil {
			return nil, err
		}
		if len(body.Requests) >= n {
			return body.Requests, nil
		}
	}
}

// ClearRecord empties the record. What was executed stays executed.
func (c *Client) ClearRecord(ctx context.Context) error {
	return c.call(ctx, http.MethodDelete, "record", nil, nil)
}

// Refunds returns every refund that the provider has executed, oldest first.
func (c *Client) Refunds(ctx context.Context) ([]Refund, error) {
	var body refundsBody
	err := c.call(ctx, http.MethodGet, "refunds", nil, &body)
	return body.Refunds, err
}

// Executions returns how many refunds were executed for each reference,
// AddRefund's and failed ones included. More than one that didn't fail is money
// paid twice.
func (c *Client) Executions(ctx context.Context) (map[string]int, error) {
	var body refundsBody
	err := c.call(ctx, http.MethodGet, "refunds", nil, &body)
	return body.Executions, err
}

// AddRefund makes a refund without a request of the API, as somebody at the
// provider's dashboard would: with any reference or none, and any amount. The
// provider gives the id and the time; the status defaults to succeeded.
func (c *Client) AddRefund(ctx context.Context, r Refund) (Refund, error) {
	var made Refund
	err := c.call(ctx, http.MethodPost, "refunds", r, &made)
	return made, err
}

// SetStatus moves a refund, named by the provider's id, to a status; code is
// the failure code of a failed one.
func (c *Client) SetStatus(ctx context.Context, id, status, code string) error {
	return c.call(ctx, http.MethodPut, "refunds/"+url.PathEscape(id)+"/status", statusBody{status, code}, nil)
}

// SetPayment describes a payment, whose currency and remaining amount are
// enforced from then on.
func (c *Client) SetPayment(ctx context.Context, id string, p Payment) error {
	return c.call(ctx, http.MethodPut, "payments/"+url.PathEscape(id), p, nil)
}

// SetWebhooks changes how notifications are sent.
func (c *Client) SetWebhooks(ctx context.Context, w Webhooks) error {
	return c.call(ctx, http.MethodPut, "webhooks", w, nil)
}

// Deliveries returns every try to deliver a notification.
func (c *Client) Deliveries(ctx context.Context) ([]Delivery, error) {
	var body webhooksBody
	err := c.call(ctx, http.MethodGet, "webhooks", nil, &body)
	return body.Deliveries, err
}

// Redeliver sends the notification of an event, named in a Delivery, once more:
// signed afresh and as the settings are now.
func (c *Client) Redeliver(ctx context.Context, eventID string) error {
	return c.call(ctx, http.MethodPost, "webhooks/"+url.PathEscape(eventID)+"/redeliver", nil, nil)
}

// Settlement returns the settlement report, a CSV file.
func (c *Client) Settlement(ctx context.Context) ([]byte, error) {
	return c.do(ctx, http.MethodGet, "settlement.csv", nil)
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("stand-in control %s: %w", path, err)
		}
		body = b
	}
	answer, err := c.do(ctx, method, path, body)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("stand-in control %s: %w", path, err)
	}
	return nil
}

func (c *Client) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+"/control/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("stand-in control %s: %w", path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("stand-in control %s: %w", path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("stand-in control %s: %w", path, err)
	}
	if resp.StatusCode/100 != 2 {
		var e errorBody
		_ = json.Unmarshal(answer, &e) // without a sentence the status must do
		return nil, fmt.Errorf("stand-in control %s: %s (HTTP %d)", path, e.Error, resp.StatusCode)
	}
	return answer, nil
}
