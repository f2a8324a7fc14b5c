//go:build linux

package engine

import (
	"bytes"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
)

// What is kept of a command's output.
const (
	tailBytes = 4 << 10
	tailLines = 20
)

// audience is the client's end of a command that nobody is at: it sends nothing,
// and keeps the end of what it is told.
type audience struct {
	mu     sync.Mutex
	all    tail // stdout and stderr as they came; guarded by mu
	stdout tail // guarded by mu
}

// Read ends the input: nobody types.
func (*audience) Read([]byte) (int, error) { return 0, io.EOF }

// Write takes one frame.
func (a *audience) Write(p []byte) (int, error) {
	t, payload, err := wire.ReadFrame(bytes.NewReader(p), nil)
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch t {
	case wire.FrameStdout:
		a.stdout.add(payload)
		a.all.add(payload)
	case wire.FrameStderr:
		a.all.add(payload)
	}
	return len(p), nil
}

// tail is the last bytes of something long.
type tail []byte

func (t *tail) add(p []byte) {
	p = p[max(0, len(p)-tailBytes):]
	if over := len(*t) + len(p) - tailBytes; over > 0 {
		*t = append((*t)[:0], (*t)[over:]...)
	}
	*t = append(*t, p...)
}

// end gives the last lines of text, whole ones if any is.
func end(text string) string {
	text = strings.ToValidUTF8(strings.TrimRight(text, "\n"), "\ufffd")
	if over := len(text) - tailBytes; over > 0 {
		text = strings.ToValidUTF8(text[over:], "")
	}
	if len(text) >= tailBytes-3 { // its first line may be cut
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		}
	}
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// number reads the last line of text that is not empty.
func number(text string) (float64, bool) {
	text = strings.TrimSpace(text)
	x, err := strconv.ParseFloat(strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:]), 64)
	return x, err == nil && !math.IsNaN(x) && !math.IsInf(x, 0)
}
