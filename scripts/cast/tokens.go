package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// token is a part of a terminal's output: text without control characters, one control character, or one sequence.
type token struct {
	raw   string
	final byte   // of a CSI sequence; otherwise 0
	args  string // of a CSI sequence: what is between "\x1b[" and the final byte
}

// isText reports whether the token is text.
func (t token) isText() bool { return t.raw[0] >= ' ' && t.raw[0] != 0x7f }

// maxSequence is the maximum length of a sequence, in bytes. It bounds what a cleaner keeps, and scans again with each
// read, for a sequence that never ends.
const maxSequence = 4 << 10

// tokens splits output. The rest is an incomplete sequence or rune at the end.
func tokens(output string) (all []token, rest string, err error) {
	for output != "" {
		n, err := tokenLen(output)
		if err != nil {
			return all, output, err
		}
		t := token{raw: output[:n]}
		if n == 0 {
			t.raw = output
		}
		if len(t.raw) > maxSequence && !t.isText() {
			return all, output, fmt.Errorf("sequence %q... is longer than %d bytes", t.raw[:8], maxSequence)
		}
		if n == 0 {
			break
		}
		if n > 2 && strings.HasPrefix(t.raw, "\x1b[") {
			t.final, t.args = t.raw[n-1], t.raw[2:n-1]
		}
		all, output = append(all, t), output[n:]
	}
	return all, output, nil
}

// tokenLen returns the length of the first token of s, or 0 if it is incomplete.
func tokenLen(s string) (int, error) {
	switch {
	case strings.HasPrefix(s, "\x1b["): // CSI: parameters and intermediates, then a final byte
		for i := 2; i < len(s); i++ {
			switch c := s[i]; {
			case c >= '@' && c <= '~':
				return i + 1, nil
			case c < ' ' || c > '?':
				return 0, fmt.Errorf("invalid sequence %q", s[:i+1])
			}
		}
		return 0, nil
	case strings.HasPrefix(s, "\x1b]"), strings.HasPrefix(s, "\x1bP"), strings.HasPrefix(s, "\x1b_"): // OSC, DCS, APC
		for i := 2; i < len(s); i++ {
			if s[i] == '\a' {
				return i + 1, nil
			}
			if s[i] == '\\' && s[i-1] == '\x1b' {
				return i + 1, nil
			}
		}
		return 0, nil
	case strings.HasPrefix(s, "\x1b("): // a character set
		return len(s[:min(len(s), 3)]) / 3 * 3, nil
	case s[0] == '\x1b':
		return len(s[:min(len(s), 2)]) / 2 * 2, nil
	case s[0] < ' ' || s[0] == 0x7f:
		return 1, nil
	}
	n := 0
	for n < len(s) && s[n] >= ' ' && s[n] != 0x7f {
		if !utf8.FullRuneInString(s[n:]) {
			break
		}
		r, size := utf8.DecodeRuneInString(s[n:])
		if r == utf8.RuneError && size == 1 {
			return 0, errors.New("invalid UTF-8")
		}
		n += size
	}
	return n, nil
}

// cleaner removes from output what is for the terminal itself and not for its picture: titles, queries, and modes of
// keyboard, mouse and paste, in which a player would leave the terminal of the reader.
type cleaner struct{ rest string }

// clean returns the cleaned output. It keeps an incomplete sequence for the next call. A sequence that it does not know
// is an error.
func (c *cleaner) clean(output string) (string, error) {
	all, rest, err := tokens(c.rest + output)
	if err != nil {
		return "", err
	}
	c.rest = rest
	var b strings.Builder
	for _, t := range all {
		switch {
		case drawn(t):
			b.WriteString(t.raw)
		case !ignored(t):
			return "", fmt.Errorf("unknown sequence %q", t.raw)
		}
	}
	return b.String(), nil
}

// drawn reports whether Screen executes the token.
func drawn(t token) bool {
	switch {
	case t.isText():
		return true
	case t.final == 0:
		return strings.Contains("\r\n\b", t.raw) || t.raw == "\x1b7" || t.raw == "\x1b8"
	case strings.IndexByte("hl", t.final) >= 0:
		return t.args == "?25"
	case strings.Trim(t.args, "0123456789;:") != "":
		return false
	}
	return strings.IndexByte("ABCDEGHJKm", t.final) >= 0
}

// ignored reports whether the token can be left out of a recording.
func ignored(t token) bool {
	switch {
	case t.final == 0:
		return t.raw == "\a" || t.raw == "\x0f" || strings.HasPrefix(t.raw, "\x1b]") || t.raw == "\x1b(B"
	case t.final == 'm':
		return strings.HasPrefix(t.args, ">") // of the keyboard
	case t.raw == "\x1b[r", t.raw == "\x1b[?1049l":
		return true // programs reset the terminal with these before they have changed it
	case strings.IndexByte("hl", t.final) >= 0: // mouse, focus, paste, synchronized output, changes of the theme
		return slices.Contains([]string{"?1000", "?1002", "?1003", "?1004", "?1006", "?2004", "?2026", "?2031"}, t.args)
	}
	return strings.IndexByte("cnquSp", t.final) >= 0 // attributes, status, version, keyboard
}
