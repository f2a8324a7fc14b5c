package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Sizes of the picture, in pixels, and times, in seconds.
const (
	cellWidth, cellHeight = 8.4, 18.0
	baseline              = 13.5 // of text, from the top of a row
	margin, bar           = 14.0, 30.0
	shortest              = 0.06 // what is shown for less is left out: a half-painted screen
	hold                  = 5.0  // the last screen is shown
)

// palette has the colors 0 to 15, on the background.
var palette = [16]string{
	"#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
	"#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#ffffff",
}

const foreground, background = "#e6edf3", "#0d1117"

// SVG returns an animated picture of the cast. It is the same for the same cast, and has no scripts.
//
// Each row of the terminal is a strip of all that the row ever shows, side by side, which an animation moves. A viewer
// that does not animate shows the last screen.
func (c *Cast) SVG() ([]byte, error) {
	p := picture{cast: c, screen: NewScreen(c.Width, c.Height), ids: map[string]string{}, strips: make([]strip, c.Height)}
	for i, e := range c.Events {
		if e.Kind != Output {
			continue
		}
		if err := p.screen.Write(e.Text); err != nil {
			return nil, fmt.Errorf("event %d: %w", i+1, err)
		}
		if i == len(c.Events)-1 || c.Events[i+1].At-e.At >= shortest {
			p.take(e.At)
		}
	}
	p.length = c.Events[len(c.Events)-1].At + hold
	return []byte(p.document()), nil
}

// picture collects what a picture shows.
type picture struct {
	cast   *Cast
	screen *Screen
	length float64
	rows   []string          // distinct rows, as SVG
	ids    map[string]string // by row
	colors []string          // of the style sheet: color n is class "cn"
	strips []strip
}

// strip is what one row of the terminal shows, one after the other.
type strip []struct {
	at float64
	id string // of the row; "" if it is empty
}

// take adds the present screen.
func (p *picture) take(at float64) {
	for i, line := range p.screen.cells {
		cursor := -1
		if i == p.screen.row && !p.screen.hidden {
			cursor = min(p.screen.col, p.screen.cols-1)
		}
		row := p.row(line, cursor)
		id, known := p.ids[row]
		if !known {
			if row != "" {
				id = "r" + strconv.Itoa(len(p.rows))
				p.rows = append(p.rows, row)
			}
			p.ids[row] = id
		}
		if s := p.strips[i]; len(s) == 0 && id != "" || len(s) > 0 && s[len(s)-1].id != id {
			p.strips[i] = append(s, struct {
				at float64
				id string
			}{at, id})
		}
	}
}

// row returns a row as SVG.
func (p *picture) row(line []cell, cursor int) string {
	var b strings.Builder
	for start := 0; start < len(line); {
		end := start + 1
		for end < len(line) && line[end].style == line[start].style && (end == cursor) == (start == cursor) &&
			start != cursor {
			end++
		}
		text := make([]rune, 0, end-start)
		for _, c := range line[start:end] {
			text = append(text, c.r)
		}
		st := line[start].style
		if start == cursor {
			st.inverse = !st.inverse
		}
		p.run(&b, start, string(text), st)
		start = end
	}
	return b.String()
}

// run writes text of one style that starts in a column.
func (p *picture) run(b *strings.Builder, col int, text string, st style) {
	fg, bg := p.class(st.fg), p.class(st.bg)
	if st.inverse {
		if fg, bg = bg, fg; bg == "" {
			bg = p.use(foreground)
		}
		if fg == "" {
			fg = p.use(background)
		}
	}
	width := len([]rune(text))
	if bg != "" {
		fmt.Fprintf(b, `<rect x="%s" y="%s" width="%s" height="%s" class="%s"/>`, decimal(float64(col)*cellWidth),
			decimal(-baseline), decimal(float64(width)*cellWidth), decimal(cellHeight), bg)
	}
	if !st.underline {
		trimmed := strings.TrimLeft(text, " ")
		col += len(text) - len(trimmed)
		text = strings.TrimRight(trimmed, " ")
	}
	if text == "" {
		return
	}
	classes := fg
	for _, on := range []struct {
		is   bool
		name string
	}{{st.bold, "b"}, {st.dim, "d"}, {st.italic, "i"}, {st.underline, "u"}} {
		if on.is {
			classes += " " + on.name
		}
	}
	if classes = strings.TrimSpace(classes); classes != "" {
		classes = ` class="` + classes + `"`
	}
	length := ""
	if n := len([]rune(text)); n > 1 { // a font of another width must not move what follows
		length = ` textLength="` + decimal(float64(n)*cellWidth) + `"`
	}
	fmt.Fprintf(b, `<text x="%s"%s%s>`, decimal(float64(col)*cellWidth), length, classes)
	text = strings.ReplaceAll(text, "⎿", "└") // many fonts do not have the former
	_ = xml.EscapeText(b, []byte(text))       // a Builder does not fail
	b.WriteString("</text>")
}

