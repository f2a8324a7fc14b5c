//go:build linux

package engine

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// command is one start of a command in a sandbox, whoever follows it: a client that is attached
// (Exec), the daemon because the client asked for that (kept), or the daemon because it is the
// sandbox's supervised command. Its state goes one way:
//
//	opening ──► running ──► ending ──► settled
//	   └──────────────────────────────────▲ it did not begin
//
// It is open until it is settled. Which are open is noted with settingAgreed, so that after a
// crash the engine knows those whose ends it has to find.
type command struct {
	id      string
	sandbox timeline.SandboxID
	at      time.Time           // when it began; zero: not known
	before  timeline.SnapshotID // HEAD then; "": not known
	found   bool                // an earlier daemon began it

	req   wire.ExecRequest // what it was started with, as far as is known
	run   wire.Run         // the same of a supervised command
	begun int              // how many commands of the sandbox had begun with it; -1: not known

	// done is closed when all that follows from its end is done, or that it was started again;
	// exit, err and next are final then.
	done chan struct{}
	exit wire.Exit
	err  error
	next *command // of a supervised command: the start that came after it; nil: none

	drop    chan struct{} // of a kept command: closed when newer ones take its place
	stopped bool          // of a supervised command: it is not to be started again; guarded by the sandbox's lock

	// The rest is guarded by commands.mu.
	state   commandState
	seq     int64         // of the record of its beginning; 0: not known
	denials int64         // recorded of its sandbox since it began
	relays  int           // how many are attached and will see it through
	end     ending        // once it is ending
	ended   chan struct{} // closed then
}

// commandState is how far a command has come.
type commandState int

const (
	stateOpening commandState = iota // its beginning is being recorded
	stateRunning                     // that is recorded
	stateEnding                      // its end is known
	stateSettled                     // its end is recorded, or it did not begin
)

// newCommand is a command that is about to be recorded as begun.
func newCommand(sandbox timeline.SandboxID, id string, at time.Time, before timeline.SnapshotID) *command {
	return &command{
		id: id, sandbox: sandbox, at: at, before: before, begun: -1,
		done: make(chan struct{}), drop: make(chan struct{}), ended: make(chan struct{}),
	}
}

// commands are the commands of all sandboxes that are open.
type commands struct {
	mu   sync.Mutex // a leaf
	open map[commandKey]*command
}

// commandKey names a command: those that go on in a fork with memory are called as those of
// the sandbox that it was made from.
type commandKey struct {
	sandbox timeline.SandboxID
	id      string
}

func (c *command) key() commandKey { return commandKey{c.sandbox, c.id} }

// add opens a command. If one is open under its id already, which a daemon before this one began
// to start, it takes over what is recorded of that.
func (cs *commands) add(c *command) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if was := cs.open[c.key()]; was != nil {
		c.at, c.before, c.found = was.at, was.before, was.found
		c.state, c.seq, c.denials = min(was.state, stateRunning), was.seq, was.denials
	}
	cs.open[c.key()] = c
}

// replace opens a command in the place of what was open under its id.
func (cs *commands) replace(c *command) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.open[c.key()] = c
}

// find returns the command that is open under an id; nil if none is.
func (cs *commands) find(id timeline.SandboxID, exec string) *command {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.open[commandKey{id, exec}]
}

// isOpen reports whether the end of a command is still to be recorded.
func (cs *commands) isOpen(c *command) bool { return cs.find(c.sandbox, c.id) == c }

// in returns the commands of a sandbox that are open, the oldest first.
func (cs *commands) in(id timeline.SandboxID) (all []*command) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.open {
		if c.sandbox == id {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *command) int { return a.at.Compare(b.at) })
	return all
}

// starts notes when a command was started, its box being there.
func (cs *commands) starts(c *command, at time.Time) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !c.found {
		c.at = at
	}
}

// runs notes that the record seq tells the beginning of a command.
func (cs *commands) runs(c *command, seq int64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.seq, c.state = seq, max(c.state, stateRunning)
}

// ends notes how a command ended, once.
func (cs *commands) ends(c *command, end ending) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.state < stateEnding {
		c.end, c.state = end, stateEnding
		close(c.ended)
	}
}

