//go:build linux && (amd64 || arm64)

package entrance

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/gate/pipe"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Entrance is the network stack of one sandbox. Its methods are safe for concurrent use.
type Entrance struct {
	box       *os.File
	link      *pipe.Pipe
	stack     *stack.Stack
	listeners []*net.UnixListener

	asking  slots // connections whose header has not arrived
	streams slots
	flows   slots

	done   context.Context // ends with Close
	cancel context.CancelFunc

	mu      sync.Mutex
	closed  bool                  // guarded by mu
	large   int                   // connections with large buffers; guarded by mu
	open    map[*session]struct{} // guarded by mu
	own     sync.WaitGroup        // every goroutine; Go only under mu and before closed
	closing sync.Once
}

// slots is a number of places that can be taken.
type slots chan struct{}

func (s slots) take() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s slots) give() { <-s }

// kind is what the connections to a listener have in common.
type kind struct {
	room        slots
	descriptors int // of a header
	serve       func(*session, *request)
}

// New starts the entrance at box, the sandbox's end of a link.Pair, for connections to two listening Unix sockets:
// stream, of type SOCK_STREAM, and messages, of type SOCK_SEQPACKET. New takes ownership of all three, even if it
// fails; copies of the listeners that others hold keep them alive, though, without anybody to answer. The caller must
// call Close, after that of the gate: what the sandbox has sent so far then reaches the gate.
func New(box, stream, messages *os.File) (*Entrance, error) {
	e := &Entrance{open: map[*session]struct{}{}, asking: make(slots, limit.EntranceHeaders),
		streams: make(slots, limit.EntranceStreams), flows: make(slots, limit.EntranceFlows)}
	e.done, e.cancel = context.WithCancel(context.Background())
	err := e.openListeners(stream, messages)
	if err == nil {
		err = e.openStack(box)
	} else {
		err = errors.Join(err, box.Close())
	}
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "start the sandbox's entrance"), e.Close())
	}
	for i, k := range []kind{{e.streams, 1, e.serveStream}, {e.flows, 2, e.serveMessages}} {
		e.spawn(func() { e.acceptAll(e.listeners[i], k) })
	}
	return e, nil
}

// openListeners takes the listeners.
func (e *Entrance) openListeners(stream, messages *os.File) error {
	var errs []error
	for _, l := range []struct {
		file *os.File
		kind int
	}{{stream, unix.SOCK_STREAM}, {messages, unix.SOCK_SEQPACKET}} {
		u, err := openListener(l.file, l.kind)
		if err == nil {
			e.listeners = append(e.listeners, u)
		}
		errs = append(errs, err, l.file.Close())
	}
	return errors.Join(errs...)
}

// openListener returns the listener at a descriptor, which must be a listening Unix socket of a type.
func openListener(f *os.File, kind int) (*net.UnixListener, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var asked error
	err = raw.Control(func(fd uintptr) {
		for _, o := range [][2]int{{unix.SO_DOMAIN, unix.AF_UNIX}, {unix.SO_TYPE, kind}, {unix.SO_ACCEPTCONN, 1}} {
			if got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, o[0]); err != nil || got != o[1] {
				asked = fault.New(fault.Invalid, "%s is not a listening Unix socket of type %d", f.Name(), kind).Because(err)
				return
			}
		}
	})
	if err = errors.Join(err, asked); err != nil {
		return nil, err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// Close ends all connections, and returns when all goroutines of the entrance have ended. It may be called more than
// once.
func (e *Entrance) Close() (err error) {
	e.closing.Do(func() {
		e.mu.Lock()
		e.closed = true
		for s := range e.open {
			s.cut()
		}
		e.mu.Unlock()
		e.cancel()
		for _, l := range e.listeners {
			err = errors.Join(err, l.Close())
		}
		e.own.Wait()
		err = errors.Join(err, e.closeStack())
	})
	return err
}

// spawn starts a goroutine that Close waits for. It reports whether it did: not after Close.
func (e *Entrance) spawn(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.own.Go(f)
	return true
}

// acceptPause is the time between two attempts to accept a connection when the process has no free descriptor.
const acceptPause = 20 * time.Millisecond

// acceptAll accepts connections until Close. It closes connections beyond the bound at once.
func (e *Entrance) acceptAll(l *net.UnixListener, k kind) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			select {
			case <-e.done.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		if !e.admit(c, k) {
			c.Close()
		}
	}
}

// admit serves a connection on its own goroutine, if there is room for it.
func (e *Entrance) admit(c *net.UnixConn, k kind) bool {
	if !k.room.take() {
		return false
	}
	if !e.asking.take() {
		k.room.give()
		return false
	}
	s, err := newSession(c)
	if err != nil || !e.spawn(func() { e.serve(s, k) }) {
		e.asking.give()
		k.room.give()
		return false
	}
	return true
}

// serve reads the header of a connection and serves it until its end. It gives back both slots, that of the connection
// before it closes the connection: then init may ask for another.
func (e *Entrance) serve(s *session, k kind) {
	if !e.add(s) {
		e.asking.give()
		k.room.give()
		s.end()
		return
	}
	defer e.remove(s)
	defer k.room.give()
	r, err := s.readHeader(k.descriptors)
	e.asking.give()
	if err != nil {
		return
	}
	defer r.answer.close()
	if r.to.Port() == dnsPort {
		r.to = netip.AddrPortFrom(link.Gate4(), dnsPort)
	}
	k.serve(s, r)
}

// add registers a session, so that Close cuts it; remove ends and unregisters it.
func (e *Entrance) add(s *session) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.open[s] = struct{}{}
	return true
}

func (e *Entrance) remove(s *session) {
	s.end()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.open, s)
}
