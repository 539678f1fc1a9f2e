package starter

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"refundgate/ledger"
	"refundgate/refund"
)

// parseFilter reads the query of a list of cases. Unknown and repeated
// parameters are refused: a typo must not turn into the list of everything.
func parseFilter(rawQuery string) (ledger.Filter, []refund.FieldError) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return ledger.Filter{}, []refund.FieldError{{Field: "query", Message: "is not a valid URL query"}}
	}
	filter := ledger.Filter{Limit: ledger.DefaultPageSize}
	var bad []refund.FieldError
	for name, values := range query {
		message := ""
		if len(values) > 1 {
			message = "is there twice"
		} else {
			message = setFilter(&filter, name, values[0])
		}
		if message != "" {
			bad = append(bad, refund.FieldError{Field: shorten(name), Message: message})
		}
	}
	slices.SortFunc(bad, func(a, b refund.FieldError) int { return strings.Compare(a.Field, b.Field) })
	return filter, bad
}

// setFilter sets one parameter and returns what is wrong with it, if anything.
func setFilter(f *ledger.Filter, name, value string) string {
	switch name {
	case "status":
		if f.Status = refund.Status(value); !f.Status.Valid() {
			return fmt.Sprintf("must be one of %v", refund.Statuses)
		}
	case "owner":
		if f.Owner = value; value == "" || !utf8.ValidString(value) || utf8.RuneCountInString(value) > refund.MaxActorLen {
			return "must be a person's name"
		}
	case "account":
		if f.Account = value; refund.ValidateAccount(value) != nil {
			return "must be the name of an account"
		}
	case "cursor":
		f.Cursor = value
	case "limit":
		n, err := strconv.Atoi(value)
		if f.Limit = n; err != nil || n < 1 || n > ledger.MaxPageSize {
			return fmt.Sprintf("must be from 1 to %d", ledger.MaxPageSize)
		}
	default:
		return "is not a known parameter"
	}
	return ""
}
