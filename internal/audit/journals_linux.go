//go:build linux

package audit

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Events that gate and keeper write to a sandbox's journal become records. The position up to which they have is in a
// file beside the journal. The file is written before the records: it has the position after them, and the number of
// the last record before them. After a crash, a daemon that reads it finds in the audit log whether the records were
// written. So no event is recorded twice or omitted.

const (
	// journalRest is how long events are collected when many arrive at once.
	journalRest = 50 * time.Millisecond
	// journalLook is how often a journal is read that rarely grows.
	journalLook = 2 * time.Second
)

// cursors is the content of the position file.
type cursors struct {
	Done cursor `json:"done"` // position up to which events are recorded
	Next cursor `json:"next"` // the position if the ledger has evidence after Seq
	Seq  int64  `json:"seq"`
}

// cursor is a position in a journal, and the losses before it that are not recorded yet.
type cursor struct {
	journal.Cursor
	Owed []format.Lost `json:"owed,omitempty"`
}

// JournalsConfig configures Journals. All fields are required.
type JournalsConfig struct {
	Book    *Book
	Budgets *Budgets
	// Place returns the journal of a sandbox, and Cursor the path of the file with the position up to which
	// it has become records.
	Place  func(timeline.SandboxID) journal.Place
	Cursor func(timeline.SandboxID) string
	FS     vfs.FS // the file system that Cursor is written through
	// Recorded is called with the records that were written for a sandbox. It may be called under a lock, and must not
	// call methods of Journals.
	Recorded func(timeline.SandboxID, []ledger.Draft)
}

// Journals records the events in the journals of sandboxes. All methods are safe for concurrent use.
type Journals struct {
	config JournalsConfig // never changed

	mu  sync.Mutex // held last: see docs/design/locks.md
	all map[timeline.SandboxID]*reading
}

// reading is the position up to which the journal of one sandbox has become records.
type reading struct {
	mu   sync.Mutex // held while events become records; the ledger and budgets are used meanwhile
	at   *cursor    // guarded by mu; nil: unknown
	lost time.Time  // guarded by mu: time of the last lost record

	closed bool // guarded by mu: the sandbox is being removed, and its losses are known
}

// NewJournals returns Journals.
func NewJournals(c JournalsConfig) *Journals {
	return &Journals{config: c, all: map[timeline.SandboxID]*reading{}}
}

func (j *Journals) of(id timeline.SandboxID) *reading {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.all[id]
	if r == nil {
		r = &reading{}
		j.all[id] = r
	}
	return r
}

// Forget discards the state of a sandbox that was removed.
func (j *Journals) Forget(id timeline.SandboxID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.all, id)
}

// Hold prevents the journal of a sandbox from being read until release is called.
func (j *Journals) Hold(id timeline.SandboxID) (release func()) {
	r := j.of(id)
	r.mu.Lock()
	return r.mu.Unlock
}

// Watch records events from the journal of a sandbox until gone is closed, which its box does when it exits, or ctx
// is canceled. Events of a busy journal, that of a gate or with decoys, are recorded at once. Any other journal has
// only refused calls, which are recorded at the exit of a command. It is read at intervals, since the kernel limits
// how many directories can be watched.
func (j *Journals) Watch(ctx context.Context, id timeline.SandboxID, gone <-chan struct{}, busy bool) {
	if !busy {
		j.look(ctx, id, gone)
		return
	}
	alive, cancel := context.WithCancel(ctx)
	more := make(chan struct{}, 1)
	var following sync.WaitGroup
	following.Go(func() {
		err := journal.Follow(alive, j.config.Place(id), journal.Query{Last: -1}, func(wire.NetEvent) error {
			select {
			case more <- struct{}{}:
			default:
			}
			return nil
		})
		if err != nil && alive.Err() == nil {
			j.config.Book.config.Logger.Error("could not follow network events; they are recorded when the sandbox has "+
				"stopped", "sandbox", id, "err", err)
		}
	})
	defer following.Wait()
	defer cancel()
	for {
		j.CatchUp(ctx, id)
		select {
		case <-ctx.Done():
			return
		case <-gone:
			j.Finish(ctx, id)
			return
		case <-more:
		case <-j.owing(id):
		}
		select {
		case <-ctx.Done():
		case <-gone:
		case <-time.After(journalRest):
		}
	}
}

