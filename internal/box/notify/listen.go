//go:build linux && (amd64 || arm64)

package notify

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// listen carries out a caller's listen(2), as connect does for connect(2). It refuses Unix sockets with an abstract
// name: programs outside may trust a name of which they expect that it belongs to a service of the host, and connect.
// Bound to such a name, without listen, a socket receives nothing.
//
// Peers see the ids of this process as those of the listener (SO_PEERCRED), as with connect.
func (s *server) listen(c caller) {
	v := s.listenFor(c)
	s.opt.Lock.RLock()
	defer s.opt.Lock.RUnlock()
	s.answer(c.id, v)
}

func (s *server) listenFor(c caller) verdict {
	socket, err := c.descriptor(int(int32(c.args[0])))
	if err != nil {
		return fail(err)
	}
	defer unix.Close(socket)
	if !s.valid(c.id) {
		return verdict{errno: unix.ESRCH} // the caller has died
	}
	if s.inet != nil {
		if err := s.listenInet(socket); err != nil {
			return fail(err)
		}
	}
	if err := listens(socket); err != nil {
		return s.refused(c, "listen", err)
	}
	if err := unix.Listen(socket, int(int32(c.args[1]))); err != nil {
		return fail(err)
	}
	return success
}

// listens returns why a socket may not listen, apart from what the kernel finds. The name that a Unix socket has does
// not change. One without a name, which the kernel would refuse, could get any until the kernel is asked.
func listens(socket int) error {
	domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return err
	}
	var name unix.RawSockaddrUnix
	size := uint32(unsafe.Sizeof(name))
	if _, _, e := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(socket), uintptr(unsafe.Pointer(&name)),
		uintptr(unsafe.Pointer(&size))); e != 0 {
		return e
	}
	switch {
	case size <= pathAt:
		return unix.EINVAL
	case name.Path[0] == 0:
		return errOutside
	}
	return nil
}
