package main

import (
	"fmt"
	"strconv"
	"strings"
)

// Screen is what a terminal shows. It executes the sequences that recordings have, and fails at any other.
type Screen struct {
	cols, rows int
	row, col   int // of the cursor; col is cols after the last column was written
	saved      [2]int
	hidden     bool
	pen        style
	cells      [][]cell
}

// cell is one place of a screen.
type cell struct {
	r     rune
	style style
}

// style is how a cell is drawn.
type style struct {
	fg, bg                                color
	bold, dim, italic, underline, inverse bool
}

// color is 0 for the default color, 1+n for color n of the 256 of a terminal, or rgb+0xRRGGBB.
type color int32

const rgb color = 1 << 24

// NewScreen returns an empty screen.
func NewScreen(cols, rows int) *Screen {
	s := &Screen{cols: cols, rows: rows}
	for range rows {
		s.cells = append(s.cells, s.blank())
	}
	return s
}

// blank returns an empty line.
func (s *Screen) blank() []cell {
	line := make([]cell, s.cols)
	for i := range line {
		line[i].r = ' '
	}
	return line
}

// Write executes output, which must not end within a sequence.
func (s *Screen) Write(output string) error {
	all, rest, err := tokens(output)
	if err == nil && rest != "" {
		err = fmt.Errorf("incomplete sequence %q", rest)
	}
	if err != nil {
		return err
	}
	for _, t := range all {
		if !drawn(t) {
			return fmt.Errorf("unknown sequence %q", t.raw)
		}
		switch {
		case t.isText():
			for _, r := range t.raw {
				if err := s.put(r); err != nil {
					return err
				}
			}
		case t.final == 0:
			s.control(t.raw)
		case t.final == 'm':
			s.pen, err = styled(s.pen, t.args)
		default:
			err = s.csi(t)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", t.raw, err)
		}
	}
	return nil
}

// put writes a rune at the cursor.
func (s *Screen) put(r rune) error {
	switch {
	case r == '\ufe0e' || r == '\ufe0f' || r == '\u200d': // variation selectors and joiners have no width
		return nil
	case r >= 0x80 && r < 0xa0:
		return fmt.Errorf("control character %q", r)
	case r >= 0x1100 && r < 0x1160, r >= 0x2e80 && r < 0xa4d0, r >= 0xac00 && r < 0xd7a4, r >= 0xf900 && r < 0xfb00,
		r >= 0xfe30 && r < 0xfe70, r >= 0xff00 && r < 0xff61, r >= 0x1f300:
		return fmt.Errorf("%q is wider than one column", r)
	}
	if s.col == s.cols {
		s.col = 0
		s.down()
	}
	s.cells[s.row][s.col] = cell{r, s.pen}
	s.col++
	return nil
}

// down moves the cursor to the next row, and scrolls at the last.
func (s *Screen) down() {
	if s.row < s.rows-1 {
		s.row++
		return
	}
	s.cells = append(s.cells[1:], s.blank())
}

// control executes a control character, or a sequence of two.
func (s *Screen) control(c string) {
	switch c {
	case "\r":
		s.col = 0
	case "\n":
		s.down()
	case "\x1b7":
		s.saved = [2]int{s.row, s.col}
	case "\x1b8":
		s.row, s.col = s.saved[0], s.saved[1]
	case "\b":
		s.col = max(min(s.col, s.cols-1)-1, 0)
	}
}

// csi executes a CSI sequence other than SGR.
func (s *Screen) csi(t token) error {
	if t.args == "?25" {
		s.hidden = t.final == 'l'
		return nil
	}
	first, second, _ := strings.Cut(t.args, ";")
	n, err := number(first)
	if err != nil {
		return err
	}
	m, err := number(second)
	if err != nil {
		return err
	}
	col := min(s.col, s.cols-1)
	switch t.final {
	case 'A':
		s.move(s.row-max(n, 1), col)
	case 'B':
		s.move(s.row+max(n, 1), col)
	case 'C':
		s.move(s.row, col+max(n, 1))
	case 'D':
		s.move(s.row, col-max(n, 1))
	case 'E':
		s.move(s.row+max(n, 1), 0)
	case 'G':
		s.move(s.row, n-1)
	case 'H':
		s.move(n-1, m-1)
	case 'J', 'K':
		return s.erase(t.final, n)
	}
	return nil
}

// move sets the cursor, within the screen.
func (s *Screen) move(row, col int) {
	s.row, s.col = max(min(row, s.rows-1), 0), max(min(col, s.cols-1), 0)
}

// erase executes ED ('J') and EL ('K').
func (s *Screen) erase(what byte, mode int) error {
	line := s.cells[s.row]
	switch mode {
	case 0:
		copy(line[min(s.col, s.cols-1):], s.blank())
	case 1:
		copy(line[:min(s.col+1, s.cols)], s.blank())
	case 2:
		copy(line, s.blank())
	case 3:
		if what == 'J' {
			return nil // the lines that have scrolled off
		}
		fallthrough
	default:
		return fmt.Errorf("unknown mode %d", mode)
	}
	for i := range s.cells {
		if what == 'J' && (i > s.row && mode != 1 || i < s.row && mode != 0) {
			s.cells[i] = s.blank()
		}
	}
	return nil
}

// number parses a parameter; an empty one is 0.
func number(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err
}

// styled returns the style after SGR with the parameters.
func styled(st style, args string) (style, error) {
	words := strings.Split(args, ";")
	for len(words) > 0 {
		n, err := number(words[0])
		if err != nil {
			return st, err
		}
		words = words[1:]
		switch {
		case n == 0:
			st = style{}
		case n == 1:
			st.bold = true
		case n == 2:
			st.dim = true
		case n == 3 || n == 23:
			st.italic = n == 3
		case n == 4 || n == 24:
			st.underline = n == 4
		case n == 7 || n == 27:
			st.inverse = n == 7
		case n == 22:
			st.bold, st.dim = false, false
		case n >= 30 && n < 38:
			st.fg = color(n - 30 + 1)
		case n >= 90 && n < 98:
			st.fg = color(n - 90 + 8 + 1)
		case n >= 40 && n < 48:
			st.bg = color(n - 40 + 1)
		case n >= 100 && n < 108:
			st.bg = color(n - 100 + 8 + 1)
		case n == 39:
			st.fg = 0
		case n == 49:
			st.bg = 0
		case n == 38:
			st.fg, words, err = extended(words)
		case n == 48:
			st.bg, words, err = extended(words)
		default:
			err = fmt.Errorf("unknown style %d", n)
		}
		if err != nil {
			return st, err
		}
	}
	return st, nil
}

// extended parses the parameters after 38 or 48, and returns those that follow.
func extended(words []string) (color, []string, error) {
	var n [4]int
	for i, w := range words[:min(len(words), 4)] {
		v, err := strconv.ParseUint(w, 10, 8)
		if err != nil {
			return 0, nil, err
		}
		n[i] = int(v)
		if i == 1 && n[0] == 5 {
			return color(n[1] + 1), words[2:], nil
		}
	}
	if n[0] != 2 || len(words) < 4 {
		return 0, nil, fmt.Errorf("invalid color %q", words)
	}
	return rgb + color(n[1]<<16|n[2]<<8|n[3]), words[4:], nil
}

// String returns the text of the screen, without blanks at the ends of lines.
func (s *Screen) String() string {
	var b strings.Builder
	for _, line := range s.cells {
		text := make([]rune, len(line))
		for i, c := range line {
			text[i] = c.r
		}
		b.WriteString(strings.TrimRight(string(text), " ") + "\n")
	}
	return b.String()
}
