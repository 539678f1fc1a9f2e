package standin

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"
)

const (
	statusSucceeded = "succeeded"
	statusPending   = "pending"
	statusFailed    = "failed"
)

var errNoRefund = errors.New("no such refund")

// Refund is a refund as the provider knows it and shows it.
type Refund struct {
	ID        string    `json:"id"`
	Reference string    `json:"reference"`
	PaymentID string    `json:"payment_id"`
	Amount    int64     `json:"amount"` // minor units
	Currency  string    `json:"currency"`
	Status    string    `json:"status"` // succeeded, pending or failed
	Failure   *Failure  `json:"failure,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// Failure says why a refund failed.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Payment is what may be refunded.
type Payment struct {
	Amount   int64  `json:"amount"` // minor units
	Currency string `json:"currency"`
}

// refundState is a refund with what only the provider knows about it.
type refundState struct {
	Refund
	SettleAt  time.Time `json:"settle_at,omitzero"` // when a pending one ends
	SettleTo  string    `json:"settle_to,omitempty"`
	SettledAt time.Time `json:"settled_at,omitzero"` // of the last final status
}

// keyState is an idempotency key with the first answer that it got.
type keyState struct {
	Key        string    `json:"key"`
	BodySHA256 string    `json:"body_sha256"`
	FirstUse   time.Time `json:"first_use"`
	Reply      reply     `json:"reply"`

	running bool // the first request's answer has not left yet
}

// reply is an answer that the provider gives.
type reply struct {
	Status      int    `json:"status"`
	ContentType string `json:"content_type,omitempty"`
	RetryAfter  string `json:"-"` // these answers are never stored
	Location    string `json:"-"`
	Body        string `json:"body,omitempty"`
}

func jsonReply(status int, v any) reply {
	b, err := json.Marshal(v)
	if err != nil { // only own types, which always marshal
		panic(err)
	}
	return reply{Status: status, ContentType: "application/json", Body: string(b)}
}

func errorReply(status int, code string) reply {
	return jsonReply(status, map[string]Failure{"error": {Code: code, Message: "The stand-in says: " + code + "."}})
}

// refunds is the provider's memory: what was executed, and which key got
// which answer. It is safe for concurrent use.
type refunds struct {
	keyLifetime time.Duration
	file        *stateFile                // nil: memory only
	changed     func(Refund)              // called after each change, without the lock
	settleLater func(string, refundState) // called with the refund's id

	mu       sync.Mutex
	byID     map[string]*refundState
	keys     map[string]*keyState
	payments map[string]Payment
}

// load takes a line of the state file.
func (s *refunds) load(l stateLine) {
	if l.Key != nil {
		s.keys[l.Key.Key] = l.Key
	}
	if l.Refund != nil {
		s.byID[l.Refund.ID] = l.Refund
	}
	if l.Payment != nil {
		s.payments[l.PaymentID] = *l.Payment
	}
}

// submission is a POST as it arrived.
type submission struct {
	Reference string `json:"reference"`
	PaymentID string `json:"payment_id"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Reason    string `json:"reason"`
}

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

// accepted is what became of a POST that was processed.
type accepted struct {
	reply    reply
	executed bool
	replayed bool
	// release ends the time in which other requests with the key are told
	// in_progress. It is called when the answer leaves.
	release func()
}

// answerOnly is an answer to a request that changed nothing.
func answerOnly(rep reply) accepted { return accepted{reply: rep, release: func() {}} }

// again says what another request with the key gets. The lock is held.
func (k *keyState) again(sum string) accepted {
	switch {
	case k.BodySHA256 != sum:
		return answerOnly(errorReply(http.StatusConflict, "idempotency_mismatch"))
	case k.running:
		return answerOnly(errorReply(http.StatusConflict, "in_progress"))
	}
	acc := answerOnly(k.Reply)
	acc.replayed = true
	return acc
}

// submit processes a POST as the contract says; the fault changes only the
// first answer to a key.
func (s *refunds) submit(key string, body []byte, f Fault) (accepted, error) {
	now := time.Now()
	sum := hash(body)
	if key == "" {
		return answerOnly(errorReply(http.StatusUnprocessableEntity, "invalid_request")), nil
	}
	acc, created, err := s.claim(key, sum, body, f, now)
	if err != nil || created == nil {
		return acc, err
	}
	s.changed(created.Refund)
	s.settleLater(created.ID, *created)
	return acc, nil
}

// claim takes the key for the body, or answers from what the key got before.
// The refund is nil if none was executed.
func (s *refunds) claim(key, sum string, body []byte, f Fault, now time.Time) (accepted, *refundState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.keys[key]; known != nil && now.Sub(known.FirstUse) < s.keyLifetime {
		return known.again(sum), nil, nil
	}
	k := &keyState{Key: key, BodySHA256: sum, FirstUse: now, running: true}
	var created *refundState
	if code := s.refuse(body, f); code != "" {
		k.Reply = errorReply(http.StatusUnprocessableEntity, code)
	} else {
		created = execute(body, f, now)
		k.Reply = firstReply(created.Refund, f)
	}
	// On file before it counts: a crash from here on forgets nothing.
	if err := s.file.append(stateLine{Key: k, Refund: created}); err != nil {
		return accepted{}, nil, fmt.Errorf("recording the refund: %w", err)
	}
	s.keys[key] = k
	if created != nil {
		stored := *created
		s.byID[created.ID] = &stored
	}
	return accepted{reply: k.Reply, executed: created != nil, release: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		k.running = false
	}}, created, nil
}

