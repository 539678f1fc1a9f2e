package starter

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"refundgate/internal/config"
	"refundgate/internal/telemetry"
	"refundgate/refund"
)

// caller is a client as the API knows it.
type caller struct {
	name   string
	token  [sha256.Size]byte // the SHA-256 of its bearer token
	scopes []string
	limit  *rate.Limiter
	// counting is held while the limit counts a request: what a refused one has
	// reserved can only be given back whole as long as no other one has
	// reserved something since.
	counting *sync.Mutex
}

// may tells whether the client has the scope.
func (c caller) may(scope string) bool { return slices.Contains(c.scopes, scope) }

// onlyOwn returns whose cases the client sees: its own, or, empty, everybody's.
func (c caller) onlyOwn() string {
	if c.may(config.ScopeReadAll) || c.may(config.ScopeReview) {
		return ""
	}
	return c.name
}

// sees tells whether the client may look the case up.
func (c caller) sees(theCase refund.Case) bool {
	own := c.onlyOwn()
	return own == "" || own == theCase.Client
}

func newCallers(clients []config.Client) ([]caller, error) {
	callers := make([]caller, len(clients))
	for i, c := range clients {
		perSecond := cmp.Or(c.RequestsPerSecond, config.DefaultRequestsPerSecond)
		burst := cmp.Or(c.Burst, config.DefaultBurst)
		callers[i] = caller{name: c.Name, scopes: c.Scopes, limit: rate.NewLimiter(rate.Limit(perSecond), burst), counting: &sync.Mutex{}}
		n, err := hex.Decode(callers[i].token[:], []byte(c.TokenSHA256))
		if err != nil || n != sha256.Size {
			return nil, fmt.Errorf("client %q: token_sha256 is not a SHA-256 in hex", c.Name)
		}
	}
	return callers, nil
}

// overLimit counts a request and returns how long the client has to wait until
// it may make one; 0 if this one is within its limit. One that isn't costs
// nothing, however many there are at once.
func (c caller) overLimit() time.Duration {
	c.counting.Lock()
	defer c.counting.Unlock()
	return c.overLimitAt(time.Now())
}

// overLimitAt is overLimit at that time. The caller holds c.counting.
func (c caller) overLimitAt(now time.Time) time.Duration {
	r := c.limit.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// identify returns the client that a request's bearer token belongs to. How
// long it takes does not depend on how near a wrong token comes.
func (a *API) identify(r *http.Request) (caller, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return caller{}, false
	}
	sum := sha256.Sum256([]byte(token))
	var found caller
	ok := false
	for _, c := range a.callers {
		if subtle.ConstantTimeCompare(sum[:], c.token[:]) == 1 {
			found, ok = c, true
		}
	}
	return found, ok
}

// allow lets those requests through to h whose client has one of the scopes and
// is within its limit.
func (a *API) allow(h func(http.ResponseWriter, *http.Request, caller), scopes ...string) http.Handler {
	wanted := strings.Join(scopes, " or ")

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := a.identify(r)
		if !ok {
			w.Header().Set("WWW-Authenticate", `Bearer realm="refundgate"`)
			a.refuse(w, r, c, problemUnauthorized)
			return
		}
		if wait := c.overLimit(); wait > 0 {
			a.refuse(w, r, c, problemTooManyRequests.after(wait))
			return
		}
		if !slices.ContainsFunc(scopes, c.may) {
			// One of them is enough; the header has no way to say "or".
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="refundgate", error="insufficient_scope", scope=%q`, scopes[0]))
			a.refuse(w, r, c, problemForbidden.with("It needs the scope "+wanted+"."))
			return
		}
		h(w, r, c)
	})
}

// refuse answers with a problem and logs it, a conflict under its own event.
// Of a body, attrs may hold ids that were validated, and nothing else.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, c caller, p problem, attrs ...slog.Attr) {
	attrs = append(attrs,
		slog.String("client", c.name),
		slog.Int("status", p.Status),
		slog.String("problem", p.name()))
	telemetry.Event(r.Context(), a.log, slog.LevelWarn, p.event(), attrs...)
	a.countIntake(r, p.name())
	p.write(w)
}
