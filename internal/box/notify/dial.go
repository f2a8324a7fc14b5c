//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/entrance/ask"
)

// dialPatience is how long a caller that does not want to block waits for the entrance. If it has not dialled by then,
// the call succeeds, and a dial that fails ends the connection.
const dialPatience = 250 * time.Millisecond

// inetConnect carries out connect(2) on a socket for an address of the Internet, or dissolves the connection of a
// socket that stands for one of it. For other calls ok is false.
func (s *server) inetConnect(c caller, socket int, address []byte) (v verdict, ok bool) {
	inode, e, known := s.endpoint(socket)
	f := family(address)
	switch {
	case f == unix.AF_UNSPEC && known && e.packet:
		return s.retarget(c, socket, inode, netip.AddrPort{}), true
	case f == unix.AF_UNSPEC && known:
		if e.peer.IsValid() {
			_ = unix.Shutdown(socket, unix.SHUT_RDWR)
			e.peer, e.spent = netip.AddrPort{}, true
			s.inet.names.set(inode, e)
		}
		return success, true
	case !ofInternet(f):
		return verdict{}, false
	case !known:
		return verdict{errno: unix.EAFNOSUPPORT}, true
	}
	to, err := addressOf(address)
	if err != nil {
		return fail(err), true
	}
	if to.Addr().Is4() != (e.family == unix.AF_INET) && (!e.packet || e.family == unix.AF_INET) {
		return verdict{errno: unix.EAFNOSUPPORT}, true
	}
	if e.packet {
		return s.retarget(c, socket, inode, to), true
	}
	return s.dial(c, socket, inode, e, to), true
}

// unreachable answers connect(2) on a socket of which no duplicate can be had: one for TCP that is connected already,
// or one of a process that does not show its descriptors (PR_SET_DUMPABLE in prctl(2)).
func (s *server) unreachable(c caller, err error) verdict {
	inode, at := socketAt(c.tid, int32(c.args[0]))
	if e, ok := s.inet.names.get(inode); at == nil && ok && e.peer.IsValid() && !e.spent {
		return verdict{errno: unix.EISCONN}
	}
	if errors.Is(at, unix.EACCES) {
		return s.tell(c, "connect", unix.EACCES)
	}
	return fail(err)
}

// dial connects a socket for TCP to an address. Nothing but the names that the caller will see depends on e.
func (s *server) dial(c caller, socket int, inode uint64, e endpoint, to netip.AddrPort) verdict {
	if e.spent {
		next, err := s.renew(c, socket, e)
		if err != nil {
			return fail(err)
		}
		defer unix.Close(next)
		if inode, err = inodeOf(next); err != nil {
			return fail(err)
		}
		socket, e = next, endpoint{family: e.family}
	}
	errno := s.reach(c, socket, inode, &e, to)
	if errno == 0 || errno == unix.EINPROGRESS {
		if !e.local.IsValid() || e.local.Port() == 0 {
			e.local = netip.AddrPortFrom(e.local.Addr(), passing(inode))
		}
		e.local, e.peer = netip.AddrPortFrom(s.inet.source(to.Addr()), e.local.Port()), to
	}
	if errno == 0 || errno == unix.EINPROGRESS || e.spent {
		s.inet.names.set(inode, e)
	}
	if errno == 0 || errno == unix.EINPROGRESS {
		s.inet.kept.drop(inode)
	}
	return verdict{errno: errno}
}

// dns is the port at which the entrance answers for every address.
const dns = 53

// reach connects a socket within the sandbox or to the entrance.
func (s *server) reach(c caller, socket int, inode uint64, e *endpoint, to netip.AddrPort) unix.Errno {
	if !s.inet.local(to.Addr()) {
		return s.leave(c, socket, inode, e, to)
	}
	errno := s.enter(c, socket, to)
	if errno == unix.ECONNREFUSED && to.Port() == dns {
		return s.leave(c, socket, inode, e, to)
	}
	return errno
}

// enter connects a socket to one of the sandbox's own ports. One of IPv6 takes connections of IPv4, too.
func (s *server) enter(c caller, socket int, to netip.AddrPort) unix.Errno {
	s.inet.kept.settle(to.Port())
	errno := s.join(c, socket, s.inet.port(to))
	if to.Addr().Unmap().Is4() && (errno == unix.ENOENT || errno == unix.ECONNREFUSED) {
		errno = s.join(c, socket, s.inet.port(netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port())))
	}
	if errno == unix.ENOENT {
		return unix.ECONNREFUSED
	}
	return errno
}

// join connects a socket to a path. While the queue of the listener is full, it waits as long as the socket does for
// TCP; the kernel would hold a thread of this process, and ignore the caller's signals and its end.
func (s *server) join(c caller, socket int, path string) unix.Errno {
	w := s.wait(c, socket, unix.SO_SNDTIMEO)
	if w.blocking {
		defer unblock(socket)()
	} else {
		w.until = time.Now().Add(dialPatience)
	}
	return knock(w, socket, path)
}

