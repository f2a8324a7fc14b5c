package tty

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Bar shows how far something has come, on one line of a terminal, which it
// clears when it is done. On anything but a terminal it shows nothing.
type Bar struct {
	w     io.Writer // nil shows nothing
	cols  int
	shown bool
	begin time.Time
	now   func() time.Time
}

// showAfter keeps what is quick from flickering.
const showAfter = 150 * time.Millisecond

// NewBar makes a bar on f.
func NewBar(f *os.File) *Bar {
	b := &Bar{now: time.Now}
	if IsTerminal(f) {
		b.w, b.cols = f, 80
		if cols, _, ok := Size(f); ok && cols > 0 {
			b.cols = cols
		}
	}
	b.begin = b.now()
	return b
}

// Set draws the bar. total 0 is unknown. bytes says that done and total are
// bytes.
func (b *Bar) Set(phase string, done, total int64, bytes bool) {
	if b.w == nil || b.now().Sub(b.begin) < showAfter {
		return
	}
	num := func(n int64) string {
		if bytes {
			return Bytes(n)
		}
		return fmt.Sprint(n)
	}
	text := phase + "  " + num(done)
	if total > 0 {
		done = min(done, total)
		const width = 24
		n := int(done * width / total)
		text = fmt.Sprintf("%s  [%s%s] %3d %%  %s of %s", phase, strings.Repeat("#", n), strings.Repeat("-", width-n),
			done*100/total, num(done), num(total))
	}
	fmt.Fprintf(b.w, "\r%s\x1b[K", Cut(Clean(text), b.cols-1))
	b.shown = true
}

// Clear takes the bar away, so that other lines may be written.
func (b *Bar) Clear() {
	if b.shown {
		fmt.Fprint(b.w, "\r\x1b[K")
		b.shown = false
	}
}
