package mcpapi

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/tty"
	"github.com/coppice-dev/coppice/internal/visible"
)

// maxText is the maximum size of an output or a patch for a client, in bytes.
const maxText = 64 << 10

// excerpt is a writer that keeps the beginning and the end of what is written.
type excerpt struct {
	head  []byte // at most maxText/2 bytes
	tail  []byte // at most the last maxText bytes of the rest; text uses maxText/2
	total int64
}

// Write never fails.
func (e *excerpt) Write(p []byte) (int, error) {
	n := len(p)
	e.total += int64(n)
	k := min(len(p), maxText/2-len(e.head))
	e.head, p = append(e.head, p[:k]...), p[k:]
	if len(p) > maxText/2 {
		e.tail, p = e.tail[:0], p[len(p)-maxText/2:]
	}
	if e.tail = append(e.tail, p...); len(e.tail) > maxText {
		e.tail = append(e.tail[:0], e.tail[len(e.tail)-maxText/2:]...)
	}
	return n, nil
}

// text returns the beginning and the end, each sanitized and at most maxText bytes long, and the number of bytes
// omitted between them.
func (e *excerpt) text() (head, tail string, omitted int64) {
	first, last := e.head, e.tail
	whole := int64(len(first)+len(last)) == e.total
	if whole {
		first = append(append([]byte(nil), first...), last...)
		if s := sanitize(string(first)); len(s) <= maxText {
			return s, "", 0
		}
	}
	head, n := firstVisible(string(first), maxText/2)
	if whole {
		last = first[n:]
	}
	tail, k := lastVisible(string(last), maxText/2)
	return head, tail, e.total - int64(n) - int64(k)
}

// sanitize escapes control bytes, except newlines and tabs.
func sanitize(s string) string {
	out, _ := firstVisible(s, utf8.UTFMax*len(s)*4)
	return out
}

// firstVisible sanitizes the beginning of s, to at most limit bytes. It also returns how many bytes of s it used.
func firstVisible(s string, limit int) (string, int) {
	var b strings.Builder
	n := 0
	var line visible.Line
	for n < len(s) {
		was := b.Len()
		size := next(&b, &line, s[n:])
		if b.Len() > limit {
			return b.String()[:was], n
		}
		n += size
	}
	return b.String(), n
}

// lastVisible is firstVisible for the end of s.
func lastVisible(s string, limit int) (string, int) {
	var b strings.Builder
	type at struct{ in, out int }
	var all []at // where each character begins, in s and in b
	var line visible.Line
	for n := 0; n < len(s); {
		all = append(all, at{n, b.Len()})
		n += next(&b, &line, s[n:])
	}
	out := b.String()
	from := at{len(s), len(out)}
	for i := len(all) - 1; i >= 0 && len(out)-all[i].out <= limit; i-- {
		from = all[i]
	}
	return out[from.out:], len(s) - from.in
}

// next writes the first character of s, or its escape, and returns its length in s.
func next(b *strings.Builder, line *visible.Line, s string) int {
	if s[0] == '\n' || s[0] == '\t' {
		b.WriteByte(s[0])
		*line = visible.Line{}
		return 1
	}
	return line.Next(b, s)
}

// shorten sanitizes text and limits it to limit bytes.
func shorten(s string, limit int) string {
	out, n := firstVisible(s, limit)
	if n < len(s) {
		out += "..."
	}
	return out
}

// line sanitizes text from a sandbox or a user, and limits it to one line.
func line(s string) string {
	const limit = 200
	return tty.Cut(tty.Clean(s[:min(len(s), 4*limit)]), limit)
}

// size formats a number of bytes.
func size(n int64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return tty.Count(int(n), "byte")
}
