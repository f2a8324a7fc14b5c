//go:build linux && (amd64 || arm64)

package notify

import (
	"golang.org/x/sys/unix"
)

// arrival is a datagram that a caller receives.
type arrival struct {
	b    []byte // what there is room for
	size int    // of the whole datagram
	from endpoint
}

// returned returns what the call returns, with flags.
func (a arrival) returned(flags int) int {
	if flags&unix.MSG_TRUNC != 0 {
		return a.size
	}
	return len(a.b)
}

// receiveUDP receives a datagram of at most room bytes on a socket for UDP, and waits for one unless MSG_DONTWAIT is
// among the flags of the call.
func (s *server) receiveUDP(c caller, socket int, e endpoint, room uint64, flags int) (arrival, error) {
	if flags&unix.MSG_ERRQUEUE != 0 { // no errors are queued
		return arrival{}, unix.EAGAIN
	}
	a := arrival{b: make([]byte, min(room, maxDatagram)), from: e}
	err := s.attemptWith(c, socket, unix.POLLIN, flags, func() (err error) {
		a.size, a.from, err = s.receiveFrom(socket, e, a.b, flags&unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		return err
	})
	switch {
	case err != nil:
		return arrival{}, err
	case a.size == 0 && ended(socket): // an error of the dial; a datagram may be empty
		return arrival{}, unix.ECONNREFUSED
	}
	a.b = a.b[:min(a.size, len(a.b))]
	return a, nil
}

// receiveFrom receives a datagram, and returns what the socket is with the peer from which it is, or e.
func (s *server) receiveFrom(socket int, e endpoint, b []byte, flags int) (n int, _ endpoint, err error) {
	inode, err := inodeOf(socket)
	if err != nil {
		return 0, e, err
	}
	receive := func() {
		n, _, err = unix.Recvfrom(socket, b, flags)
		if named, ok := s.inet.names.get(inode); ok {
			e = named
		}
	}
	if f, ok := s.inet.kept.flow(inode); ok {
		f.rename(receive)
	} else {
		receive()
	}
	return n, e, err
}

// ended reports whether the peer of a socket has closed its end.
func ended(socket int) bool {
	fds := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0
}

// recvfrom carries out recvfrom(2) on a socket for UDP for a caller that asks for the address of the peer. Resolvers
// ignore answers that do not come from the address that they asked.
func (s *server) recvfrom(c caller) verdict {
	return s.receiving(c, func(socket int, e endpoint, m memory) (int, error) {
		room := 0
		if c.args[5] != 0 {
			var err error
			if room, err = m.size(c.args[5]); err != nil {
				return 0, err
			}
		}
		flags := int(int32(c.args[3]))
		a, err := s.receiveUDP(c, socket, e, c.args[2], flags)
		if err == nil {
			err = m.write(c.args[1], a.b)
		}
		if err == nil && c.args[5] != 0 {
			name := sockaddr(a.from.family, a.from.peer)
			err = m.give(c.args[4], c.args[5], room, name, len(name))
		}
		return a.returned(flags), err
	})
}

// recvmsg carries out recvmsg(2) on a socket for UDP.
func (s *server) recvmsg(c caller) verdict {
	return s.receiving(c, func(socket int, e endpoint, m memory) (int, error) {
		return s.receiveMessage(c, socket, e, m, c.args[1], int(int32(c.args[2])))
	})
}

// recvmmsg carries out recvmmsg(2) on a socket for UDP. It returns what is there once there is one datagram, so that
// its time limit, which the kernel checks only after a datagram, does not matter.
func (s *server) recvmmsg(c caller) verdict {
	return s.receiving(c, func(socket int, e endpoint, m memory) (int, error) {
		return several(c, m, func(at uint64, flags int) (int, error) {
			return s.receiveMessage(c, socket, e, m, at, flags)
		})
	})
}

// receiving carries out a call that receives from a socket for UDP, and stores what it receives in the caller's memory.
func (s *server) receiving(c caller, do func(socket int, e endpoint, m memory) (int, error)) verdict {
	socket, e, ok := s.known(c)
	if !ok {
		return proceed
	}
	defer unix.Close(socket)
	if !e.packet {
		return proceed
	}
	m, err := c.memory()
	if err != nil {
		return fail(err)
	}
	defer m.close()
	n, err := do(socket, e, m)
	return s.outcome(n, err)
}

// receiveMessage receives a datagram into a message of the caller. There is never control data.
func (s *server) receiveMessage(c caller, socket int, e endpoint, m memory, at uint64, flags int) (int, error) {
	into, err := c.message(at)
	if err != nil {
		return 0, err
	}
	a, err := s.receiveUDP(c, socket, e, uint64(into.size), flags)
	if err != nil {
		return 0, err
	}
	if err := into.scatter(m, a.b); err != nil {
		return 0, err
	}
	result := 0
	if a.size > len(a.b) {
		result = unix.MSG_TRUNC
	}
	return a.returned(flags), into.finish(m, sockaddr(a.from.family, a.from.peer), result)
}
