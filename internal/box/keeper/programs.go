//go:build linux && (amd64 || arm64)

package keeper

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sort"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/secretbox"
)

// Bounds of the program events that a keeper holds, and of one answer, which must fit into a frame with its bytes as
// base64.
const (
	maxProgramEvents = 32 << 10
	maxProgramBytes  = 8 << 20
	maxAnswerBytes   = 384 << 10
	maxAnswerEvents  = 1024
)

// programRing holds the newest events of programs. A client that does not fetch them in time learns how many were
// dropped; no process inside waits for it. The zero value is ready to use.
type programRing struct {
	mu      sync.Mutex
	events  []protocol.ProgramEvent // guarded by mu; by seq, with gaps
	bytes   int                     // guarded by mu; size of events
	last    uint64                  // guarded by mu; the seq of the newest event, held or not
	kept    uint64                  // guarded by mu; the seq up to which a client has stored all events
	changed chan struct{}           // guarded by mu; closed at the next event; nil if no call waits
}

// add takes events from init. An event that init dropped had a seq as well.
func (r *programRing) add(p initlink.Programs) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last += p.Dropped
	for _, e := range p.Events {
		r.last++
		r.events = append(r.events, protocol.ProgramEvent{Seq: r.last, ProgramEvent: e})
		r.bytes += eventBytes(e)
	}
	gone := 0
	for len(r.events)-gone > maxProgramEvents || r.bytes > maxProgramBytes {
		r.bytes -= eventBytes(r.events[gone].ProgramEvent)
		gone++
	}
	if gone > 0 {
		r.events = append([]protocol.ProgramEvent(nil), r.events[gone:]...)
	}
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// eventBytes returns about how many bytes of an answer an event takes.
func eventBytes(e initlink.ProgramEvent) int {
	if e.Began == nil {
		return 128
	}
	return 256 + len(e.Began.Exe) + len(e.Began.Args) + len(e.Began.Dir) + len(e.Began.Exec)
}

// after returns the first events after a seq, as many as fit into an answer. If there are none, later is closed when
// there may be some.
func (r *programRing) after(seq, kept uint64) (p protocol.ProgramsReply, later <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq = min(seq, r.last)
	r.kept = max(r.kept, min(kept, seq))
	if seq == r.last {
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		return protocol.ProgramsReply{Next: seq}, r.changed
	}
	i := sort.Search(len(r.events), func(i int) bool { return r.events[i].Seq > seq })
	from, bytes := i, 0
	for i < len(r.events) && i-from < maxAnswerEvents && bytes < maxAnswerBytes {
		bytes += eventBytes(r.events[i].ProgramEvent)
		i++
	}
	p.Events = r.events[from:i:i]
	p.Next = r.last
	if i < len(r.events) {
		p.Next = r.events[i-1].Seq
	}
	p.Dropped = p.Next - seq - uint64(len(p.Events))
	return p, nil
}

// programsAfter answers with events as soon as there are some. It also returns when the caller disconnects.
func (k *keeper) programsAfter(conn net.Conn, seq, kept uint64, now bool) (protocol.ProgramsReply, error) {
	defer k.observe()()
	p, later := k.programs.after(seq, kept)
	if later == nil {
		return p, nil
	}
	k.mu.Lock()
	recorded := k.enforced.State("programs") == plan.On
	k.mu.Unlock()
	if !recorded {
		return p, fault.New(fault.Unsupported, "the programs of this sandbox are not recorded").
			WithHint("see why: coppice status NAME; the tiers supervised and gvisor record them, unless the policy has " +
				"programs: none")
	}
	if now {
		return p, nil
	}
	left := make(chan struct{})
	k.calls.Go(func() {
		_, _, _ = wire.ReadFrame(conn, nil) // returns when the connection ends
		close(left)
	})
	select {
	case <-later:
		p, _ = k.programs.after(seq, kept)
		return p, nil
	case <-left:
		return p, fault.New(fault.Cancelled, "the client disconnected")
	case <-k.stop:
		return p, fault.New(fault.Unavailable, "the sandbox is being stopped")
	}
}

// left returns the events that no client has stored, as far as the ring holds them. ok is false if there was never an
// event.
func (r *programRing) left() (p protocol.ProgramsReply, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := sort.Search(len(r.events), func(i int) bool { return r.events[i].Seq > r.kept })
	p = protocol.ProgramsReply{Events: r.events[i:], Next: r.last}
	p.Dropped = r.last - r.kept - uint64(len(p.Events))
	return p, r.last > 0
}

// savePrograms writes the remaining events to a file for LeftPrograms, encrypted with the key of the journal
// since arguments may hold secrets.
func (k *keeper) savePrograms() error {
	p, ok := k.programs.left()
	if !ok {
		return nil
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if secret := k.config.JournalKey; len(secret) > 0 {
		key, err := secretbox.New(secret)
		if err != nil {
			return err
		}
		text, err := key.Seal(protocol.LeftName, b)
		if err != nil {
			return err
		}
		b = []byte(text)
	}
	name := filepath.Join(k.config.RunDir, protocol.LeftName)
	if err := os.WriteFile(name+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
