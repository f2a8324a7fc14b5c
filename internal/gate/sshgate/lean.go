package sshgate

import (
	"errors"
	"io"
	"net"
	"sync"
)

// mostHeld is how many bytes of a connection may wait in this process, in packets as they came. The window of a channel
// bounds the data in them, but in memory each packet takes tens of bytes more, even with a single byte of data.
const mostHeld = 4 << 20

var errHeld = errors.New("too many packets wait to be read")

// lean is a connection that ends when too much of what it has read waits in its one channel.
type lean struct {
	net.Conn
	other *lean // is in memory as long as this one; may be nil

	mu      sync.Mutex
	held    int // at most as many bytes wait; guarded by mu
	streams int // that are passed on; guarded by mu
	waiting int // of these, for data; guarded by mu
}

// Read implements net.Conn.
func (l *lean) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams > 0 && l.waiting == l.streams { // what came before did not wait
		l.held = 0
	}
	if l.held += n; l.held > mostHeld {
		l.Close()
		return 0, errHeld
	}
	return n, err
}

// pass copies a stream of l's channel until its end, as long as see allows it. All streams are passed at the same time.
func (l *lean) pass(to io.Writer, from io.Reader, see func([]byte) error) {
	l.stream(1)
	defer l.stream(-1)
	buf := make([]byte, 32<<10)
	for {
		n, err := l.next(from, buf)
		if n > 0 {
			if see(buf[:n]) != nil {
				return
			}
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// stream notes that n more streams are passed.
func (l *lean) stream(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams += n
}

// next reads from a stream. If that had less than would fit, and the others have nothing, then nothing waits.
func (l *lean) next(from io.Reader, buf []byte) (int, error) {
	l.mu.Lock()
	l.waiting++
	l.mu.Unlock()
	n, err := from.Read(buf)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	l.held = max(0, l.held-n-n/32) // packets have some bytes more than their data
	if n < len(buf) && l.waiting == l.streams-1 {
		l.held = 0
	}
	return n, err
}
