//go:build linux

package events

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/meta"
)

const (
	// MaxText is as much of a message as an event carries, in bytes.
	MaxText = 1024
	// kept is how many events are remembered for listeners that lag or come again.
	kept = 4096
	// batch is how many a listener takes at once; room for them is what an idle listener costs
	// most.
	batch = 8
)

// Records has the records of sandboxes.
type Records interface {
	// Sandbox finds a sandbox by name or id; NotFound if there is none.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
}

// Bus carries events to listeners. No listener has a queue: each reads the ring at its own pace, so
// that Emit never waits, and one that lags by more than the ring holds learns how many events it
// missed. Make one with NewBus. All methods are safe for concurrent use, and none takes another
// lock while it holds that of the bus.
type Bus struct {
	now     func() time.Time
	records Records

	mu   sync.Mutex
	base uint64              // number of the first event of this bus; guarded by mu
	next uint64              // number of the next event; guarded by mu
	ring []wire.SandboxEvent // event n lies at (n-base) % kept; guarded by mu
	more chan struct{}       // closed when there is a next one; guarded by mu

	counts map[string]uint64 // events by kind; guarded by mu
}

// NewBus makes a bus whose numbers follow those of every earlier one: they begin
// with the microseconds since 1970, which pass faster than events come. Events that name a
// sandbox look it up in records.
func NewBus(now func() time.Time, records Records) *Bus {
	base := uint64(max(1, now().UnixMicro()))
	return &Bus{now: now, records: records, base: base, next: base, more: make(chan struct{}), counts: map[string]uint64{}}
}

// Emit sends events to all listeners, in this order. It sets Seq and Time, cuts long texts, and
// never waits; it may be called with any lock held.
func (b *Bus) Emit(evs ...wire.SandboxEvent) {
	for _, ev := range evs {
		ev.Time = b.now().UTC()
		ev.Message, ev.Detail = Cut(ev.Message), Cut(ev.Detail)
		b.put(ev)
	}
}

func (b *Bus) put(ev wire.SandboxEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ev.Seq = b.next
	if at := (b.next - b.base) % kept; int(at) == len(b.ring) {
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
func (b *Bus) after(seq uint64, buf []wire.SandboxEvent) (got []wire.SandboxEvent, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	got = buf[:0]
	oldest := b.next - uint64(len(b.ring))
	from := seq + 1
	switch {
	case from < b.base || from > b.next:
		got = append(got, wire.SandboxEvent{Seq: oldest - 1, Kind: wire.EventDropped,
			Detail: "the daemon has been restarted since then"})
		from = oldest
	case from < oldest:
		got = append(got, wire.SandboxEvent{Seq: oldest - 1, Kind: wire.EventDropped, Dropped: int64(oldest - from)})
		from = oldest
	}
	for ; from < b.next && len(got) < cap(buf); from++ {
		got = append(got, b.ring[(from-b.base)%kept])
	}
	return got, b.more
}

// ends gives the numbers of the event before the oldest one that is remembered,
// and of the newest one.
func (b *Bus) ends() (before, last uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next - uint64(len(b.ring)) - 1, b.next - 1
}

// Counts gives how many events of each kind there were since the bus was made.
func (b *Bus) Counts() map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.counts)
}

// Events calls yield with what happens in a sandbox, or with name "" in all, until
// ctx ends or yield gives an error, which it returns; with a name also until the
// sandbox is removed, and then nil. after is the number of the last event that the
// caller knows, 0 for all that are remembered, wire.EventsNow for none of them.
// The first call, as soon as nothing can be missed any more, is with an event
// without a kind, whose number is that of the newest event.
func (b *Bus) Events(ctx context.Context, name string, after uint64, yield func(wire.SandboxEvent) error) error {
	id := ""
	if name != "" {
		rec, err := b.records.Sandbox(ctx, name)
		if err != nil {
			return err
		}
		id = string(rec.ID)
	}
	before, last := b.ends()
	switch after {
	case 0:
		after = before
	case wire.EventsNow:
		after = last
	}
	if err := yield(wire.SandboxEvent{Seq: last}); err != nil {
		return err
	}
	buf := make([]wire.SandboxEvent, 0, batch)
	for {
		got, more := b.after(after, buf)
		for _, ev := range got {
			after = ev.Seq
			if ev.Time.IsZero() {
				ev.Time = b.now().UTC()
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

// Cut keeps the beginning of a long text, at most MaxText bytes, and replaces what is not UTF-8.
func Cut(s string) string {
	if len(s) > MaxText {
		s = s[:MaxText-3] + "..."
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
