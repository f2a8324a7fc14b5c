//go:build linux && (amd64 || arm64)

package notify

import (
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// kept are duplicates of the sockets that this process has made for callers, by inode. The profiles of container
// engines refuse pidfd_getfd(2), so that a caller's own descriptor cannot be had; but its number leads to the inode
// (proc_pid_fd(5)). The duplicate of a socket for TCP is closed once the socket is connected, so that its peer notices
// when the sandbox closes it. Those of other sockets that the sandbox has closed are found by looking for them. A
// duplicate that is closed too early costs its owner no more than the names of that socket; one for UDP without a
// session is hung up.
type kept struct {
	max       int                   // descriptors
	named     func(inode uint64)    // keeps the names of a socket
	processes func() ([]int, error) // Inet.Processes

	searching sync.Mutex // held during a search; locked before mu
	next      time.Time  // of the next search; guarded by searching

	mu  sync.Mutex
	all map[uint64]*keeping // guarded by mu
	has int                 // their descriptors, with those that they may get; guarded by mu
}

func newKept(most int, named func(inode uint64), processes func() ([]int, error)) *kept {
	return &kept{max: most, named: named, processes: processes, all: map[uint64]*keeping{}}
}

// keeping is one of kept.
type keeping struct {
	fd     int // -1 if a session alone keeps it
	tid    int // where the socket was seen last: a thread, and its number there
	number int32
	port   uint16    // which the socket is bound to; 0 for none
	flow   *flow     // nil for TCP
	missed int       // how often it was not found
	hidden time.Time // since when its process does not show its descriptors; zero if it does

	status *os.File       // of a dial that a signal has interrupted; nil for none
	to     netip.AddrPort // its address
}

// close closes the duplicate, and ends the session.
func (one *keeping) close() {
	if one.fd >= 0 {
		unix.Close(one.fd)
	}
	if one.flow != nil {
		one.flow.close()
	}
	if one.status != nil {
		one.status.Close()
	}
}

// weight is the number of descriptors: a flow has its far end and the connection of a session.
func (one *keeping) weight() int {
	n := 0
	if one.fd >= 0 {
		n++
	}
	if one.flow != nil {
		n += 2
	}
	if one.status != nil {
		n++
	}
	return n
}

const (
	// maxKept is how many descriptors are kept at most, of sockets that are not connected, listeners and those for UDP.
	maxKept = 8192
	// sweepEvery is the time between two searches for sockets that the sandbox has closed. A socket that is being passed
	// to another process is in none until that receives it, so several searches must miss it: mostMissed, or flowMissed
	// for one with a session, of which the gate keeps a flow.
	sweepEvery = time.Second
	mostMissed = 5
	flowMissed = 2
)

// lending is the number of a socket that is about to be given to the sandbox.
const lending = -1

// hold keeps fd, a socket that is about to be given to the sandbox, and the other end of one for UDP. If there are too
// many, or it fails otherwise, both are closed.
func (k *kept) hold(fd int, f *flow) (inode uint64, err error) {
	one := &keeping{fd: fd, number: lending, flow: f}
	if inode, err = inodeOf(fd); err == nil && k.full(one.weight()) {
		k.sweep(1, 0)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil && k.has+one.weight() > k.max {
		err = unix.EMFILE
	}
	if err != nil {
		one.close()
		return 0, err
	}
	k.all[inode] = one
	k.has += one.weight()
	return inode, nil
}

// change changes what is kept of a socket, with mu held.
func (k *kept) change(one *keeping, do func()) {
	k.has -= one.weight()
	do()
	k.has += one.weight()
}

// forget closes the duplicate of a socket, with mu held.
func (k *kept) forget(inode uint64, one *keeping) {
	k.has -= one.weight()
	one.close()
	delete(k.all, inode)
}

// flow returns the flow of a socket for UDP.
func (k *kept) flow(inode uint64) (f *flow, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, ok := k.all[inode]; ok && one.flow != nil {
		return one.flow, true
	}
	return nil, false
}

// lent records the number that a socket has got.
func (k *kept) lent(inode uint64, number int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, ok := k.all[inode]; ok {
		one.number = number
	}
}

// full reports whether keeping more descriptors would exceed the limit.
func (k *kept) full(more int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.has+more > k.max
}

// dup returns a duplicate of a socket that a thread has as number, which the caller closes. ok is false if it is not
// kept.
func (k *kept) dup(inode uint64, tid int, number int32) (fd int, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one, ok := k.all[inode]
	if !ok || one.fd < 0 {
		return -1, false
	}
	one.tid, one.number, one.missed = tid, number, 0
	fd, err := unix.FcntlInt(uintptr(one.fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, err == nil
}

// dialling returns the status of the dial of a socket that a signal has interrupted; nil if there is none. already says
// that there is one for another address.
func (k *kept) dialling(inode uint64, to netip.AddrPort) (status *os.File, already bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one, ok := k.all[inode]
	if !ok || one.status == nil {
		return nil, false
	}
	if one.to != to {
		return nil, true
	}
	k.change(one, func() { status, one.status = one.status, nil })
	return status, false
}

// leaveDialling leaves the status of a dial that a signal has interrupted for dialling. It returns false if the socket
// is not kept, or there are too many descriptors.
func (k *kept) leaveDialling(inode uint64, to netip.AddrPort, status *os.File) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	one, ok := k.all[inode]
	if !ok || one.status != nil || k.has >= k.max {
		return false
	}
	k.change(one, func() { one.status, one.to = status, to })
	return true
}

// bound records the port of a socket.
func (k *kept) bound(inode uint64, port uint16) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, ok := k.all[inode]; ok {
		one.port = port
	}
}

// listening returns the ports of the sockets that listen on one, by inode.
func (k *kept) listening() map[uint64]uint16 {
	k.mu.Lock()
	defer k.mu.Unlock()
	ports := map[uint64]uint16{}
	for inode, one := range k.all {
		if one.port == 0 {
			continue
		}
		if on, err := unix.GetsockoptInt(one.fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && on == 1 {
			ports[inode] = one.port
		}
	}
	return ports
}

// drop closes the duplicate of a socket.
func (k *kept) drop(inode uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, ok := k.all[inode]; ok {
		k.forget(inode, one)
	}
}

// close closes all duplicates.
func (k *kept) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for inode, one := range k.all {
		k.forget(inode, one)
	}
}

func inodeOf(socket int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(socket, &st)
	return st.Ino, err
}
