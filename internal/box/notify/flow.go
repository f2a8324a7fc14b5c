//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/entrance/ask"
)

// A socket for UDP is one end of a pair of sockets for its whole life: so it is never hung up for poll(2), and what a
// caller has registered for it in epoll(7) stays. This process holds the far end. While the socket has a peer, the
// entrance uses the far end too, in a session (package ask). What is sent while there is none is dropped: the kernel
// would have refused it.
//
//	idle    a filter on the far end drops each datagram before it is queued
//	asking  the same; the entrance has not answered yet
//	open    datagrams are queued, and the entrance reads them
//	ending  the filter is back; the entrance sends on what was queued, and closes its end of control
//	closed  the far end is closed, and the socket hung up: for good
//
// So each datagram goes to the peer that the socket had when it was sent, or nowhere.

// flow is the far end of a socket for UDP, and its session.
type flow struct {
	// turn has room for one token: that of the call that changes the peer, or sends a datagram to an address. It is
	// taken before mu. A call that may wait with it holds a place in server.connecting.
	turn chan struct{}

	mu      sync.Mutex // held while the descriptors are used, but for no call that waits
	state   flowState  // guarded by mu
	far     int        // guarded by mu; -1 when closed
	control *os.File   // the session's connection to the entrance; guarded by mu, nil when idle or closed
}

type flowState int

// The states of a flow.
const (
	flowIdle flowState = iota
	flowAsking
	flowOpen
	flowEnding
	flowClosed
)

// partPatience bounds the wait for the entrance's end of a session, and for its status. It takes no longer than the
// entrance is busy: only one that does not run at all is late.
const partPatience = 30 * time.Second

// newPair makes a pair: the socket for a caller and its far end. flags are O_NONBLOCK or 0.
func newPair(flags int) (socket int, f *flow, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		return -1, nil, err
	}
	f = &flow{turn: make(chan struct{}, 1), far: pair[1]}
	if err := f.mute(); err != nil {
		f.close()
		unix.Close(pair[0])
		return -1, nil, err
	}
	return pair[0], f, nil
}

// mute lets the kernel drop what is sent to the far end (sk_filter in unix_dgram_sendmsg). The sender notices nothing.
func (f *flow) mute() error {
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	return unix.SetsockoptSockFprog(f.far, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
}

// unmute takes back mute.
func (f *flow) unmute() error {
	return unix.SetsockoptInt(f.far, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
}

// close closes the far end and ends the session.
func (f *flow) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeLocked()
}

func (f *flow) closeLocked() {
	if f.far >= 0 {
		unix.Close(f.far)
	}
	if f.control != nil {
		f.control.Close()
	}
	f.state, f.far, f.control = flowClosed, -1, nil
}

// use calls do with mu held, unless the flow is closed.
func (f *flow) use(do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == flowClosed {
		return unix.ECONNREFUSED
	}
	return do()
}

// rename calls do while no other call receives or changes the name of the peer: a datagram has the name that the peer
// has when it is received.
func (f *flow) rename(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// inSession reports whether the entrance may use the far end. If the entrance has ended an open session, the flow is
// closed: it does so only when it exits, or when no process has the caller's end of the pair open.
func (f *flow) inSession() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.state == flowOpen && hungUp(f.control):
		f.closeLocked()
	case f.state == flowEnding && hungUp(f.control):
		f.idleLocked()
	}
	return f.control != nil
}

func (f *flow) idleLocked() {
	f.control.Close()
	f.state, f.control = flowIdle, nil
}

// hungUp reports whether the other end of a socket has ended.
func hungUp(file *os.File) bool {
	raw, err := file.SyscallConn()
	yes := true
	if err == nil {
		err = raw.Control(func(fd uintptr) { yes = ended(int(fd)) })
	}
	return yes || err != nil
}

// patience returns a wait of at most partPatience, which no signal ends: calls for UDP take no time.
func patience(c caller) *waiting {
	return &waiting{c: c, until: time.Now().Add(partPatience), pause: firstCheck}
}

// leave gives the turn back.
func (f *flow) leave() { <-f.turn }

