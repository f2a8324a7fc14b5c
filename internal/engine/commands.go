//go:build linux

package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A command is open from when its beginning is recorded until its end is, which happens
// once, whoever follows it: somebody who is attached, the daemon, the next one, or whoever
// removes its sandbox. Which are open is noted with settingAgreed, so that after a crash
// the engine knows those whose ends it has to find.

// underway is one that is open. It is guarded by Engine.mu.
type underway struct {
	issued
	sandbox timeline.SandboxID
	seq     int64     // of the record of its beginning; 0: not known
	denials int64     // recorded of its sandbox since it began
	found   bool      // by this daemon: an earlier one began it
	resumed bool      // it goes on from a memory image since at: what began before is another one
	relays  int       // who is attached and will see it through
	end     *ending   // once it is known
	ended   chan bool // closed then
}

// commandKey names a command: those that go on in a fork with memory are called as those of
// the sandbox that it was made from.
type commandKey struct {
	sandbox timeline.SandboxID
	id      string
}

// other reports whether what is known is not the command of that beginning, but one that
// goes on from a memory image under its id.
func (c *underway) other(of issued) bool {
	return c.resumed && !of.at.IsZero() && of.at.Before(c.at)
}

// notedCommand is a command as it is noted.
type notedCommand struct {
	ID      string              `json:"id"`
	Sandbox timeline.SandboxID  `json:"sandbox"`
	Seq     int64               `json:"seq,omitempty"`
	At      time.Time           `json:"at"`
	Before  timeline.SnapshotID `json:"before,omitempty"`
}

const (
	// endWait is how long who removes a sandbox waits for the ends of its commands, whose
	// box has ended.
	endWait = time.Second
	// exitUnknown is the exit code of a command whose end nobody saw.
	exitUnknown = 255
)

// killed is the end of a command whose box ended with it.
func killed(why string) ending {
	return ending{Exit: wire.Exit{Code: 128 + 9, Signal: "KILL", Message: why}}
}

// opened notes that a command is about to be recorded as begun.
func (e *Engine) opened(of issued, id timeline.SandboxID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if key := (commandKey{id, of.id}); e.commands[key] == nil {
		e.commands[key] = &underway{issued: of, sandbox: id, ended: make(chan bool)}
	}
}

// began notes which record tells the beginning of a command.
func (e *Engine) began(id timeline.SandboxID, exec string, seq int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.commands[commandKey{id, exec}]; c != nil {
		c.seq = seq
	}
}

// closed notes that the end of a command is recorded, or that it did not begin.
func (e *Engine) closed(id timeline.SandboxID, exec string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.commands, commandKey{id, exec})
}

// openOf gives what is known of a command that is open; false when it is not.
func (e *Engine) openOf(id timeline.SandboxID, exec string) (underway, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.commands[commandKey{id, exec}]
	if c == nil {
		return underway{}, false
	}
	return *c, true
}

// openIn gives the commands of a sandbox that are open.
func (e *Engine) openIn(id timeline.SandboxID) (all []underway) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.commands {
		if c.sandbox == id {
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b underway) int { return a.at.Compare(b.at) })
	return all
}

// allOpen gives the commands that are open, to be noted.
func (e *Engine) allOpen() (all []notedCommand) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.commands {
		all = append(all, notedCommand{c.id, c.sandbox, c.seq, c.at, c.before})
	}
	return all
}

// relayed notes that somebody sees a command through, until done is called.
func (e *Engine) relayed(id timeline.SandboxID, exec string) (done func()) {
	add := func(n int) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if c := e.commands[commandKey{id, exec}]; c != nil {
			c.relays += n
		}
	}
	add(1)
	return func() { add(-1) }
}

// endKnown notes the end of a command, which is to be recorded. It is not that of another one
// that goes on from memory under its id.
func (e *Engine) endKnown(id timeline.SandboxID, of issued, end ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.commands[commandKey{id, of.id}]; c != nil && c.end == nil && !c.other(of) {
		c.end = &end
		close(c.ended)
	}
}

