package reference

import (
	"net/http"
	"strings"
	"time"
)

// maxRetryAfter bounds a Retry-After. Every case's deadline is far nearer; the
// bound only keeps an absurd value from overflowing or stopping an account
// for good.
const maxRetryAfter = 24 * time.Hour

// retryAt reads a Retry-After header: whole seconds or an HTTP date. It
// returns nil for anything else and for an instant that is not after now.
func retryAt(header string, now time.Time) *time.Time {
	header = strings.TrimSpace(header)
	at, ok := afterSeconds(header, now)
	if !ok {
		parsed, err := http.ParseTime(header)
		if err != nil {
			return nil
		}
		at = parsed
	}
	if latest := now.Add(maxRetryAfter); at.After(latest) {
		at = latest
	}
	if !at.After(now) {
		return nil
	}
	at = at.UTC()
	return &at
}

// afterSeconds reads digits only. The sum stops growing at the bound, so no
// number of digits overflows.
func afterSeconds(digits string, now time.Time) (time.Time, bool) {
	if digits == "" {
		return time.Time{}, false
	}
	const most = int64(maxRetryAfter / time.Second)
	var seconds int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return time.Time{}, false
		}
		seconds = min(seconds*10+int64(c-'0'), most)
	}
	return now.Add(time.Duration(seconds) * time.Second), true
}
