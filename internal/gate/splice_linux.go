//go:build linux && (amd64 || arm64)

package gate

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
)

// Sizes of reads. Every connection starts with a small buffer, since most have little to send at first and a sandbox
// may have hundreds; one that fills its buffer gets a larger one, and the first few get one that saturates a fast
// link.
const (
	smallRead = 16 << 10
	midRead   = 64 << 10
	bigRead   = 256 << 10
)

// segmentOverhead is the maximum size of the IP and TCP headers of a packet: 40 bytes, 20, and 40 of options, which
// the stack reserves.
const segmentOverhead = 100

// whole rounds a buffer size down to whole segments, if it has room for one.
func (g *Gate) whole(size int) int {
	if segment := g.mtu - segmentOverhead; size > segment {
		return size / segment * segment
	}
	return size
}

// buffers are reused buffers, by size.
type buffers struct{ small, mid, big sync.Pool }

func (p *buffers) of(size int) *sync.Pool {
	switch size {
	case smallRead:
		return &p.small
	case midRead:
		return &p.mid
	}
	return &p.big
}

func (p *buffers) get(size int) []byte {
	if b, ok := p.of(size).Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, size)
}

func (p *buffers) put(b []byte) { p.of(len(b)).Put(&b) }

// spending counts the bytes of rules with a budget.
type spending struct {
	mu    sync.Mutex
	rules map[string]*atomic.Int64 // guarded by mu; at most as many as the policies had rules
}

// budgets are byte counters, each with its maximum.
type budgets []budget

type budget struct {
	Limit
	used *atomic.Int64
}

// of returns the counters of the limits with a budget.
func (s *spending) of(limits []Limit) *budgets {
	var b budgets
	for _, l := range limits {
		if l.MaxBytes <= 0 {
			continue
		}
		s.mu.Lock()
		if s.rules == nil {
			s.rules = map[string]*atomic.Int64{}
		}
		n := s.rules[l.Rule]
		if n == nil {
			n = new(atomic.Int64)
			s.rules[l.Rule] = n
		}
		s.mu.Unlock()
		b = append(b, budget{l, n})
	}
	return &b
}

// usedUp is the reason for ending what exceeds a budget.
const usedUp = "the byte limit of the rule is exhausted"

// spend counts n bytes, and reports whether all budgets allow them; if not, rule is one that does not. With n 0 it
// checks whether any are left.
func (b *budgets) spend(n int64) (rule string, ok bool) {
	ok = true
	for _, x := range *b {
		if sum := x.used.Add(n); sum > x.MaxBytes || n == 0 && sum == x.MaxBytes {
			rule, ok = x.Rule, false
		}
	}
	return rule, ok
}

// hail reads the ClientHello of a connection that must start with one, or that must be HTTP and may start with one. It
// decides by the name in it. It returns the bytes that it read, to be forwarded, and a watch for those that follow.
func (g *Gate) hail(f *flow, in *gonet.TCPConn, rl ruling) (*watch, []byte, error) {
	if !rl.mustHail && !f.inspect {
		return nil, nil, nil
	}
	if err := in.SetReadDeadline(time.Now().Add(g.bounds.Hello)); err != nil {
		return nil, nil, err
	}
	var x hailing
	var first []byte
	buf := make([]byte, 4096)
	for {
		n, err := in.Read(buf)
		if n == 0 && err != nil {
			return nil, nil, noHello(err)
		}
		if len(first) == 0 && f.inspect && buf[0] != recordHello {
			return nil, buf[:n], in.SetReadDeadline(time.Time{})
		}
		h, used, done, err := x.feed(buf[:n])
		if err != nil {
			return nil, nil, err
		}
		first = append(first, buf[:n]...)
		if !done {
			continue
		}
		if err := g.tokens.name(h.name.String()); err != nil {
			return nil, nil, err
		}
		by, ok := rl.hailed(h.name)
		if !ok && h.name.IsZero() {
			return nil, nil, helloError("the ClientHello names no server")
		}
		if !ok {
			return nil, nil, otherServer(h)
		}
		f.by.Store(&by)
		f.hello.Store(&h)
		if err := g.stillHailed(f, h); err != nil {
			return nil, nil, err
		}
		if f.inspected() { // TLS ends at the gate, with whatever follows
			return nil, first, in.SetReadDeadline(time.Time{})
		}
		w := newWatch(h)
		if w != nil {
			rest, err := w.pass(first[len(first)-n+used:])
			if err != nil {
				return nil, nil, err
			}
			first = append(first[:len(first)-n+used:len(first)-n+used], rest...)
		}
		return w, first, in.SetReadDeadline(time.Time{})
	}
}

// stillHailed returns an error if a connection may not continue after its ClientHello. An allowed address does not
// suffice for a name whose requests are inspected.
func (g *Gate) stillHailed(f *flow, h hello) error {
	if g.stillAllowed(f) {
		return nil
	}
	d := g.current().Decide(Request{Proto: TCP, Host: h.name, Addr: f.to.Addr(), Port: f.to.Port()})
	if d.Verdict == Inspect && f.by.Load().Verdict == Allow {
		return helloError("requests to " + h.name.String() +
			" are inspected, but the name did not resolve to this address")
	}
	return helloError("the policy was changed")
}

// filter takes what the sandbox sends and returns what may be forwarded, possibly nothing until more arrives, or an
// error that ends the connection.
type filter interface {
	pass(b []byte) ([]byte, error)
}

// sniffer checks whether a connection that need not be TLS is TLS: then the server name in its ClientHello, if any,
// must be allowed. It does not wait for a ClientHello, because the server may speak first.
type sniffer struct {
	g     *Gate
	f     *flow
	rl    ruling
	x     hailing
	held  []byte // possible beginning of a ClientHello
	known bool   // it is known whether this is TLS
	w     *watch // for what follows a ClientHello
}

