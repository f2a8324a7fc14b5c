package inspect

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// framed is a connection that returns only unambiguous HTTP.
//
// A client that closes its direction after a request still waits for the response. But net/http keeps reading during a
// request, takes EOF as the end of the client, and cancels the request. So framed holds EOF back until all complete
// requests before it are answered.
type framed struct {
	net.Conn
	deny func(error) // called once

	framing framing
	buf     [4 << 10]byte
	ready   []byte
	err     error

	mu       sync.Mutex
	change   sync.Cond // of the fields below; its lock is mu
	answered int       // requests; guarded by mu
	expired  bool      // the read deadline has passed; guarded by mu
}

func newFramed(c net.Conn, deny func(error)) *framed {
	f := &framed{Conn: c, deny: deny}
	f.change.L = &f.mu
	return f
}

// Read returns what may be forwarded. Bytes before a framingError are returned before the error.
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
			return 0, err // a deadline may be extended
		}
	}
	n := copy(p, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

// end waits until EOF may be returned or the deadline has passed, and returns the error for the read.
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

// done records that one more request was answered or abandoned.
func (f *framed) done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered++
	f.change.Broadcast()
}

// SetReadDeadline also applies to reads in progress. net/http uses a past deadline to end reads that wait at EOF; a
// future one ends none of them.
func (f *framed) SetReadDeadline(t time.Time) error {
	f.mu.Lock()
	f.expired = !t.IsZero() && !time.Now().Before(t)
	f.change.Broadcast()
	f.mu.Unlock()
	return f.Conn.SetReadDeadline(t)
}

// CloseWrite closes the direction to the sandbox, which may read the rest.
func (f *framed) CloseWrite() error {
	if x, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return x.CloseWrite()
	}
	return nil
}
