//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// adoptAbove is how many changed paths make it worth while to turn the upper
// itself into the layer, when no process is left, instead of copying from it.
// Below it a copy takes no longer than the start of another box, and leaves
// directories where rename(2) is free.
const adoptAbove = 512

// note says why a snapshot is taken.
type note struct {
	cause   timeline.Cause
	message string
	exit    *int
	frozen  bool                    // leave the processes frozen: see taken.frozen
	aside   bool                    // the times of directories alone are not worth a snapshot
	memory  bool                    // with what processes have in memory; there is a snapshot in any case
	still   bool                    // no process is left, and none had anything mapped
	with    func(taken) []testimony // what is recorded with the snapshot, if there is one; nil: nothing
}

// taken is the outcome of a capture.
type taken struct {
	id      timeline.SnapshotID // the new snapshot, or HEAD when nothing changed
	changed bool
	stats   timeline.Stats
	procs   int    // processes that ran meanwhile
	frozen  Frozen // with note.frozen, unless nothing runs: for the caller to thaw, or to kill
	told    bool   // what note.with gave is recorded
	memory  *timeline.Memory
	stood   time.Duration // how long processes stood still for note.memory
	// What was found changed, as far as it is listed: which of it is gone, and what was
	// there before; nil where that is not known.
	paths  []string
	gone   map[string]bool
	before func() *layer.View
}

