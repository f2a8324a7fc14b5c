//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"cmp"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ports/sockets"
)

const (
	// maxPorts is how many ports an answer holds.
	maxPorts = 1024
	// maxListeners is how many sockets that listen are looked at.
	maxListeners = 1 << 16
	// maxDescriptors is how many descriptors of processes are looked at, to find who
	// holds the sockets.
	maxDescriptors = 1 << 18
	refusalMS      = 20
)

// listPorts lists the sockets of the sandbox that listen, of one port, or of all
// when it is 0.
func (o *onlooker) listPorts(port uint16) (initlink.Seen, error) {
	s := initlink.Seen{Shared: !o.ownNet}
	all, err := listeners(port)
	if err != nil || len(all) == 0 {
		return s, err
	}
	held, err := o.holders(all)
	if err != nil {
		return s, err
	}
	for _, l := range all {
		pid := held[l.Inode]
		if pid == 0 && s.Shared {
			continue // a stranger's
		}
		s.Ports = append(s.Ports, initlink.Port{Addr: l.Addr, Inode: l.Inode, PID: pid})
	}
	slices.SortFunc(s.Ports, func(a, b initlink.Port) int {
		return cmp.Or(cmp.Compare(a.Addr.Port(), b.Addr.Port()), a.Addr.Addr().Compare(b.Addr.Addr()), cmp.Compare(a.Inode, b.Inode))
	})
	if len(s.Ports) > maxPorts {
		s.More = len(s.Ports) - maxPorts
		s.Ports = s.Ports[:maxPorts]
	}
	for i := range s.Ports {
		if p := &s.Ports[i]; p.PID != 0 {
			p.Name = nameOf(p.PID)
		}
	}
	return s, nil
}

// listeners reads who listens in our network namespace: at one port, or at any when
// it is 0. The lists are those of the thread that reads them, and all threads of
// init are in one namespace.
func listeners(port uint16) (all []sockets.Listener, err error) {
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open("/proc/thread-self/net/" + name)
		if errors.Is(err, os.ErrNotExist) && name == "tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fault.Wrap(err, "list the sockets that listen")
		}
		err = sockets.Read(f, func(l sockets.Listener) bool {
			if port == 0 || l.Addr.Port() == port {
				all = append(all, l)
			}
			return len(all) < maxListeners
		})
		f.Close()
		if err != nil {
			return nil, fault.Wrap(err, "list the sockets that listen")
		}
	}
	return all, nil
}

// holders finds processes of the sandbox that hold the sockets: inode to pid. One
// whose descriptors cannot be seen holds none.
func (o *onlooker) holders(all []sockets.Listener) (map[uint64]int, error) {
	if o.blind {
		if o.ownNet {
			return nil, nil // they are the sandbox's, whoever holds them
		}
		return nil, o.blindness()
	}
	list, err := scan(o.self)
	if err != nil {
		return nil, fault.Wrap(err, "list the sandbox's processes")
	}
	missing := make(map[uint64]bool, len(all))
	for _, l := range all {
		missing[l.Inode] = true
	}
	held := make(map[uint64]int, len(all))
	left := maxDescriptors
	for _, p := range list {
		if len(missing) == 0 || left <= 0 {
			break
		}
		left -= eachSocket("/proc/"+strconv.Itoa(p.pid)+"/fd", left, func(inode uint64) {
			if missing[inode] {
				delete(missing, inode)
				held[inode] = p.pid
			}
		})
	}
	return held, nil
}

// eachSocket calls each with the inodes of the sockets among the descriptors that a
// directory of /proc shows, most of which are looked at, and gives their number. A
// link that begins so is no path: those begin with a slash.
func eachSocket(dir string, most int, each func(inode uint64)) (n int) {
	d, err := os.Open(dir)
	if err != nil {
		return 1
	}
	defer d.Close()
	var buf [64]byte
	for n < most {
		names, err := d.Readdirnames(min(256, most-n))
		if err != nil || len(names) == 0 {
			break
		}
		n += len(names)
		for _, name := range names {
			k, err := unix.Readlinkat(int(d.Fd()), name, buf[:])
			if err != nil {
				continue
			}
			if rest, ok := bytes.CutPrefix(buf[:k], []byte("socket:[")); ok {
				if inode, err := strconv.ParseUint(string(bytes.TrimSuffix(rest, []byte("]"))), 10, 64); err == nil {
					each(inode)
				}
			}
		}
	}
	return n + 1
}

// dial begins to connect to a port of the sandbox and gives the socket: whoever gets
// it waits until it is connected, which here nobody can afford.
func (o *onlooker) dial(port uint16) (int, error) {
	if o.ownNet {
		// Whoever answers is the sandbox's, and most listen here. The kernel's lists
		// take it milliseconds to write.
		for _, addr := range usual {
			if fd, err := connect(netip.AddrPortFrom(addr, port)); err == nil {
				return fd, nil
			}
		}
	}
	all, err := listeners(port)
	if err != nil {
		return -1, err
	}
	ours := func(uint64) bool { return true }
	if !o.ownNet && len(all) > 0 {
		held, err := o.holders(all)
		if err != nil {
			return -1, err
		}
		ours = func(inode uint64) bool { return held[inode] != 0 }
	}
	refused := fault.New(fault.NotFound, "nothing listens on port %d", port)
	for _, to := range sockets.Routes(all, port, ours) {
		fd, err := connect(to)
		if err == nil {
			return fd, nil
		}
		refused.Err = err
	}
	return -1, refused
}

var usual = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// connect begins to connect.
func connect(to netip.AddrPort) (int, error) {
	family, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fault.Wrap(err, "make a socket")
	}
	if err = unix.Connect(fd, addr); err == nil || errors.Is(err, unix.EINPROGRESS) {
		err = refusal(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fault.Wrap(err, "connect to %s", to)
	}
	return fd, nil
}

// refusal waits until a connection that has begun is refused or made: for a moment,
// which is all that it takes unless the listener's queue is full.
func refusal(fd int) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}} // a descriptor
	if n, err := unix.Poll(p, refusalMS); err != nil || n != 1 {
		return nil //nolint:nilerr // whoever gets the socket sees to it
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err == nil && code != 0:
		return unix.Errno(code)
	case err == nil && OwnEnd(fd):
		return unix.ECONNREFUSED
	}
	return err
}

// OwnEnd reports whether a TCP socket is connected to itself, as one can be to a port
// of the loopback address where nobody listens.
func OwnEnd(fd int) bool {
	a, err := unix.Getsockname(fd)
	b, berr := unix.Getpeername(fd)
	if err != nil || berr != nil {
		return false
	}
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		b, ok := b.(*unix.SockaddrInet4)
		return ok && a.Port == b.Port && a.Addr == b.Addr
	case *unix.SockaddrInet6:
		b, ok := b.(*unix.SockaddrInet6)
		return ok && a.Port == b.Port && a.Addr == b.Addr
	}
	return false
}