// look is Watch for a journal that is not busy.
func (j *Journals) look(ctx context.Context, id timeline.SandboxID, gone <-chan struct{}) {
	tick := time.NewTicker(journalLook)
	defer tick.Stop()
	var seen os.FileInfo
	look := func(read func(context.Context, timeline.SandboxID)) {
		now := journal.Newest(j.config.Place(id).Dir)
		if now == nil || seen != nil && os.SameFile(seen, now) && seen.Size() == now.Size() && j.owing(id) == nil {
			return
		}
		read(ctx, id)
		seen = now
	}
	for {
		look(j.CatchUp)
		select {
		case <-ctx.Done():
			return
		case <-gone:
			look(j.Finish)
			return
		case <-tick.C:
		}
	}
}

// owing returns a channel that fires when a lost record is due; nil if none is.
func (j *Journals) owing(id timeline.SandboxID) <-chan time.Time {
	j.mu.Lock()
	r := j.all[id]
	j.mu.Unlock()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil || len(r.at.Owed) == 0 {
		return nil
	}
	return time.After(limit.LostInterval)
}

// Has reports whether anything was ever written to the journal of a sandbox.
func (j *Journals) Has(id timeline.SandboxID) bool {
	return journal.Newest(j.config.Place(id).Dir) != nil
}

// Finish is CatchUp at the exit of a command or a box: it also records losses that are not due yet.
func (j *Journals) Finish(ctx context.Context, id timeline.SandboxID) {
	if !j.Has(id) {
		return
	}
	r := j.of(id)
	r.mu.Lock()
	r.lost = time.Time{}
	r.mu.Unlock()
	j.CatchUp(ctx, id)
}

