package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"refundgate/refund"
)

// Search attributes of a case, as operators filter by them.
var (
	keyStatus  = temporal.NewSearchAttributeKeyKeyword(refund.AttributeStatus)
	keyAccount = temporal.NewSearchAttributeKeyKeyword(refund.AttributeAccount)
	keyReview  = temporal.NewSearchAttributeKeyKeyword(refund.AttributeReview)
	keyOwner   = temporal.NewSearchAttributeKeyKeyword(refund.AttributeOwner)
	keyOrder   = temporal.NewSearchAttributeKeyKeyword(refund.AttributeOrder)
	keyTries   = temporal.NewSearchAttributeKeyInt64(refund.AttributeTries)
	keyDue     = temporal.NewSearchAttributeKeyTime(refund.AttributeDue)
)

// shown is the part of a case that search attributes hold and that changes.
type shown struct {
	status   refund.Status
	reason   refund.ReviewReason
	owner    string
	attempts int
}

// show tells operators where the case stands and what happens next.
func (w *refundWorkflow) show(step Step) error {
	c := w.c
	w.step = &step
	workflow.SetCurrentDetails(w.ctx, details(c, step, w.refused))
	now := shown{c.Status, c.ReviewReason, c.Owner, c.Attempts}
	if now == w.shown {
		return nil
	}
	updates := []temporal.SearchAttributeUpdate{
		keyStatus.ValueSet(string(c.Status)),
		keyAccount.ValueSet(c.Refund.Account),
		keyOrder.ValueSet(c.Refund.OrderID),
		keyTries.ValueSet(int64(c.Attempts)),
		keyDue.ValueSet(c.DeadlineAt),
	}
	if c.ReviewReason != "" {
		updates = append(updates, keyReview.ValueSet(string(c.ReviewReason)))
	} else if w.shown.reason != "" {
		updates = append(updates, keyReview.ValueUnset())
	}
	if c.Owner != "" {
		updates = append(updates, keyOwner.ValueSet(c.Owner))
	} else if w.shown.owner != "" {
		updates = append(updates, keyOwner.ValueUnset())
	}
	if err := workflow.UpsertTypedSearchAttributes(w.ctx, updates...); err != nil {
		return fmt.Errorf("setting the search attributes: %w", err)
	}
	w.shown = now
	return nil
}

// details is the case in Markdown, for the Web UI. refused says why the last
// signal was not carried out.
func details(c refund.Case, step Step, refused string) string {
	lines := []string{fmt.Sprintf("**%s**: %s", c.Status, step.Why), ""}
	if c.ReviewReason != "" {
		lines[0] = fmt.Sprintf("**%s (%s)**: %s", c.Status, c.ReviewReason, step.Why)
	}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if step.Kind == StepSubmit || step.Kind == StepCheck {
		add("Next: %s, not before %s, not after %s\n", step.Kind, stamp(step.At), stamp(step.Until))
	}
	if refused != "" {
		add("%s\n", cell(refused))
	}
	if c.Owner != "" {
		add("Assigned to %s\n", cell(c.Owner))
	}
	add("%s of payment %s, attempts %d, deadline %s", c.Refund.Amount, c.Refund.PaymentID, c.Attempts, stamp(c.DeadlineAt))
	if c.ProviderRefundID != "" {
		add("\nProvider's id: %s", c.ProviderRefundID)
	}
	if len(c.Calls) > 0 {
		add("\n| call | why | started | outcome |\n|---|---|---|---|")
	}
	for _, call := range c.Calls {
		started := "not sent"
		if call.StartedAt != nil {
			started = stamp(*call.StartedAt)
		}
		outcome := "no record"
		if call.Done() {
			outcome = describe(call.Result)
		}
		add("| %s %d | %s | %s | %s |", call.Key.Kind, call.Key.Seq, call.Origin, started, cell(outcome))
	}
	if len(c.Notices) > 0 {
		add("\n| notice | said | outcome |\n|---|---|---|")
	}
	for _, n := range c.Notices {
		outcome := string(n.Outcome)
		if n.Problem != "" {
			outcome += " (not taken: " + string(n.Problem) + ")"
		}
		add("| %s %s | %s | %s |", n.Source, cell(n.ProviderRefundID), stamp(n.SaidAt), cell(outcome))
	}
	if len(c.Decisions) > 0 {
		add("\n| decision | by | when | reason |\n|---|---|---|---|")
	}
	for _, d := range c.Decisions {
		add("| %s | %s | %s | %s |", d.Action, cell(d.By), stamp(d.At), cell(d.Reason))
	}
	// The Web UI clips the bottom of the text: let it be an empty line.
	return strings.Join(lines, "\n") + "\n\n&nbsp;"
}

// cell keeps text from outside from breaking a Markdown table.
func cell(s string) string { return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s) }

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
