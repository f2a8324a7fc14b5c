package layer

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// CaptureInput says what to capture.
type CaptureInput struct {
	// Parts are where the changes of the live root appear. No process may write
	// to them while Capture runs.
	Parts []rootspec.Part
	// Index is the state at the last capture; nil: everything in Parts is new,
	// their own directories too; new(Index): everything in them is new.
	Index *Index
	// Suspects are absolute paths inside that may have changed without a trace
	// in their stat: files that are or were mapped shared and writable.
	Suspects []string
	// Plain says that the parts are plain trees, not overlay uppers.
	Plain bool
	// Now is when the processes were frozen; zero: now.
	Now time.Time
	// MaxPaths is how many paths may be copied; 0 is any number. See
	// Captured.TooMany.
	MaxPaths int
	// Head gives the trees of the layers that make up the last snapshot, topmost
	// first. It is asked when an entry must be compared by its content and the
	// layer that it was copied to is gone, as after the deletion of a snapshot;
	// nil: such an entry is taken as changed.
	Head func() []string
	// KeepEmpty makes a layer even when nothing changed.
	KeepEmpty bool
}

// Captured is what a capture made.
type Captured struct {
	Stats timeline.Stats
	Index *Index // belongs to the new snapshot, also when Empty
	Empty bool   // nothing changed, and no layer was made
	// TooMany says that more than MaxPaths changed: nothing was made, Stats is
	// what would have been, and Adopt is the better way.
	TooMany bool
	Paths   []string // the first of the changed paths, for messages
}

// maxPaths is how many changed paths Captured names.
const maxPaths = 8

// Capture writes what changed since in.Index as layer id. It returns when the
// layer is safe against the death of any process; Seal makes it safe against
// power loss. After a failure nothing is left behind and in.Index stays valid.
func (s *Store) Capture(ctx context.Context, id timeline.LayerID, in CaptureInput) (out Captured, err error) {
	if !validID(id) {
		return out, fault.New(fault.Invalid, "layer id %q is malformed", id)
	}
	w := s.newWalker(ctx, in)
	trees, next, err := w.walk(in.Parts, in.Index, in.Suspects)
	defer trees.close()
	if err != nil {
		return out, fault.Wrap(err, "capture")
	}
	out.Index = next
	if out.Empty = trees.empty(); out.Empty && !in.KeepEmpty {
		return out, nil
	}
	if out.Stats = trees.stats(); in.MaxPaths > 0 && out.Stats.Paths > in.MaxPaths {
		out.TooMany = true
		return out, nil
	}
	out.Paths = trees.first(maxPaths)
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
	e := &emitter{ctx: ctx, origin: uint16(len(next.origins))}
	e.s, e.fromRaw, e.linkDir = s, in.Plain, b.links
	e.gather()
	if err := trees.emit(e, b.fs); err != nil {
		return out, fault.Wrap(err, "capture")
	}
	if err := b.finish(ctx); err != nil {
		return out, fault.Wrap(err, "capture")
	}
	return out, nil
}

// Scan takes the state of parts as an index: what the next Capture compares
// with. Used when a live root was just made. plain is as in CaptureInput.
func (s *Store) Scan(ctx context.Context, parts []rootspec.Part, plain bool) (*Index, error) {
	w := s.newWalker(ctx, CaptureInput{Parts: parts, Plain: plain})
	trees, x, err := w.walk(parts, nil, nil)
	trees.close()
	if err != nil {
		return nil, fault.Wrap(err, "scan")
	}
	if !x.racyFiles() {
		return x, nil
	}
	// Files were written just now, and a snapshot may hold them already: look
	// again when a later change can be told from them.
	select {
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), "scan")
	case <-time.After(2 * racyWindow):
	}
	w = s.newWalker(ctx, CaptureInput{Parts: parts, Plain: plain})
	trees, x, err = w.walk(parts, nil, nil)
	trees.close()
	return x, fault.Wrap(err, "scan")
}

func (s *Store) newWalker(ctx context.Context, in CaptureInput) *walker {
	now := in.Now
	if now.IsZero() {
		now = time.Now()
	}
	w := &walker{ctx: ctx, plain: in.Plain, racyFrom: now.UnixNano() - racyWindow}
	w.cuts = makeCuts(in.Parts)
	w.rootIsNews = in.Index == nil
	w.gather()
	w.same = func(part int, dirs []string, dir int, name string, e *ent) bool {
		if e.origin == 0 || in.Index == nil || int(e.origin) > len(in.Index.origins) {
			return false
		}
		trees := []string{s.Dir(in.Index.origins[e.origin-1])}
		if !s.Has(in.Index.origins[e.origin-1]) && in.Head != nil {
			trees = in.Head()
		}
		for _, tree := range trees {
			same, err := sameAsCopy(tree, in.Parts[part].Path, dirs, dir, name, in.Plain)
			if !errors.Is(err, unix.ENOENT) {
				return err == nil && same
			}
		}
		return false
	}
	return w
}
