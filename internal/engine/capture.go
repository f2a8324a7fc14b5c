//go:build linux

package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// adoptAbove is the number of changed paths above which a capture without processes turns the upper itself into the
// layer instead of copying from it. Below it, a copy takes no longer than starting another box does, and directories
// stay in the upper, where rename(2) works without a copy.
const adoptAbove = 512

// note says why and how a snapshot is taken.
type note struct {
	cause   timeline.Cause
	message string
	exit    *int
	frozen  bool                          // leave the processes frozen; see taken.frozen
	aside   bool                          // do not take a snapshot if only times of directories changed
	memory  bool                          // include the memory of processes; takes a snapshot even if no file changed
	still   bool                          // no process is left, and none had a file mapped shared and writable
	with    func(taken) []audit.Statement // records to write with the snapshot, if there is one; nil: none
}

// taken is the outcome of a capture.
type taken struct {
	id       timeline.SnapshotID // the new snapshot, or HEAD when nothing changed
	changed  bool
	stats    timeline.Stats
	procs    int       // the processes that ran meanwhile
	frozen   Frozen    // with note.frozen, unless nothing runs; the caller thaws or kills it
	since    time.Time // when the processes were frozen
	recorded bool      // the statements of note.with are recorded
	memory   *timeline.Memory
	stood    time.Duration // how long processes were paused for note.memory
	// The paths that changed, as far as they are listed; which of them were removed; and the files before the change.
	// nil if unknown.
	paths  []string
	gone   map[string]bool
	before func() *layer.View
}

// capture takes a snapshot of the present if it differs from HEAD, and moves HEAD to it. On an error the present is
// still in the live root and nothing has changed, unless t names a snapshot: then the snapshot was taken, and the
// processes could not be resumed after it.
func (e *Engine) capture(ctx context.Context, s *held, rec *meta.Sandbox, n note) (t taken, err error) {
	c := &capturing{Engine: e, s: s, rec: rec, n: n, t: taken{id: rec.Head}}
	if n.memory {
		if err := c.mayKeepMemory(); err != nil {
			return c.t, err
		}
	}
	if !e.presented(rec) {
		return c.t, nil
	}
	hold, released := s.Capturing(ctx) // canceled once a stop or rm waits for the sandbox
	defer released()
	defer func() {
		err = c.release(hold, err)
		t = c.t
		fault.HintNoSpace(err, "make room on the file system of %s: delete files in the sandbox with "+
			"coppice exec %s -- rm FILE, or collect unused data with coppice system gc", e.Home, rec.Name)
	}()
	there, err := c.find(ctx)
	if err != nil || !there {
		return t, err
	}
	if err := c.freeze(ctx, hold); err != nil {
		return t, err
	}
	id, made, err := e.newLayer()
	if err != nil {
		return t, err
	}
	defer made() // deferred until the layer has its record
	c.layer = id
	if err := c.take(ctx, hold); err != nil {
		return t, err
	}
	if n.memory {
		known, err := c.keepMemory(ctx, hold)
		defer known()
		if err != nil {
			return t, errors.Join(err, e.unmade(ctx, c.layer))
		}
	}
	c.name(ctx)
	if c.got.TooMany {
		return t, c.adopt(ctx)
	}
	return t, c.commit(ctx)
}

// capturing is a capture in progress.
type capturing struct {
	*Engine
	s   *held
	rec *meta.Sandbox
	n   note
	t   taken // the result so far

	drv   rootfs.Driver
	live  rootfs.Live
	parts []rootspec.Part

	frozen   Frozen // the paused processes; nil: none
	since    time.Time
	ended    bool // the keeper exited when it was asked to freeze
	suspects layer.Suspects
	programs []wire.Program

	layer timeline.LayerID
	head  func() *layer.View  // the files of HEAD, to compare with; nil if they cannot be read
	below timeline.SnapshotID // the snapshot that the layer applies to
	empty bool                // make a layer even if nothing changed
	got   layer.Captured
}

// find finds the live root. It returns false if a crash left none, so that there is nothing to capture.
func (c *capturing) find(ctx context.Context) (there bool, err error) {
	if c.drv, c.live, err = c.Engine.live(ctx, c.rec); err != nil {
		return false, err
	}
	c.parts, err = c.drv.Parts(c.live)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // the root was never mounted
	}
	if err != nil {
		return false, err
	}
	c.s.captured, c.s.changed = c.Now(), time.Time{}
	return true, nil
}

