//go:build linux && (amd64 || arm64)

package notify

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// socketKind is SOCK_TYPE_MASK; the flags of socket(2) are the other bits of its argument.
const socketKind = 0xf

// socket carries out socket(2) for the Internet. The caller gets a Unix socket.
func (s *server) socket(c caller) verdict {
	packet, errno := transport(uint32(c.args[1])&socketKind, uint32(c.args[2]))
	if errno != 0 {
		return s.tell(c, "socket", errno)
	}
	if uint32(c.args[1])&^(socketKind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC) != 0 {
		return verdict{errno: unix.EINVAL}
	}
	socket, err := s.make(endpoint{family: uint32(c.args[0]), packet: packet}, int(c.args[1])&unix.SOCK_NONBLOCK)
	if err != nil {
		return fail(err)
	}
	number, err := s.lend(c, socket, addition{newfileFlags: uint32(c.args[1]) & unix.SOCK_CLOEXEC})
	if err != nil {
		return fail(err)
	}
	return verdict{value: number}
}

// lend gives a socket of make to the caller, and returns its number there.
func (s *server) lend(c caller, inode uint64, a addition) (number int64, err error) {
	socket, ok := s.inet.kept.dup(inode, c.tid, lending)
	if !ok {
		return 0, unix.EMFILE
	}
	defer unix.Close(socket)
	a.id, a.from = c.id, uint32(socket)
	s.opt.Lock.RLock()
	defer s.opt.Lock.RUnlock()
	if number, err = s.add(a); err != nil {
		s.inet.kept.drop(inode)
		return 0, err
	}
	s.inet.kept.lent(inode, int32(number))
	return number, nil
}

// transport says what a kind of socket and a protocol stand for.
func transport(kind, protocol uint32) (packet bool, errno unix.Errno) {
	switch {
	case kind == unix.SOCK_STREAM &&
		(protocol == 0 || protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_MPTCP):
		return false, 0
	case kind == unix.SOCK_DGRAM && (protocol == 0 || protocol == unix.IPPROTO_UDP):
		return true, 0
	case kind == unix.SOCK_STREAM, kind == unix.SOCK_DGRAM && protocol != unix.IPPROTO_ICMP &&
		protocol != unix.IPPROTO_ICMPV6:
		return false, unix.EPROTONOSUPPORT
	}
	return false, unix.EACCES
}

// make makes a socket for an endpoint, which is kept. flags are O_NONBLOCK or 0.
func (s *server) make(e endpoint, flags int) (inode uint64, err error) {
	var socket int
	var f *flow
	if e.packet {
		socket, f, err = newPair(flags)
	} else {
		socket, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|flags|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return 0, err
	}
	if inode, err = s.inet.kept.hold(socket, f); err == nil {
		s.inet.names.set(inode, e)
	}
	return inode, err
}

// hand gives a socket to the caller, closes it here, and returns its number as the answer. The answer comes later, when
// the calling function has closed its duplicates too: the port of one must be free when the caller has closed it.
func (s *server) hand(c caller, socket int, a addition) verdict {
	defer unix.Close(socket)
	s.opt.Lock.RLock()
	defer s.opt.Lock.RUnlock()
	a.id, a.from = c.id, uint32(socket)
	number, err := s.add(a)
	if err != nil {
		return fail(err)
	}
	return verdict{value: number}
}

// renew replaces the caller's socket for TCP by one that is not connected yet, and returns a duplicate of the latter.
// Other duplicates of the old one stay what they are.
func (s *server) renew(c caller, old int, e endpoint) (int, error) {
	flags, err := unix.FcntlInt(uintptr(old), unix.F_GETFL, 0)
	if err != nil {
		return -1, err
	}
	before, err := inodeOf(old)
	if err != nil {
		return -1, err
	}
	inode, err := s.make(endpoint{family: e.family}, flags&unix.O_NONBLOCK)
	if err != nil {
		return -1, err
	}
	if next, ok := s.inet.kept.dup(inode, c.tid, lending); ok {
		copyOptions(next, old)
		unix.Close(next)
	}
	number := uint32(c.args[0])
	if _, err = s.lend(c, inode, addition{to: number, flags: unix.SECCOMP_ADDFD_FLAG_SETFD,
		newfileFlags: c.closeOnExec(number)}); err != nil {
		return -1, err
	}
	s.inet.kept.drop(before)
	socket, ok := s.inet.kept.dup(inode, c.tid, int32(number))
	if !ok {
		return -1, unix.EMFILE
	}
	return socket, nil
}

// copyOptions gives a new socket the options of an old one that matter to Unix sockets. The kernel doubles the size of
// a buffer that is set (socket(7)).
func copyOptions(to, from int) {
	for _, o := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if t, err := unix.GetsockoptTimeval(from, unix.SOL_SOCKET, o); err == nil && t.Nano() > 0 {
			_ = unix.SetsockoptTimeval(to, unix.SOL_SOCKET, o, t)
		}
	}
	for _, o := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
		have, err := unix.GetsockoptInt(to, unix.SOL_SOCKET, o)
		if size, ferr := unix.GetsockoptInt(from, unix.SOL_SOCKET, o); err == nil && ferr == nil && size != have {
			_ = unix.SetsockoptInt(to, unix.SOL_SOCKET, o, size/2)
		}
	}
}

// closeOnExec returns O_CLOEXEC if the caller's descriptor has it, from /proc/TID/fdinfo (proc_pid_fdinfo(5)).
func (c caller) closeOnExec(fd uint32) uint32 {
	file, err := openat(unix.AT_FDCWD, procPath(c.tid, "fdinfo/"+strconv.Itoa(int(fd))), unix.O_RDONLY)
	if err != nil {
		return 0
	}
	defer unix.Close(file)
	b := make([]byte, 256)
	n, err := unix.Read(file, b)
	if err != nil {
		return 0
	}
	flags, err := strconv.ParseUint(fields(b[:n])["flags"], 8, 32)
	if err != nil {
		return 0
	}
	return uint32(flags) & unix.O_CLOEXEC
}

// tell refuses a call and reports it.
func (s *server) tell(c caller, call string, errno unix.Errno) verdict {
	if s.opt.Refused != nil {
		s.opt.Refused(Refusal{Call: call, Errno: errno, TID: c.tid,
			Program: s.program(&notification{id: c.id, tid: uint32(c.tid)})})
	}
	return verdict{errno: errno}
}
