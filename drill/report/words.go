package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// verdict is the result in one word.
func verdict(passed bool) string {
	if passed {
		return "PASSED"
	}
	return "FAILED"
}

// sabotage says what was broken on purpose and whether the drill noticed; ok
// says whether it did. It returns "" if nothing was.
func (r Report) sabotage() (sentence string, ok bool) {
	broken := fmt.Sprintf("The promise %q was broken on purpose, to see whether the drill notices. ", r.Sabotage)
	switch n := r.failedChecks(); {
	case r.Sabotage == "":
		return "", true
	case r.held():
		return broken + "It did not notice: it passed, so its other results prove nothing.", false
	case n == 0:
		return broken + "It failed, but no check did: that doesn't show that it noticed.", false
	default:
		return broken + fmt.Sprintf("It noticed: %s failed, as at least one had to.", count(n, "check")), true
	}
}

// words says what the budget is, in one sentence per limit.
func (b Budget) words() []string {
	var words []string
	if b.IntervalMS > 0 {
		words = append(words, fmt.Sprintf("at most %s starts/s, at least %s apart", number(1000/b.IntervalMS), milliseconds(b.IntervalMS)))
	}
	words = append(words,
		fmt.Sprintf("at most %s in flight", count(b.MaxInFlight, "call")),
		fmt.Sprintf("%s to connect, %s for the whole call", milliseconds(float64(b.ConnectMS)), milliseconds(float64(b.CallMS))),
		fmt.Sprintf("at most %s and %s per refund", count(b.MaxAttempts, "automatic attempt"), count(b.MaxChecks, "check")))
	deadline := fmt.Sprintf("%s from acceptance to manual review", milliseconds(float64(b.DeadlineMS)))
	if b.LateDeadlineMS > 0 {
		deadline += fmt.Sprintf(" (%s for the refunds that are to run out of time)", milliseconds(float64(b.LateDeadlineMS)))
	}
	return append(words, deadline)
}

// form says how much work was done.
func (r Report) form() string {
	if r.Short {
		return "short: less work per scenario, the same checks"
	}
	return "full"
}

// when says when the drill ran and for how long.
func (r Report) when() string {
	length := "full"
	if r.Short {
		length = "short"
	}
	return fmt.Sprintf("%s, took %s, %s form", when(r.Began), took(r.Ended.Sub(r.Began).Seconds()), length)
}

// kinds lists the starts of a scenario by origin.
func (s Scenario) kinds() string {
	counts := s.byOrigin()
	var words []string
	for _, origin := range s.shownOrigins() {
		words = append(words, fmt.Sprintf("%d %s", counts[origin], origin))
	}
	return strings.Join(words, ", ")
}

// text writes a figure with its unit.
func (f Figure) text() string { return strings.TrimSpace(number(f.Value) + " " + f.Unit) }

// count writes a number with the noun that it counts.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// number writes a value with at most three decimals.
func number(v float64) string {
	if !finite(v) {
		return "–"
	}
	text := strconv.FormatFloat(v, 'f', 3, 64)
	text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	if text == "-0" {
		return "0"
	}
	return text
}

// milliseconds writes a span in its natural unit: 200 ms, 1.5 s, 15 min.
func milliseconds(ms float64) string {
	switch {
	case ms < 1000:
		return number(ms) + " ms"
	case ms < 60_000:
		return number(ms/1000) + " s"
	}
	return minutes(ms / 1000)
}

// took writes how long something took: 4.2 s, 3 min 20 s.
func took(seconds float64) string {
	if !finite(seconds) || seconds < 0 {
		return "–"
	}
	if seconds < 60 {
		return strconv.FormatFloat(seconds, 'f', 1, 64) + " s"
	}
	return minutes(seconds)
}

// minutes writes a longer span in minutes and whole seconds.
func minutes(seconds float64) string {
	whole := math.Round(seconds)
	text := number(math.Floor(whole/60)) + " min"
	if rest := math.Mod(whole, 60); rest > 0 {
		text += " " + number(rest) + " s"
	}
	return text
}

// at writes an instant of the drill.
func at(seconds float64) string {
	if !finite(seconds) {
		return "–"
	}
	return strconv.FormatFloat(seconds, 'f', 1, 64)
}

// when writes a date and time.
func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" }
