//go:build linux && (amd64 || arm64)

package notify

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// endpoint is what callers see of a socket that stands for one of the Internet.
type endpoint struct {
	family      uint32
	packet      bool // UDP
	local, peer netip.AddrPort
	connected   bool // UDP: connect(2) has named the peer, and not sendto(2)
	spent       bool // TCP: its connection failed or was dissolved; another socket must take its place
}

// names are the endpoints of sockets by their inodes. Nothing tells this process that a socket is closed, and the
// kernel may use its inode again, after four thousand million others. So when there are many names, those that were
// not used for long are forgotten; their sockets still work.
type names struct {
	mu            sync.Mutex
	recent, older map[uint64]endpoint
}

// maxRecent is half of the number of names that are known.
const maxRecent = 1 << 14

func (n *names) get(inode uint64) (endpoint, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e, ok := n.recent[inode]; ok {
		return e, true
	}
	e, ok := n.older[inode]
	if ok {
		n.put(inode, e)
	}
	return e, ok
}

func (n *names) set(inode uint64, e endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.put(inode, e)
}

func (n *names) put(inode uint64, e endpoint) {
	if len(n.recent) >= maxRecent {
		n.recent, n.older = nil, n.recent
	}
	if n.recent == nil {
		n.recent = map[uint64]endpoint{}
	}
	n.recent[inode] = e
}

// Ports that sockets get which ask for none, as in ip_local_port_range.
const (
	firstFree = 32768
	lastFree  = 60999
)

// passing is the port that a socket without one seems to have.
func passing(inode uint64) uint16 { return uint16(firstFree + inode%(lastFree-firstFree+1)) }

// endpoint returns what is known of a socket. ok says that it stands for one of the Internet.
func (s *server) endpoint(socket int) (inode uint64, e endpoint, ok bool) {
	inode, err := inodeOf(socket)
	if err != nil {
		return 0, endpoint{}, false
	}
	if e, ok = s.inet.names.get(inode); ok {
		return inode, e, true
	}
	if domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || domain != unix.AF_UNIX {
		return 0, endpoint{}, false
	}
	// It was forgotten, or accepted by the kernel. The names of ports are left.
	e = endpoint{family: unix.AF_INET}
	here := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	local, isLocal := s.inet.number(nameOf(socket, unix.SYS_GETSOCKNAME))
	peer, isPeer := s.inet.number(nameOf(socket, unix.SYS_GETPEERNAME))
	switch {
	case isLocal && nameOf(socket, unix.SYS_GETPEERNAME) != nil:
		e.local, e.peer = netip.AddrPortFrom(here, local), netip.AddrPortFrom(here, passing(inode))
	case isLocal:
		e.local = netip.AddrPortFrom(netip.IPv4Unspecified(), local)
	case isPeer:
		e.local, e.peer = netip.AddrPortFrom(here, passing(inode)), netip.AddrPortFrom(here, peer)
	default:
		return 0, endpoint{}, false
	}
	return inode, e, true
}

// number returns the port of which a path is.
func (n *Internet) number(path []byte) (uint16, bool) {
	rest, ok := strings.CutPrefix(string(path), n.dir+InetPorts+"/")
	number, err := strconv.ParseUint(strings.TrimSuffix(rest, forIPv6), 10, 16)
	return uint16(number), ok && err == nil
}

// nameOf returns what getsockname(2) or getpeername(2) return for a Unix socket, without the family; nil after an
// error.
func nameOf(socket int, call uintptr) []byte {
	var name unix.RawSockaddrUnix
	size := uint32(unsafe.Sizeof(name))
	if _, _, e := unix.Syscall(call, uintptr(socket), uintptr(unsafe.Pointer(&name)),
		uintptr(unsafe.Pointer(&size))); e != 0 || size < pathAt {
		return nil
	}
	path := unsafe.Slice((*byte)(unsafe.Pointer(&name.Path[0])), len(name.Path))[:min(int(size)-pathAt, len(name.Path))]
	if end := len(path) - 1; end > 0 && path[end] == 0 {
		path = path[:end]
	}
	return append([]byte{}, path...)
}

