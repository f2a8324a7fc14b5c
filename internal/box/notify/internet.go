//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"net/netip"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// A caller under a filter with seccomp.NotifyOptions.Inet never holds a socket of the Internet. What it gets for one is
// a Unix socket that this process has made: SOCK_STREAM for TCP, and for UDP one end of a pair of SOCK_SEQPACKET, which
// keeps the bounds of messages and, unlike SOCK_DGRAM, cannot be used to send to the name of another socket. This
// process connects it to an entrance outside, which dials, or to another such socket of the sandbox; for UDP, it passes
// the other end of the pair to the entrance (flow.go). The callers see addresses of the Internet for it; no decision
// about what is reachable depends on them.

// Inet is the Internet of callers without sockets of it.
type Inet struct {
	// Dir is an absolute path of a directory that callers can neither open nor change. It contains the listeners of the
	// entrance, ask.Stream and ask.Messages, and the directory InetPorts, which is empty at the start, and in which
	// callers' own ports are made.
	Dir string
	// Processes lists the processes that callers' sockets may be in, by their ids in /proc. Those of another sandbox are
	// not among them: a search of their descriptors would take as long as they like.
	Processes func() ([]int, error)
	// Own are the addresses of the sandbox besides those of loopback. The first of a family is that of connections that
	// leave the sandbox.
	Own []netip.Addr
}

// InetPorts is the name in Inet.Dir of the directory of the sandbox's own ports.
const InetPorts = "ports"

// Bounds on the calls that are served at a time. With the sockets that are kept, which have at most three eighths, and
// the calls in server.connecting, which have at most four descriptors each besides those, they use no more than seven
// eighths of the descriptors of this process, if it has leastDescriptors.
const (
	maxBrief   = 64  // calls that do not wait; each has at most three descriptors
	maxWaiting = 128 // calls that wait for a peer, or for room; each has at most three

	leastDescriptors = 1024
)

// Internet is an Inet that Options.Inet serves. Its exported methods are safe for concurrent use.
type Internet struct {
	file  *os.File // the directory
	dir   string   // its path by the descriptor, with a slash
	own   []netip.Addr
	names names
	kept  *kept

	taking sync.Mutex // held while a port is taken
	last   uint16     // the last port of free

	brief      chan struct{}
	waiting    chan struct{}
	connecting chan struct{}  // as server.connecting
	accepting  [32]sync.Mutex // held during accept(2), by the socket's inode
}

// NewInternet opens the directory of i, for one Serve. The caller must call Close after that.
func NewInternet(i Inet) (*Internet, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return nil, fault.Wrap(err, "get the limit of descriptors")
	}
	if l.Cur < leastDescriptors {
		return nil, fault.New(fault.Unsupported, "cannot apply network rules with at most %d descriptors", l.Cur).
			WithHint("raise the limit of the daemon to %d: ulimit -n %[1]d", leastDescriptors)
	}
	share := func(most int, of uint64) int { return int(min(uint64(most), l.Cur/of)) }
	fd, err := openat(unix.AT_FDCWD, i.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, fault.Wrap(err, "open the directory of the network")
	}
	n := &Internet{file: os.NewFile(uintptr(fd), i.Dir), dir: byFD(fd) + "/", own: i.Own,
		brief: make(chan struct{}, share(maxBrief, 32)), waiting: make(chan struct{}, share(maxWaiting, 32)),
		connecting: make(chan struct{}, share(maxConnecting, 16))}
	n.kept = newKept(int(min(maxKept, l.Cur/8*3)), func(inode uint64) { n.names.get(inode) }, i.Processes)
	return n, nil
}

// Close closes the directory.
func (n *Internet) Close() error { return n.file.Close() }

// forIPv6 ends the name of a port of IPv6. A server may have one socket for each family, which the kernel allows with
// IPV6_V6ONLY.
const forIPv6 = ".6"

// port is the path of one of the sandbox's own ports, at an address of it.
func (n *Internet) port(at netip.AddrPort) string {
	path := n.dir + InetPorts + "/" + strconv.Itoa(int(at.Port()))
	if !at.Addr().Unmap().Is4() {
		path += forIPv6
	}
	return path
}

// local reports whether an address is one of the sandbox itself. All of them are the same.
func (n *Internet) local(a netip.Addr) bool {
	a = a.Unmap()
	if a.IsLoopback() || a.IsUnspecified() {
		return true
	}
	for _, own := range n.own {
		if a == own {
			return true
		}
	}
	return false
}

// source is the address from which a connection to an address comes.
func (n *Internet) source(to netip.Addr) netip.Addr {
	a := to.Unmap()
	for _, own := range n.own {
		if !n.local(a) && own.Is4() == a.Is4() {
			return own
		}
	}
	if a.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// inetCalls are the calls that are answered with Options.Inet, besides connect(2) and listen(2).
var inetCalls = map[uint32]func(*server, caller) verdict{
	unix.SYS_SOCKET:      (*server).socket,
	unix.SYS_BIND:        (*server).bind,
	unix.SYS_GETSOCKNAME: (*server).getsockname,
	unix.SYS_GETPEERNAME: (*server).getpeername,
	unix.SYS_ACCEPT:      (*server).accept,
	unix.SYS_ACCEPT4:     (*server).accept,
	unix.SYS_SENDTO:      (*server).sendto,
	unix.SYS_RECVFROM:    (*server).recvfrom,
	unix.SYS_SENDMSG:     (*server).sendmsg,
	unix.SYS_SENDMMSG:    (*server).sendmmsg,
	unix.SYS_RECVMSG:     (*server).recvmsg,
	unix.SYS_RECVMMSG:    (*server).recvmmsg,
	unix.SYS_GETSOCKOPT:  (*server).getsockopt,
}

// transports reports whether a call transports datagrams if its socket is one for UDP.
func transports(nr int32) bool {
	switch nr {
	case unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG:
		return true
	}
	return false
}

// forUDP reports whether the socket of a call is one for UDP. It is quick: the kernel carries out the calls with other
// sockets, which may be many. A sendto(2) with an address counts as one for UDP if the caller does not show its
// descriptors.
func (s *server) forUDP(c caller) bool {
	inode, err := socketAt(c.tid, int32(c.args[0]))
	if err != nil || inode == 0 {
		return c.nr == unix.SYS_SENDTO && errors.Is(err, unix.EACCES)
	}
	if e, ok := s.inet.names.get(inode); ok {
		return e.packet
	}
	_, ok := s.inet.kept.flow(inode)
	return ok
}

// inetCall returns the function that answers a call of inetCalls.
func (s *server) inetCall(c caller) (func(), bool) {
	switch {
	case s.inet == nil, c.nr == unix.SYS_SOCKET && !ofInternet(uint32(c.args[0])), transports(c.nr) && !s.forUDP(c):
		return nil, false
	}
	do, ok := inetCalls[uint32(c.nr)]
	return func() { s.reply(c, s.serve(c, do)) }, ok
}

// reply answers a call that was received earlier.
func (s *server) reply(c caller, v verdict) {
	s.opt.Lock.RLock()
	defer s.opt.Lock.RUnlock()
	s.answer(c.id, v)
}

func ofInternet(family uint32) bool { return family == unix.AF_INET || family == unix.AF_INET6 }