// freeze pauses the processes, and completes a move that a killed init left unfinished.
func (c *capturing) freeze(ctx, hold context.Context) error {
	if b := c.liveBox(c.s); b != nil && !c.n.still {
		f, err := b.Freeze(hold)
		switch {
		case fault.Is(err, fault.Unavailable):
			// The keeper has just exited. If it was killed, init, which exits after it, may not have noticed yet. If a
			// killed daemon had asked it to stop, the processes would still have a grace period; they get none.
			if err := c.stopBox(ctx, c.s, 0); err != nil {
				return err
			}
			c.s.box, c.ended = nil, true
		case err != nil:
			return fault.Wrap(err, "freeze sandbox %s", c.rec.Name)
		default:
			c.frozen = f
			c.t.procs, c.suspects, c.programs = f.Procs(), f.Suspects(), f.Programs()
			c.s.mapped = c.suspects.Any()
		}
	}
	if c.n.memory && c.frozen == nil {
		return noMemory(c.rec)
	}
	c.since = time.Now()
	if c.liveBox(c.s) == nil && !c.drv.Plain() && unfinished(c.parts) {
		return c.finish(ctx, c.s, c.rec)
	}
	return nil
}

// release resumes the processes. With note.frozen the caller does that, unless something failed.
func (c *capturing) release(hold context.Context, failed error) error {
	switch {
	case c.frozen == nil:
	case !c.n.frozen || failed != nil:
		return errors.Join(failed, thaw(hold, c.frozen))
	default:
		c.t.frozen, c.t.since = c.frozen, c.since
	}
	return failed
}

// input returns the input of the capture, including what to compare the present with.
func (c *capturing) input(ctx context.Context) layer.CaptureInput {
	index := c.indexes.present(c.s, c.rec)
	in := layer.CaptureInput{
		Parts: c.parts, Index: index, Suspects: c.suspects, Plain: c.drv.Plain(), TimesAside: c.n.aside,
	}
	c.below = c.s.of
	if index == nil {
		in.Index, c.below = lostIndex(c.drv, c.rec)
	}
	c.empty = c.below != c.rec.Head
	c.head = func() *layer.View {
		v, err := c.Histories.View(ctx, c.rec, c.rec.Head, c.parts)
		if err != nil {
			return nil // an entry that cannot be compared counts as changed
		}
		return v
	}
	in.KeepEmpty, in.Head = c.empty, c.head
	if c.t.procs == 0 && !c.ended && !c.n.memory && c.drv.Adoptable() && !c.Files.InUse(c.s.ID) {
		in.MaxPaths = adoptAbove
	}
	if l, err := c.disk.limit(ctx, c.rec); err == nil {
		in.Project = l.Project
	} else {
		c.Logger.Warn("could not charge a snapshot to the disk limit", "sandbox", c.s.ID, "err", err)
	}
	return in
}

// keepMemory stores the memory of the frozen processes. They resume before it is stored, unless the caller wants them
// frozen. Garbage collection spares the image until known is called.
func (c *capturing) keepMemory(ctx, hold context.Context) (known func(), err error) {
	image, err := c.Images.Save(hold, c.rec, c.frozen)
	if !c.n.frozen && err == nil {
		err, c.frozen = thaw(hold, c.frozen), nil
	}
	c.t.stood = time.Since(c.since)
	if err != nil {
		image.Close()
		return func() {}, err
	}
	c.t.memory, known, err = c.Images.Keep(ctx, c.rec, image)
	return known, err
}

// name sets the message of the snapshot, and stores which paths changed.
func (c *capturing) name(ctx context.Context) {
	if c.n.message != "" {
		c.n.message = c.cleaners.ForMessage(ctx, c.rec, c.n.cause).Redact(c.n.message)
	} else {
		mark := ""
		if c.n.cause == timeline.CauseAuto {
			mark = c.rec.Mark
		}
		c.n.message = autoMessageOf(c.cleaners.For(ctx, c.rec), mark, c.programs, c.got.Paths)
		if c.n.message == "" && c.n.memory {
			c.n.message = memoryMessage
		}
	}
	c.t.paths, c.t.gone, c.t.before = c.got.Paths, map[string]bool{}, c.head
	for _, p := range c.got.Removed {
		c.t.gone[p] = true
	}
}

