//go:build linux && (amd64 || arm64)

package procs

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
	// maxPorts is the largest number of ports in an answer.
	maxPorts = 1024
	// maxListeners is the largest number of listening sockets that are examined.
	maxListeners = 1 << 16
	// maxDescriptors is the largest number of descriptors that are examined to find the processes
	// that have the sockets open.
	maxDescriptors = 1 << 18
)

// Ports lists the listening TCP sockets of the sandbox on one port, or on all ports if port is 0.
func (v *View) Ports(port uint16) (initlink.Seen, error) {
	s := initlink.Seen{Shared: v.SharesNet()}
	all, err := v.listeners(port)
	if err != nil || len(all) == 0 {
		return s, err
	}
	held, err := v.holders(all)
	if err != nil {
		return s, err
	}
	for _, l := range all {
		pid := held[l.Inode]
		if pid == 0 && !v.ownNet {
			continue // belongs to a process of the host, or was closed
		}
		s.Ports = append(s.Ports, initlink.Port{Addr: l.Addr, Inode: l.Inode, PID: pid})
	}
	slices.SortFunc(s.Ports, func(a, b initlink.Port) int {
		return cmp.Or(cmp.Compare(a.Addr.Port(), b.Addr.Port()), a.Addr.Addr().Compare(b.Addr.Addr()),
			cmp.Compare(a.Inode, b.Inode))
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

// listeners returns the listening sockets of v.net, or of the kernel's network, on one port, or on all ports if port is
// 0.
func (v *View) listeners(port uint16) (all []sockets.Listener, err error) {
	if v.net == nil {
		return listeners(port)
	}
	v.net.Listening(func(at netip.AddrPort, inode uint64) {
		if port == 0 || at.Port() == port {
			all = append(all, sockets.Listener{Addr: at, Inode: inode})
		}
	})
	return all, nil
}

// listeners reads the listening sockets of this process's network namespace on one port, or on all ports if port is 0.
// The kernel's lists are those of the namespace of the reading thread; all threads of init are in the same one.
func listeners(port uint16) (all []sockets.Listener, err error) {
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open("/proc/thread-self/net/" + name)
		if errors.Is(err, os.ErrNotExist) && name == "tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fault.Wrap(err, "list the listening sockets")
		}
		err = sockets.Read(f, func(l sockets.Listener) bool {
			if port == 0 || l.Addr.Port() == port {
				all = append(all, l)
			}
			return len(all) < maxListeners
		})
		f.Close()
		if err != nil {
			return nil, fault.Wrap(err, "list the listening sockets")
		}
	}
	return all, nil
}

// holders maps the inodes of sockets to processes of the sandbox that have them open. A process
// whose descriptors cannot be read is left out.
func (v *View) holders(all []sockets.Listener) (map[uint64]int, error) {
	if v.blind {
		if v.ownNet {
			return nil, nil // all sockets of the namespace belong to the sandbox
		}
		return nil, v.blindness()
	}
	list, err := Scan(v.self)
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
		left -= eachSocket("/proc/"+strconv.Itoa(p.PID)+"/fd", left, func(inode uint64) {
			if missing[inode] {
				delete(missing, inode)
				held[inode] = p.PID
			}
		})
	}
	return held, nil
}

// eachSocket calls each with the inodes of the sockets among the descriptors in a directory /proc/PID/fd. It reads at
// most "most" descriptors and returns how many it read. A link that begins with "socket:" is never a path, since paths
// begin with a slash.
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
