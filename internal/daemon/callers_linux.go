package daemon

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// courtesy is how long a daemon waits for a request that is on its way, however short
// the time is after which it would be idle.
const courtesy = 5 * time.Second

// callers counts the connections to the daemon's own socket.
type callers struct{ open atomic.Int64 }

// note is an http.Server's ConnState.
func (c *callers) note(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		c.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		c.open.Add(-1)
	}
}

// expected says whether a request is to be waited for: whoever started the daemon has
// not come yet, or somebody who connected has not gone again. Without it a daemon that
// is soon idle ends between a client's word that it is there and the client's request.
// A client that keeps its connection in a pool is not waited for for ever. last is when
// the last request ended, and born what last was before there was any.
func (c *callers) expected(now, born, last time.Time) bool {
	if last.Equal(born) {
		return now.Sub(born) < courtesy
	}
	return c.open.Load() > 0 && now.Sub(last) < courtesy
}