// endOf returns how a command ended; false if that is not known.
func (cs *commands) endOf(c *command) (ending, bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return c.end, c.state == stateEnding
}

// settle notes that the end of a command is recorded, or that it did not begin.
func (cs *commands) settle(c *command) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.state = stateSettled
	if cs.open[c.key()] == c {
		delete(cs.open, c.key())
	}
}

// relayed notes that a client sees a command through, until done is called.
func (cs *commands) relayed(c *command) (done func()) {
	add := func(n int) {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		c.relays += n
	}
	add(1)
	return func() { add(-1) }
}

// isRelayed reports whether a client is attached to a command and sees it through.
func (cs *commands) isRelayed(c *command) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return c.relays > 0
}

// denied counts denials that were recorded of a sandbox to its open commands.
func (cs *commands) denied(id timeline.SandboxID, drafts []ledger.Draft) {
	n := int64(0)
	for _, d := range drafts {
		n += denials(d.Body)
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.open {
		if c.sandbox == id {
			c.denials += n
		}
	}
}

// denials is how many a record tells of.
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

// denialsOf gives how many denials were recorded of the sandbox of a command since it
// began. Of one that an earlier daemon began the records are counted.
func (e *Engine) denialsOf(ctx context.Context, c *command) (n int64) {
	e.commands.mu.Lock()
	counted, seq := c.denials, c.seq
	e.commands.mu.Unlock()
	if !c.found || seq == 0 {
		return counted
	}
	since := ledger.Filter{From: seq + 1, Kinds: []format.Kind{format.KindDenial, format.KindNetwork}}
	for r, err := range e.Ledger.Read(ctx, format.Sandbox(c.sandbox), since) {
		if err != nil {
			e.Logger.Warn("the denials of a command are not counted in full", "exec", c.id, "err", err)
			break
		}
		n += denials(r.Body)
	}
	return n
}

// Open returns the commands that are open.
func (cs *commands) Open() (all []audit.OpenCommand) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.open {
		all = append(all, audit.OpenCommand{ID: c.id, Sandbox: c.sandbox, Seq: c.seq, At: c.at, Before: c.before})
	}
	return all
}

// foundCommand is one that an earlier daemon began, as a record with the number seq tells.
func foundCommand(n audit.OpenCommand) *command {
	c := newCommand(n.Sandbox, n.ID, n.At, n.Before)
	c.found, c.seq, c.state = true, n.Seq, stateRunning
	return c
}

// Found opens a command that an earlier daemon began.
func (cs *commands) Found(c audit.OpenCommand) { cs.replace(foundCommand(c)) }

// Settle notes that the end of a command is recorded.
func (cs *commands) Settle(c audit.OpenCommand) {
	if open := cs.find(c.Sandbox, c.ID); open != nil {
		cs.settle(open)
	}
}

// Hear follows, in the records that an earlier daemon left, which commands are open.
func (cs *commands) Hear(r *format.Record) {
	switch b := r.Body.(type) {
	case *format.Exec:
		cs.Found(audit.OpenCommand{ID: b.Exec, Sandbox: timeline.SandboxID(r.Sandbox), Seq: r.Seq, At: r.Time})
	case *format.Exit:
		if c := cs.find(timeline.SandboxID(r.Sandbox), b.Exec); c != nil {
			cs.settle(c)
		}
	case *format.Undone:
		cs.mu.Lock()
		defer cs.mu.Unlock()
		maps.DeleteFunc(cs.open, func(_ commandKey, c *command) bool {
			return string(c.sandbox) == string(r.Sandbox) && c.seq == b.Seq
		})
	}
}

const (
	// endWait is how long the removal of a sandbox waits for the ends of its commands, whose
	// box has ended.
	endWait = time.Second
	// exitUnknown is the exit code of a command whose end nobody saw.
	exitUnknown = 255
)

// killed is the end of a command whose box ended with it.
func killed(why string) ending {
	return ending{Exit: wire.Exit{Code: 128 + 9, Signal: "KILL", Message: why}}
}

