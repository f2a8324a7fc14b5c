package layer

import (
	"context"
	"errors"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/quota"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// CaptureInput describes a capture.
type CaptureInput struct {
	// Parts are where the changes of the live root appear. No process may write to them while Capture runs.
	Parts []rootspec.Part
	// Index is the state at the last capture. With nil, everything in Parts is new, their root directories too; with
	// new(Index), only what is in them.
	Index *Index
	// Suspects are files that may change while their stat stays the same, now and until the next capture.
	Suspects Suspects
	// Plain says that the parts are plain trees, not overlay uppers.
	Plain bool
	// Now is when the processes were frozen; zero: now.
	Now time.Time
	// MaxPaths is the maximum number of copied paths; 0: no limit. See Captured.TooMany.
	MaxPaths int
	// Head returns the snapshot that Index belongs to. It is called when an entry must be compared by its content and
	// no layer is known to hold a copy: Rewind wrote it, or the layer was removed with its snapshot. If Head or its
	// result is nil, such an entry counts as changed. Directories that overlayfs copied up from the snapshot do not
	// count as changed.
	Head func() *View
	// TimesAside ignores a change if only times of directories differ from Head, as after a file was created
	// and removed. The index is not updated then, so that they are captured with the next change.
	TimesAside bool
	// KeepEmpty makes a layer even when nothing changed.
	KeepEmpty bool
	// Project is the project that the layer is charged to; see quota.Project. 0: none.
	Project uint32
}

// Captured is the result of a capture.
type Captured struct {
	Stats timeline.Stats
	Index *Index // belongs to the new snapshot, also when Empty
	Empty bool   // nothing changed, and no layer was made
	// TooMany says that more than MaxPaths changed: no layer was made, and Stats describes what would have been
	// captured. The caller should use Adopt.
	TooMany bool
	Paths   []string // the first MaxPaths of the changed paths, for messages
	Removed []string // those of Paths that no longer exist
	// Unkept is the number of entries with extended attributes that a layer cannot hold: their copies lack them.
	Unkept int
}

// MaxPaths is the maximum number of changed paths that Captured names.
const MaxPaths = limit.NamedPaths

// Capture writes what changed since in.Index as layer id. When it returns, the layer survives the death of
// any process; Finalize makes it survive a power loss. After a failure nothing is left behind and in.Index stays
// valid.
func (s *Store) Capture(ctx context.Context, id timeline.LayerID, in CaptureInput) (out Captured, err error) {
	if !validID(id) {
		return out, fault.New(fault.Invalid, "invalid layer id %q", id)
	}
	w := s.newWalker(ctx, in)
	w.suspectsKnown = true
	trees, next, err := w.walk(in.Parts, in.Index)
	defer trees.close()
	if err != nil {
		return out, fault.Wrap(err, "capture")
	}
	out.Index = next
	if out.Empty = trees.empty(); out.Empty && !in.KeepEmpty {
		return out, nil
	}
	if err := trees.compare(ctx, in.Head); err != nil {
		return out, fault.Wrap(err, "capture")
	}
	if in.TimesAside && in.Index != nil && !in.KeepEmpty && trees.timesAlone() {
		out.Index, out.Empty = in.Index, true
		return out, nil
	}
	out.Paths, out.Removed = trees.first(MaxPaths)
	if out.Stats = trees.stats(); in.MaxPaths > 0 && out.Stats.Paths > in.MaxPaths {
		out.TooMany = true
		return out, nil
	}
	if out.Empty {
		trees.keepRoot()
	}
	if len(next.origins) >= 1<<16-2 {
		next.forget()
	}
	next.origins = append(next.origins[:len(next.origins):len(next.origins)], id)
	b, err := s.begin(ctx, id)
	if err != nil {
		return out, fault.Wrap(err, "capture")
	}
	defer b.undo.Run(&err)
	if err := b.charge(quota.Project(in.Project)); err != nil {
		return out, fault.Wrap(err, "capture")
	}
	e := &emitter{putter: putter{ctx: ctx}, origin: uint16(len(next.origins))}
	e.s, e.fromRaw, e.linkDir, e.omit = s, in.Plain, b.links, true
	e.gather()
	if err := trees.emit(e, b.fs); err != nil {
		return out, fault.Wrap(err, "capture")
	}
	out.Unkept = int(e.unkept.Load())
	if err := b.finish(ctx); err != nil {
		return out, fault.Wrap(err, "capture")
	}
	return out, nil
}

// Scan returns the state of parts as an index, which the next Capture compares with. It is for a live root that was
// just made. plain is as in CaptureInput.
func (s *Store) Scan(ctx context.Context, parts []rootspec.Part, plain bool) (*Index, error) {
	w := s.newWalker(ctx, CaptureInput{Parts: parts, Plain: plain})
	trees, x, err := w.walk(parts, nil)
	trees.close()
	if err != nil {
		return nil, fault.Wrap(err, "scan")
	}
	if !x.racyFiles() {
		return x, nil
	}
	// Files were just written, and a snapshot may hold them already: scan again when a later change can be
	// distinguished from them.
	select {
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), "scan")
	case <-time.After(2 * racyWindow):
	}
	w = s.newWalker(ctx, CaptureInput{Parts: parts, Plain: plain})
	trees, x, err = w.walk(parts, nil)
	trees.close()
	return x, fault.Wrap(err, "scan")
}

// Rescan is Scan after a Rewind: it returns an index of the present state that shares the unchanged entries of
// in.Index. Entries whose stat may not show a later change, because they are too recent, are compared by content at
// the next capture.
func (s *Store) Rescan(ctx context.Context, in CaptureInput) (*Index, error) {
	trees, x, err := s.newWalker(ctx, in).walk(in.Parts, in.Index)
	trees.close()
	return x, fault.Wrap(err, "scan")
}

func (s *Store) newWalker(ctx context.Context, in CaptureInput) *walker {
	now := in.Now
	if now.IsZero() {
		now = time.Now()
	}
	w := &walker{ctx: ctx, plain: in.Plain, most: s.entries, racyFrom: now.UnixNano() - racyWindow,
		named: in.Suspects.Paths, suspects: map[uint64]struct{}{}}
	for _, i := range in.Suspects.Inodes {
		w.suspects[i] = struct{}{}
	}
	if !in.Suspects.Since.IsZero() {
		w.since = in.Suspects.Since.UnixNano()
	}
	w.cuts = makeCuts(in.Parts)
	w.rootIsNews = in.Index == nil
	w.gather()
	var once sync.Once
	var head *View
	w.same = func(part int, dirs []string, dir int, name string, e *ent) bool {
		if e.origin > 0 && in.Index != nil && int(e.origin) <= len(in.Index.origins) {
			if id := in.Index.origins[e.origin-1]; s.Has(id) {
				same, err := sameAsCopy(ctx, s.Dir(id), in.Parts[part].Path, dirs, dir, name, in.Plain)
				if !errors.Is(err, unix.ENOENT) {
					return err == nil && same
				}
			}
		}
		once.Do(func() {
			if in.Head != nil {
				head = in.Head()
			}
		})
		if head == nil {
			return false
		}
		same, err := sameAsView(ctx, head, path.Join(in.Parts[part].Path, path.Join(dirs...), name), dir, name, in.Plain)
		return err == nil && same
	}
	return w
}
