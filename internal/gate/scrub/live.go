package scrub

import (
	"io"
	"net/http"
	"strings"
	"sync"
)

// Live is the secrets that are known at the moment. The zero Live has none. Its methods are safe for concurrent use.
type Live struct {
	mu  sync.RWMutex
	set *Set // guarded by mu
}

// Change replaces the secrets, and overwrites those before. It waits for searches in progress, and keeps no reference
// to the values.
func (l *Live) Change(secrets []Secret) {
	set := NewSet(secrets)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set.Wipe()
	l.set = set
}

// Header removes values from the names and values of h. told is called for each value found. Names are also
// searched in lower case, since package http writes some letters of them in upper case.
func (l *Live) Header(h http.Header, told func(grant string)) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.set == nil {
		return
	}
	for name, values := range h {
		for i, v := range values {
			values[i] = l.set.text(v, told)
		}
		clean, low := l.set.text(name, told), strings.ToLower(name)
		if clean == name {
			clean = l.set.text(low, told)
		}
		if clean != name && clean != low {
			delete(h, name)
			h[clean] = append(h[clean], values...)
		}
	}
}

// Text returns text without values. told is called for each value found.
func (l *Live) Text(text string, told func(grant string)) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.set == nil {
		return text
	}
	return l.set.text(text, told)
}

// text returns text without values.
func (s *Set) text(text string, told func(grant string)) string {
	if len(text) < leastForm {
		return text
	}
	b := []byte(text)
	s.replace(b, 0, true, told)
	return string(b)
}

// look replaces the values in b from a position on, and returns how many bytes at its end may be the begin of one: see
// Set.replace.
func (l *Live) look(b []byte, from int, last bool, told func(grant string)) (begun int) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.set.replace(b, from, last, told)
}

// reader removes values from what it reads. It holds back the end of a chunk only if at least most bytes of a value may
// begin there, so that it does not delay an answer in which the server waits for the client. So the first bytes of a
// value may get through, if the server sends them alone; which says as little as the beginning that all of a kind have.
type reader struct {
	live *Live
	r    io.Reader
	told func(string)
	err  error

	tail  []byte // the end of what was read that may begin a value; the first sent bytes of it were returned
	sent  int
	ready []byte // to be returned
	own   []byte
}

const (
	passed  = 3       // bytes of a value that are not held back
	leastIn = 4 << 10 // the smallest buffer to read into
	ownSize = 64 << 10
)

// Reader returns a reader of r without the values of l that are known when it is read. told is called for each value
// found, by Read.
func (l *Live) Reader(r io.Reader, told func(grant string)) io.Reader {
	return &reader{live: l, r: r, told: told}
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if len(r.ready) > 0 {
			n := copy(p, r.ready)
			r.ready = r.ready[n:]
			return n, nil
		}
		if r.err != nil {
			return 0, r.err
		}
		if len(p) >= len(r.tail)+leastIn {
			if out := r.fill(p); len(out) > 0 {
				return copy(p, out), nil // a copy to its own place, unless the last chunk ended in the begin of a value
			}
			continue
		}
		if len(r.own) < len(r.tail)+leastIn {
			r.own = make([]byte, len(r.tail)+ownSize)
		}
		r.ready = r.fill(r.own)
	}
	return 0, nil
}

// fill reads once into b, and returns the part of b that can be returned.
func (r *reader) fill(b []byte) []byte {
	begin := r.sent
	n, err := r.r.Read(b[copy(b, r.tail):])
	b = b[:len(r.tail)+n]
	begun := r.live.look(b, begin, err != nil, r.told)
	if r.err = err; err != nil {
		begun = 0
	}
	tail := len(b) - begun
	end := len(b)
	if begun > passed {
		end = max(tail, begin)
	}
	r.tail, r.sent = append(r.tail[:0], b[tail:]...), end-tail
	return b[begin:end]
}
