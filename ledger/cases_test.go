package ledger

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"refundgate/refund"
)

func TestCase_NotFound(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	_, err := l.Case(t.Context(), "nobody")
	require.ErrorIs(t, err, ErrNotFound)
	_, err = l.Events(t.Context(), "nobody")
	require.ErrorIs(t, err, ErrNotFound)
}

func TestCase_CallsInTheOrderOfTheirIntents(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	accept(t, l, newRefund("r-1"))
	k := acquire(t, l)
	start := time.Now()
	for i, in := range []Intent{submit("r-1", 1), check("r-1", 1), submit("r-1", 2), check("r-1", 2)} {
		in.Call.IntentAt = start.Add(time.Duration(i) * time.Second)
		intend(t, k, in)
	}
	c, err := l.Case(t.Context(), "r-1")
	require.NoError(t, err)
	var keys []string
	for _, call := range c.Calls {
		keys = append(keys, call.Key.String())
	}
	require.Equal(t, []string{"r-1/g1/submit/1", "r-1/g1/check/1", "r-1/g1/submit/2", "r-1/g1/check/2"}, keys)
	require.Equal(t, 3, c.NextSeq(refund.KindSubmit))
}

func TestList_PagesNewestFirst(t *testing.T) {
	t.Parallel()
	// Every two refunds share their instant, as they may: the id decides.
	reads := 0
	start := time.Date(2026, 3, 1, 0, 0, 0, 999999000, time.UTC)
	l := openLedger(t, migrated(t), Options{Now: func() time.Time {
		reads++
		return start.Add(time.Duration(reads/2) * time.Microsecond)
	}})
	var want []string
	for i := range 11 {
		id := fmt.Sprintf("r-%02d", i)
		accept(t, l, newRefund(id))
		want = append([]string{id}, want...)
	}

	var got []string
	f := Filter{Limit: 2}
	for pages := 1; ; pages++ {
		page, err := l.List(t.Context(), f)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Cases), 2)
		for _, c := range page.Cases {
			got = append(got, c.Refund.ID)
			require.Nil(t, c.Calls)
		}
		if page.Next == "" {
			require.Equal(t, 6, pages)
			break
		}
		f.Cursor = page.Next
		if pages == 2 {
			accept(t, l, newRefund("late")) // newer than where we are
		}
	}
	require.Equal(t, want, got, "each once, none skipped")
}

func TestList_Filters(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for _, id := range []string{"r-1", "r-2", "r-3"} {
		accept(t, l, newRefund(id))
	}
	other := newRefund("r-4")
	other.Account = "other"
	accept(t, l, other)
	for _, id := range []string{"r-2", "r-3", "r-4"} {
		require.NoError(t, l.Save(t.Context(), Change{RefundID: id, Status: refund.StatusReview, ReviewReason: refund.ReviewChecks}))
	}
	// Owners that a case-insensitive or emoji-blind collation takes for one.
	for id, owner := range map[string]string{"r-2": "ann \U0001F436", "r-3": "ann \U0001F431"} {
		_, err := l.pool.ExecContext(t.Context(), `UPDATE refunds SET owner = ? WHERE refund_id = ?`, owner, id)
		require.NoError(t, err)
	}
	for name, tc := range map[string]struct {
		filter Filter
		want   []string
	}{
		"status":             {Filter{Status: refund.StatusReview}, []string{"r-4", "r-3", "r-2"}},
		"account":            {Filter{Account: account}, []string{"r-3", "r-2", "r-1"}},
		"owner":              {Filter{Owner: "ann \U0001F436"}, []string{"r-2"}},
		"owner, other case":  {Filter{Owner: "Ann \U0001F436"}, nil},
		"status and account": {Filter{Status: refund.StatusReview, Account: account}, []string{"r-3", "r-2"}},
		"nothing":            {Filter{Status: refund.StatusSucceeded}, nil},
	} {
		page, err := l.List(t.Context(), tc.filter)
		require.NoError(t, err)
		var got []string
		for _, c := range page.Cases {
			got = append(got, c.Refund.ID)
		}
		require.Equal(t, tc.want, got, name)
	}
}

func TestList_LimitIsBounded(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for i := range DefaultPageSize + 1 {
		accept(t, l, newRefund(fmt.Sprintf("r-%d", i)))
	}
	page, err := l.List(t.Context(), Filter{})
	require.NoError(t, err)
	require.Len(t, page.Cases, DefaultPageSize)
	page, err = l.List(t.Context(), Filter{Limit: 1 << 40})
	require.NoError(t, err)
	require.Len(t, page.Cases, DefaultPageSize+1)
}

func TestList_BadCursor(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	for _, plain := range []string{"", "1", "x.r-1", "1.", "1.'; DROP TABLE refunds", "-99999999999999999.r-1", "9223372036854775807.r-1"} {
		cursor := base64.RawURLEncoding.EncodeToString([]byte(plain))
		if plain == "" {
			cursor = "%%%"
		}
		_, err := l.List(t.Context(), Filter{Cursor: cursor})
		require.ErrorIs(t, err, ErrBadCursor, plain)
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add(formatCursor(time.Date(2026, 3, 1, 0, 0, 0, 1000, time.UTC), "r-1.x"))
	f.Add("")
	f.Fuzz(func(t *testing.T, cursor string) {
		at, id, err := parseCursor(cursor)
		if err != nil {
			require.ErrorIs(t, err, ErrBadCursor)
			return
		}
		require.NoError(t, refund.ValidateID(id))
		again, sameID, err := parseCursor(formatCursor(at, id))
		require.NoError(t, err)
		require.Equal(t, at, again)
		require.Equal(t, id, sameID)
	})
}