// takeUp follows the commands that are open and that an earlier daemon began, but for the
// supervised and the kept ones, which are followed as such.
func (e *Engine) takeUp(ctx context.Context, s *held, rec *meta.Sandbox) {
	for _, c := range e.commands.in(s.ID) {
		supervised := rec.Run != nil && rec.Run.Ended == nil && rec.Run.Exec == c.id
		if !c.found || supervised || s.kept[c.id] != nil {
			continue
		}
		if b := e.liveBox(s); b != nil {
			c.req = wire.ExecRequest{Cmd: []string{"command", c.id}}
			e.bg.Go(func() error { e.seeThrough(s.entry, b, c); return nil })
			continue
		}
		e.journals.Finish(ctx, s.ID) // what was denied while no daemon ran counts to it
		end := killed("the sandbox's processes ended while no daemon ran")
		e.tellEnd(ctx, rec, c, end, end.Exit)
	}
}

// tellEnd records the end of a command by itself, unless it is recorded.
func (e *Engine) tellEnd(ctx context.Context, rec *meta.Sandbox, c *command, end ending, x wire.Exit) {
	if tell := e.exitRecords(ctx, rec, c, end, x, taken{}); len(tell) > 0 {
		e.Book.Note(ctx, rec, tell...)
		e.commands.settle(c)
	}
}

// await waits for the end of a command that the keeper holds, and does then what follows from it:
// ended reports whether the keeper may forget the command. If the engine is closed meanwhile, the
// next daemon finds the command.
func (e *Engine) await(s *entry, b Box, c *command, ended func(end Ended, err error) (forget bool)) {
	follow := func() {
		end, err := b.Wait(e.bgCtx, c.id)
		if err == nil {
			e.commands.ends(c, end)
		}
		if e.bgCtx.Err() != nil || !ended(end, err) {
			return
		}
		err = b.Forget(e.bgCtx, c.id)
		if err != nil && !fault.Is(err, fault.Unavailable) && e.bgCtx.Err() == nil {
			e.Logger.Warn("the keeper holds a result for longer", "sandbox", s.ID, "err", err)
		}
	}
	e.bg.Go(func() error { follow(); return nil })
}

// leave lets the daemon see a command through that runs on without the client that was attached.
func (e *Engine) leave(s *entry, b Box, c *command) {
	if e.commands.isOpen(c) && e.bgCtx.Err() == nil {
		e.bg.Go(func() error { e.seeThrough(s, b, c); return nil })
	}
}

// seeThrough waits for the end of a command that nobody is attached to any more, or that an
// earlier daemon began, and records it, unless somebody else does.
func (e *Engine) seeThrough(s *entry, b Box, c *command) {
	end, err := b.Wait(e.bgCtx, c.id)
	if e.bgCtx.Err() != nil {
		return // the next daemon finds it
	}
	_, known := e.commands.endOf(c)
	switch {
	case !e.commands.isOpen(c):
		return
	case fault.Is(err, fault.NotFound):
		if known || e.commands.isRelayed(c) {
			return // somebody was told its end
		}
		end = ending{Exit: wire.Exit{Code: exitUnknown, Message: "how it ended is not known: a daemon was killed as it did"}}
	case err != nil:
		end = killed("the sandbox was stopped while the command ran")
	}
	e.commands.ends(c, end)
	if _, err := e.settle(e.bgCtx, s, c, end, -1); err != nil {
		e.Logger.Error("what a command changed is not in the history yet", "sandbox", s.ID, "err", err)
	}
}

// endAll records the ends of the commands of a sandbox that is about to be removed, whose
// box has ended. A client that is attached may still be reading its own.
func (e *Engine) endAll(ctx context.Context, s *held, rec *meta.Sandbox) {
	late := time.NewTimer(endWait)
	defer late.Stop()
	expired := false
	for _, c := range e.commands.in(s.ID) {
		if !expired && !c.found {
			select {
			case <-c.ended:
			case <-late.C:
				expired = true
			}
		}
		end, known := e.commands.endOf(c)
		if !known {
			end = killed(audit.RemovedMeanwhile)
		}
		e.tellEnd(ctx, rec, c, end, end.Exit)
	}
}
