//go:build linux && (amd64 || arm64)

package gate

import "github.com/coppice-dev/coppice/internal/gate/link"

// reportDropped reports the packets that the kernel has dropped since the last call because the queue of the link was
// full: otherwise a flood would hide other destinations. A sentry drops what does not fit before it reaches the link.
func (g *Gate) reportDropped() {
	if g.link == nil || !g.ethernet {
		return
	}
	n, err := link.Dropped(g.link.fd)
	switch {
	case err != nil:
		g.uncounted.Do(func() {
			g.journal.deny(Event{Reason: "packets that the sandbox's link drops cannot be counted: " + err.Error()})
		})
	case n > 0:
		g.journal.deny(Event{Reason: Dropped, Count: int(n)})
	}
}