// denied counts denials that were recorded of a sandbox to its open commands.
func (e *Engine) denied(id timeline.SandboxID, drafts []ledger.Draft) {
	n := int64(0)
	for _, d := range drafts {
		n += denials(d.Body)
	}
	if n == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.commands {
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
func (e *Engine) denialsOf(ctx context.Context, c underway) (n int64) {
	if !c.found || c.seq == 0 {
		return c.denials
	}
	for r, err := range e.Ledger.Read(ctx, format.Sandbox(c.sandbox), ledger.Filter{From: c.seq + 1, Kinds: []format.Kind{format.KindDenial, format.KindNetwork}}) {
		if err != nil {
			e.Logger.Warn("the denials of a command are not counted in full", "exec", c.id, "err", err)
			break
		}
		n += denials(r.Body)
	}
	return n
}

// hearCommand follows, in the records that an earlier daemon left, which commands are open.
func (e *Engine) hearCommand(r *format.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch b := r.Body.(type) {
	case *format.Exec:
		e.commands[commandKey{timeline.SandboxID(r.Sandbox), b.Exec}] = &underway{issued: issued{id: b.Exec, at: r.Time}, sandbox: timeline.SandboxID(r.Sandbox), seq: r.Seq, found: true, ended: make(chan bool)}
	case *format.Exit:
		delete(e.commands, commandKey{timeline.SandboxID(r.Sandbox), b.Exec})
	case *format.Undone:
		maps.DeleteFunc(e.commands, func(_ commandKey, c *underway) bool { return string(c.sandbox) == string(r.Sandbox) && c.seq == b.Seq })
	}
}

// endGone records the ends of the commands of sandboxes that are not there any more: their
// removal was cut off before that.
func (e *Engine) endGone(ctx context.Context) error {
	for _, c := range e.allOpen() {
		_, err := e.DB.Sandbox(ctx, string(c.Sandbox))
		if !fault.Is(err, fault.NotFound) {
			if err != nil {
				return err
			}
			continue
		}
		for r, err := range e.Ledger.Read(ctx, format.Sandbox(c.Sandbox), ledger.Filter{From: max(1, c.Seq), Limit: 1}) {
			if err != nil {
				return err
			}
			end := killed("the sandbox was removed while the command ran").Exit
			exit := &format.Exit{Exec: c.ID, Code: end.Code, Signal: end.Signal, Reason: end.Message, Before: string(c.Before), DurationNanos: max(0, e.Now().Sub(c.At).Nanoseconds())}
			e.noteDrafts(ctx, []ledger.Draft{{Sandbox: r.Sandbox, Name: r.Name, Observer: format.ByDaemon, Policy: r.Policy, Tier: r.Tier, Body: exit}})
		}
		e.closed(c.Sandbox, c.ID)
	}
	return nil
}

// takeUp follows the commands that are open and that an earlier daemon began, but for the
// supervised and the kept ones, which are followed as such.
func (e *Engine) takeUp(ctx context.Context, s *held, rec *meta.Sandbox) {
	for _, c := range e.openIn(s.ID) {
		supervised := rec.Run != nil && rec.Run.Ended == nil && rec.Run.Exec == c.id
		if !c.found || supervised || s.kept[c.id] != nil {
			continue
		}
		if b := e.liveBox(s); b != nil {
			e.bg.Go(func() error { e.seeThrough(s.entry, b, c); return nil })
			continue
		}
		end := killed("the sandbox's processes ended while no daemon ran")
		e.tellEnd(ctx, rec, c.issued, end, end.Exit)
	}
}

// tellEnd records the end of a command by itself, unless it is recorded. The caller holds
// the lock.
func (e *Engine) tellEnd(ctx context.Context, rec *meta.Sandbox, of issued, end ending, x wire.Exit) {
	if tell := e.exitRecords(ctx, rec, of, end, x, taken{}); len(tell) > 0 {
		e.note(ctx, rec, tell...)
		e.closed(rec.ID, of.id)
	}
}

// seeThrough waits for the end of a command that nobody is attached to any more, or that an
// earlier daemon began, and records it, unless somebody else does.
func (e *Engine) seeThrough(s *entry, b Box, c underway) {
	end, err := b.Wait(e.bgCtx, c.id)
	if e.bgCtx.Err() != nil {
		return // the next daemon finds it
	}
	now, open := e.openOf(s.ID, c.id)
	switch {
	case !open || now.other(c.issued):
		return
	case fault.Is(err, fault.NotFound):
		if now.relays > 0 || now.end != nil {
			return // somebody was told its end
		}
		end = ending{Exit: wire.Exit{Code: exitUnknown, Message: "how it ended is not known: a daemon was killed as it did"}}
	case err != nil:
		end = killed("the sandbox was stopped while the command ran")
	}
	e.endKnown(s.ID, c.issued, end)
	if _, err := e.settle(e.bgCtx, s, wire.ExecRequest{Cmd: []string{"command", c.id}}, end, -1, c.issued); err != nil {
		e.Logger.Error("what a command changed is not in the history yet", "sandbox", s.ID, "err", err)
	}
}

// endAll records the ends of the commands of a sandbox that is about to be removed, whose
// box has ended. Whoever is attached may still be reading theirs.
func (e *Engine) endAll(ctx context.Context, s *held, rec *meta.Sandbox) {
	all := e.openIn(s.ID)
	late := time.NewTimer(endWait)
	defer late.Stop()
	expired := false
	for _, c := range all {
		if !expired && !c.found {
			select {
			case <-c.ended:
			case <-late.C:
				expired = true
			}
		}
		end := killed("the sandbox was removed while the command ran")
		if now, open := e.openOf(s.ID, c.id); open && now.end != nil {
			end = *now.end
		}
		e.tellEnd(ctx, rec, c.issued, end, end.Exit)
	}
}
