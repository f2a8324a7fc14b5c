//go:build linux && (amd64 || arm64)

package gate

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// drops is what Gate.reportDropped has reported.
type drops struct {
	mu        sync.Mutex
	queries   uint64 // guarded by mu
	uncounted bool   // it was reported that the link's packets cannot be counted; guarded by mu
}

// discardFor bounds how long discardRest reads: a sandbox that runs on could send forever.
const discardFor = 100 * time.Millisecond

// discardRest reads what is left in the link without deciding about it, and returns how many packets that were.
func (g *Gate) discardRest() (n int) {
	for end := time.Now().Add(discardFor); time.Now().Before(end); {
		size, _, err := unix.Recvfrom(g.link.fd, nil, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN): // ENETDOWN: once, when the interface is gone
		case err != nil, size == 0: // a closed pair is read as empty
			return n
		default:
			n++
		}
	}
	return n
}

// reportDropped reports unread packets, and those that were dropped since the last call because a queue was full, that
// of the link or that of a server of DNS: otherwise a flood would hide other destinations and names. A sentry drops
// what does not fit before it reaches the link.
func (g *Gate) reportDropped(unread int) {
	g.drops.mu.Lock()
	defer g.drops.mu.Unlock()
	var n uint64
	for _, ep := range g.dns {
		if s, ok := ep.Stats().(*tcpip.TransportEndpointStats); ok {
			n += s.ReceiveErrors.ReceiveBufferOverflow.Value()
		}
	}
	n, g.drops.queries = n-g.drops.queries, n
	if g.link != nil && g.ethernet {
		packets, err := link.Dropped(g.link.fd)
		if err != nil && !g.drops.uncounted {
			g.drops.uncounted = true
			g.journal.deny(Event{Reason: "packets that the sandbox's link drops cannot be counted: " + err.Error()})
		}
		n += uint64(packets)
	}
	if n += uint64(unread); n > 0 {
		g.journal.deny(Event{Reason: Dropped, Count: int(n)})
	}
}
