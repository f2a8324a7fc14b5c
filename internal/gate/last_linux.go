//go:build linux && (amd64 || arm64)

package gate

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// readFor bounds how long Close reads what the sandbox has sent: a sandbox that runs on could send forever. It is less
// than the keeper waits for the process to exit.
const readFor = time.Second

// deliverFor bounds how long Close then waits for the packets that were read and not yet decided about: fdbased reads
// several at once. If it ends first, they are not counted.
const deliverFor = 500 * time.Millisecond

// readLast decides about all packets that are in the link when it is called, and then reads no more. Denials are
// decided by the goroutine that reads packets, and those of names by the servers of DNS, which Close waits for. The
// dispatcher stays attached until that goroutine has ended: without it, packets that were already read would be
// dropped. Then it reports how many packets it did not read in time, or found no room in a queue.
func (g *Gate) readLast() {
	unread := 0
	defer func() { g.reportDropped(unread) }()
	if g.link == nil || !g.link.IsAttached() {
		return
	}
	end := time.Now().Add(readFor)
	waitUntil(end, g.isRead) // a reader that is woken by a packet and to stop at the same time would not read
	all := g.isRead() && !g.readsNoMore()
	if g.ethernet {
		for _, fd := range g.eventfds { // fdbased waits for them: its reader ends when it has delivered what it read
			_, _ = unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1)) // fails only if one is pending
		}
		select {
		case <-g.unread:
		case <-time.After(time.Until(end)):
		}
	} else {
		g.child.Attach(nil)
	}
	if !all { // otherwise packets were sent since, which is too late
		unread = g.discardRest()
		waitUntil(time.Now().Add(deliverFor), g.readsNoMore) // for those that it has read
	}
	waitUntil(end, g.isAnswered)
}

// waitUntil waits until done returns true, at most until end.
func waitUntil(end time.Time, done func() bool) {
	for !done() && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
}

// isRead reports whether the link contains no packets, or is read no more.
func (g *Gate) isRead() bool {
	if g.readsNoMore() {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(g.link.fd), Events: unix.POLLIN}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&unix.POLLIN == 0
}

// readsNoMore reports whether the link is read no more.
func (g *Gate) readsNoMore() bool {
	select {
	case <-g.unread:
		return true
	default:
		return false
	}
}

// isAnswered reports whether the servers of DNS have read all queries.
func (g *Gate) isAnswered() bool {
	return !slices.ContainsFunc(g.dns, func(ep tcpip.Endpoint) bool { return ep.Readiness(waiter.ReadableEvents) != 0 })
}