// capture makes a snapshot of the present state when it differs from HEAD, and
// moves HEAD there. The caller holds the sandbox's lock. On an error nothing has
// changed and the present is still in the live root.
func (e *Engine) capture(ctx context.Context, s *sandbox, rec *meta.Sandbox, n note) (t taken, err error) {
	t.id = rec.Head
	if !e.presented(rec) {
		return t, nil
	}
	defer func() {
		hintRoom(err, "make room on the file system of %s: delete files in the sandbox with coppice exec %s -- rm FILE, or what nobody needs with coppice gc",
			e.Home, rec.Name)
	}()
	drv, live, err := e.live(ctx, rec)
	if err != nil {
		return t, err
	}
	parts, err := drv.Parts(live)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil // a crash while it was being made: nothing was ever mounted on it
	}
	if err != nil {
		return t, err
	}
	s.captured, s.changed = e.Now(), time.Time{}
	hold, released := e.preemptible(ctx, s) // ends once a stop or rm waits for the sandbox
	defer released()
	var suspects layer.Suspects
	var programs []wire.Program
	ended := false
	var frozen Frozen
	if b := e.liveBox(s); b != nil && !n.still {
		f, ferr := b.Freeze(hold)
		switch {
		case fault.Is(ferr, fault.Unavailable):
			// The keeper has just ended; perhaps it was killed, and init, which
			// follows it, has not noticed yet. Or a daemon that was killed since
			// has told it to stop, and what runs has some time left: it has none.
			if err := e.stopBox(ctx, s, 0); err != nil {
				return t, err
			}
			s.box, ended = nil, true
		case ferr != nil:
			return t, fault.Wrap(ferr, "freeze sandbox %s", rec.Name)
		default:
			t.procs, suspects, programs = f.Procs(), f.Suspects(), f.Programs()
			s.mapped = suspects.Any()
			frozen = f
			defer func() {
				switch {
				case frozen == nil:
				case !n.frozen || err != nil:
					err = errors.Join(err, thaw(hold, f))
				default:
					t.frozen = f
				}
			}()
		}
	}
	if n.memory && frozen == nil {
		return t, notLive(rec, "there is no process whose memory could be kept")
	}
	stood := time.Now()
	if e.liveBox(s) == nil && !drv.Plain() && unfinished(parts) {
		if err := e.finish(ctx, s, rec); err != nil {
			return t, err
		}
	}
	in := layer.CaptureInput{Parts: parts, Index: s.index, Suspects: suspects, Plain: drv.Plain()}
	below := s.of
	if s.index == nil {
		in.Index, below = e.lostIndex(drv, rec)
	}
	in.KeepEmpty = below != rec.Head
	in.Head = func() *layer.View {
		v, err := e.viewOf(ctx, rec, rec.Head, parts)
		if err != nil {
			return nil // what cannot be compared is taken as changed
		}
		return v
	}
	if t.procs == 0 && !ended && !n.memory && drv.Adoptable() && !e.filesOpen(s) {
		in.MaxPaths = adoptAbove
	}
	if l, lerr := e.diskLimit(ctx, rec); lerr == nil {
		in.Project = l.Project
	} else {
		e.Logger.Warn("a snapshot is not charged to the disk limit", "sandbox", s.id, "err", lerr)
	}
	id, made, err := e.newLayer()
	if err != nil {
		return t, err
	}
	defer made()
	e.shape.RLock() // what the present is compared with stays
	in.TimesAside = n.aside
	s.renames.Lock() // who writes files from outside does not stand still otherwise
	got, err := e.Layers.Capture(hold, id, in)
	s.renames.Unlock()
	e.shape.RUnlock()
	if err != nil {
		return t, fault.Wrap(err, "capture sandbox %s", rec.Name)
	}
	if got.Unkept > 0 {
		e.Logger.Warn("a snapshot lacks extended attributes that a layer cannot hold", "sandbox", s.id, "entries", got.Unkept)
	}
	if n.memory {
		image, err := e.save(hold, s, rec, frozen)
		if !n.frozen && err == nil {
			err, frozen = thaw(hold, frozen), nil
		}
		t.stood = time.Since(stood)
		if err == nil {
			e.imaging.RLock() // until the snapshot has it
			defer e.imaging.RUnlock()
			t.memory, err = e.keepImage(ctx, rec, image)
		} else if image.init != nil {
			image.init.Close()
		}
		if err != nil {
			return t, errors.Join(err, e.unmade(ctx, id))
		}
	}
	if n.message == "" {
		mark := ""
		if n.cause == timeline.CauseAuto {
			mark = rec.Mark
		}
		if n.message = autoLabelOf(e.cleaners.For(ctx, rec), mark, programs, got.Paths); n.message == "" && n.memory {
			n.message = memoryLabel
		}
	} else {
		n.message = e.cleaners.ForMessage(ctx, rec, n.cause).Redact(n.message)
	}
	t.paths, t.gone, t.before = got.Paths, map[string]bool{}, in.Head
	for _, p := range got.Removed {
		t.gone[p] = true
	}
	if got.TooMany {
		return e.adopt(ctx, s, rec, live, parts, n, t, got.Stats)
	}
	routed := !got.Empty || in.KeepEmpty
	if !routed && !n.memory {
		s.index, s.of = got.Index, below
		return t, nil
	}
	snap, err := e.newSnapshot(rec, n, got.Stats)
	if err != nil {
		return t, err
	}
	snap.Memory = t.memory
	if err := e.writeIndex(s.id, snap.ID, got.Index); err != nil {
		return t, errors.Join(err, e.unmade(ctx, id))
	}
	kept := t
	kept.id, kept.changed, kept.stats, kept.told = snap.ID, true, got.Stats, true
	done, err := e.undertakeSnapshot(ctx, rec, snap, n, kept)
	if err != nil {
		return t, errors.Join(err, e.unmade(ctx, id))
	}
	var route *timeline.Route
	if routed {
		route = &timeline.Route{Top: snap.ID, Below: below, Layer: id}
	}
	err = e.DB.AddSnapshot(ctx, snap, route, 0, func(r *meta.Sandbox) { r.Head, r.Redo = snap.ID, redoAfter(r.Redo, n) })
	done(err)
	if err != nil {
		return t, errors.Join(err, e.unmade(ctx, id))
	}
	e.dropIndex(s.id, rec.Head)
	rec.Head = snap.ID
	s.index, s.of = got.Index, snap.ID
	e.mayBeDeep(snap.ID)
	t = kept
	e.recorded(rec, snap)
	e.mayBeThick(s, snap)
	return t, nil
}

// unmade removes the layer of a snapshot that did not come about, if it has one.
func (e *Engine) unmade(ctx context.Context, id timeline.LayerID) error {
	if !e.Layers.Has(id) {
		return nil
	}
	return e.Layers.Remove(ctx, id)
}