// tryTake takes the turn if it is free.
func (f *flow) tryTake() bool {
	select {
	case f.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

// part ends the session, if there is one: when it returns without an error, the entrance has sent on what was queued,
// and does not use the far end any more. If the entrance does not say so in time, the flow is closed. If the caller has
// died, the next call waits on. The calling function has the turn.
func (f *flow) part(w *waiting) unix.Errno {
	var control *os.File
	if f.inSession() {
		if err := f.use(func() error {
			if control = f.control; control == nil {
				return nil // it has ended
			}
			f.state = flowEnding
			return errors.Join(f.mute(), shutdownWrite(control))
		}); err != nil {
			f.close()
			return unix.ECONNREFUSED
		}
	}
	if control == nil {
		return 0
	}
	for {
		_ = control.SetReadDeadline(w.next())
		if _, err := control.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		switch errno := w.over(); errno {
		case 0:
		case unix.EAGAIN:
			f.close()
			return unix.ECONNREFUSED
		default:
			return errno
		}
	}
	return errnoOf(f.use(func() error {
		if f.state == flowEnding {
			f.idleLocked()
		}
		return nil
	}))
}

func shutdownWrite(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.Shutdown(int(fd), unix.SHUT_WR) })
	return errors.Join(err, failed)
}

// meet begins a session with an address, from a port. The flow has none, and the calling function has the turn.
func (s *server) meet(w *waiting, f *flow, to netip.AddrPort, from uint16) unix.Errno {
	control, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return errnoOf(err)
	}
	errno := knock(w, control, s.inet.dir+ask.Messages)
	if errno != 0 {
		unix.Close(control)
		return refusal(errno)
	}
	status, err := f.ask(control, ask.Header(to, from))
	for errors.Is(err, unix.ETOOMANYREFS) && w.over() == 0 {
		// The kernel bounds the descriptors that all processes of a user have in flight (too_many_unix_fds).
		time.Sleep(time.Until(w.next()))
		status, err = f.ask(control, ask.Header(to, from))
	}
	if err != nil {
		unix.Close(control)
		return unix.ECONNREFUSED
	}
	pipe := os.NewFile(uintptr(status), "status of a session")
	defer pipe.Close()
	var failed unix.Errno
	switch answer, errno := answered(w, pipe); {
	case errno != 0:
		failed = refusal(errno)
	case answer != 0:
		failed = answer
	default:
		return errnoOf(f.use(func() error {
			f.state = flowOpen
			return f.unmute()
		}))
	}
	f.part(w)
	return failed
}

// ask sends the header of a session, which has control from then on, and returns the end of the status pipe to read.
func (f *flow) ask(control int, header [ask.HeaderSize]byte) (status int, err error) {
	err = f.use(func() (err error) {
		discard(f.far) // a sender may have been between the filter and the queue
		if status, err = requestDial(control, header, f.far); err == nil {
			f.state, f.control = flowAsking, os.NewFile(uintptr(control), "session")
		}
		return err
	})
	return status, err
}

// refusal returns the error of a call whose wait for the entrance has failed: ESRCH if its caller is gone.
func refusal(errno unix.Errno) unix.Errno {
	if errno != unix.ESRCH {
		return unix.ECONNREFUSED
	}
	return errno
}

// discard drops the datagrams that are queued at a socket to which no process can send meanwhile.
func discard(socket int) {
	for range 1 << 16 {
		n, _, _, _, err := unix.Recvmsg(socket, nil, nil, unix.MSG_DONTWAIT)
		if err != nil || n == 0 && ended(socket) {
			return
		}
	}
}

// settleSessions closes the flows whose sessions the entrance has ended, and drops those that only a session has kept.
// The names of the others are never forgotten: without them, the kernel would send a datagram to the current peer,
// whatever its address.
func (k *kept) settleSessions() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for inode, one := range k.all {
		if one.flow == nil {
			continue
		}
		k.named(inode)
		if !one.flow.inSession() && one.fd < 0 {
			k.forget(inode, one)
		}
	}
}