// getsockname carries out getsockname(2). The kernel answers for other sockets.
func (s *server) getsockname(c caller) verdict {
	return s.name(c, func(e endpoint) (netip.AddrPort, error) { return e.local, nil })
}

// getpeername carries out getpeername(2).
func (s *server) getpeername(c caller) verdict {
	return s.name(c, func(e endpoint) (netip.AddrPort, error) {
		if !e.peer.IsValid() || e.spent || e.packet && !e.connected {
			return e.peer, unix.ENOTCONN
		}
		return e.peer, nil
	})
}

func (s *server) name(c caller, of func(endpoint) (netip.AddrPort, error)) verdict {
	e, ok := s.named(c)
	if !ok {
		return proceed
	}
	name, err := of(e)
	if err != nil {
		return fail(err)
	}
	return c.give(c.args[1], c.args[2], sockaddr(e.family, name))
}

// known returns a duplicate of the socket of a call and what it stands for. Without ok there is none, and the kernel
// answers: it only says what a Unix socket is.
func (s *server) known(c caller) (socket int, e endpoint, ok bool) {
	socket, err := c.descriptor(int(int32(c.args[0])))
	if err != nil {
		return -1, e, false
	}
	if _, e, ok = s.endpoint(socket); !ok {
		unix.Close(socket)
	}
	return socket, e, ok
}

// named returns what the socket of a call stands for, also if no duplicate of it can be had.
func (s *server) named(c caller) (e endpoint, ok bool) {
	inode, err := socketAt(c.tid, int32(c.args[0]))
	if err == nil {
		if e, ok = s.inet.names.get(inode); ok {
			return e, true
		}
	}
	socket, e, ok := s.known(c)
	if ok {
		unix.Close(socket)
	}
	return e, ok
}

// give stores a value in a buffer whose size is at sizeAt.
func (c caller) give(at, sizeAt uint64, value []byte) verdict {
	m, err := c.memory()
	if err != nil {
		return fail(err)
	}
	defer m.close()
	room, err := m.size(sizeAt)
	if err == nil {
		err = m.give(at, sizeAt, room, value, len(value))
	}
	if err != nil {
		return fail(err)
	}
	return success
}

// option is the level and the name of a socket option.
type option struct{ level, name uint32 }

// optionsOf are the options that say what kind of socket an endpoint is, and those that programs read after they have
// set them: what the filter pretends is the default here.
func optionsOf(e endpoint) map[option]uint32 {
	kind, protocol := uint32(unix.SOCK_STREAM), uint32(unix.IPPROTO_TCP)
	if e.packet {
		kind, protocol = unix.SOCK_DGRAM, unix.IPPROTO_UDP
	}
	return map[option]uint32{
		{unix.SOL_SOCKET, unix.SO_DOMAIN}:   e.family,
		{unix.SOL_SOCKET, unix.SO_TYPE}:     kind,
		{unix.SOL_SOCKET, unix.SO_PROTOCOL}: protocol,
		{unix.SOL_TCP, unix.TCP_NODELAY}:    1,
		{unix.SOL_IPV6, unix.IPV6_V6ONLY}:   0,
	}
}

// getsockopt carries out getsockopt(2) for the options of optionsOf.
func (s *server) getsockopt(c caller) verdict {
	e, ok := s.named(c)
	if !ok {
		return proceed
	}
	value, ok := optionsOf(e)[option{uint32(c.args[1]), uint32(c.args[2])}]
	if !ok {
		return proceed
	}
	m, err := c.memory()
	if err != nil {
		return fail(err)
	}
	defer m.close()
	room, err := m.size(c.args[4])
	room = min(room, 4) // this call returns what it has stored
	if err == nil {
		err = m.give(c.args[3], c.args[4], room, binary.NativeEndian.AppendUint32(nil, value), room)
	}
	if err != nil {
		return fail(err)
	}
	return success
}
