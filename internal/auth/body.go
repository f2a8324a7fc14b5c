package auth

import (
	"io"
	"net/http"
	"time"
)

// paced is a request body with an idle timeout: a long stream may continue, but a client that sends nothing is cut
// off.
type paced struct {
	io.ReadCloser
	out  *http.ResponseController
	idle time.Duration
}

// Read reads with the idle timeout.
func (p *paced) Read(b []byte) (int, error) {
	_ = p.out.SetReadDeadline(time.Now().Add(p.idle)) // only connections in tests lack deadlines
	n, err := p.ReadCloser.Read(b)
	if err != nil {
		// From here on, the server's read waits for the client to disconnect, as long as the answer takes.
		_ = p.out.SetReadDeadline(time.Time{})
	}
	return n, err
}

// pace sets the idle timeout of a request's body. done limits how long the server reads the rest that the handler
// left; the next request on the connection has its own deadline.
func pace(w http.ResponseWriter, r *http.Request, idle time.Duration) (done func()) {
	if r.Body == nil || r.Body == http.NoBody {
		return func() {}
	}
	out := http.NewResponseController(w)
	body := &paced{ReadCloser: r.Body, out: out, idle: idle}
	r.Body = body
	return func() { _ = out.SetReadDeadline(time.Now().Add(min(idle, leftover))) }
}

// leftover is the time limit for the server to read the unused rest of a body.
const leftover = 5 * time.Second
