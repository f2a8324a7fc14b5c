package audit

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Class is a class of records or changes that share one budget. Records that show an attack have their own
// classes, so that no flood of other records hides them.
type Class int

// Classes. Those of records, and ClassLists, are counted in bytes, the others in snapshots, rewinds and tags, or in
// trials.
const (
	ClassDecoys   Class = iota // uses of decoys
	ClassRefusals              // refused system calls
	ClassFiles                 // refused files
	ClassDenials               // denials of the gate
	ClassNetwork               // all other events of the gate
	ClassPrograms              // program starts
	ClassLists                 // lists of programs that one record summarizes
	ClassInside                // changes of the history requested from inside
	ClassCaptures              // automatic snapshots
	ClassTrials                // trials requested from inside
	classes
)

func sizes() [classes]int64 {
	return [classes]int64{ClassDecoys: limit.EvidenceDecoys, ClassRefusals: limit.EvidenceRefusals,
		ClassFiles: limit.EvidenceFiles, ClassDenials: limit.EvidenceDenials,
		ClassNetwork: limit.EvidenceNetwork, ClassPrograms: limit.EvidencePrograms, ClassLists: limit.EvidenceLists,
		ClassInside: limit.InsideChanges, ClassCaptures: limit.AutoSnapshots,
		ClassTrials: limit.InsideTrials}
}

// Budget limits how much a sandbox may add to its audit log and its history; its owner is not limited. The caller
// passes the time, and decides what happens to records beyond the budget. Its methods are safe for concurrent use.
type Budget struct {
	mu      sync.Mutex
	buckets [classes]bucket // guarded by mu
}

// NewBudget returns the budget of a sandbox whose spending is not known yet. It assumes that the budget was empty
// limit.EvidenceRefill ago: the caller adds what was recorded since then with Spent, oldest first.
func NewBudget(now time.Time) *Budget {
	b := &Budget{}
	for c, size := range sizes() {
		b.buckets[c] = bucket{size: size, full: now}
	}
	return b
}

// Spent takes n from a class, or what was left at the time if that is less.
func (b *Budget) Spent(at time.Time, c Class, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buckets[c].spend(at, n)
}

// Take takes n from a class; if less is left, it takes nothing and returns false.
func (b *Budget) Take(now time.Time, c Class, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buckets[c].take(now, n)
}

// Wait returns how long it takes until one can be taken from a class.
func (b *Budget) Wait(now time.Time, c Class) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buckets[c].wait(now, 1)
}

// Admit reports whether a record may be appended, and takes its cost. A record that the owner causes is
// always admitted.
func (b *Budget) Admit(now time.Time, by format.Observer, body format.Body) bool {
	c, n, ok := charge(by, body)
	return !ok || b.Take(now, c, n)
}

// envelope is about how many bytes a record takes in addition to its body: its envelope, its hash in the tree, and
// its entry in the intake.
const envelope = 512

// chargedKinds returns the kinds of records that charge may charge.
func chargedKinds() []format.Kind {
	return []format.Kind{format.KindDenial, format.KindLost, format.KindNetwork, format.KindProgram, format.KindSnapshot,
		format.KindTrial}
}

// charge returns the class that a record is charged to, and how much; ok is false if the sandbox did not cause the
// record.
func charge(by format.Observer, body format.Body) (c Class, n int64, ok bool) {
	switch b := body.(type) {
	case *format.Denial:
		switch {
		case strings.HasPrefix(b.Reason, DecoyPrefix):
			c = ClassDecoys
		case b.Op != "":
			c = ClassFiles
		default:
			c = ClassRefusals
		}
	case *format.Lost:
		switch {
		case by == format.ByGate && b.Of == string(format.KindNetwork):
			c = ClassDenials
		case by != format.ByKeeper || b.Of != string(format.KindDenial):
			return 0, 0, false // the daemon's own records, which are few
		case b.Reason == wire.RefusedFiles:
			c = ClassFiles
		default:
			c = ClassRefusals
		}
	case *format.Network:
		switch {
		case strings.HasPrefix(b.Reason, DecoyPrefix):
			c = ClassDecoys
		case b.Verdict != wire.VerdictAllow:
			c = ClassDenials
		default:
			c = ClassNetwork
		}
	case *format.Program:
		c = ClassPrograms
	case *format.Snapshot:
		switch {
		case by == format.BySandbox:
			return ClassInside, 1, true
		case b.Cause == string(timeline.CauseAuto):
			return ClassCaptures, 1, true
		}
		return 0, 0, false
	case *format.Trial:
		return ClassTrials, 1, true
	default:
		return 0, 0, false
	}
	text, err := json.Marshal(body)
	if err != nil {
		return c, format.MaxLine, true
	}
	return c, envelope + int64(len(text)), true
}