// CatchUp records the events in the journal of a sandbox that are not recorded yet. It logs an error; a later call
// records the rest.
func (j *Journals) CatchUp(ctx context.Context, id timeline.SandboxID) {
	r := j.of(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	for ctx.Err() == nil && !r.closed {
		more, err := j.some(ctx, id, r)
		if _, gone := j.config.Book.config.Store.Sandbox(ctx, string(id)); err != nil && fault.Is(gone, fault.NotFound) {
			j.Forget(id) // the sandbox was removed, and no later call records anything for it
		} else if err != nil && ctx.Err() == nil {
			j.config.Book.config.Logger.Error("could not record network events yet", "sandbox", id, "err", err)
		}
		if err != nil || !more {
			return
		}
	}
}

// Close is Finish for a sandbox that is being removed together with its journal. It returns the events that could not
// be recorded, as losses. Until Reopen, nothing more is recorded for the sandbox, so that no event is both recorded
// and lost.
func (j *Journals) Close(ctx context.Context, id timeline.SandboxID) []format.Lost {
	if !j.Has(id) {
		return nil
	}
	j.Finish(ctx, id)
	r := j.of(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	lost, err := j.unrecorded(ctx, id, r)
	if err != nil {
		j.config.Book.config.Logger.Error("could not determine how many events are not recorded", "sandbox", id, "err", err)
		lost = []format.Lost{{Of: string(format.KindNetwork), Reason: unwritten}}
	}
	r.closed = true
	return lost
}

// Reopen reverts Close, if the sandbox was not removed after all.
func (j *Journals) Reopen(id timeline.SandboxID) {
	j.mu.Lock()
	r := j.all[id]
	j.mu.Unlock()
	if r == nil {
		return // the sandbox was removed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = false
}

// unrecorded returns the events in the journal of a sandbox that are not recorded, as losses. r.mu is held.
func (j *Journals) unrecorded(ctx context.Context, id timeline.SandboxID, r *reading) ([]format.Lost, error) {
	at := r.at
	if at == nil {
		c, _, err := j.stored(id)
		if err != nil {
			return nil, err
		}
		if at, err = j.read(ctx, id); err != nil { // on a full disk, the ledger may not be readable either
			at = &c.Done
		}
	}
	evs, _, missing, err := journal.From(j.config.Place(id), at.Cursor)
	if err != nil {
		return nil, err
	}
	lost := slices.Clone(at.Owed)
	for _, e := range EvidenceOf(evs, func(text string) string { return text }) {
		lost = addLost(lost, lossOf(e.Body, unwritten))
	}
	if missing {
		lost = addLost(lost, lostEvidence())
	}
	return lost, nil
}

// some records some of the events; more reports whether there may be more. r.mu is held.
func (j *Journals) some(ctx context.Context, id timeline.SandboxID, r *reading) (more bool, err error) {
	rec, err := j.config.Book.config.Store.Sandbox(ctx, string(id))
	if err != nil {
		return false, err
	}
	if r.at == nil {
		if r.at, err = j.read(ctx, id); err != nil {
			return false, err
		}
	}
	evs, next, missing, err := journal.From(j.config.Place(id), r.at.Cursor)
	more = next != r.at.Cursor
	if err != nil || !more && len(r.at.Owed) == 0 {
		return false, err
	}
	left, err := j.config.Budgets.Of(ctx, id)
	if err != nil {
		return false, err
	}
	drafts, over := left.admitDrafts(j.config.Book.config.Now(), j.drafts(ctx, &rec, evs))
	if missing {
		over = addLost(over, lostEvidence())
	}
	after := cursor{next, addLost(slices.Clone(r.at.Owed), over...)}
	now := j.config.Book.config.Now()
	says := len(after.Owed) > 0 && now.Sub(r.lost).Abs() >= limit.LostInterval
	if says {
		drafts, after.Owed = append(drafts, j.losses(ctx, &rec, after.Owed)...), nil
	}
	if len(drafts) > 0 {
		last, err := j.config.Book.Ledger.Last(ctx, format.Sandbox(id))
		if err != nil {
			return false, err
		}
		if err := j.write(id, cursors{Done: *r.at, Next: after, Seq: last}); err != nil {
			return false, err
		}
		// All records or none are written, so that the presence of one implies that of all.
		if _, err := j.config.Book.Append(ctx, drafts...); err != nil {
			r.at = nil // the records may have been written
			return false, err
		}
		j.config.Recorded(id, drafts)
	}
	if r.at = &after; says {
		r.lost = now
	}
	return more, nil
}

// read finds the position up to which the journal of a sandbox is recorded.
func (j *Journals) read(ctx context.Context, id timeline.SandboxID) (*cursor, error) {
	c, ok, err := j.stored(id)
	if err != nil {
		return nil, err
	}
	if !ok {
		return &c.Done, nil
	}
	if _, err := j.config.Book.Ledger.Last(ctx, format.Sandbox(id)); err != nil { // makes appended records readable
		return nil, err
	}
	for r, err := range j.config.Book.Ledger.Read(ctx, format.Sandbox(id), ledger.Filter{From: c.Seq + 1}) {
		if err != nil {
			return nil, err
		}
		if isEvidence(r) {
			return &c.Next, nil
		}
	}
	return &c.Done, nil
}

// stored reads the position file of a sandbox; ok is false if there is none.
func (j *Journals) stored(id timeline.SandboxID) (c cursors, ok bool, err error) {
	text, err := os.ReadFile(j.config.Cursor(id))
	if errors.Is(err, fs.ErrNotExist) {
		return c, false, nil
	}
	if err != nil {
		return c, false, fault.Wrap(err, "read the position of recorded network events")
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, false, fault.New(fault.Corrupt, "%s is damaged", j.config.Cursor(id)).Because(err)
	}
	return c, true, nil
}

// write durably stores the position up to which the journal is recorded.
func (j *Journals) write(id timeline.SandboxID, c cursors) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return fault.Wrap(vfs.WriteFile(j.config.FS, j.config.Cursor(id), text), "store the position of recorded network "+
		"events")
}

// drafts returns the records of events.
func (j *Journals) drafts(ctx context.Context, rec *meta.Sandbox, evs []wire.NetEvent) []ledger.Draft {
	var all []Statement
	var policies []string
	for _, e := range EvidenceOf(evs, j.config.Book.Cleaners.For(ctx, rec).RecordText) {
		all, policies = append(all, Statement{e.By, e.Body}), append(policies, e.Policy)
	}
	out := j.config.Book.Drafts(ctx, rec, all...)
	for i, p := range policies {
		if p != "" {
			out[i].Policy = p
		}
	}
	return out
}

// losses returns the records of losses.
func (j *Journals) losses(ctx context.Context, rec *meta.Sandbox, owed []format.Lost) []ledger.Draft {
	var all []Statement
	for i := range owed {
		all = append(all, ByDaemon(&owed[i])...)
	}
	return j.config.Book.Drafts(ctx, rec, all...)
}
