package auth

import (
	"io"
	"net/http"
	"time"
)

// paced is a request's body of which each part must come in time. A long stream
// goes on for as long as it moves; one who sends nothing is cut off.
type paced struct {
	io.ReadCloser
	out  *http.ResponseController
	idle time.Duration
}

// Read reads what comes within the time.
func (p *paced) Read(b []byte) (int, error) {
	_ = p.out.SetReadDeadline(time.Now().Add(p.idle)) // a connection without deadlines is a test's
	n, err := p.ReadCloser.Read(b)
	if err != nil {
		// From here on the server waits for the client to go away, for as long as
		// the answer takes.
		_ = p.out.SetReadDeadline(time.Time{})
	}
	return n, err
}

// pace limits how long a request's body may keep us waiting. done limits how long
// the server reads on what the handler has left of it; the next request on the
// connection has a deadline of its own.
func pace(w http.ResponseWriter, r *http.Request, idle time.Duration) (done func()) {
	if r.Body == nil || r.Body == http.NoBody {
		return func() {}
	}
	out := http.NewResponseController(w)
	body := &paced{ReadCloser: r.Body, out: out, idle: idle}
	r.Body = body
	return func() { _ = out.SetReadDeadline(time.Now().Add(min(idle, leftover))) }
}

// leftover is how long the server may read what nobody wanted of a body.
const leftover = 5 * time.Second
