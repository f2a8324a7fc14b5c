//go:build linux

package command

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Register holds the open commands of all sandboxes, whose exits are not recorded yet. It implements audit.Commands,
// so that a Book stores them for the next daemon. NewRegister makes one; its methods are safe for concurrent use.
type Register struct {
	mu   sync.Mutex // held last: see docs/design/locks.md
	open map[key]*command
}

// key identifies a command. The sandbox is part of it because commands that resume in a fork with memory have the
// same ids as in the parent.
type key struct {
	sandbox timeline.SandboxID
	id      string
}

func (c *command) key() key { return key{c.sandbox, c.id} }

// NewRegister returns a Register without commands.
func NewRegister() *Register { return &Register{open: map[key]*command{}} }

// add opens a command. If a command that a killed daemon had started is open under its id, add takes over what is
// recorded of it.
func (g *Register) add(c *command) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if was := g.open[c.key()]; was != nil {
		c.at, c.before, c.found = was.at, was.before, was.found
		c.state, c.seq, c.denials, c.paths = min(was.state, running), was.seq, was.denials, was.paths
	}
	g.open[c.key()] = c
}

// replace opens a command in place of the one that is open under its id.
func (g *Register) replace(c *command) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[c.key()] = c
}

// find returns the command that is open under an id; nil if none is.
func (g *Register) find(id timeline.SandboxID, exec string) *command {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open[key{id, exec}]
}

// isOpen reports whether the exit of a command is not recorded yet.
func (g *Register) isOpen(c *command) bool { return g.find(c.sandbox, c.id) == c }

// foundAgain returns a command that an earlier daemon started at a time: the open one or, if its exit is already
// recorded, a new one that is not open.
func (g *Register) foundAgain(id timeline.SandboxID, exec string, at time.Time) *command {
	if c := g.find(id, exec); c != nil {
		return c
	}
	return newCommand(id, exec, at, "")
}

// in returns the open commands of a sandbox, oldest first.
func (g *Register) in(id timeline.SandboxID) (all []*command) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.open {
		if c.sandbox == id {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *command) int { return a.at.Compare(b.at) })
	return all
}

// In returns the number of open commands of a sandbox.
func (g *Register) In(id timeline.SandboxID) int { return len(g.in(id)) }

// starts sets the time at which a command was started in its box.
func (g *Register) starts(c *command, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.found {
		c.at = at
	}
}

// runs notes that the start of a command is recorded, with number seq.
func (g *Register) runs(c *command, seq int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.seq, c.state = seq, max(c.state, running)
}

// ends notes the exit of a command, once.
func (g *Register) ends(c *command, end Ended) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.state < ending {
		c.end, c.state = end, ending
		close(c.ended)
	}
}

// endOf returns the exit of a command; false if it is unknown, or already settled.
func (g *Register) endOf(c *command) (Ended, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.end, c.state == ending
}

// settle notes that the exit of a command is recorded, or that it did not start.
func (g *Register) settle(c *command) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.state = settled
	if g.open[c.key()] == c {
		delete(g.open, c.key())
	}
}

// relayed notes that an attached client will settle a command, until done is called.
func (g *Register) relayed(c *command) (done func()) {
	add := func(n int) {
		g.mu.Lock()
		defer g.mu.Unlock()
		c.relays += n
	}
	add(1)
	return func() { add(-1) }
}

// isRelayed reports whether an attached client will settle a command.
func (g *Register) isRelayed(c *command) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.relays > 0
}

// Denied counts denials that were recorded of a sandbox for its open commands.
func (g *Register) Denied(id timeline.SandboxID, drafts []ledger.Draft) {
	n := int64(0)
	for _, d := range drafts {
		n += denials(d.Body)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.open {
		if c.sandbox == id {
			c.denials += n
		}
	}
}

// denied returns how many denials Denied has counted for a command, and the number of the record of its
// start.
func (g *Register) denied(c *command) (n, seq int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.denials, c.seq
}

// Captured counts the paths of a new snapshot of a sandbox for its open commands: each of them may have changed them.
func (g *Register) Captured(id timeline.SandboxID, paths int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.open {
		if c.sandbox == id {
			c.paths += paths
		}
	}
}

// whole returns the exit of a command with all paths that were captured while it was open, its last snapshot included.
func (g *Register) whole(c *command, x wire.Exit) wire.Exit {
	g.mu.Lock()
	defer g.mu.Unlock()
	x.Changed, x.Paths = x.Changed || c.paths > 0, max(x.Paths, c.paths)
	return x
}

// denials returns how many denials a record reports.
func denials(body format.Body) int64 {
	switch b := body.(type) {
	case *format.Denial:
		return max(1, b.Count)
	case *format.Network:
		if b.Verdict == wire.VerdictDeny {
			return max(1, b.Count)
		}
	}
	return 0
}

// Open implements audit.Commands: it returns the open commands.
func (g *Register) Open() (all []audit.OpenCommand) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.open {
		all = append(all, audit.OpenCommand{
			ID: c.id, Sandbox: c.sandbox, Seq: c.seq, At: c.at, Before: c.before, Paths: c.paths,
		})
	}
	return all
}

// Found implements audit.Commands: it opens a command that an earlier daemon started.
func (g *Register) Found(c audit.OpenCommand) { g.replace(foundCommand(c)) }

// Settle implements audit.Commands: it notes that the exit of a command is recorded.
func (g *Register) Settle(c audit.OpenCommand) {
	if open := g.find(c.Sandbox, c.ID); open != nil {
		g.settle(open)
	}
}

// Hear implements audit.Commands: it derives the open commands from the records that an earlier daemon
// left.
func (g *Register) Hear(r *format.Record) {
	switch b := r.Body.(type) {
	case *format.Exec:
		g.Found(audit.OpenCommand{ID: b.Exec, Sandbox: timeline.SandboxID(r.Sandbox), Seq: r.Seq, At: r.Time})
	case *format.Snapshot:
		g.Captured(timeline.SandboxID(r.Sandbox), int(b.Changes))
	case *format.Exit:
		if c := g.find(timeline.SandboxID(r.Sandbox), b.Exec); c != nil {
			g.settle(c)
		}
	case *format.Undone:
		g.mu.Lock()
		defer g.mu.Unlock()
		maps.DeleteFunc(g.open, func(_ key, c *command) bool {
			return string(c.sandbox) == string(r.Sandbox) && c.seq == b.Seq
		})
	}
}
