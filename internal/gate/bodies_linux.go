//go:build linux && (amd64 || arm64)

package gate

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/coppice-dev/coppice/internal/gate/inspect"
	"github.com/coppice-dev/coppice/internal/gate/sigv4"
)

// gather reads the body of a request that may have at most the given size; 0 means that it is not needed.
func (x *exchange) gather(r *http.Request, most int64) ([]byte, *inspect.Denial) {
	if most == 0 {
		return nil, nil
	}
	size := r.ContentLength
	if size < 0 {
		size = most // it is known at the end
	}
	large := fmt.Sprintf("the body is longer than %d MiB, and needed whole for grant %s", most>>20, x.carry.Uses()[0])
	if size > most {
		return nil, x.deny(http.StatusRequestEntityTooLarge, "", large, "send less, or in several requests")
	}
	if err := x.hold(size); err != nil {
		return nil, x.deny(http.StatusServiceUnavailable, "", err.Error(), "try again")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	var no *inspect.Denial
	switch {
	case errors.As(err, &no):
		return nil, no
	case err != nil:
		return nil, x.deny(http.StatusBadRequest, "", "the body of the request ended too early", "")
	case int64(len(body)) > most:
		return nil, x.deny(http.StatusRequestEntityTooLarge, "", large, "send less, or in several requests")
	}
	return body, nil
}

// errHeld is the error of a body that does not fit into the memory for bodies.
var errHeld = errors.New("the gate holds the bodies of too many requests that carry a secret")

// room is the memory that an exchange has reserved for the body.
type room struct {
	mu    sync.Mutex
	bytes int64 // guarded by mu
	over  bool  // guarded by mu
}

// hold reserves memory for n bytes of the body, until the exchange ends.
func (x *exchange) hold(n int64) error {
	x.room.mu.Lock()
	defer x.room.mu.Unlock()
	if x.room.over || !x.bodies.TryAcquire(n) {
		return errHeld
	}
	x.room.bytes += n
	return nil
}

// release ends what hold reserved.
func (x *exchange) release() {
	x.room.mu.Lock()
	defer x.room.mu.Unlock()
	x.bodies.Release(x.room.bytes)
	x.room.bytes, x.room.over = 0, true
}

// signing is a body whose chunks may be signed while it is read.
type signing struct {
	io.ReadCloser
	x *exchange
}

// Read returns a Denial if a chunk cannot be signed.
func (s *signing) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	var bad *sigv4.ChunkError
	switch {
	case errors.As(err, &bad):
		return n, s.x.deny(http.StatusForbidden, "", bad.Error(), "")
	case errors.Is(err, errHeld):
		return n, s.x.deny(http.StatusServiceUnavailable, "", err.Error(), "try again")
	}
	return n, err
}
