// Package budget bounds what a sandbox adds to its ledger and its history without its owner,
// who is never limited. Records that show an attack have separate budgets, so that no flood
// of other records hides them. The package is pure: callers pass the time, and decide what
// happens to records beyond the budget.
//
// The engine may import it.
package budget

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/testimony"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Class is a class of records or changes that share one budget.
type Class int

// The classes. Those of records and Lists are counted in bytes, the others in snapshots,
// rewinds and tags.
const (
	Decoys   Class = iota // touches of decoys
	Refusals              // system calls that were refused
	Denials               // of the gate
	Network               // all other events of the gate
	Programs              // that were started
	Lists                 // lists of programs that one record sums up
	Inside                // changes of the history requested from inside
	Captures              // automatic snapshots
	classes
)

func sizes() [classes]int64 {
	return [classes]int64{Decoys: limit.EvidenceDecoys, Refusals: limit.EvidenceRefusals, Denials: limit.EvidenceDenials,
		Network: limit.EvidenceNetwork, Programs: limit.EvidencePrograms, Lists: limit.EvidenceLists, Inside: limit.InsideChanges, Captures: limit.AutoSnapshots}
}

// Budget is what one sandbox has left. Its methods may be called from several goroutines at
// once.
type Budget struct {
	mu      sync.Mutex
	buckets [classes]bucket // guarded by mu
}

// New returns the budget of a sandbox whose spending is not known yet. It counts as empty
// limit.EvidenceRefill ago: the caller adds what was recorded since then with Spent, the
// oldest first.
func New(now time.Time) *Budget {
	b := &Budget{}
	for c, size := range sizes() {
		b.buckets[c] = bucket{size: size, full: now}
	}
	return b
}

// Spent takes n of a class, or what was left at that time.
func (b *Budget) Spent(at time.Time, c Class, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buckets[c].spend(at, n)
}

// Take takes n of a class, or reports that there is less and takes nothing.
func (b *Budget) Take(now time.Time, c Class, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buckets[c].take(now, n)
}

// Wait returns how long it takes until one of a class can be taken.
func (b *Budget) Wait(now time.Time, c Class) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buckets[c].wait(now, 1)
}

// Admit reports whether a record may be appended, and takes its cost. A record that the owner
// causes is always admitted.
func (b *Budget) Admit(now time.Time, by format.Observer, body format.Body) bool {
	c, n, ok := Of(by, body)
	return !ok || b.Take(now, c, n)
}

// envelope is about how many bytes a record takes besides its body: its envelope, its hash in
// the tree, and its entry in the intake.
const envelope = 512

// Kinds returns the kinds of records that Of may charge.
func Kinds() []format.Kind {
	return []format.Kind{format.KindDenial, format.KindLost, format.KindNetwork, format.KindProgram, format.KindSnapshot}
}

// Of returns the budget that a record is charged to, and how much; ok is false if the sandbox
// did not cause it.
func Of(by format.Observer, body format.Body) (c Class, n int64, ok bool) {
	switch b := body.(type) {
	case *format.Denial:
		c = Refusals
		if strings.HasPrefix(b.Reason, testimony.Decoy) {
			c = Decoys
		}
	case *format.Lost:
		if by != format.ByKeeper || b.Of != string(format.KindDenial) {
			return 0, 0, false // the daemon's own; there are few
		}
		c = Refusals
	case *format.Network:
		switch {
		case strings.HasPrefix(b.Reason, testimony.Decoy):
			c = Decoys
		case b.Verdict != wire.VerdictAllow:
			c = Denials
		default:
			c = Network
		}
	case *format.Program:
		c = Programs
	case *format.Snapshot:
		switch {
		case by == format.BySandbox:
			return Inside, 1, true
		case b.Cause == string(timeline.CauseAuto):
			return Captures, 1, true
		}
		return 0, 0, false
	default:
		return 0, 0, false
	}
	text, err := json.Marshal(body)
	if err != nil {
		return c, format.MaxLine, true
	}
	return c, envelope + int64(len(text)), true
}