// class returns the class of a color, "" for the default.
func (p *picture) class(c color) string {
	switch {
	case c == 0:
		return ""
	case c >= rgb:
		return p.use(fmt.Sprintf("#%06x", int(c-rgb)))
	case c <= 16:
		return p.use(palette[c-1])
	case c > 232:
		gray := 8 + 10*int(c-233)
		return p.use(fmt.Sprintf("#%02x%02x%02x", gray, gray, gray))
	}
	levels, n := [6]int{0, 95, 135, 175, 215, 255}, int(c-17)
	return p.use(fmt.Sprintf("#%02x%02x%02x", levels[n/36], levels[n/6%6], levels[n%6]))
}

// use returns the class of a color of the style sheet.
func (p *picture) use(value string) string {
	for i, v := range p.colors {
		if v == value {
			return "c" + strconv.Itoa(i)
		}
	}
	p.colors = append(p.colors, value)
	return "c" + strconv.Itoa(len(p.colors)-1)
}

// document returns the picture.
func (p *picture) document() string {
	var defs, style, rows strings.Builder
	for i, row := range p.rows {
		fmt.Fprintf(&defs, "<g id=\"r%d\">%s</g>\n", i, row)
	}
	for i, value := range p.colors {
		fmt.Fprintf(&style, ".c%d{fill:%s}", i, value)
	}
	style.WriteString("\n")
	width := float64(p.cast.Width) * cellWidth
	for i, s := range p.strips {
		p.strip(&style, &rows, i, s, width)
	}
	w, h := width+2*margin, float64(p.cast.Height)*cellHeight+bar+margin
	var title strings.Builder
	_ = xml.EscapeText(&title, []byte(p.cast.Title)) // a Builder does not fail
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]s %[2]s" width="%[1]s" height="%[2]s" role="img">
<title>%[3]s</title>
<style>
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace}
text{fill:%[4]s;white-space:pre}
.b{font-weight:bold}.d{opacity:.6}.i{font-style:italic}.u{text-decoration:underline}
.s{animation:%[5]ss step-end infinite}
@media(prefers-reduced-motion:reduce){.s{animation:none}}
%[6]s</style>
<rect width="%[1]s" height="%[2]s" rx="8" fill="%[7]s" stroke="#30363d"/>
<circle cx="20" cy="16" r="5.5" fill="#ff5f57"/>
<circle cx="39" cy="16" r="5.5" fill="#febc2e"/>
<circle cx="58" cy="16" r="5.5" fill="#28c840"/>
<defs>
%[8]s</defs>
<svg x="%[9]s" y="%[10]s" width="%[11]s" height="%[12]s">
%[13]s</svg>
</svg>
`, decimal(w), decimal(h), title.String(), foreground, decimal(p.length), style.String(), background, defs.String(),
		decimal(margin), decimal(bar), decimal(width), decimal(h-bar-margin), rows.String())
}

// strip writes row i of the terminal, and its animation.
func (p *picture) strip(style, rows *strings.Builder, i int, s strip, width float64) {
	if len(s) == 0 {
		return
	}
	slots, order := map[string]int{}, []string{}
	slot := func(id string) int {
		if _, ok := slots[id]; !ok {
			slots[id] = len(order)
			order = append(order, id)
		}
		return slots[id]
	}
	slot(s[len(s)-1].id) // the place without animation
	var frames strings.Builder
	fmt.Fprintf(&frames, "0%%{transform:translate(%spx)}", decimal(-width*float64(slot(""))))
	for _, shown := range s {
		fmt.Fprintf(&frames, "%s%%{transform:translate(%spx)}", decimal(shown.at/p.length*100),
			decimal(-width*float64(slot(shown.id))))
	}
	fmt.Fprintf(style, "@keyframes k%d{%s}\n", i, frames.String())
	fmt.Fprintf(rows, `<g transform="translate(0 %s)"><g class="s" style="animation-name:k%d">`,
		decimal(float64(i)*cellHeight+baseline), i)
	for n, id := range order {
		if id != "" {
			fmt.Fprintf(rows, `<use href="#%s" x="%s"/>`, id, decimal(float64(n)*width))
		}
	}
	rows.WriteString("</g></g>\n")
}

// decimal formats a number with at most two decimals.
func decimal(x float64) string { return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64) }
