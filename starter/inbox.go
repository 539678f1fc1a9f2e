package starter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/ledger"
)

const (
	// inboxBatch is how many rows an inbox relay claims at a time.
	inboxBatch = 100
	// inboxLease is how long they are its own; after that another may take
	// what it left.
	inboxLease = 30 * time.Second
	// handBackTimeout bounds the attempt to give rows up before their lease
	// ends, also while stopping.
	handBackTimeout = 2 * time.Second
)

// InboxStore is the table that order services write to. See ledger.Ledger.
type InboxStore interface {
	Acceptor
	ClaimInbox(ctx context.Context, limit int, lease time.Duration) ([]ledger.InboxRow, error)
	DeleteInbox(ctx context.Context, id int64) error
	DelayInbox(ctx context.Context, until time.Time, ids ...int64) error
	RefuseInbox(ctx context.Context, id int64, reason string) error
}

// InboxOptions are what an Inbox is made of. All fields without a default are
// required.
type InboxOptions struct {
	Store    InboxStore
	Accounts []config.Account
	// Client is whose the cases become. Defaults to nobody's: only those see
	// them who may see all.
	Client string
	// Deadline is how long after acceptance a case goes to review.
	Deadline time.Duration
	// Admission says which accounts can take more. Defaults to all, always.
	Admission *Admission
	// Wake is called after each acceptance and must not block. Defaults to
	// nothing.
	Wake func()
	Log  *slog.Logger
}

// Inbox accepts the refunds that order services put into refund_inbox, as the
// API accepts those that it is sent. A row is deleted once its refund is
// accepted, waits while the account has no room, and is set aside with the
// reason if it can't be accepted. Acceptance is idempotent, so any number may
// run, and a row that one of them left is another's soon.
type Inbox struct {
	opts   InboxOptions
	rounds *rounds
	held   heldRows
}

// heldRows are claimed rows that are not going to be worked off.
type heldRows struct {
	failed []int64 // tried, with an error of the database
	rest   []int64 // not tried
	until  time.Time
}

// NewInbox returns an inbox. It does nothing until Run.
func NewInbox(opts InboxOptions) *Inbox {
	if opts.Wake == nil {
		opts.Wake = func() {}
	}
	in := &Inbox{opts: opts}
	in.rounds = newRounds("the inbox can't be worked off", in.pass, opts.Log)
	return in
}

// Run works the inbox off until ctx ends. It goes on through any outage of the
// database.
func (in *Inbox) Run(ctx context.Context) { in.rounds.run(ctx) }

// pass works off all that is due. It ends at the first error of the database;
// the rows that it still holds then are due again at once, but the one that it
// failed at, which waits a little so that it can't hold up the others.
func (in *Inbox) pass(ctx context.Context) error {
	if err := in.handBack(ctx); err != nil {
		return err // what we can't even give up, we can't take
	}
	for {
		until := time.Now().Add(inboxLease)
		rows, err := in.opts.Store.ClaimInbox(ctx, inboxBatch, inboxLease)
		if err != nil {
			return err
		}
		for n, row := range rows {
			if err := in.take(ctx, row); err != nil {
				in.held = heldRows{failed: []int64{row.ID}, until: until}
				for _, next := range rows[n+1:] {
					in.held.rest = append(in.held.rest, next.ID)
				}
				return errors.Join(err, in.handBack(ctx))
			}
		}
		if len(rows) < inboxBatch {
			return nil
		}
	}
}

// handBack gives up the rows that are held, before their lease ends. While that
// fails they stay held; after the lease they are anybody's anyway.
func (in *Inbox) handBack(ctx context.Context) error {
	now := time.Now()
	if now.After(in.held.until) {
		in.held = heldRows{}
		return nil
	}
	// A relay that is told to stop keeps nothing either.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handBackTimeout)
	defer cancel()
	if err := in.opts.Store.DelayInbox(ctx, now, in.held.rest...); err != nil {
		return err
	}
	in.held.rest = nil
	if err := in.opts.Store.DelayInbox(ctx, now.Add(retryAfter), in.held.failed...); err != nil {
		return err
	}
	in.held = heldRows{}
	return nil
}

// take accepts a row's refund. An error is one of the database: the row stays
// as it is.
func (in *Inbox) take(ctx context.Context, row ledger.InboxRow) error {
	if row.Payload == nil {
		return in.refuse(ctx, row, problemTooLarge.with(fmt.Sprintf("It may have %d bytes.", ledger.MaxPayload)))
	}
	rf, err := decodeServed(row.Payload, row.RefundID, in.opts.Accounts)
	if err != nil {
		return in.refuse(ctx, row, bodyProblem(err))
	}
	place := in.opts.Admission.Place(rf.Account)
	_, created, err := in.opts.Store.Accept(ctx, ledger.Submission{
		Refund: rf, Client: in.opts.Client, Deadline: in.opts.Deadline, Admit: place.Take,
	})
	place.Leave()
	var full *OverCapacityError
	if errors.As(err, &full) {
		return in.opts.Store.DelayInbox(ctx, time.Now().Add(full.RetryAfter), row.ID)
	}
	if err != nil {
		p := acceptProblem(rf.ID, err)
		if p.Type == problemUnavailable.Type {
			return err
		}
		return in.refuse(ctx, row, p)
	}
	event := telemetry.EventRefundDuplicate
	if created {
		event = telemetry.EventRefundAccepted
		in.opts.Wake()
	}
	telemetry.Event(ctx, in.opts.Log, slog.LevelInfo, event,
		slog.String(telemetry.KeyRefundID, rf.ID),
		slog.String(telemetry.KeyAccount, rf.Account),
		slog.String("client", in.opts.Client),
		slog.Int64("inbox_id", row.ID))
	return in.opts.Store.DeleteInbox(ctx, row.ID)
}

// refuse sets a row aside. Of its payload only the names of fields and what is
// wrong with them are kept beside it, and nothing is logged.
func (in *Inbox) refuse(ctx context.Context, row ledger.InboxRow, p problem) error {
	var reason strings.Builder
	fmt.Fprintf(&reason, "%s: %s", p.name(), p.Title)
	if p.Detail != "" {
		fmt.Fprintf(&reason, ". %s", p.Detail)
	}
	for _, f := range p.Errors {
		fmt.Fprintf(&reason, "; %s %s", f.Field, f.Message)
	}
	if err := in.opts.Store.RefuseInbox(ctx, row.ID, reason.String()); err != nil {
		return err
	}
	telemetry.Event(ctx, in.opts.Log, slog.LevelWarn, p.event(),
		slog.Int64("inbox_id", row.ID),
		slog.String("problem", p.name()))
	return nil
}
