//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A rewind in place changes the files under paused processes, which then resume. The live root keeps the layers that
// it was mounted with; its differences from them are in its parts, wherever HEAD is. Only the index says which
// snapshot the parts equal.

// intentRewind is the kind of the intent that is written before the first file is changed. If it exists after a
// crash, the live root is between two snapshots, and the first of them holds everything that was live before.
const intentRewind = "rewind"

type rewinding struct {
	Sandbox timeline.SandboxID  `json:"sandbox"`
	To      timeline.SnapshotID `json:"to"`
	What    string              `json:"what"`
}

// rewind changes the files of the frozen sandbox to those of a snapshot, moves HEAD there and resumes the processes,
// also on failure. present is the capture of HEAD, which equals the live root. It returns how many paths were changed.
func (e *Engine) rewind(
	ctx context.Context, s *held, rec *meta.Sandbox, present taken, to timeline.SnapshotID, what string,
	redo []timeline.SnapshotID,
) (paths int, err error) {
	f := present.frozen
	if err := e.staysInPlace(ctx, rec, to); err != nil {
		return 0, errors.Join(err, f.Thaw())
	}
	intent, err := e.DB.BeginIntent(ctx, intentRewind, rewinding{Sandbox: s.ID, To: to, What: what})
	if err != nil {
		return 0, errors.Join(err, f.Thaw())
	}
	w, err := e.newRewrite(ctx, rec, present)
	if err != nil {
		return 0, errors.Join(err, e.DB.EndIntent(ctx, intent), f.Thaw())
	}
	defer w.close()
	paths, err = w.bring(ctx, rec.Head, to)
	if err == nil {
		err = e.arrive(ctx, s, rec, w, to, redo)
	}
	if err == nil {
		return paths, errors.Join(e.DB.EndIntent(ctx, intent), f.Thaw())
	}
	fault.HintNoSpace(err, "make room on the file system of %s, for example with: coppice system gc", e.Home)
	_, back := w.bring(ctx, to, rec.Head)
	if back == nil {
		if ix, ierr := w.index(ctx, s); ierr == nil && e.indexes.write(s.ID, rec.Head, ix) == nil {
			s.index, s.of = ix, rec.Head
		}
		return 0, errors.Join(
			fault.Wrap(err, "change the files of sandbox %s in place (the changes were undone)", rec.Name),
			e.DB.EndIntent(ctx, intent), f.Thaw())
	}
	// The root is between the two snapshots. The processes resume, and its state is captured.
	kept := rec.Head
	stuck := fault.New(fault.KindOf(err), "the files of sandbox %s were only partly changed in place", rec.Name).
		Because(errors.Join(err, back)).
		WithHint("free space if the disk is full, then rewind to the snapshot before: coppice rewind %s %s", rec.Name, kept)
	thawed := f.Thaw()
	_, kerr := e.capture(ctx, s, rec, note{cause: timeline.CauseAuto, message: halfway(what)})
	return 0, errors.Join(stuck, thawed, kerr, e.DB.EndIntent(ctx, intent))
}

func halfway(what string) string {
	return fmt.Sprintf("state after an interrupted %s in place", what)
}

// arrive records that the live root equals a snapshot now. It writes the index to the disk before the new HEAD.
func (e *Engine) arrive(
	ctx context.Context, s *held, rec *meta.Sandbox, w *rewrite, to timeline.SnapshotID, redo []timeline.SnapshotID,
) error {
	ix, err := w.index(ctx, s)
	if err != nil {
		return err
	}
	if err := e.indexes.write(s.ID, to, ix); err != nil {
		return err
	}
	err = e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error { r.Head, r.Redo = to, redo; return nil })
	if err != nil {
		if to != rec.Head {
			e.indexes.drop(s.ID, to)
		}
		return err
	}
	if to != rec.Head {
		e.indexes.drop(s.ID, rec.Head)
	}
	rec.Head, rec.Redo = to, redo
	s.index, s.of = ix, to
	return nil
}

