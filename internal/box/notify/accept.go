//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// accept carries out accept(2) and accept4(2). If too many calls wait, the kernel does, and the caller sees the address
// of a Unix socket.
func (s *server) accept(c caller) verdict {
	socket, e, ok := s.known(c)
	if !ok {
		return proceed
	}
	defer unix.Close(socket)
	flags := 0
	if c.nr == unix.SYS_ACCEPT4 {
		flags = int(int32(c.args[3]))
	}
	if flags&^(unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK) != 0 {
		return verdict{errno: unix.EINVAL}
	}
	if on, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on == 0 {
		return verdict{errno: unix.EINVAL}
	}
	m, err := c.memory()
	if err != nil {
		return fail(err)
	}
	defer m.close()
	room, asked := 0, c.args[1] != 0
	if asked {
		if room, err = m.size(c.args[2]); err != nil {
			return fail(err)
		}
	}
	peer := -1
	err = s.attempt(c, socket, func() (err error) {
		peer, err = s.acceptFrom(socket, flags)
		return err
	})
	if errors.Is(err, errCrowded) {
		return proceed
	}
	if err != nil {
		return fail(err)
	}
	e.spent = false
	inode, err := inodeOf(peer)
	if err == nil {
		here := s.inet.source(e.local.Addr())
		e.local = netip.AddrPortFrom(here, e.local.Port())
		e.peer = netip.AddrPortFrom(here, passing(inode))
		s.inet.names.set(inode, e)
	}
	if err == nil && asked {
		name := sockaddr(e.family, e.peer)
		err = m.give(c.args[1], c.args[2], room, name, len(name))
	}
	if err != nil {
		unix.Close(peer)
		return fail(err)
	}
	return s.hand(c, peer, addition{newfileFlags: uint32(flags) & unix.O_CLOEXEC})
}

// acceptFrom accepts a connection that waits. Of the calls of this process on one socket, only one is in accept(2),
// which has nothing to wait for then. A caller that takes the connection meanwhile, by an accept(2) of the kernel, can
// make that call wait for the next one, and with it a thread; never more than there are locks.
func (s *server) acceptFrom(socket, flags int) (int, error) {
	inode, err := inodeOf(socket)
	if err != nil {
		return -1, err
	}
	if !readable(socket) {
		return -1, unix.EAGAIN
	}
	one := &s.inet.accepting[inode%uint64(len(s.inet.accepting))]
	for late := time.Now().Add(lockPatience); !one.TryLock(); time.Sleep(lockPause) {
		if time.Now().After(late) {
			return -1, unix.EAGAIN
		}
	}
	defer one.Unlock()
	if !readable(socket) {
		return -1, unix.EAGAIN
	}
	peer, _, err := unix.Accept4(socket, flags|unix.SOCK_CLOEXEC)
	return peer, err
}

// Times to wait for the lock of accept(2), which is held for microseconds unless a caller prevents it.
const (
	lockPatience = 100 * time.Millisecond
	lockPause    = time.Millisecond
)
