//go:build linux && (amd64 || arm64)

package notify

import (
	"time"

	"golang.org/x/sys/unix"
)

// slot is the place of a call of inetCalls among those that are served at a time: in Internet.brief, and once it waits
// in Internet.waiting or connecting. A call without a place has no descriptors and no data in this process, so that the
// places bound both.
type slot struct{ in chan struct{} }

// move exchanges the place for another one. It does not wait, and returns false if there is none.
func (p *slot) move(to chan struct{}) bool {
	if p.in == to {
		return true
	}
	select {
	case to <- struct{}{}:
		<-p.in
		p.in = to
		return true
	default:
		return false
	}
}

// enter waits for a place, or for the turn of a flow, no longer than the caller does.
func (w *waiting) enter(in chan struct{}) unix.Errno {
	select {
	case in <- struct{}{}:
		return 0
	default:
	}
	for {
		late := time.NewTimer(time.Until(w.next()))
		select {
		case in <- struct{}{}:
			late.Stop()
			return 0
		case <-late.C:
		}
		if errno := w.over(); errno != 0 {
			return errno
		}
	}
}

// serve carries out a call. It retries a call that had to wait and found no free place, as long as its caller lives.
func (s *server) serve(c caller, do func(*server, caller) verdict) verdict {
	w := &waiting{c: c, pause: firstCheck}
	for in := s.inet.brief; ; {
		if errno := w.enter(in); errno != 0 {
			return verdict{errno: errno}
		}
		c.slot = &slot{in}
		v := do(s, c)
		<-c.slot.in
		if v.later == nil {
			return v
		}
		in, w.blocking = v.later, true
		time.Sleep(time.Until(w.next()))
		if errno := w.over(); errno != 0 {
			return verdict{errno: errno}
		}
	}
}