// settleRewinds captures the state that a crash during a rewind left, as a child of the snapshot that was live
// before. If that fails, the next capture includes it.
func (e *Engine) settleRewinds(ctx context.Context) error {
	ints, err := e.DB.Intents(ctx)
	if err != nil {
		return err
	}
	for _, in := range ints {
		if in.Kind != intentRewind {
			continue
		}
		var r rewinding
		if err := in.Decode(&r); err != nil {
			return err
		}
		err := e.settleRewind(ctx, r)
		if errors.Is(err, errUnanswered) {
			continue // left to the next daemon: the sandbox is not changed until its keeper answers
		}
		if err != nil {
			e.Logger.Warn("could not capture the state after an interrupted move", "sandbox", r.Sandbox, "err", err)
		}
		if err := e.DB.EndIntent(ctx, in.ID); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) settleRewind(ctx context.Context, r rewinding) error {
	s, rec, err := e.acquire(ctx, string(r.Sandbox), "recovering from a crash")
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.unlock(e)
	if rec.Head != r.To {
		e.indexes.drop(s.ID, r.To) // it was meant for this generation
	}
	_, err = e.capture(ctx, s, &rec, note{cause: timeline.CauseAuto, message: halfway(r.What)})
	return err
}

// rewrite is a frozen live root that can be changed in place.
type rewrite struct {
	e     *Engine
	rec   *meta.Sandbox
	drv   rootfs.Driver
	parts []rootspec.Part
	root  *LiveRoot
	since time.Time // when it was frozen
	dir   int       // file descriptor of the root
	own   bool
}

func (e *Engine) newRewrite(ctx context.Context, rec *meta.Sandbox, present taken) (w *rewrite, err error) {
	w = &rewrite{e: e, rec: rec, since: present.since, dir: -1}
	var live rootfs.Live
	if w.drv, live, err = e.live(ctx, rec); err != nil {
		return nil, err
	}
	if w.parts, err = w.drv.Parts(live); err != nil {
		return nil, err
	}
	if w.root, err = present.frozen.Root(ctx); err != nil {
		return nil, fault.Wrap(err, "reach the live root of sandbox %s", rec.Name)
	}
	if !w.drv.Plain() {
		if w.root.Dir == nil {
			return nil, errors.Join(fault.New(fault.Internal, "the live root of sandbox %s is not mounted", rec.Name),
				w.root.Close())
		}
		w.dir = int(w.root.Dir.Fd())
		return w, nil
	}
	// A plain tree looks the same to the daemon, and ids are as they are stored.
	w.root.Owners = layer.Owners{}
	w.own = true
	if w.dir, err = unix.Open(w.parts[0].Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC,
		0); err != nil {
		return nil, errors.Join(fault.Wrap(err, "open the live root of sandbox %s", rec.Name), w.root.Close())
	}
	return w, nil
}

func (w *rewrite) close() {
	if w.own {
		_ = unix.Close(w.dir)
	}
	_ = w.root.Close()
}

// bring changes the files of one snapshot to those of another.
func (w *rewrite) bring(ctx context.Context, from, to timeline.SnapshotID) (paths int, err error) {
	w.e.shape.RLock()
	defer w.e.shape.RUnlock()
	a, _, err := w.e.masks.Stack(ctx, w.rec, from)
	if err != nil {
		return 0, err
	}
	b, _, err := w.e.masks.Stack(ctx, w.rec, to)
	if err != nil {
		return 0, err
	}
	at := rootspec.Places(w.parts)
	in := layer.RewindInput{
		Root: w.dir, Parts: at, Target: w.e.Layers.View(b, at...), Owners: w.root.Owners, Mapped: w.mapped(),
		Touched: rootspec.Differing(a, b),
	}
	if w.rec.Tier != tierWorkspace {
		in.Kept = append(in.Kept, rootspec.Reserved...)
	}
	fixed, err := w.e.fixed(ctx, w.rec)
	if err != nil {
		return 0, err
	}
	in.Kept = append(in.Kept, fixed...)
	for _, p := range at {
		if p != "/" {
			in.Kept = append(in.Kept, p)
		}
	}
	do := func() error {
		paths, err = w.e.Layers.Rewind(ctx, in)
		return err
	}
	if in.Owners.Size == 0 {
		err = do()
		return paths, err
	}
	// A new file belongs to the file system user of the thread, which must be an id of the root's range.
	err = rootspec.WithFSIDs(int(in.Owners.Shift), int(in.Owners.Shift), do)
	return paths, err
}

// mapped returns the function for layer.RewindInput.Mapped.
func (w *rewrite) mapped() func(string, uint64) bool {
	inodes := map[uint64]bool{}
	for _, i := range w.root.Inodes {
		inodes[i] = true
	}
	paths := map[string]bool{}
	for _, p := range w.root.Paths {
		paths[path.Clean(p)] = true
	}
	// In tier workspace, processes see the tree at its path on the host.
	var host string
	if w.rec.Tier == tierWorkspace {
		host = w.parts[0].Dir
	}
	return func(p string, ino uint64) bool {
		return w.root.AnyMapped || inodes[ino] || paths[p] || host != "" && paths[path.Join(host, p)]
	}
}

// index takes the index of the parts as they are now. The next capture compares by content what has changed since the
// freeze: the rewind, or a process that continued itself in spite of a freeze by signals.
func (w *rewrite) index(ctx context.Context, s *held) (*layer.Index, error) {
	ix, err := w.e.Layers.Rescan(ctx,
		layer.CaptureInput{Parts: slices.Clone(w.parts), Index: s.index, Plain: w.drv.Plain(), Now: w.since})
	return ix, fault.Wrap(err, "scan sandbox %s", w.rec.Name)
}
