package reference

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) *time.Time { at := now.Add(d); return &at }
	for header, want := range map[string]*time.Time{
		"2":                              in(2 * time.Second),
		" 120 ":                          in(2 * time.Minute),
		"007":                            in(7 * time.Second),
		"86400":                          in(24 * time.Hour),
		"86401":                          in(24 * time.Hour),
		"9223372036854775807":            in(24 * time.Hour),
		strings.Repeat("9", 4000):        in(24 * time.Hour),
		"Sun, 01 Mar 2026 12:00:30 GMT":  in(30 * time.Second),
		"Sunday, 01-Mar-26 12:00:30 GMT": in(30 * time.Second),
		"Sun Mar  1 12:00:30 2026":       in(30 * time.Second),
		"Fri, 31 Dec 9999 23:59:59 GMT":  in(24 * time.Hour),

		"":                              nil,
		"0":                             nil,
		"-5":                            nil,
		"+5":                            nil,
		"1.5":                           nil,
		"1e3":                           nil,
		"0x10":                          nil,
		"٣":                             nil,
		"5 seconds":                     nil,
		"soon":                          nil,
		"Sun, 01 Mar 2026 12:00:00 GMT": nil,
		"Sun, 01 Mar 2026 11:59:59 GMT": nil,
		"Thu, 01 Jan 1970 00:00:00 GMT": nil,
		"2026-03-01T12:00:30Z":          nil,
	} {
		require.Equal(t, want, retryAt(header, now), "Retry-After: %q", header)
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"", "2", "-1", "99999999999999999999999", "Sun, 01 Mar 2026 12:00:30 GMT", "\x00", "Mon, 01 Jan 0001 00:00:00 GMT"} {
		f.Add(seed)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, header string) {
		at := retryAt(header, now)
		if at == nil {
			return
		}
		require.True(t, at.After(now), "never in the past")
		require.False(t, at.After(now.Add(maxRetryAfter)), "never past the bound")
		if strings.ContainsAny(header, "abcdefghijklmnopqrstuvwxyz") {
			_, err := http.ParseTime(strings.TrimSpace(header))
			require.NoError(t, err, "words count only as an HTTP date")
		}
	})
}
