// Package sockets parses the kernel's lists of TCP sockets, /proc/net/tcp and /proc/net/tcp6, and decides by which
// address a listener is reached. It does no I/O. ports and box/procs may import it; it imports no other package of
// Coppice.
package sockets

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
)

// Listener is a listening TCP socket.
type Listener struct {
	// Addr is the address that it listens on. IPv4 mapped to IPv6 is converted to IPv4.
	Addr  netip.AddrPort
	Inode uint64 // inode of the socket, as in the links of /proc/PID/fd
}

const (
	stateListen = "0A"
	// maxLine is the maximum length of a line, in bytes; the kernel's have 150.
	maxLine = 4096
	// maxOthers is the number of other sockets after which reading stops: the kernel lists listening ones first, and
	// a busy host has hundreds of thousands of others.
	maxOthers = 256
)

// errLine is the error for a line that the kernel does not write.
var errLine = errors.New("malformed line of /proc/net/tcp")

// Read calls each for every listening socket, until it returns false.
func Read(r io.Reader, each func(Listener) bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	for first, others := true, 0; lines.Scan() && others < maxOthers; first = false {
		if first {
			continue // the names of the columns
		}
		l, listens, err := parse(lines.Bytes())
		switch {
		case err != nil:
			return err
		case !listens:
			others++
		case !each(l):
			return nil
		}
	}
	return lines.Err()
}

// parse parses one line; listens is false for a socket that does not listen.
//
//	sl: local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
func parse(line []byte) (l Listener, listens bool, err error) {
	f := bytes.Fields(line)
	if len(f) < 10 {
		return l, false, fmt.Errorf("%w: %d fields", errLine, len(f))
	}
	if string(f[3]) != stateListen {
		return l, false, nil
	}
	if l.Addr, err = parseAddr(string(f[1])); err != nil {
		return l, false, err
	}
	if l.Inode, err = strconv.ParseUint(string(f[9]), 10, 64); err != nil {
		return l, false, fmt.Errorf("%w: inode %.40q", errLine, f[9])
	}
	return l, true, nil
}

// parseAddr parses "0100007F:1F90": the words of an address in the byte order of this machine, and a port number.
func parseAddr(s string) (netip.AddrPort, error) {
	bad := fmt.Errorf("%w: address %.80q", errLine, s)
	var ip []byte
	switch len(s) {
	case 8 + 5:
		ip = make([]byte, 4)
	case 32 + 5:
		ip = make([]byte, 16)
	default:
		return netip.AddrPort{}, bad
	}
	words, number := s[:len(s)-5], s[len(s)-4:]
	port, err := strconv.ParseUint(number, 16, 16)
	if err != nil || s[len(words)] != ':' {
		return netip.AddrPort{}, bad
	}
	for i := 0; i < len(ip); i += 4 {
		w, err := strconv.ParseUint(words[2*i:2*i+8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, bad
		}
		binary.NativeEndian.PutUint32(ip[i:], uint32(w))
	}
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), nil
}

// Routes returns the addresses by which clients reach the listeners of one port for which ours is true, the best first:
// for a wildcard listener the loopback address of its family, for others their own. all includes foreign listeners on
// the same network: an address at which one of them may answer is omitted.
func Routes(all []Listener, port uint16, ours func(inode uint64) bool) []netip.AddrPort {
	all = slices.DeleteFunc(slices.Clone(all), func(l Listener) bool { return l.Addr.Port() != port })
	var routes []netip.AddrPort
	for _, l := range all {
		if !ours(l.Inode) {
			continue
		}
		for _, addr := range reach(l.Addr.Addr()) {
			to := netip.AddrPortFrom(addr, port)
			stranger := slices.ContainsFunc(answering(all, addr), func(l Listener) bool { return !ours(l.Inode) })
			if !stranger && !slices.Contains(routes, to) {
				routes = append(routes, to)
			}
		}
	}
	slices.SortStableFunc(routes, func(a, b netip.AddrPort) int { return rank(a.Addr()) - rank(b.Addr()) })
	return routes
}

// reach returns the addresses by which a listener at addr is reached; none if that depends on an interface. An IPv6
// wildcard listener may also accept IPv4, and only IPv4 if the loopback interface has no IPv6.
func reach(addr netip.Addr) []netip.Addr {
	switch {
	case addr.IsLinkLocalUnicast(), addr.IsMulticast():
		return nil
	case addr == netip.IPv4Unspecified():
		return []netip.Addr{loopback4}
	case addr == netip.IPv6Unspecified():
		return []netip.Addr{netip.IPv6Loopback(), loopback4}
	}
	return []netip.Addr{addr}
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// answering returns the listeners that may get a connection to addr: those on that address, or else wildcard ones.
// Several share it with SO_REUSEPORT; the kernel chooses.
func answering(all []Listener, addr netip.Addr) (some []Listener) {
	levels := []netip.Addr{addr, netip.IPv6Unspecified()}
	if addr.Is4() {
		levels = []netip.Addr{addr, netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	for _, at := range levels {
		for _, l := range all {
			if l.Addr.Addr() == at {
				some = append(some, l)
			}
		}
		if some != nil {
			return some
		}
	}
	return nil
}

// rank orders addresses: the usual ones first.
func rank(addr netip.Addr) int {
	switch {
	case addr == loopback4:
		return 0
	case addr == netip.IPv6Loopback():
		return 1
	case addr.Is4():
		return 2
	}
	return 3
}
