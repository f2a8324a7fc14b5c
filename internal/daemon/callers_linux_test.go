package daemon

import (
	"net/http"
	"testing"
	"time"
)

// TestCallers_PendingRequestPreventsIdle checks that a daemon does not become idle before the
// client that started it has connected, nor between the connection and the request of a client.
func TestCallers_PendingRequestPreventsIdle(t *testing.T) {
	born := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return born.Add(d) }
	never := born
	for _, c := range []struct {
		name      string
		open      int
		now, last time.Time
		want      bool
	}{
		{"nobody has come yet", 0, at(time.Second), never, true},
		{"nobody has come for long", 0, at(courtesy), never, false},
		{"who came has gone", 0, at(time.Second), at(time.Millisecond), false},
		{"who came is still there", 1, at(time.Second), at(time.Millisecond), true},
		{"who came keeps a connection in a pool", 1, at(time.Minute), at(time.Second), false},
	} {
		var open callers
		for range c.open + 1 {
			open.note(nil, http.StateNew)
		}
		open.note(nil, http.StateActive)
		open.note(nil, http.StateIdle)
		open.note(nil, http.StateClosed)
		if got := open.expected(c.now, born, c.last); got != c.want {
			t.Errorf("%s: expected is %v", c.name, got)
		}
	}
}
