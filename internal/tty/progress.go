package tty

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Bar shows the progress of an operation: on a terminal as one line that is redrawn, and cleared when the operation
// ends; on a pipe or a file as a line every ten seconds. It is not safe for concurrent use.
type Bar struct {
	w     io.Writer // nil shows nothing
	cols  int       // of the terminal; 0 if it is not a terminal
	shown bool
	next  time.Time // time of the next output
	now   func() time.Time
}

// showAfter keeps quick operations from flickering; lineEvery keeps logs short.
const (
	showAfter = 150 * time.Millisecond
	lineEvery = 10 * time.Second
)

// NewBar returns a bar on f; if f is nil, the bar shows nothing.
func NewBar(f *os.File) *Bar {
	b := &Bar{now: time.Now}
	wait := lineEvery
	if f != nil {
		b.w = f
	}
	if IsTerminal(f) {
		wait, b.cols = showAfter, 80
		if cols, _, ok := Size(f); ok && cols > 0 {
			b.cols = cols
		}
	}
	b.next = b.now().Add(wait)
	return b
}

// Set draws the bar. A total of 0 is unknown. bytes says whether done and total are bytes.
func (b *Bar) Set(phase string, done, total int64, bytes bool) {
	if b.w == nil || b.now().Before(b.next) {
		return
	}
	num := func(n int64) string {
		if bytes {
			return Bytes(n)
		}
		return fmt.Sprint(n)
	}
	text := phase + "  " + num(done)
	switch {
	case total > 0 && b.cols == 0:
		text += " of " + num(total)
	case total > 0:
		done = min(done, total)
		const width = 24
		n := int(done * width / total)
		text = fmt.Sprintf("%s  [%s%s] %3d %%  %s of %s", phase, strings.Repeat("#", n), strings.Repeat("-", width-n),
			done*100/total, num(done), num(total))
	}
	if b.cols == 0 {
		fmt.Fprintln(b.w, Clean(text))
		b.next = b.now().Add(lineEvery)
		return
	}
	fmt.Fprintf(b.w, "\r%s\x1b[K", Cut(Clean(text), b.cols-1))
	b.shown = true
}

// Clear removes the bar, so that other lines may be written.
func (b *Bar) Clear() {
	if b.shown {
		fmt.Fprint(b.w, "\r\x1b[K")
		b.shown = false
	}
}
