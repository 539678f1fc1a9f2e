package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"refundgate/provider/standin"
	"refundgate/refund"
)

// sample is a refund whose provider answers as it pleases, and how it has to
// end all the same.
type sample struct {
	name  string
	story string
	fault *standin.Fault // for the first send
	want  refund.Status
}

var samples = []sample{
	{"fast", "answers at once", nil, refund.StatusSucceeded},
	{"slow", "accepts, answers after 5 s: our 3 s run out", &standin.Fault{Kind: standin.Delay, DelayMS: 5000}, refund.StatusSucceeded},
	{"dropped", "accepts, then drops the connection", &standin.Fault{Kind: standin.AcceptThenDrop}, refund.StatusSucceeded},
	{"rejected", "refuses for good", &standin.Fault{Kind: standin.Reject, Code: "refund_window_closed"}, refund.StatusRejected},
	{"busy", "is busy, asks for 3 s", &standin.Fault{Kind: standin.Busy, RetryAfter: "3"}, refund.StatusSucceeded},
}

// followSamples submits the samples over the intake API and shows how they
// fare until all are settled or ctx ends. It fails if one ended otherwise than
// it should.
func followSamples(ctx context.Context, env *devEnv, out io.Writer) error {
	if env.token == "" {
		return errors.New("the samples need dev's own client; leave clients out of the configuration")
	}
	run := time.Now().UTC().Format("150405")
	ids := make([]string, len(samples))
	var rules []standin.Rule
	for i, s := range samples {
		ids[i] = "sample-" + run + "-" + s.name
		if s.fault != nil {
			rules = append(rules, standin.Rule{Match: standin.Match{Method: http.MethodPost, Reference: ids[i]}, Fault: *s.fault, Times: 1})
		}
	}
	provider := standin.NewClient(env.standin.URL())
	if err := provider.SetPlan(ctx, rules...); err != nil {
		return err
	}
	account := env.parts.cfg.AccountNames()[0]
	for i := range samples {
		if err := post(ctx, env, refund.Refund{
			ID: ids[i], Account: account, OrderID: fmt.Sprintf("order-%s-%d", run, i+1), PaymentID: fmt.Sprintf("pay-%s-%d", run, i+1),
			Amount: refund.Money{Value: 1250, Currency: "TWD"}, Reason: "sample", RequestedBy: "refundgate dev",
		}); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "submitted %d samples; the egress starts calls about 5 s after it became the owner\n", len(samples))

	cases, err := watch(ctx, env, ids, out)
	if err != nil || ctx.Err() != nil {
		return err
	}
	executions, err := provider.Executions(ctx)
	if err != nil {
		return err
	}
	return printSamples(out, cases, executions)
}

// post submits a refund as an order service does.
func post(ctx context.Context, env *devEnv, r refund.Refund) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+env.intake.Addr().String()+"/v1/refunds", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+env.token)
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: 15 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("submitting %s: %w", r.ID, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		return fmt.Errorf("submitting %s: the intake answered %s", r.ID, resp.Status)
	}
	return nil
}

// watch shows a live line about the cases until none is open any more.
func watch(ctx context.Context, env *devEnv, ids []string, out io.Writer) ([]refund.Case, error) {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	f, ok := out.(*os.File)
	live := ok && isTerminal(f)
	begin, last := time.Now(), ""
	for {
		cases := make([]refund.Case, len(ids))
		open := 0
		for i, id := range ids {
			c, err := env.parts.ledger.Case(ctx, id)
			if err != nil {
				if ctx.Err() != nil {
					return nil, nil
				}
				return nil, err
			}
			cases[i] = c
			if c.Open() && c.Status != refund.StatusReview {
				open++
			}
		}
		line := statusLine(cases)
		switch {
		case live:
			fmt.Fprintf(out, "\r\033[K%4.0f s  %s", time.Since(begin).Seconds(), line)
		case line != last:
			fmt.Fprintf(out, "%4.0f s  %s\n", time.Since(begin).Seconds(), line)
		}
		last = line
		if open == 0 {
			if live {
				fmt.Fprintln(out)
			}
			return cases, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(250 * time.Millisecond):
		}
	}
}

func statusLine(cases []refund.Case) string {
	parts := make([]string, len(cases))
	for i, c := range cases {
		parts[i] = fmt.Sprintf("%s: %s", samples[i].name, c.Status)
	}
	return strings.Join(parts, "  ")
}

// printSamples prints how each sample ended, and fails if that is not as it should
// be.
func printSamples(out io.Writer, cases []refund.Case, executions map[string]int) error {
	var wrong []error
	fmt.Fprintln(out)
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "REFUND\tTHE PROVIDER\tSTATUS\tATTEMPTS\tCHECKS\tEXECUTED")
	for i, c := range cases {
		checks := 0
		for _, call := range c.Calls {
			if call.Key.Kind == refund.KindCheck {
				checks++
			}
		}
		done := executions[c.Refund.ID]
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\t%d\n", c.Refund.ID, samples[i].story, c.Status, c.Attempts, checks, done)
		if c.Status != samples[i].want {
			wrong = append(wrong, fmt.Errorf("sample %s ended as %s, not %s", samples[i].name, c.Status, samples[i].want))
		}
		if done > 1 {
			wrong = append(wrong, fmt.Errorf("sample %s was executed %d times", samples[i].name, done))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return errors.Join(wrong...)
}
