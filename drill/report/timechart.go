package report

import (
	"html/template"
	"slices"
	"strconv"
)

// The sizes of charts in pixels. Each is drawn twice, wide for screens and
// paper and narrow for phones, since scaling one picture would leave text that
// nobody can read.
const (
	wide   = 1080.0
	narrow = 380.0

	marginLeft  = 52.0
	marginRight = 14.0
	rowHeight   = 16.0 // of labels
	panelGap    = 30.0 // holds the next panel's name
	axisHeight  = 40.0
)

// timeChart is a picture of one or more panels above one time axis.
type timeChart struct {
	id, title, desc string
	from, to        float64 // seconds since the drill began
	bands           []span  // scenarios, if there is more than one to see
	windows         []span
	// keysOnly: the windows' labels are in a list beside the chart, and only
	// their keys in it.
	keysOnly bool
	panels   []panel
}

// span is a named part of the time axis.
type span struct {
	Key, Label string
	From, To   float64
}

// panel is one plot with an axis of its own.
type panel struct {
	name   string // with the unit
	height float64
	top    float64  // value at the upper end; the lower end is 0
	lanes  []string // names in place of a value axis
	limit  float64  // a line that should not be crossed; 0 for none
	says   string   // beside the limit
	draw   func(d *drawing, x, y scale)
}

// both draws the chart wide and narrow.
func (c timeChart) both() template.HTML {
	return c.render("wide", wide) + c.render("narrow", narrow)
}

func (c timeChart) render(class string, width float64) template.HTML {
	d := &drawing{width: width}
	x := scale{c.from, c.to, marginLeft, width - marginRight}
	keysOnly := c.keysOnly || width == narrow
	labels, rows := placeLabels(c.windows, x, keysOnly)

	top := 4.0
	if len(c.bands) > 0 {
		top += rowHeight + 4
	}
	labelsTop := top
	top += float64(rows)*rowHeight + 20
	heights := c.panelTops(top)
	bottom := heights[len(heights)-1]
	d.height = bottom + axisHeight

	c.drawBands(d, x, bottom)
	c.drawWindows(d, x, heights)
	c.drawAxis(d, x, bottom)
	// What is written later covers the lines: names, then the labels.
	drawLeaders(d, labels, labelsTop, rows, heights[0])
	for i, p := range c.panels {
		p.render(d, x, heights[i])
	}
	drawLabels(d, labels, labelsTop, rows)
	return d.picture(class, c.id+"-"+class, c.title, c.desc)
}

// panelTops returns the upper edge of each panel, and the last one's lower edge.
func (c timeChart) panelTops(top float64) []float64 {
	var tops []float64
	for _, p := range c.panels {
		tops = append(tops, top)
		top += p.height + panelGap
	}
	return append(tops, top-panelGap)
}

// drawBands marks where a scenario ends and the next begins.
func (c timeChart) drawBands(d *drawing, x scale, bottom float64) {
	free := 0.0 // where the next label may begin
	for i, b := range c.bands {
		from, to := x.at(b.From), x.at(b.To)
		d.rect("band band"+strconv.Itoa(i%2), from, 2, to-from, rowHeight+2)
		d.line("bound", from, 2, from, bottom)
		d.line("bound", to, 2, to, bottom)
		label := b.Key + " " + b.Label
		if textWidth(label)+6 > to-from {
			label = b.Key
		}
		middle := (from + to) / 2
		if middle-textWidth(label)/2 >= free {
			d.text("label band-name", "middle", middle, rowHeight-1, label)
			free = middle + textWidth(label)/2 + 2
		}
	}
}

// drawWindows shades the windows in each panel.
func (c timeChart) drawWindows(d *drawing, x scale, tops []float64) {
	for _, w := range c.windows {
		from, to := x.at(w.From), x.at(w.To)
		for i, p := range c.panels {
			d.rect("window", from, tops[i], max(to-from, 1), p.height)
		}
	}
}

