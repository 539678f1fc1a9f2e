package report

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

func pageOf(t *testing.T, r Report) string {
	t.Helper()
	var w strings.Builder
	require.NoError(t, r.WriteHTML(&w))
	return w.String()
}

// elements returns the page's elements: names with attributes.
func elements(t *testing.T, page string) []html.Token {
	t.Helper()
	var found []html.Token
	z := html.NewTokenizer(strings.NewReader(page))
	for {
		switch z.Next() {
		case html.ErrorToken:
			require.ErrorIs(t, z.Err(), io.EOF)
			return found
		case html.StartTagToken, html.SelfClosingTagToken:
			found = append(found, z.Token())
		}
	}
}

func TestPageNeedsNothingElse(t *testing.T) {
	t.Parallel()
	for name, r := range samples() {
		page := pageOf(t, r)
		ids := map[string]bool{}
		var links []string
		for _, e := range elements(t, page) {
			require.NotContains(t, []string{"script", "link", "img", "iframe", "object", "embed", "base", "form"}, e.Data, name)
			for _, a := range e.Attr {
				require.False(t, strings.HasPrefix(a.Key, "on"), "%s: %s", name, a.Key)
				require.NotContains(t, []string{"src", "srcset", "style", "xlink:href", "action"}, a.Key, name)
				switch a.Key {
				case "id":
					require.False(t, ids[a.Val], "%s: two elements are called %s", name, a.Val)
					ids[a.Val] = true
				case "href":
					require.True(t, strings.HasPrefix(a.Val, "#"), a.Val)
					links = append(links, a.Val[1:])
				case "aria-labelledby":
					links = append(links, strings.Fields(a.Val)...)
				}
			}
		}
		for _, link := range links {
			require.True(t, ids[link], "%s: nothing is called %s", name, link)
		}
		require.NotContains(t, page, "url(", name)
		require.NotContains(t, page, "@import", name)
	}
}

func TestPageEscapesWhatComesFromOutside(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"<script>alert(1)</script>", `"><svg onload=alert(1)>`, `</title></style></svg><script>x</script>`} {
		nasty, harmless := pageOf(t, hostile(text)), pageOf(t, hostile("harmless"))
		require.NotContains(t, nasty, text)
		require.Len(t, elements(t, nasty), len(elements(t, harmless)), "text has become markup")
		require.Contains(t, nasty, html.EscapeString(text)[:8])
	}
}

var svgs = regexp.MustCompile(`(?s)<svg.*?</svg>`)

// Every picture is well-formed, and every number in it is one.
func TestPicturesAreSound(t *testing.T) {
	t.Parallel()
	reports := samples()
	reports["absurd"] = absurd()
	for name, r := range reports {
		for _, svg := range svgs.FindAllString(pageOf(t, r), -1) {
			require.NotRegexp(t, "NaN|Inf", svg, name)
			decoder := xml.NewDecoder(strings.NewReader(svg))
			for {
				token, err := decoder.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err, name)
				if e, ok := token.(xml.StartElement); ok {
					checkNumbers(t, name, e)
				}
			}
		}
	}
}

func checkNumbers(t *testing.T, name string, e xml.StartElement) {
	t.Helper()
	for _, a := range e.Attr {
		switch a.Name.Local {
		case "d":
			require.Empty(t, strings.Trim(a.Value, "MLmlhvz-0123456789. "), name)
		case "x", "y", "width", "height", "cx", "cy", "r", "viewBox":
			require.Empty(t, strings.Trim(a.Value, "-0123456789. "), name)
		}
	}
}

// absurd has numbers that are none, or that no drill has.
func absurd() Report {
	r := sample()
	for i, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1e300, 1e300, -5} {
		s := &r.Scenarios[i]
		s.Began, s.Ended = v, -v
		s.Starts[3].At, s.Starts[3].GapMS, s.Starts[3].InFlight = v, v, -1
		s.Settled[3] = v
		s.Oldest[3] = Age{v, v, 1}
		s.Figures[0].Value = v
		s.Windows = append(s.Windows, Window{"absurd", v, -v})
	}
	r.Budget.IntervalMS = math.NaN()
	return r
}

func TestPageSaysWhatFailed(t *testing.T) {
	t.Parallel()
	page := pageOf(t, failedSample())
	require.Contains(t, page, "✗ FAILED")
	require.Contains(t, page, "It noticed: 2 checks failed")
	top, rest, found := strings.Cut(page, "<h2>The run</h2>")
	require.True(t, found)
	require.Contains(t, top, `<a href="#scenario-3">drop</a>`)
	require.Contains(t, top, "drop-014/1/submit/1 left 137.250 ms after the call before it")
	require.Contains(t, top, `<a href="#scenario-8">killed</a>`)
	require.Contains(t, top, "context deadline exceeded")
	require.Contains(t, rest, `<b class="alarm">3</b> shorter than 200 ms`)
	require.Contains(t, rest, `<span class="alarm">137.250 ms</span>`)
	require.Contains(t, rest, "sent too early")
	require.Contains(t, rest, "Nothing was checked.", "of the scenario that could not be carried out")
}

// A scenario that failed without a word is named all the same.
func TestPageNamesAScenarioThatFailedWithoutACheck(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Passed, r.Scenarios[3].Passed = false, false
	page := pageOf(t, r)
	top, _, _ := strings.Cut(page, "<h2>The run</h2>")
	require.Contains(t, top, `<a href="#scenario-4">reject</a>`)
	require.Contains(t, top, "no check says why")
	require.Contains(t, text(t, r), "reject, verdict: the scenario passes\n")
}

func TestPageOfAPassedDrill(t *testing.T) {
	t.Parallel()
	page := pageOf(t, sample())
	require.Contains(t, page, "✓ PASSED")
	require.Contains(t, page, "36 checks in 9 scenarios: every one held.")
	require.Contains(t, page, `<b>0</b> shorter than 200 ms`)
	for _, not := range []string{"FAILED", "What failed", "Sabotage", "sent too early"} {
		require.NotContains(t, page, not)
	}
}

func TestPageOfNothing(t *testing.T) {
	t.Parallel()
	page := pageOf(t, Report{Passed: true})
	require.Contains(t, page, "✗ FAILED", "what shows nothing has not passed")
	require.Contains(t, page, "No scenario was run")
	require.NotContains(t, page, "<svg")
}

// Somebody has to be able to mail the page of an hour at the full rate.
func TestPageOfALongDrill(t *testing.T) {
	t.Parallel()
	r := longSample()
	require.Len(t, r.Scenarios[0].Starts, 18_000)
	began := time.Now()
	page := pageOf(t, r)
	require.Less(t, len(page), 5<<20)
	require.Less(t, time.Since(began), 20*time.Second)
	require.Contains(t, page, "18000")
}
