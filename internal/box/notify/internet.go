//go:build linux && (amd64 || arm64)

package notify

import (
	"net/netip"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// A caller under a filter with seccomp.NotifyOptions.Inet never holds a socket of the Internet. What it gets for one is
// a Unix socket that this process has made: SOCK_STREAM for TCP, SOCK_SEQPACKET for UDP, which keeps the bounds of
// messages and, unlike SOCK_DGRAM, cannot be used to send to the name of another socket. This process connects it to an
// entrance outside, which dials, or to another such socket of the sandbox. The callers see addresses of the Internet
// for it; no decision about what is reachable depends on them.

// Inet is the Internet of callers without sockets of it.
type Inet struct {
	// Dir is an absolute path of a directory that callers can neither open nor change. It contains the listeners of the
	// entrance, ask.Stream and ask.Messages, and the directory InetPorts, which is empty at the start, and in which
	// callers' own ports are made.
	Dir string
	// Own are the addresses of the sandbox besides those of loopback. The first of a family is that of connections that
	// leave the sandbox.
	Own []netip.Addr
}

// InetPorts is the name in Inet.Dir of the directory of the sandbox's own ports.
const InetPorts = "ports"

// Bounds on the calls that are served at a time.
const (
	maxBrief   = 64  // calls that do not wait
	maxWaiting = 128 // calls that wait for a peer; each has two descriptors
)

// internet is the state of an Inet.
type internet struct {
	dir   string // the directory, by a descriptor, with a slash
	own   []netip.Addr
	names names
	kept  *kept

	taking sync.Mutex // held while a port is taken
	last   uint16     // the last port of free

	brief     chan struct{}
	waiting   chan struct{}
	accepting [32]sync.Mutex // held during accept(2), by the socket's inode
}

// newInternet opens i. The result is closed by closing file.
func newInternet(i *Inet) (n *internet, file *os.File, err error) {
	kept, err := newKept()
	if err != nil {
		return nil, nil, err
	}
	fd, err := openat(unix.AT_FDCWD, i.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, nil, fault.Wrap(err, "open the directory of the network")
	}
	return &internet{dir: byFD(fd) + "/", own: i.Own, kept: kept, brief: make(chan struct{}, maxBrief),
		waiting: make(chan struct{}, maxWaiting)}, os.NewFile(uintptr(fd), i.Dir), nil
}

// port is the path of one of the sandbox's own ports.
func (n *internet) port(number uint16) string {
	return n.dir + InetPorts + "/" + strconv.Itoa(int(number))
}

// local reports whether an address is one of the sandbox itself. All of them are the same.
func (n *internet) local(a netip.Addr) bool {
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
func (n *internet) source(to netip.Addr) netip.Addr {
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
	unix.SYS_GETSOCKOPT:  (*server).getsockopt,
}

// inetCall returns the function that answers a call of inetCalls.
func (s *server) inetCall(c caller) (func(), bool) {
	if s.inet == nil || c.nr == unix.SYS_SOCKET && !ofInternet(uint32(c.args[0])) {
		return nil, false
	}
	do, ok := inetCalls[uint32(c.nr)]
	return func() {
		s.inet.brief <- struct{}{}
		v := do(s, c)
		<-s.inet.brief
		s.reply(c, v)
	}, ok
}

// reply answers a call that was received earlier, unless it was answered already.
func (s *server) reply(c caller, v verdict) {
	if v.given {
		return
	}
	s.opt.Lock.RLock()
	defer s.opt.Lock.RUnlock()
	s.answer(c.id, v)
}

func ofInternet(family uint32) bool { return family == unix.AF_INET || family == unix.AF_INET6 }
