//go:build linux

package engine

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// keptEvents is how many are remembered for who lags or comes again.
	keptEvents = 4096
	// maxEventText is as much of a message as an event carries, in bytes.
	maxEventText = 1024
	// eventBatch is how many a listener takes at once; room for them is what an
	// idle listener costs most.
	eventBatch = 8
)

// bus is where events go. Nobody has a queue: each listener reads the ring at its
// own pace, so that telling never waits, and one that is slower than the ring is
// long learns how much it missed.
type bus struct {
	mu   sync.Mutex
	base uint64              // number of the first event of this engine; guarded by mu
	next uint64              // number of the next event; guarded by mu
	ring []wire.SandboxEvent // event n lies at (n-base) % keptEvents; guarded by mu
	more chan struct{}       // closed when there is a next one; guarded by mu

	counts map[string]uint64 // events by kind; guarded by mu
}

// newBus makes a bus whose numbers follow those of every earlier one: they begin
// with the microseconds since 1970, which pass faster than events come.
func newBus(now time.Time) *bus {
	base := uint64(max(1, now.UnixMicro()))
	return &bus{base: base, next: base, more: make(chan struct{}), counts: map[string]uint64{}}
}

func (b *bus) put(ev wire.SandboxEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ev.Seq = b.next
	if at := (b.next - b.base) % keptEvents; int(at) == len(b.ring) {
		b.ring = append(b.ring, ev)
	} else {
		b.ring[at] = ev
	}
	b.next++
	b.counts[ev.Kind]++
	close(b.more)
	b.more = make(chan struct{})
}

// after copies the events that follow number seq into buf, as many as it holds.
// The first of them may be an EventDropped. With none, more is closed when there
// is one.
func (b *bus) after(seq uint64, buf []wire.SandboxEvent) (got []wire.SandboxEvent, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	got = buf[:0]
	oldest := b.next - uint64(len(b.ring))
	from := seq + 1
	switch {
	case from < b.base || from > b.next:
		got = append(got, wire.SandboxEvent{Seq: oldest - 1, Kind: wire.EventDropped, Detail: "the daemon was started again since then"})
		from = oldest
	case from < oldest:
		got = append(got, wire.SandboxEvent{Seq: oldest - 1, Kind: wire.EventDropped, Dropped: int64(oldest - from)})
		from = oldest
	}
	for ; from < b.next && len(got) < cap(buf); from++ {
		got = append(got, b.ring[(from-b.base)%keptEvents])
	}
	return got, b.more
}

// ends gives the numbers of the event before the oldest one that is remembered,
// and of the newest one.
func (b *bus) ends() (before, last uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next - uint64(len(b.ring)) - 1, b.next - 1
}

// Counts gives how many events of each kind there were since Open.
func (e *Engine) Counts() map[string]uint64 {
	e.events.mu.Lock()
	defer e.events.mu.Unlock()
	return maps.Clone(e.events.counts)
}

// emit tells everybody who listens of an event. It fills in Seq and Time and
// never waits; it may be called with any lock held.
func (e *Engine) emit(ev wire.SandboxEvent) {
	ev.Time = e.Now().UTC()
	ev.Message, ev.Detail = cut(ev.Message), cut(ev.Detail)
	e.events.put(ev)
}

