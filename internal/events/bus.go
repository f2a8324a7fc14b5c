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
	// MaxText is the maximum size of a message in an event, in bytes.
	MaxText = 1024
	// kept is the number of events stored for listeners that lag or reconnect.
	kept = 4096
	// batch is the number of events that a listener copies at once; the buffer for them is most of the cost of an
	// idle listener.
	batch = 8
)

// Records looks up sandboxes.
type Records interface {
	// Sandbox returns a sandbox by name or ID, or a NotFound error.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
}

// Bus carries events to listeners. No listener has a queue: each reads the ring at its own pace, so that Emit never
// blocks, and one that lags by more than the ring holds learns how many events it missed. NewBus creates a Bus. All
// methods are safe for concurrent use, and none acquires another lock while it holds that of the bus.
type Bus struct {
	now     func() time.Time
	records Records

	mu   sync.Mutex
	base uint64              // number of the first event of this bus; guarded by mu
	next uint64              // number of the next event; guarded by mu
	ring []wire.SandboxEvent // event n is at (n-base) % kept; guarded by mu
	more chan struct{}       // closed when the next event arrives; guarded by mu

	counts map[string]uint64 // events by kind; guarded by mu
}

// NewBus returns a bus whose event numbers follow those of every earlier one: they start with the microseconds since
// 1970, which increase faster than events occur. Events that name a sandbox look it up in records.
func NewBus(now func() time.Time, records Records) *Bus {
	base := uint64(max(1, now().UnixMicro()))
	return &Bus{now: now, records: records, base: base, next: base, more: make(chan struct{}), counts: map[string]uint64{}}
}

// Emit sends events to all listeners, in this order. It sets Seq and Time, and truncates long texts. It never
// blocks, and may be called with any lock held.
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

// after copies the events that follow number seq into buf, as many as fit. The first of them may be an
// EventDropped. If there are none, more is closed when the next event arrives.
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

// ends returns the number of the event before the oldest stored one, and of the newest one.
func (b *Bus) ends() (before, last uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next - uint64(len(b.ring)) - 1, b.next - 1
}

// Counts returns the number of events of each kind since the bus was created.
func (b *Bus) Counts() map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.counts)
}

// Events calls yield with the events of a sandbox, or of all with name "", until ctx ends or yield returns an error,
// which it returns. With a name it returns nil when the sandbox is removed. after is the number of the last event
// that the caller knows, 0 for all stored events, wire.EventsNow for new events only. The first call of yield, made
// once no later event can be missed, has an event without a kind and with the number of the newest event.
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

// Cut truncates a text to MaxText bytes, and replaces invalid UTF-8.
func Cut(s string) string {
	if len(s) > MaxText {
		s = s[:MaxText-3] + "..."
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