// drawAxis draws the time axis below the last panel, and its lines in all.
func (c timeChart) drawAxis(d *drawing, x scale, bottom float64) {
	n := 12
	if d.width < 600 {
		n = 5
	}
	for _, t := range x.ticks(n) {
		d.line("tick", x.at(t), bottom, x.at(t), bottom+5)
		d.text("label", "middle", x.at(t), bottom+17, number(t))
	}
	d.text("label", "end", d.width-marginRight, bottom+33, "seconds since the drill began")
}

// render draws the panel's name, axes, limit and content below top.
func (p panel) render(d *drawing, x scale, top float64) {
	bottom := top + p.height
	y := scale{0, p.top, bottom, top}
	d.text("label strong", "start", x.low, top-7, p.name)
	p.drawScale(d, x, y)
	p.draw(d, x, y)
	d.line("axis", x.low, bottom, x.high, bottom)
	d.line("axis", x.low, top, x.low, bottom)
	if p.limit > 0 {
		d.line("limit", x.low, y.at(p.limit), x.high, y.at(p.limit))
		d.text("label limit-text", "end", x.high, top-7, p.says)
	}
}

func (p panel) drawScale(d *drawing, x, y scale) {
	for i, name := range p.lanes {
		d.text("label", "end", x.low-6, y.at(laneMiddle(i, len(p.lanes)))+4, name)
		d.line("grid", x.low, y.at(float64(i)), x.high, y.at(float64(i)))
	}
	if len(p.lanes) > 0 {
		return
	}
	for _, v := range y.ticks(tickCount(p.height)) {
		d.line("grid", x.low, y.at(v), x.high, y.at(v))
		d.text("label", "end", x.low-6, y.at(v)+4, number(v))
	}
}

// tickCount is how many ticks a value axis has room for.
func tickCount(height float64) int { return max(2, int(height/24)) }

// laneMiddle is the value at the middle of lane i of n; the first is on top.
func laneMiddle(i, n int) float64 { return float64(n-i) - 0.5 }

// placed is a label with its place.
type placed struct {
	text     string
	from, to float64 // its sides
	anchor   float64 // where its window begins
	row      int     // counted from the bottom
}

// placeLabels finds a place for each window's label, such that none covers
// another: from right to left, each in the lowest free row. So the line from a
// label down to its window passes left of the labels below it.
func placeLabels(windows []span, x scale, keysOnly bool) (labels []placed, rows int) {
	var free []float64 // per row: the left side of its leftmost label
	for _, w := range slices.Backward(sorted(windows)) {
		l := placeLabel(w, x, keysOnly)
		l.row = slices.IndexFunc(free, func(left float64) bool { return l.to+6 <= left })
		if l.row < 0 {
			l.row = len(free)
			free = append(free, 0)
		}
		free[l.row] = l.from
		labels = append(labels, l)
	}
	return labels, len(free)
}

// placeLabel returns a window's label at the window's beginning, or as near as
// the chart's right side lets it.
func placeLabel(w span, x scale, keyOnly bool) placed {
	text := w.Key
	if !keyOnly {
		text = shorten(w.Key+" "+w.Label, int((x.high-x.low)/textWidth("x")))
	}
	anchor := x.at(w.From)
	from := max(min(anchor, x.high-textWidth(text)), 0)
	return placed{text: text, anchor: anchor, from: from, to: from + textWidth(text)}
}

func sorted(spans []span) []span {
	return slices.SortedStableFunc(slices.Values(spans), func(a, b span) int {
		switch {
		case a.From < b.From:
			return -1
		case a.From > b.From:
			return 1
		}
		return 0
	})
}

// base is the line that the label is written on.
func (l placed) base(top float64, rows int) float64 {
	return top + float64(rows-l.row)*rowHeight - 4
}

// drawLeaders draws the lines from the labels down to the windows.
func drawLeaders(d *drawing, labels []placed, top float64, rows int, plot float64) {
	for _, l := range labels {
		d.line("leader", l.anchor, l.base(top, rows)-9, l.anchor, plot)
	}
}

func drawLabels(d *drawing, labels []placed, top float64, rows int) {
	for _, l := range labels {
		d.text("label on-top", "start", l.from+3, l.base(top, rows), l.text)
	}
}
