package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

const (
	textColumns = 120 // that a terminal is trusted to have
	nameColumns = 32
)

// WriteText writes a summary for a terminal, at most 120 columns wide: a line
// per scenario, what failed, and the verdict last, where the eye is.
func (r Report) WriteText(w io.Writer) error {
	var text bytes.Buffer
	r.writeTable(&text)
	r.writeFailures(&text)
	r.writeVerdict(&text)
	if _, err := w.Write(text.Bytes()); err != nil {
		return fmt.Errorf("writing the report as text: %w", err)
	}
	return nil
}

func (r Report) writeTable(w io.Writer) {
	if len(r.Scenarios) == 0 {
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VERDICT\tSCENARIO\tTOOK\tSTARTS\tSETTLED\tSMALLEST GAP\tIN FLIGHT\tFIRST\tRETRY\tCHECK\tMANUAL")
	for _, s := range r.Scenarios {
		n := s.byOrigin()
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%d\n",
			verdict(s.held()), shorten(plain(s.Name), nameColumns), took(s.Ended-s.Began), len(s.Starts), len(s.Settled),
			gapText(s.gaps()), s.mostInFlight(), n["first"], n["retry"], n["check"], n["manual"])
	}
	table.Flush()
	fmt.Fprintln(w)
}

func (r Report) writeFailures(w io.Writer) {
	for _, f := range r.failures() {
		if f.Problem != "" {
			wrap(w, "", fmt.Sprintf("%s could not be carried out as planned: %s", f.Scenario, f.Problem))
		} else {
			wrap(w, "", fmt.Sprintf("%s, %s: %s", f.Scenario, f.Check.Name, f.Check.Promise))
			wrap(w, "  ", "measured: "+f.Check.Measured)
		}
		for _, problem := range f.Check.Problems {
			wrap(w, "  - ", problem)
		}
		fmt.Fprintln(w)
	}
}

func (r Report) writeVerdict(w io.Writer) {
	if sentence, _ := r.sabotage(); sentence != "" {
		wrap(w, "", sentence)
	}
	wrap(w, "", fmt.Sprintf("%s in %s. %s", verdict(r.held()), took(r.Ended.Sub(r.Began).Seconds()), r.summary()))
}

// wrap writes text in lines of at most textColumns; the first line begins with
// indent, the others with as many spaces.
func wrap(w io.Writer, indent, text string) {
	room := textColumns - utf8.RuneCountInString(indent)
	line := ""
	flush := func() {
		fmt.Fprintln(w, indent+line)
		indent, line = strings.Repeat(" ", utf8.RuneCountInString(indent)), ""
	}
	for _, word := range strings.Fields(plain(text)) {
		for _, part := range pieces(word, room) {
			if line != "" && utf8.RuneCountInString(line+" "+part) > room {
				flush()
			}
			line = strings.TrimPrefix(line+" "+part, " ")
		}
	}
	if line != "" {
		flush()
	}
}

// pieces cuts a word that has no room in one line.
func pieces(word string, room int) []string {
	var all []string
	runes := []rune(word)
	for len(runes) > room {
		all = append(all, string(runes[:room]))
		runes = runes[room:]
	}
	return append(all, string(runes))
}

// plain replaces what could steer a terminal or hide text: problems hold data
// from outside.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