// undertakeSnapshot is undertake for a snapshot, and for what is recorded with it.
func (e *Engine) undertakeSnapshot(ctx context.Context, rec *meta.Sandbox, snap timeline.Snapshot, n note, t taken) (done func(error), err error) {
	tell := []testimony{e.snapshotRecord(ctx, rec, snap)}
	if n.with != nil {
		tell = append(tell, n.with(t)...)
	}
	return e.undertake(ctx, e.drafts(ctx, rec, tell...))
}

// unfinished reports whether init was cut off while it moved a directory for a
// process: killed, or by a crash.
func unfinished(parts []rootspec.Part) bool {
	for _, p := range parts {
		if _, err := os.Lstat(filepath.Join(p.Dir, rootspec.Workshop)); err == nil {
			return true
		}
	}
	return false
}

// finish lets another init take back what one before it has left half done, so
// that no snapshot shows it.
func (e *Engine) finish(ctx context.Context, s *sandbox, rec *meta.Sandbox) error {
	if _, err := e.start(ctx, s, rec); err != nil {
		return fault.Wrap(err, "take back a move of a directory that was cut off")
	}
	return e.stopBox(ctx, s, 0)
}

// hintRoom gives the error of a full disk, if err is one and has none, a hint.
func hintRoom(err error, format string, args ...any) {
	var f *fault.Error
	if fault.Is(err, fault.NoSpace) && fault.HintOf(err) == "" && errors.As(err, &f) {
		f.Hint = fmt.Sprintf(format, args...)
	}
}

func (e *Engine) newSnapshot(rec *meta.Sandbox, n note, st timeline.Stats) (timeline.Snapshot, error) {
	id, err := timeline.NewSnapshotID(e.Rand)
	return timeline.Snapshot{
		ID: id, Sandbox: rec.ID, Parent: rec.Head, Cause: n.cause, Message: n.message,
		Created: e.Now().UTC().Truncate(time.Microsecond), Exit: n.exit, Stats: st,
	}, err
}

// lostIndex says what to compare with when there is no index: an overlay's upper
// holds everything since the snapshot it stands on; a plain tree is taken whole.
func (e *Engine) lostIndex(drv rootfs.Driver, rec *meta.Sandbox) (*layer.Index, timeline.SnapshotID) {
	if drv.Plain() {
		return nil, ""
	}
	return new(layer.Index), rec.MountTop
}

// redoAfter forgets what could be redone once something new has happened.
func redoAfter(redo []timeline.SnapshotID, n note) []timeline.SnapshotID {
	if n.cause == timeline.CauseCheckout {
		return redo
	}
	return nil
}

// The index of the last capture is kept in a file that is named after its
// snapshot, written before the snapshot is acknowledged. One that is missing or
// torn costs a larger layer, never a wrong one.

func (e *Engine) writeIndex(id timeline.SandboxID, snap timeline.SnapshotID, ix *layer.Index) error {
	return e.saveIndex(e.indexPath(id, snap), ix)
}

// saveIndex puts an index in its place, whole or not at all.
func (e *Engine) saveIndex(path string, ix *layer.Index) error {
	return fault.Wrap(vfs.WriteUnsynced(e.FS, path, func(w *vfs.Writer) error {
		_, err := ix.WriteTo(w)
		return err
	}), "write index")
}

func (e *Engine) loadIndex(s *sandbox, rec *meta.Sandbox) error {
	f, err := os.Open(e.indexPath(s.id, rec.Head))
	if err != nil {
		return err
	}
	defer f.Close()
	ix, err := layer.ReadIndex(f)
	if err != nil {
		return err
	}
	s.index, s.of = ix, rec.Head
	return nil
}

// dropIndex removes the index of a snapshot that is no longer HEAD.
func (e *Engine) dropIndex(id timeline.SandboxID, snap timeline.SnapshotID) {
	if err := vfs.Remove(e.FS, e.indexPath(id, snap)); err != nil {
		e.Logger.Warn("old index stays", "sandbox", id, "err", err)
	}
}

// newLayer names a layer that is about to be made. Until made is called, gc
// leaves its directory alone although it has no record.
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
