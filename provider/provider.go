// Package provider is the contract that an adapter for a payment provider
// fulfils. An adapter translates between the domain and one provider's wire
// format and says what each answer means. It decides nothing else: when to
// send, whether to send again and what a case's state is are not its business.
//
// An adapter never opens a connection. It is handed an http.RoundTripper that
// carries exactly one request, the ticket of the account's egress gate, and
// has no other way to the network.
package provider

import (
	"context"
	"net/http"
	"net/url"

	"refundgate/refund"
)

// Adapter speaks one provider's protocol for one account. It is used by many
// goroutines at once and keeps nothing between calls.
type Adapter interface {
	// Target is where the account's calls go: scheme and host, with the port
	// if it isn't the scheme's own. The egress dials it ahead of the call.
	Target() *url.URL
	// Contract returns what the provider promises.
	Contract() Contract
	// Encode returns the exact body of the first request of a generation. It
	// is stored and sent again byte for byte. An error means that this
	// provider can't be asked for this refund at all; it is logged, so it
	// holds none of the refund's texts.
	Encode(r refund.Refund) ([]byte, error)
	// Submit sends the refund once, over rt. It never fails: whatever goes
	// wrong is a Result. Whether any byte left is not for the adapter to
	// judge, so it never returns OutcomeNotSent.
	Submit(ctx context.Context, rt http.RoundTripper, s Submission) refund.Result
	// Check asks once, over rt, what became of the refund.
	Check(ctx context.Context, rt http.RoundTripper, q Query) refund.Result
}

// Submission is one send of a refund.
type Submission struct {
	Refund refund.Refund
	Key    string // idempotency key, the same for every send of a generation
	Body   []byte // as Encode returned it for the first send
}

// Query asks for the result of a refund.
type Query struct {
	Refund refund.Refund
	// ProviderRefundID is the provider's own id if an answer carried one;
	// otherwise the refund is looked up by its reference.
	ProviderRefundID string
	// Foreign are the provider's ids of the case's earlier generations. They
	// have the same reference and are no trace of this one: a look-up that
	// finds nothing else has found nothing.
	Foreign []string
}

// Contract is what a provider promises about resends and look-ups.
type Contract = refund.Contract
