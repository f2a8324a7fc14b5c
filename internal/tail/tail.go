// Package tail keeps the end of what a command prints.
package tail

import (
	"bytes"
	"io"
	"strings"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
)

// Limits on the stored output of a command.
const (
	tailBytes = 4 << 10
	tailLines = 20
)

// Client is the client's end of a command that runs without a client: it sends nothing, and keeps the end of the
// output. The zero Client is ready for use; its methods are safe for concurrent use.
type Client struct {
	mu     sync.Mutex
	all    Tail // stdout and stderr as they arrived; guarded by mu
	stdout Tail // guarded by mu
}

// Read returns io.EOF: the input is empty.
func (*Client) Read([]byte) (int, error) { return 0, io.EOF }

// Write processes one frame of the command's stream.
func (c *Client) Write(p []byte) (int, error) {
	t, payload, err := wire.ReadFrame(bytes.NewReader(p), nil)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch t {
	case wire.FrameStdout:
		c.stdout.Add(payload)
		c.all.Add(payload)
	case wire.FrameStderr:
		c.all.Add(payload)
	}
	return len(p), nil
}

// All returns the last bytes of stdout and stderr, in the order of their arrival.
func (c *Client) All() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.all)
}

// Stdout returns the last bytes of stdout.
func (c *Client) Stdout() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.stdout)
}

// Tail is the last bytes of a longer text.
type Tail []byte

// Add appends p to the text.
func (t *Tail) Add(p []byte) {
	p = p[max(0, len(p)-tailBytes):]
	if over := len(*t) + len(p) - tailBytes; over > 0 {
		*t = append((*t)[:0], (*t)[over:]...)
	}
	*t = append(*t, p...)
}

// Lines returns the last lines of text, which may be a Tail: only complete ones if there are any. Bytes that are not
// UTF-8 are replaced.
func Lines(text string) string {
	text = strings.ToValidUTF8(strings.TrimRight(text, "\n"), "\ufffd")
	if over := len(text) - tailBytes; over > 0 {
		text = strings.ToValidUTF8(text[over:], "")
	}
	if len(text) >= tailBytes-3 { // its first line may be truncated
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		}
	}
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
