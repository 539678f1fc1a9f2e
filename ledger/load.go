package ledger

import (
	"context"
	"fmt"
	"time"

	"refundgate/refund"
)

// LoadWindow is how far back Load measures: long enough to count, short enough
// to notice within a minute that a provider has turned slow or is well again.
const LoadWindow = time.Minute

// Load is what waits in an account, and how quickly it was worked off within
// the last LoadWindow.
type Load struct {
	// Open counts the cases that are neither closed nor with people.
	Open int
	// OldestQueued is when the earliest of those was accepted that nothing has
	// reached the provider for; nil if there is none. QueuedBefore counts those
	// of them that were accepted before the instant that Load was asked with.
	OldestQueued *time.Time
	QueuedBefore int
	// Calls counts the calls that were started, of every kind, and CallTime is
	// how long one held its place on average; 0 if none has ended.
	Calls    int
	CallTime time.Duration
	// Settled counts the cases that were closed.
	Settled int
}

// automatic are the statuses of cases that neither are closed nor wait for
// people, as parameters.
func automatic() []any {
	var all []any
	for _, s := range refund.Statuses {
		if !s.Final() && s != refund.StatusReview {
			all = append(all, s)
		}
	}
	return all
}

// Load measures the account.
func (l *Ledger) Load(ctx context.Context, account string, before time.Time) (Load, error) {
	var load Load
	open := automatic()
	err := l.pool.QueryRowContext(ctx, `
		SELECT COUNT(*), MIN(IF(status = ?, accepted_at, NULL)), COALESCE(SUM(status = ? AND accepted_at < ?), 0) FROM refunds
		WHERE account = ? AND status IN (`+placeholders(len(open))+`)`,
		append([]any{refund.StatusQueued, refund.StatusQueued, stored(before), account}, open...)...).
		Scan(&load.Open, &load.OldestQueued, &load.QueuedBefore)
	if err != nil {
		return Load{}, fmt.Errorf("counting what waits in %s: %w", account, err)
	}
	since := l.now().Add(-LoadWindow)
	var micros float64
	err = l.pool.QueryRowContext(ctx, `
		SELECT COUNT(*), COALESCE(AVG(TIMESTAMPDIFF(MICROSECOND, started_at, finished_at)), 0) FROM provider_calls
		WHERE account = ? AND kind IN (?, ?) AND started_at >= ?`, account, refund.KindSubmit, refund.KindCheck, since).
		Scan(&load.Calls, &micros)
	if err != nil {
		return Load{}, fmt.Errorf("counting the calls of %s: %w", account, err)
	}
	load.CallTime = time.Duration(micros * float64(time.Microsecond))
	err = l.pool.QueryRowContext(ctx, `SELECT COUNT(*) FROM refunds WHERE account = ? AND closed_at >= ?`, account, since).
		Scan(&load.Settled)
	if err != nil {
		return Load{}, fmt.Errorf("counting what %s settled: %w", account, err)
	}
	return load, nil
}

// Due counts cases by their deadline.
type Due struct {
	Until time.Time // the deadlines come before this instant, and not a step before it
	Cases int
}

// DueStep is the step by which Dues counts.
const DueStep = 15 * time.Second

// Dues counts the account's cases that are neither closed nor with people, by
// how soon they are due from the given instant on, the earliest first. Those
// that are overdue are counted as due by that instant.
func (l *Ledger) Dues(ctx context.Context, account string, from time.Time) ([]Due, error) {
	open := automatic()
	all, err := queryAll(ctx, l.pool, func(row scanner) (d Due, err error) {
		var step int
		err = row.Scan(&step, &d.Cases)
		d.Until = from.Add(time.Duration(step) * DueStep)
		return d, err
	}, `
		SELECT GREATEST(0, 1 + FLOOR(TIMESTAMPDIFF(SECOND, ?, deadline_at) / ?)) AS step, COUNT(*) FROM refunds
		WHERE account = ? AND status IN (`+placeholders(len(open))+`) GROUP BY step ORDER BY step`,
		append([]any{stored(from), int(DueStep.Seconds()), account}, open...)...)
	if err != nil {
		return nil, fmt.Errorf("counting what is due in %s: %w", account, err)
	}
	return all, nil
}
