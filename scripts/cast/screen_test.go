package main

import (
	"strings"
	"testing"
)

func TestScreen_ShowsWhatATerminalShows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ output, want string }{
		"lines":                 {"one\r\ntwo", "one\ntwo\n\n"},
		"wrap after the column": {"abcdefgh\rX", "Xbcdefgh\n\n\n"},
		"wrap":                  {"abcdefghi", "abcdefgh\ni\n\n"},
		"scroll":                {"1\r\n2\r\n3\r\n4", "2\n3\n4\n"},
		"move and erase":        {"abc\r\ndef\x1b[1A\x1b[2D\x1b[KX\x1b[2;1HY", "aX\nYef\n\n"},
		"column and line":       {"abc\x1b[2Gx\x1b[Ey\x1b[9Bz", "axc\ny\n z\n"},
		"erase all":             {"abc\r\ndef\x1b[2J\x1b[HX", "X\n\n\n"},
		"erase below":           {"abc\r\ndef\r\nghi\x1b[2;2H\x1b[J", "abc\nd\n\n"},
		"erase above":           {"abc\r\ndef\x1b[1J", "\n\n\n"},
		"save and restore":      {"ab\x1b7\r\ncd\x1b8X", "abX\ncd\n\n"},
		"backspace":             {"abc\b\bX", "aXc\n\n\n"},
		"variation selector":    {"a✳\ufe0eb", "a✳b\n\n\n"},
		"colors":                {"\x1b[1;38;5;9;48;2;1;2;3mA\x1b[0;91;4mB\x1b[mC", "ABC\n\n\n"},
	} {
		s := NewScreen(8, 3)
		if err := s.Write(c.output); err != nil || s.String() != c.want {
			t.Errorf("%s: %q, %v, want %q", name, s, err, c.want)
		}
	}
}

func TestScreen_RefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, output := range []string{
		"\x1b[?1049h", "\x1b[?2004h", "\x1b]0;title\a", "\x1bc", "\x1b[6n", "\x1b[5;5r", "\x1b[38;9;1m", "\x1b[99m", "\x1b[4K",
		"\x1b[3", "\a", "\t", "\x7f", "\u0085", "\xff", "字", "\x1b[99999999A",
	} {
		if err := NewScreen(8, 3).Write(output); err == nil {
			t.Errorf("%q was executed", output)
		}
	}
}

func TestScreen_Styles(t *testing.T) {
	t.Parallel()
	s := NewScreen(8, 3)
	if err := s.Write("\x1b[1;2;3;4;7;38;5;9;48;2;1;2;3mA\x1b[22;23;24;27;39;49;95mB"); err != nil {
		t.Fatal(err)
	}
	want := style{fg: 10, bg: rgb + 0x010203, bold: true, dim: true, italic: true, underline: true, inverse: true}
	if got := s.cells[0][0].style; got != want {
		t.Errorf("A has %+v, want %+v", got, want)
	}
	if got := s.cells[0][1].style; got != (style{fg: 14}) {
		t.Errorf("B has %+v", got)
	}
}

// TestCleaner_IsIndependentOfReads cleans an output in every pair of parts.
func TestCleaner_IsIndependentOfReads(t *testing.T) {
	t.Parallel()
	const (
		output = "\x1b[?2004h\x1b]0;~/shop\a\x1b]8;;http://x\x1b\\a\x1b[31m✳\x1b[0m\x1b[?25l\x1b[>1u\x1b[c\x1b7\x1b[r\x1b(Bb\r\n\a\x1b[?2026l"
		want   = "a\x1b[31m✳\x1b[0m\x1b[?25l\x1b7b\r\n"
	)
	for i := range output {
		var c cleaner
		a, err := c.clean(output[:i])
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.clean(output[i:])
		if got := a + b; err != nil || got != want || c.rest != "" {
			t.Errorf("in parts of %d bytes: %q and %q, %v, want %q", i, got, c.rest, err, want)
		}
	}
	if text, err := new(cleaner).clean("\x1b[?1049h"); err == nil {
		t.Errorf("the alternate screen was left out: %q", text)
	}
}

func TestReadCast_RefusesInvalidOnes(t *testing.T) {
	t.Parallel()
	const header = `{"version":2,"width":8,"height":3,"title":"t"}` + "\n"
	c, err := ReadCast([]byte(header + "[0,\"o\",\"a\"]\n[0.5,\"m\",\"b\"]\n"))
	if err != nil || len(c.Events) != 2 || c.Events[1] != (Event{0.5, Marker, "b"}) {
		t.Errorf("%+v, %v", c, err)
	}
	for _, text := range []string{
		"", header, "{}\n[0,\"o\",\"a\"]\n", strings.Replace(header, "2", "3", 1) + "[0,\"o\",\"a\"]\n",
		strings.Replace(header, `"t"`, `"t","env":{}`, 1) + "[0,\"o\",\"a\"]\n",
		header + "[0,\"i\",\"a\"]\n", header + "[0,\"o\"]\n", header + "[0,\"o\",\"a\",1]\n", header + "[-1,\"o\",\"a\"]\n",
		header + "[2,\"o\",\"a\"]\n[1,\"o\",\"a\"]\n", header + "nothing\n",
	} {
		if c, err := ReadCast([]byte(text)); err == nil {
			t.Errorf("%q was read as %+v", text, c)
		}
	}
}

func TestShorten_ReducesPauses(t *testing.T) {
	t.Parallel()
	c := Cast{Events: []Event{{At: 3}, {At: 3.25}, {At: 10}, {At: 10.00049}}}
	c.shorten(2)
	for i, want := range []float64{2, 2.25, 4.25, 4.25} {
		if got := c.Events[i].At; got != want {
			t.Errorf("event %d is at %v, want %v", i, got, want)
		}
	}
}

// TestCleaner_BoundsASequence sends titles that never end, in small reads: the cleaner must neither keep them nor scan
// all of them again with each read.
func TestCleaner_BoundsASequence(t *testing.T) {
	for _, start := range []string{"\x1b]0;", "\x1b[", "\x1bP", "\x1b_"} {
		c := cleaner{}
		_, err := c.clean(start)
		sent := 0
		for ; err == nil && sent < 1<<20; sent++ {
			_, err = c.clean("1")
		}
		if err == nil || sent > maxSequence {
			t.Errorf("%q: %d bytes are kept after %d: %v", start, len(c.rest), sent, err)
		}
		if _, err := new(cleaner).clean(start + strings.Repeat("1", maxSequence) + "\a"); err == nil {
			t.Errorf("%q: the limit depends on the reads", start)
		}
	}
	title := "\x1b]0;" + strings.Repeat("a", maxSequence-5) + "\a"
	text, err := new(cleaner).clean(title + strings.Repeat("b", 2*maxSequence))
	if err != nil || len(text) != 2*maxSequence {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
