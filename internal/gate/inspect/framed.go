package inspect

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// framed is a connection of which only what has one meaning is read.
//
// Who ends his way after a request waits for its answer all the same. But net/http, which
// reads on while a request is underway, takes an end for a client that is gone, and
// gives the request up. So the end is held back until what came whole before it was
// answered.
type framed struct {
	net.Conn
	deny func(error) // told once

	framing framing
	buf     [4 << 10]byte
	ready   []byte
	err     error

	mu       sync.Mutex
	change   sync.Cond // of what follows; its lock is mu
	answered int       // guarded by mu; requests
	expired  bool      // guarded by mu; whether the deadline for reads is one that is past
}

func newFramed(c net.Conn, deny func(error)) *framed {
	f := &framed{Conn: c, deny: deny}
	f.change.L = &f.mu
	return f
}

// Read gives what may go on. Where a framingError comes up, what came before it is read
// first.
func (f *framed) Read(p []byte) (int, error) {
	for len(f.ready) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		n, err := f.Conn.Read(f.buf[:])
		var bad error
		if f.ready, bad = f.framing.feed(f.buf[:n]); bad != nil {
			f.err = bad
			f.deny(bad)
		} else if errors.Is(err, io.EOF) && len(f.ready) == 0 {
			return 0, f.end()
		} else if err != nil && len(f.ready) == 0 {
			return 0, err // a deadline may be moved
		}
	}
	n := copy(p, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

// end gives the error of a read at the end, when it is time for it.
func (f *framed) end() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.answered < f.framing.whole() && !f.expired {
		f.change.Wait()
	}
	if f.expired {
		return os.ErrDeadlineExceeded
	}
	return io.EOF
}

// done tells that one more request was answered, or given up.
func (f *framed) done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered++
	f.change.Broadcast()
}

// SetReadDeadline sets it for reads that are underway, too. net/http ends those that way
// which wait at the end; a deadline that is to come ends none of them.
func (f *framed) SetReadDeadline(t time.Time) error {
	f.mu.Lock()
	f.expired = !t.IsZero() && !time.Now().Before(t)
	f.change.Broadcast()
	f.mu.Unlock()
	return f.Conn.SetReadDeadline(t)
}

// CloseWrite ends the way to the sandbox, which may read what is left.
func (f *framed) CloseWrite() error {
	if x, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return x.CloseWrite()
	}
	return nil
}
