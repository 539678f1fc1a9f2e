package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// drawing collects the elements of an SVG picture. Text is escaped here and
// coordinates are always finite numbers, so nothing that comes from outside can
// become markup or break the picture.
type drawing struct {
	elements strings.Builder
	width    float64
	height   float64
}

// add appends one element; what is put into the format must be safe.
func (d *drawing) add(format string, args ...any) {
	fmt.Fprintf(&d.elements, format+"\n", args...)
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	d.add(`<path class="%s" d="M%s %sL%s %s"/>`, class, px(x1), px(y1), px(x2), px(y2))
}

// rect draws a rectangle; a negative size becomes zero.
func (d *drawing) rect(class string, x, y, width, height float64) {
	d.add(`<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`, class, px(x), px(y), px(max(width, 0)), px(max(height, 0)))
}

// text writes content; anchor is start, middle or end.
func (d *drawing) text(class, anchor string, x, y float64, content string) {
	d.add(`<text class="%s" text-anchor="%s" x="%s" y="%s">%s</text>`, class, anchor, px(x), px(y), html.EscapeString(content))
}

// path draws an outline that was put together with move and line commands.
func (d *drawing) path(class, commands string) {
	if commands != "" {
		d.add(`<path class="%s" d="%s"/>`, class, commands)
	}
}

// picture closes the drawing. The title and the description are what a screen
// reader says instead of it.
func (d *drawing) picture(class, id, title, description string) template.HTML {
	return template.HTML(fmt.Sprintf(
		`<svg class="chart %[1]s" role="img" aria-labelledby="%[2]s-title %[2]s-desc" viewBox="0 0 %[3]s %[4]s"><title id="%[2]s-title">%[5]s</title><desc id="%[2]s-desc">%[6]s</desc>%[7]s</svg>`,
		class, id, px(d.width), px(d.height), html.EscapeString(title), html.EscapeString(description), d.elements.String()))
}

// px writes a coordinate with one decimal.
func px(v float64) string {
	if !finite(v) {
		return "0"
	}
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

// outline turns points into the commands of a line through them. It skips what
// can't be drawn, and repeats no place.
func outline(points []point, x, y scale) string {
	var commands strings.Builder
	last := ""
	for _, p := range points {
		if !finite(p.x) || !finite(p.y) {
			continue
		}
		place := px(x.at(p.x)) + " " + px(y.at(p.y))
		if place == last {
			continue
		}
		if last == "" {
			commands.WriteString("M")
		} else {
			commands.WriteString("L")
		}
		commands.WriteString(place)
		last = place
	}
	return commands.String()
}

// scale maps values from..to onto the coordinates low..high.
type scale struct{ from, to, low, high float64 }

// at returns a value's coordinate, held to the ends of the scale.
func (s scale) at(v float64) float64 {
	if s.to <= s.from {
		return s.low
	}
	share := min(max((v-s.from)/(s.to-s.from), 0), 1)
	return s.low + share*(s.high-s.low)
}

// ticks returns about n round values on the scale.
func (s scale) ticks(n int) []float64 {
	step := niceStep(s.to-s.from, n)
	var ticks []float64
	for i := math.Ceil(s.from/step - 1e-9); i*step <= s.to+step*1e-9; i++ {
		ticks = append(ticks, i*step)
	}
	return ticks
}

// niceStep returns 1, 2 or 5 times a power of ten, at least so large that span
// has no more than n steps.
func niceStep(span float64, n int) float64 {
	if !finite(span) || span <= 0 || n < 1 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(span/float64(n))))
	for _, factor := range []float64{1, 2, 5} {
		if span/(factor*power) <= float64(n)+1e-9 {
			return factor * power
		}
	}
	return 10 * power
}

// niceTop returns the end of an axis from zero that holds highest, at a tick.
func niceTop(highest float64, n int) float64 {
	if !finite(highest) || highest <= 0 {
		return 1
	}
	step := niceStep(highest, n)
	return step * math.Ceil(highest/step-1e-9)
}

// textWidth is about how wide a text of the charts is, in pixels. There is no
// font at hand to measure it with; the figure is on the wide side.
func textWidth(text string) float64 { return 6.3 * float64(utf8.RuneCountInString(text)) }

// shorten cuts a text to a number of characters, and shows that it did.
func shorten(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:max(most-1, 0)]) + "…"
}