// knock connects a socket that does not block to a path, and waits while the queue of the listener is full.
func knock(w *waiting, socket int, path string) unix.Errno {
	for {
		err := unix.Connect(socket, &unix.SockaddrUnix{Name: path})
		if !errors.Is(err, unix.EAGAIN) {
			return errnoOf(err)
		}
		switch errno := w.over(); errno {
		case 0:
		case unix.EAGAIN:
			return unix.ETIMEDOUT
		default:
			return errno
		}
		time.Sleep(time.Until(w.next()))
	}
}

// unblock sets O_NONBLOCK on a socket until the returned function is called. The caller's descriptors share it, and the
// caller waits. If another of its threads clears it, a call of its own sandbox takes longer.
func unblock(socket int) (restore func()) {
	flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0)
	if err != nil {
		return func() {}
	}
	_, _ = unix.FcntlInt(uintptr(socket), unix.F_SETFL, flags|unix.O_NONBLOCK)
	return func() { _, _ = unix.FcntlInt(uintptr(socket), unix.F_SETFL, flags) }
}

// leave connects a socket to the entrance, and waits until that has dialled. A signal ends the wait and not the dial:
// the next call for the same address waits on, as in the kernel.
func (s *server) leave(c caller, socket int, inode uint64, e *endpoint, to netip.AddrPort) unix.Errno {
	status, already := s.inet.kept.dialling(inode, to)
	switch {
	case status == nil && already:
		return unix.EALREADY
	case status == nil:
		var errno unix.Errno
		if status, errno = s.depart(c, socket, e, to); errno != 0 {
			return errno
		}
	}
	errno := s.dialled(c, socket, status)
	if (errno == restart || errno == unix.EINTR) && s.inet.kept.leaveDialling(inode, to, status) {
		return errno
	}
	status.Close()
	if errno != 0 && errno != unix.EINPROGRESS {
		dissolve(socket, e)
	}
	return errno
}

// depart connects a socket to the entrance and sends the header. It returns the end of the status pipe to read.
func (s *server) depart(c caller, socket int, e *endpoint, to netip.AddrPort) (status *os.File, errno unix.Errno) {
	switch errno := s.join(c, socket, s.inet.dir+ask.Stream); errno {
	case 0:
	case unix.EISCONN, unix.EINVAL:
		return nil, unix.EISCONN
	case restart, unix.EINTR, unix.ESRCH, unix.ETIMEDOUT:
		return nil, errno
	default: // the entrance has ended
		return nil, unix.ECONNREFUSED
	}
	fd, err := requestDial(socket, ask.Header(to, 0))
	if err != nil {
		dissolve(socket, e)
		return nil, unix.ECONNREFUSED
	}
	return os.NewFile(uintptr(fd), "status of a dial"), 0
}

// dissolve ends the connection of a socket to the entrance. Another socket must take its place.
func dissolve(socket int, e *endpoint) {
	_ = unix.Shutdown(socket, unix.SHUT_RDWR)
	e.spent = true
}

// requestDial sends a header and descriptors on a socket that is connected to the entrance, and returns the end of the
// status pipe to read. It never waits: for TCP, the caller has the socket too, and may have filled it.
func requestDial(socket int, header [ask.HeaderSize]byte, others ...int) (status int, err error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, err
	}
	defer unix.Close(pipe[1])
	rights := unix.UnixRights(append([]int{pipe[1]}, others...)...)
	n, err := unix.SendmsgN(socket, header[:], rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if err == nil && n < len(header) {
		err = unix.EAGAIN
	}
	if err != nil {
		unix.Close(pipe[0])
		return -1, err
	}
	return pipe[0], nil
}

// dialled waits for the status of a dial, as long as the caller does.
func (s *server) dialled(c caller, socket int, status *os.File) unix.Errno {
	w := s.wait(c, socket, unix.SO_SNDTIMEO)
	if !w.blocking {
		w.until = time.Now().Add(dialPatience)
	}
	switch answer, errno := answered(w, status); {
	case errno == 0:
		return answer
	case errno == unix.EAGAIN && w.blocking:
		return unix.EINPROGRESS // as with a timeout for sending in socket(7)
	case errno == unix.EAGAIN:
		return 0
	default:
		return errno
	}
}

// answered waits for a status. errno says why the wait was over before.
func answered(w *waiting, status *os.File) (answer, errno unix.Errno) {
	var b [ask.StatusSize]byte
	for {
		_ = status.SetReadDeadline(w.next())
		n, err := status.Read(b[:])
		switch {
		case n == len(b):
			answer, err := ask.ParseStatus(b[:])
			if err != nil {
				return unix.ECONNREFUSED, 0
			}
			return answer, 0
		case !errors.Is(err, os.ErrDeadlineExceeded): // the entrance closed the connection
			return unix.ECONNREFUSED, 0
		}
		if errno := w.over(); errno != 0 {
			return 0, errno
		}
	}
}

// errnoOf returns the errno of an error; 0 for none.
func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	return fail(err).errno
}