// commit adds the snapshot to the history, unless nothing has changed.
func (c *capturing) commit(ctx context.Context) error {
	routed := !c.got.Empty || c.empty
	if !routed && !c.n.memory {
		c.s.index, c.s.of = c.got.Index, c.below
		return nil
	}
	snap, err := c.newSnapshot(c.rec, c.n, c.got.Stats)
	if err != nil {
		return err
	}
	snap.Memory = c.t.memory
	if err := c.indexes.write(c.s.ID, snap.ID, c.got.Index); err != nil {
		return errors.Join(err, c.unmade(ctx, c.layer))
	}
	kept := c.kept(snap)
	var route *timeline.Route
	if routed {
		route = &timeline.Route{Top: snap.ID, Below: c.below, Layer: c.layer}
	}
	err = c.Book.Do(ctx, c.snapshotDrafts(ctx, c.rec, snap, c.n, kept), func(ctx context.Context) error {
		return c.DB.AddSnapshot(ctx, snap, route, 0, func(r *meta.Sandbox) {
			r.Head, r.Redo = snap.ID, redoAfter(r.Redo, c.n)
		})
	})
	if err != nil {
		return errors.Join(err, c.unmade(ctx, c.layer))
	}
	c.indexes.drop(c.s.ID, c.rec.Head)
	c.rec.Head = snap.ID
	c.s.index, c.s.of = c.got.Index, snap.ID
	c.t = kept
	c.added(snap)
	return nil
}

// added informs those who follow the history of a sandbox of a snapshot.
func (c *capturing) added(snap timeline.Snapshot) {
	c.register.Captured(snap.Sandbox, snap.Stats.Paths)
	c.Upkeep.MayBeDeep(snap.ID)
	c.Feed.Emit(events.Snapshot(c.rec, snap))
	c.Upkeep.MayBeThick(snap)
}

// kept returns the result of a capture whose snapshot is in the history.
func (c *capturing) kept(snap timeline.Snapshot) taken {
	t := c.t
	t.id, t.changed, t.stats, t.recorded = snap.ID, true, c.got.Stats, true
	return t
}

// unmade removes the layer, if any, of a snapshot that could not be added.
func (e *Engine) unmade(ctx context.Context, id timeline.LayerID) error {
	if !e.Layers.Has(id) {
		return nil
	}
	return e.Layers.Remove(ctx, id)
}

// snapshotDrafts returns the record of a snapshot and the records that are written with it.
func (e *Engine) snapshotDrafts(
	ctx context.Context, rec *meta.Sandbox, snap timeline.Snapshot, n note, t taken,
) []ledger.Draft {
	all := []audit.Statement{snapshotRecord(ctx, e.cleaners, rec, snap)}
	if n.with != nil {
		all = append(all, n.with(t)...)
	}
	return e.Book.Drafts(ctx, rec, all...)
}

// unfinished reports whether init was interrupted, by a signal or a crash, while it moved a directory
// for a process.
func unfinished(parts []rootspec.Part) bool {
	for _, p := range parts {
		if _, err := os.Lstat(filepath.Join(p.Dir, rootspec.Workshop)); err == nil {
			return true
		}
	}
	return false
}

// finish starts another init, which completes the move that its predecessor left unfinished, so that no snapshot
// shows it.
func (e *Engine) finish(ctx context.Context, s *held, rec *meta.Sandbox) error {
	if _, err := e.start(ctx, s, rec); err != nil {
		return fault.Wrap(err, "undo an interrupted move of a directory")
	}
	return e.stopBox(ctx, s, 0)
}

func (e *Engine) newSnapshot(rec *meta.Sandbox, n note, st timeline.Stats) (timeline.Snapshot, error) {
	id, err := timeline.NewSnapshotID(e.Rand)
	return timeline.Snapshot{
		ID: id, Sandbox: rec.ID, Parent: rec.Head, Cause: n.cause, Message: n.message,
		Created: e.Now().UTC().Truncate(time.Microsecond), Exit: n.exit, Stats: st,
	}, err
}

// redoAfter returns the redo list after a capture: empty, except for the capture that precedes a rewind.
func redoAfter(redo []timeline.SnapshotID, n note) []timeline.SnapshotID {
	if n.cause == timeline.CauseCheckout {
		return redo
	}
	return nil
}

// newLayer returns the name of a layer that is about to be made. Until made is called, garbage collection does not
// remove its directory although it has no record.
func (e *Engine) newLayer() (id timeline.LayerID, made func(), err error) {
	if id, err = timeline.NewLayerID(e.Rand); err != nil {
		return "", nil, err
	}
	e.mu.Lock()
	e.making[id] = true
	e.mu.Unlock()
	return id, func() {
		e.mu.Lock()
		delete(e.making, id)
		e.mu.Unlock()
	}, nil
}

// thaw thaws a box. It does not wait for the box once hold is done.
func thaw(hold context.Context, f Frozen) error {
	stop := context.AfterFunc(hold, f.Drop)
	defer stop()
	if err := f.Thaw(); hold.Err() == nil {
		return err
	}
	return nil
}
