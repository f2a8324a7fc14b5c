package daemon

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// courtesy is the minimum time that a daemon waits for an expected request, even if its idle time is shorter.
const courtesy = 5 * time.Second

// callers counts the connections to the daemon's own socket.
type callers struct{ open atomic.Int64 }

// note is the ConnState hook of an http.Server.
func (c *callers) note(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		c.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		c.open.Add(-1)
	}
}

// expected reports whether the daemon should wait for a request: the process that started it has not connected yet,
// or a connected client has not disconnected. Otherwise an idle daemon could exit between a client's connection and
// its request. A pooled connection is not waited for indefinitely. last is when the last request ended, and born the
// value of last before the first request.
func (c *callers) expected(now, born, last time.Time) bool {
	if last.Equal(born) {
		return now.Sub(born) < courtesy
	}
	return c.open.Load() > 0 && now.Sub(last) < courtesy
}