func (s *sniffer) pass(b []byte) ([]byte, error) {
	if s.known {
		if s.w != nil {
			return s.w.pass(b)
		}
		return b, nil
	}
	h, n, done, err := s.x.feed(b)
	other := errors.Is(err, errNoTLS)
	if err != nil && !other {
		return nil, err
	}
	s.held = append(s.held, b...)
	if !done && !other {
		return nil, nil
	}
	s.known = true
	out := s.held
	s.held = nil
	if other {
		return out, nil
	}
	if !h.name.IsZero() {
		if err := s.g.tokens.name(h.name.String()); err != nil {
			return nil, err
		}
		by, ok := s.rl.hailed(h.name)
		if !ok {
			return nil, otherServer(h)
		}
		s.f.charge(s.g.spent.of(by.Limits))
		s.f.by.Store(&by)
		s.f.hello.Store(&h)
		if err := s.g.stillHailed(s.f, h); err != nil {
			return nil, err
		}
	}
	if s.w = newWatch(h); s.w == nil {
		return out, nil
	}
	rest := out[len(out)-len(b)+n:]
	more, err := s.w.pass(rest)
	return append(out[:len(out)-len(rest):len(out)-len(rest)], more...), err
}

// otherServer is the error for a refused ClientHello.
func otherServer(h hello) error {
	return helloError("the ClientHello is for " + h.name.String() + ", for which the address was not allowed")
}

// noHello returns the meaning of a read error before a ClientHello.
func noHello(err error) error {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return helloError("no ClientHello arrived in time")
	case errors.Is(err, io.EOF):
		return helloError("the connection closed before its ClientHello")
	}
	return helloError("the connection failed before its ClientHello")
}

// splice copies in both directions until both have ended or the flow is cut. The end of one direction is forwarded;
// the other may continue.
func (g *Gate) splice(f *flow, in *gonet.TCPConn, w filter, first []byte) {
	f.charge(g.spent.of(f.by.Load().Limits))
	var down sync.WaitGroup
	down.Go(func() {
		g.pump(f, in, f.out, nil, nil, true)
	})
	g.pump(f, f.out, in, w, first, false)
	down.Wait()
}

// filler returns a function that reads bytes that have already arrived, without waiting; it returns 0 if there are
// none, at the end, or if src is not a socket.
func filler(src io.Reader) func([]byte) int {
	none := func([]byte) int { return 0 }
	c, ok := src.(*net.TCPConn)
	if !ok {
		return none
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return none
	}
	return func(b []byte) int {
		n := 0
		if err := raw.Read(func(fd uintptr) bool {
			n, err = unix.Read(int(fd), b)
			return true
		}); err != nil || n < 0 {
			return 0
		}
		return n
	}
}

// pump copies one direction; inward is towards the sandbox.
func (g *Gate) pump(f *flow, dst io.Writer, src io.Reader, w filter, first []byte, inward bool) {
	buf := g.buffers.get(smallRead)
	defer func() { g.buffers.put(buf) }()
	piece, fill := bigRead, func([]byte) int { return 0 }
	if inward {
		// Write whole segments to the stack, one at a time, which fit its buffers: no packet then carries the rest of
		// another.
		piece, fill = g.mtu-segmentOverhead, filler(src)
	}
	b, err := first, error(nil)
	for {
		if len(b) > 0 && !g.move(f, dst, b, piece, inward) {
			return
		}
		if err != nil {
			break
		}
		var n int
		n, err = src.Read(buf[:g.whole(len(buf))])
		for more := n; err == nil && more > 0 && n%piece != 0; n += more {
			more = fill(buf[n:g.whole(len(buf))])
		}
		b = buf[:n]
		if w != nil && n > 0 {
			var werr error
			if b, werr = w.pass(b); werr != nil {
				f.cut(werr.Error())
				g.journal.refused(
					Event{Proto: TCP, Name: f.by.Load().name.String(), Addr: f.to.Addr(), Port: f.to.Port(), Rule: f.by.Load().Rule},
					werr)
				return
			}
		}
		if n >= smallRead && len(buf) == smallRead {
			// The bytes in b are still to be forwarded; the small buffer is kept for them.
			size := midRead
			if f.large {
				size = bigRead
			}
			buf = g.buffers.get(size)
		}
	}
	if !errors.Is(err, io.EOF) {
		f.cut("broken: " + side(inward) + " disconnected")
		return
	}
	if half, ok := dst.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		// Otherwise the other side would wait for an end indefinitely.
		f.cut("")
	}
}

// move writes b and counts it, and reports whether the flow continues.
func (g *Gate) move(f *flow, dst io.Writer, b []byte, piece int, inward bool) bool {
	f.moved.Store(g.now().UnixNano())
	if _, ok := f.spent.Load().spend(int64(len(b))); !ok {
		f.cut(usedUp)
		return false
	}
	for rest := b; len(rest) > 0; {
		n := min(piece, len(rest))
		if _, err := dst.Write(rest[:n]); err != nil {
			f.cut("broken: " + side(!inward) + " disconnected")
			return false
		}
		rest = rest[n:]
	}
	f.sum.Add(int64(len(b)))
	if inward {
		f.in.Add(int64(len(b)))
		g.counts.in.Add(int64(len(b)))
	} else {
		g.counts.out.Add(int64(len(b)))
	}
	return true
}

// side names the end that sends in a direction: the host if inward, else the sandbox.
func side(inward bool) string {
	if inward {
		return "the host"
	}
	return "the sandbox"
}
