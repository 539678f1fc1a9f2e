package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// requestTimeout is when a client gives a request up; that fails the round.
const requestTimeout = 30 * time.Second

// target is where refunds are submitted.
type target struct{ url, token string }

// answers is what clients got.
type answers struct {
	all   int             // those of the warm-up included
	times []time.Duration // from a request to the end of its answer, without the warm-up's
	// took is from the warm-up's end to the last answer, and ran with the warm-up.
	took, ran time.Duration
}

// load has clients submit refunds at once, each one after the other over a
// connection of its own that stays open; which says what the n-th request
// submits. It fails if one is not answered, or not with the status.
func (t target) load(ctx context.Context, clients int, p intakePlan, status int, which func(n int) int) (answers, error) {
	begin := time.Now().Add(p.WarmUp)
	end := begin.Add(p.Time)
	var next atomic.Int64
	each := make([]answers, clients)
	running, ctx := errgroup.WithContext(ctx)
	for i := range each {
		running.Go(func() error {
			a, client := &each[i], newClient()
			defer client.CloseIdleConnections()
			for {
				body := submission(which(int(next.Add(1) - 1)))
				start := time.Now()
				if !start.Before(end) {
					return nil
				}
				if err := t.submit(ctx, client, body, status); err != nil {
					return err
				}
				a.all++
				if !start.Before(begin) {
					a.times = append(a.times, time.Since(start))
					a.took = time.Since(begin)
				}
			}
		})
	}
	if err := running.Wait(); err != nil {
		return answers{}, err
	}
	var total answers
	for _, a := range each {
		total.all += a.all
		total.times = append(total.times, a.times...)
		total.took = max(total.took, a.took)
	}
	if len(total.times) == 0 {
		return answers{}, errors.New("no request was made after the warm-up")
	}
	total.ran = p.WarmUp + total.took
	return total, nil
}

// first submits the refunds 0 to n-1, which must be new.
func (t target) first(ctx context.Context, n int) error {
	client := newClient()
	defer client.CloseIdleConnections()
	for i := range n {
		if err := t.submit(ctx, client, submission(i), http.StatusAccepted); err != nil {
			return err
		}
	}
	return nil
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{}, Timeout: requestTimeout}
}

func (t target) submit(ctx context.Context, client *http.Client, body []byte, status int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+t.token)
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if res.StatusCode != status {
		return fmt.Errorf("status %d instead of %d: %s", res.StatusCode, status, answer)
	}
	return nil
}

// throughput is what the answers say about a candidate.
type throughput struct {
	Candidate string
	Requests  int
	// Rate is in requests per second; Lowest and Highest are those of single
	// rounds.
	Rate, Lowest, Highest float64
	P50, P99              time.Duration
	// Started is how many workflows were started per second meanwhile.
	Started float64
	// Statements is what the database answered per request, those included that
	// belong to none.
	Statements float64
}

// summarize evaluates the rounds of one candidate.
func summarize(candidate string, rounds []intakeRound) throughput {
	t := throughput{Candidate: candidate, Lowest: math.Inf(1)}
	var times []time.Duration
	var took, ran time.Duration
	all, started, statements := 0, 0, 0
	for _, r := range rounds {
		times = append(times, r.times...)
		took += r.took
		ran += r.ran
		all += r.all
		started += r.started
		statements += r.statements
		rate := perSecond(len(r.times), r.took)
		t.Lowest, t.Highest = min(t.Lowest, rate), max(t.Highest, rate)
	}
	slices.Sort(times)
	t.Requests = len(times)
	t.Rate, t.Started = perSecond(t.Requests, took), perSecond(started, ran)
	t.Statements = float64(statements) / float64(all)
	t.P50, t.P99 = percentile(times, 50), percentile(times, 99)
	return t
}

func perSecond(n int, in time.Duration) float64 { return float64(n) / in.Seconds() }