// cut keeps the beginning of a long text, and what is UTF-8 of it.
func cut(s string) string {
	if len(s) > maxEventText {
		s = s[:maxEventText-3] + "..."
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

// about begins an event of a sandbox.
func about(rec *meta.Sandbox, kind string) wire.SandboxEvent {
	return wire.SandboxEvent{Kind: kind, Sandbox: rec.Name, ID: string(rec.ID)}
}

// recorded tells of a new snapshot.
func (e *Engine) recorded(rec *meta.Sandbox, snap timeline.Snapshot) {
	ev := about(rec, wire.EventSnapshot)
	ev.Snapshot, ev.Parent, ev.Message, ev.Cause = string(snap.ID), string(snap.Parent), snap.Message, string(snap.Cause)
	ev.Exit, ev.Paths, ev.Bytes = snap.Exit, snap.Stats.Paths, snap.Stats.Bytes
	e.emit(ev)
}

func (e *Engine) created(rec *meta.Sandbox) {
	ev := about(rec, wire.EventCreated)
	ev.Snapshot, ev.Detail = string(rec.Head), rec.From
	e.emit(ev)
}

func (e *Engine) forked(parent *meta.Sandbox, at timeline.SnapshotID, forks []meta.Sandbox) {
	ev := about(parent, wire.EventFork)
	names := make([]string, len(forks))
	for i := range forks {
		names[i] = forks[i].Name
	}
	ev.Snapshot, ev.Detail = string(at), strings.Join(names, " ")
	e.emit(ev)
	for i := range forks {
		e.created(&forks[i])
	}
}

// ended tells of the end of a sandbox's box, once; why is "" where it was asked for. The
// caller holds the sandbox's lock.
func (e *Engine) ended(ctx context.Context, s *sandbox, why string) {
	if s.told == nil {
		return
	}
	s.told = nil
	if rec, err := e.DB.Sandbox(ctx, string(s.id)); err == nil {
		by := format.ByDaemon
		if why != "" {
			by = format.ByKeeper
		}
		e.note(ctx, &rec, testimony{by, &format.Stop{Reason: why}})
	}
	e.emit(wire.SandboxEvent{Kind: wire.EventStopped, Sandbox: s.name, ID: string(s.id)})
}

// running tells of a start of the supervised command.
func (e *Engine) running(ctx context.Context, rec *meta.Sandbox, run *wire.Run) {
	ev := about(rec, wire.EventRun)
	if run.Starts > 1 {
		ev.Kind = wire.EventRestarted
	}
	ev.Exec, ev.Message = run.Exec, labelOf(ctx, e.cleaners, rec, wire.ExecRequest{Cmd: run.Cmd})
	if run.Exit != nil {
		ev.Exit, ev.Detail = &run.Exit.Code, run.Exit.Message
	}
	e.emit(ev)
}

func (e *Engine) executing(ctx context.Context, rec *meta.Sandbox, req wire.ExecRequest, id string) {
	ev := about(rec, wire.EventExec)
	ev.Exec, ev.Message = id, labelOf(ctx, e.cleaners, rec, req)
	e.emit(ev)
}

// limitsOfExit are the limits that a command came to, by itself or with others.
func limitsOfExit(x wire.Exit) []string {
	if x.Limit == "" {
		return x.Hits
	}
	return append([]string{x.Limit}, x.Hits...)
}

// limited tells of the limits that a command came to.
func (e *Engine) limited(ctx context.Context, rec *meta.Sandbox, req wire.ExecRequest, id string, x wire.Exit) {
	for _, limit := range limitsOfExit(x) {
		ev := about(rec, wire.EventLimit)
		ev.Exec, ev.Message, ev.Exit, ev.Detail = id, labelOf(ctx, e.cleaners, rec, req), &x.Code, limit
		e.emit(ev)
	}
}

func (e *Engine) exited(ctx context.Context, rec *meta.Sandbox, req wire.ExecRequest, id string, x wire.Exit) {
	ev := about(rec, wire.EventExited)
	ev.Exec, ev.Message, ev.Exit, ev.Paths, ev.Detail = id, labelOf(ctx, e.cleaners, rec, req), &x.Code, x.Paths, x.Message
	if x.Changed {
		ev.Snapshot = x.Snapshot
	}
	e.emit(ev)
}

func (e *Engine) moved(rec *meta.Sandbox, m wire.MoveResult, what string) {
	ev := about(rec, wire.EventCheckout)
	ev.Snapshot, ev.Parent, ev.Message, ev.Detail = m.Head, m.From, m.Message, what
	e.emit(ev)
}

func (e *Engine) tagged(rec *meta.Sandbox, tag string, at timeline.SnapshotID) {
	ev := about(rec, wire.EventTag)
	ev.Message, ev.Snapshot = tag, string(at)
	e.emit(ev)
}

func (e *Engine) dropped(rec *meta.Sandbox, snap timeline.Snapshot, why string) {
	ev := about(rec, wire.EventDeleted)
	ev.Snapshot, ev.Parent, ev.Message, ev.Cause, ev.Detail = string(snap.ID), string(snap.Parent), snap.Message, string(snap.Cause), why
	e.emit(ev)
}

// Events calls yield with what happens in a sandbox, or with name "" in all, until
// ctx ends or yield gives an error, which it returns; with a name also until the
// sandbox is removed, and then nil. after is the number of the last event that the
// caller knows, 0 for all that are remembered, wire.EventsNow for none of them.
// The first call, as soon as nothing can be missed any more, is with an event
// without a kind, whose number is that of the newest event.
func (e *Engine) Events(ctx context.Context, name string, after uint64, yield func(wire.SandboxEvent) error) error {
	id := ""
	if name != "" {
		rec, err := e.DB.Sandbox(ctx, name)
		if err != nil {
			return err
		}
		id = string(rec.ID)
	}
	before, last := e.events.ends()
	switch after {
	case 0:
		after = before
	case wire.EventsNow:
		after = last
	}
	if err := yield(wire.SandboxEvent{Seq: last}); err != nil {
		return err
	}
	buf := make([]wire.SandboxEvent, 0, eventBatch)
	for {
		got, more := e.events.after(after, buf)
		for _, ev := range got {
			after = ev.Seq
			if ev.Time.IsZero() {
				ev.Time = e.Now().UTC()
			}
			if id != "" && ev.ID != id && ev.Kind != wire.EventDropped {
				continue
			}
			if err := yield(ev); err != nil {
				return err
			}
			if id != "" && ev.Kind == wire.EventRemoved {
				return nil
			}
		}
		if len(got) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