// refuse returns the code of a definite reject, or "". The lock is held.
func (s *refunds) refuse(body []byte, f Fault) string {
	var sub submission
	err := json.Unmarshal(body, &sub)
	switch {
	case err != nil, sub.Reference == "", sub.PaymentID == "", sub.Amount <= 0, !currencyCode.MatchString(sub.Currency):
		return "invalid_request"
	case f.Kind == Reject:
		return f.Code
	}
	p, known := s.payments[sub.PaymentID]
	if !known {
		return ""
	}
	var used int64
	for _, r := range s.byID {
		if r.PaymentID == sub.PaymentID && r.Status != statusFailed {
			used += r.Amount
		}
	}
	switch {
	case p.Currency != sub.Currency:
		return "currency_mismatch"
	case used >= p.Amount:
		return "already_refunded"
	case sub.Amount > p.Amount-used:
		return "amount_exceeds_remaining"
	}
	return ""
}

// execute makes the refund that a valid body asks for.
func execute(body []byte, f Fault, now time.Time) *refundState {
	var sub submission
	if err := json.Unmarshal(body, &sub); err != nil {
		panic(err) // refuse has read it before
	}
	r := &refundState{Refund: Refund{
		ID:        newID("re_"),
		Reference: sub.Reference,
		PaymentID: sub.PaymentID,
		Amount:    sub.Amount,
		Currency:  sub.Currency,
		Status:    statusSucceeded,
		CreatedAt: now.UTC(),
	}}
	if f.Kind != Pending {
		r.SettledAt = now.UTC()
		return r
	}
	r.Status = statusPending
	if f.SettleMS > 0 {
		r.SettleAt, r.SettleTo = now.Add(ms(f.SettleMS)).UTC(), cmp.Or(f.SettleTo, statusSucceeded)
	}
	return r
}

func firstReply(r Refund, f Fault) reply {
	switch {
	case f.Kind == ErrorAfterAccept:
		return errorReply(http.StatusInternalServerError, "internal_error")
	case f.EmptyBody:
		return reply{Status: f.Status}
	case f.Kind == Pending:
		return jsonReply(cmp.Or(f.Status, http.StatusCreated), r)
	}
	return jsonReply(http.StatusCreated, r)
}

// add makes a refund that nobody asked for with a request.
func (s *refunds) add(made Refund) (Refund, error) {
	r := &refundState{Refund: made}
	r.ID, r.CreatedAt = newID("re_"), time.Now().UTC()
	if r.Status != statusPending {
		r.SettledAt = r.CreatedAt
	}
	s.mu.Lock()
	err := s.file.append(stateLine{Refund: r})
	if err == nil {
		s.byID[r.ID] = r
	}
	s.mu.Unlock()
	if err != nil {
		return Refund{}, fmt.Errorf("recording the refund: %w", err)
	}
	made = r.Refund
	s.changed(made)
	return made, nil
}

// setStatus moves a refund to a status; code is the failure code of a failed
// one.
func (s *refunds) setStatus(id, status, code string) error {
	s.mu.Lock()
	old, ok := s.byID[id]
	if !ok {
		s.mu.Unlock()
		return errNoRefund
	}
	r := *old
	r.Status, r.Failure, r.SettleAt, r.SettleTo = status, nil, time.Time{}, ""
	if status == statusFailed {
		r.Failure = &Failure{Code: cmp.Or(code, "declined"), Message: "The refund failed."}
	}
	r.SettledAt = time.Time{}
	if status != statusPending {
		r.SettledAt = time.Now().UTC()
	}
	err := s.file.append(stateLine{Refund: &r})
	if err == nil {
		s.byID[id] = &r
	}
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("recording the status: %w", err)
	}
	s.changed(r.Refund)
	return nil
}

// settle ends a pending refund whose time has come, unless something else
// has ended it before.
func (s *refunds) settle(id string, due refundState) error {
	s.mu.Lock()
	r, ok := s.byID[id]
	still := ok && r.Status == statusPending && r.SettleAt.Equal(due.SettleAt)
	s.mu.Unlock()
	if !still {
		return nil
	}
	return s.setStatus(id, due.SettleTo, "")
}

func (s *refunds) setPayment(id string, p Payment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.file.append(stateLine{PaymentID: id, Payment: &p}); err != nil {
		return fmt.Errorf("recording the payment: %w", err)
	}
	s.payments[id] = p
	return nil
}

func (s *refunds) get(id string) (Refund, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.byID[id]
	if !ok {
		return Refund{}, false
	}
	return r.Refund, true
}

// list returns the refunds that keep selects, oldest first.
func (s *refunds) list(keep func(refundState) bool) []refundState {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []refundState{}
	for _, r := range s.byID {
		if keep(*r) {
			list = append(list, *r)
		}
	}
	slices.SortFunc(list, func(a, b refundState) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

func newID(prefix string) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
