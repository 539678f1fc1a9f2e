package standin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Webhooks says whether and how notifications are sent. The zero value sends
// none.
type Webhooks struct {
	Enabled bool   `json:"enabled"`
	URL     string `json:"url,omitempty"`
	// Secrets sign each notification, one v1 each. Several are a rotation.
	Secrets []string `json:"secrets,omitempty"`
	// DelayMS passes between the change and its notification.
	DelayMS int64 `json:"delay_ms,omitempty"`
	// Duplicate sends each notification twice.
	Duplicate bool `json:"duplicate,omitempty"`
	// Reorder holds each notification back until the next one has been sent,
	// at most for ReorderMS.
	Reorder bool `json:"reorder,omitempty"`
	// ReorderMS defaults to 500.
	ReorderMS int64 `json:"reorder_ms,omitempty"`
	// ClockOffsetS is added to the time in the signature, in seconds.
	ClockOffsetS int64 `json:"clock_offset_s,omitempty"`
	// Omit names members of the refund that notifications leave out: id or
	// reference.
	Omit []string `json:"omit,omitempty"`
	// Tries is how often a notification is sent until it gets a 2xx.
	// Defaults to 5.
	Tries int `json:"tries,omitempty"`
	// RetryMS passes between two tries. Defaults to 1000.
	RetryMS int64 `json:"retry_ms,omitempty"`
}

func (w Webhooks) validate() error {
	if w.DelayMS < 0 || w.ReorderMS < 0 || w.Tries < 0 || w.RetryMS < 0 {
		return errors.New("numbers must not be negative")
	}
	for _, name := range w.Omit {
		if name != "id" && name != "reference" {
			return errors.New("omit may name id and reference")
		}
	}
	if !w.Enabled {
		return nil
	}
	if u, err := url.Parse(w.URL); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return errors.New("url must be an http or https URL")
	}
	if len(w.Secrets) == 0 || slices.Contains(w.Secrets, "") {
		return errors.New("secrets must hold at least one secret and no empty one")
	}
	return nil
}

// Delivery is one try to deliver a notification.
type Delivery struct {
	EventID   string    `json:"event_id"`
	Type      string    `json:"type"`
	Reference string    `json:"reference"`
	At        time.Time `json:"at"`
	Status    int       `json:"status"` // HTTP status, 0 without an answer
}

// event is a change that notifications tell of.
type event struct {
	id   string
	at   time.Time
	data Refund
}

func (ev *event) kind() string { return "refund." + ev.data.Status }

// body returns the notification's body, without some of the refund's members.
func (ev *event) body(omit []string) ([]byte, error) {
	b, err := json.Marshal(ev.data)
	if err != nil {
		return nil, err
	}
	var data map[string]json.RawMessage
	if err := json.Unmarshal(b, &data); err != nil {
		return nil, err
	}
	for _, name := range omit {
		delete(data, name)
	}
	return json.Marshal(map[string]any{"id": ev.id, "type": ev.kind(), "created_at": ev.at, "data": data})
}

var (
	errNoEvent = errors.New("no such event")
	errOff     = errors.New("webhooks are off")
)

// notifier sends notifications in the background until stopped.
type notifier struct {
	run    func(func(context.Context)) // starts a goroutine that Close awaits
	client *http.Client

	mu         sync.Mutex
	settings   Webhooks
	events     map[string]*event // by id
	held       *event            // waits for the next one, when reordering
	deliveries []Delivery
}

func newNotifier(run func(func(context.Context))) *notifier {
	return &notifier{run: run, events: map[string]*event{}, client: &http.Client{
		Timeout:       10 * time.Second,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// set changes the settings for changes from now on.
func (n *notifier) set(w Webhooks) error {
	if err := w.validate(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settings = w
	return nil
}

func (n *notifier) list() (Webhooks, []Delivery) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.settings, append([]Delivery{}, n.deliveries...)
}

// notify tells of a refund's new state.
func (n *notifier) notify(r Refund) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.settings
	if !w.Enabled {
		return
	}
	ev := &event{id: newID("evt_"), at: time.Now().UTC(), data: r}
	n.events[ev.id] = ev
	switch {
	case !w.Reorder:
		n.send(w, ev)
	case n.held == nil:
		n.held = ev
		n.run(func(ctx context.Context) {
			if sleep(ctx, ms(cmp.Or(w.ReorderMS, 500))) {
				n.letGo(w, ev)
			}
		})
	default:
		held := n.held
		n.held = nil
		n.send(w, ev, held)
	}
}

// letGo sends a held event that no other one has overtaken.
func (n *notifier) letGo(w Webhooks, ev *event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held == ev {
		n.held = nil
		n.send(w, ev)
	}
}

// redeliver sends an event once more, as the settings are now.
func (n *notifier) redeliver(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	ev, ok := n.events[id]
	switch {
	case !ok:
		return errNoEvent
	case !n.settings.Enabled:
		return errOff
	}
	n.send(n.settings, ev)
	return nil
}

// send delivers the events one after the other, in the background.
func (n *notifier) send(w Webhooks, events ...*event) {
	n.run(func(ctx context.Context) {
		if !sleep(ctx, ms(w.DelayMS)) {
			return
		}
		for _, ev := range events {
			n.deliver(ctx, w, ev)
			if w.Duplicate {
				n.deliver(ctx, w, ev)
			}
		}
	})
}

// deliver tries until the receiver has stored the notification.
func (n *notifier) deliver(ctx context.Context, w Webhooks, ev *event) {
	for range cmp.Or(w.Tries, 5) {
		status := n.post(ctx, w, ev)
		n.mu.Lock()
		n.deliveries = append(n.deliveries, Delivery{ev.id, ev.kind(), ev.data.Reference, time.Now().UTC(), status})
		n.mu.Unlock()
		if status/100 == 2 || !sleep(ctx, ms(cmp.Or(w.RetryMS, 1000))) {
			return
		}
	}
}

// post returns the answer's status, or 0 if there was none.
func (n *notifier) post(ctx context.Context, w Webhooks, ev *event) int {
	body, err := ev.body(w.Omit)
	if err != nil { // own types always marshal
		panic(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil { // validate has parsed the URL
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	at := time.Now().Add(time.Duration(w.ClockOffsetS) * time.Second)
	req.Header.Set("Provider-Signature", Sign(at, body, w.Secrets...))
	resp, err := n.client.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// Sign returns the Provider-Signature header of a notification's raw body.
func Sign(at time.Time, body []byte, secrets ...string) string {
	header := fmt.Sprintf("t=%d", at.Unix())
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%d.", at.Unix())
		mac.Write(body)
		header += ",v1=" + hex.EncodeToString(mac.Sum(nil))
	}
	return header
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
