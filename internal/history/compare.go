//go:build linux

package history

import (
	"context"
	"io"
	"math"
	"path"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// side is one state of a comparison: a snapshot, or the live state.
type side struct {
	at   timeline.SnapshotID
	live bool
}

// Diff tells how two states of a sandbox differ: two snapshots, or without req.B a snapshot and the present.
func (h *Histories) Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error) {
	var res wire.DiffResult
	err := h.compare(ctx, name, req, func(rec *meta.Sandbox, a timeline.SnapshotID, b side) (err error) {
		res.A, res.B = string(a), string(b.at)
		res.Changes, res.Truncated, err = h.changes(ctx, rec, a, b, req)
		return err
	})
	return res, err
}

// Patch writes how two states of a sandbox differ as unified diffs.
func (h *Histories) Patch(ctx context.Context, name string, req wire.DiffRequest, w io.Writer) error {
	return h.compare(ctx, name, req, func(rec *meta.Sandbox, a timeline.SnapshotID, b side) error {
		va, vb, touched, err := h.views(ctx, rec, a, b)
		if err != nil {
			return err
		}
		return layer.Patch(ctx, w, va, vb, touched, req.Paths)
	})
}

// compare resolves the two sides. With the live state as B the sandbox is locked
// meanwhile, so that no generation changes underneath.
func (h *Histories) compare(
	ctx context.Context, name string, req wire.DiffRequest, fn func(*meta.Sandbox, timeline.SnapshotID, side) error,
) error {
	if err := CheckPaths(req.Paths); err != nil {
		return err
	}
	var b side
	rec, t, err := h.Find(ctx, name)
	if err != nil {
		return err
	}
	a, err := t.Resolve(req.A, h.config.Now())
	if err != nil {
		return err
	}
	if req.B != "" {
		if b.at, err = t.Resolve(req.B, h.config.Now()); err != nil {
			return err
		}
		return fn(&rec, a, b)
	}
	release, rec, err := h.config.Sandboxes.Acquire(ctx, name, "comparing the live state")
	if err != nil {
		return err
	}
	defer release()
	return fn(&rec, a, side{live: true})
}

// CheckPaths checks the number and the size of the paths that a comparison is limited to.
func CheckPaths(paths []string) error {
	size := 0
	for _, p := range paths {
		size += len(p)
	}
	if len(paths) <= limit.ChosenPaths && size <= limit.ChosenBytes {
		return nil
	}
	return fault.New(fault.TooLarge, "too many paths to compare: %d paths of %d bytes; the limit is %d paths and %d bytes",
		len(paths), size, limit.ChosenPaths, limit.ChosenBytes).
		WithHint("name their directory: coppice diff NAME -- DIRECTORY")
}

// changes lists how two states differ, as far as one answer may hold it; more reports
// that the list is cut off.
func (h *Histories) changes(
	ctx context.Context, rec *meta.Sandbox, a timeline.SnapshotID, b side, req wire.DiffRequest,
) (list []wire.Change, more bool, err error) {
	if req.Limit < 0 || req.Limit > limit.DiffEntries {
		return nil, false,
			fault.New(fault.Invalid, "invalid limit %d for a list of changes: must be between 1 and %d", req.Limit,
				limit.DiffEntries).
				WithHint("omit it to list as many changes as fit in one response: coppice diff NAME")
	}
	va, vb, touched, err := h.views(ctx, rec, a, b)
	if err != nil {
		return nil, false, err
	}
	found, more, err := layer.Some(ctx, va, vb, touched,
		layer.DiffOptions{Paths: req.Paths, Stat: req.Stat, Most: req.Limit, Bytes: diffBytes(req.Limit)})
	if err != nil {
		return nil, false, err
	}
	roots, err := h.partRoots(ctx, rec)
	if err != nil {
		return nil, false, err
	}
	out := make([]wire.Change, 0, len(found))
	for _, c := range found {
		if c.Kind == wire.Modified && roots[path.Join("/", c.Path)] {
			continue
		}
		w := wire.NewChange(c.Kind, c.Path)
		w.Type, w.Size, w.Binary = c.Type, c.Size, c.Binary
		if c.Lines != nil {
			w.Lines = &wire.Lines{Added: c.Lines.Added, Removed: c.Lines.Removed}
		}
		out = append(out, w)
	}
	return out, more, nil
}

// diffBytes is the limit on the bytes of paths in a diff of at most that many changes.
func diffBytes(most int) int {
	if most == 0 {
		return limit.DiffBytes
	}
	return min(limit.DiffBytes, limit.LineChangeBytes*max(1, most/limit.LineChanges))
}

// Weigh counts the paths that differ between two snapshots of a sandbox, and the bytes of the files among
// them that the second snapshot has.
func (h *Histories) Weigh(
	ctx context.Context, name string, from, to timeline.SnapshotID,
) (paths int, bytes int64, err error) {
	rec, err := h.config.DB.Sandbox(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	va, vb, touched, err := h.views(ctx, &rec, from, side{at: to})
	if err != nil {
		return 0, 0, err
	}
	roots, err := h.partRoots(ctx, &rec)
	if err != nil {
		return 0, 0, err
	}
	all := layer.DiffOptions{Most: math.MaxInt, Bytes: limit.PatchBytes}
	err = layer.EachChange(ctx, va, vb, touched, all, func(c *layer.Change) error {
		if c.Kind == layer.Modified && roots[c.Path] {
			return nil
		}
		paths++
		if c.Kind != layer.Removed && c.Type == "file" {
			bytes += c.Size
		}
		return nil
	})
	return paths, bytes, err
}

// partRoots returns the root directories of the live root's parts, as a set. Each of them covers a directory
// of the host, with an owner that an ordinary user cannot give to it: that both differ is not a change of the
// sandbox.
func (h *Histories) partRoots(ctx context.Context, rec *meta.Sandbox) (map[string]bool, error) {
	if !rec.Host {
		return nil, nil
	}
	root, err := h.config.Sandboxes.Root(ctx, rec)
	if err != nil || root == nil {
		return nil, err
	}
	roots := map[string]bool{}
	for _, p := range rootspec.Places(root.Parts) {
		roots[p] = true
	}
	return roots, nil
}

// views opens two states for reading, and names the trees in which they can
// differ: the layers above what both have in common, and the live parts.
func (h *Histories) views(
	ctx context.Context, rec *meta.Sandbox, a timeline.SnapshotID, b side,
) (va, vb *layer.View, touched []rootspec.Part, err error) {
	sa, _, err := h.config.Masks.Stack(ctx, rec, a)
	if err != nil {
		return nil, nil, nil, err
	}
	at := b.at
	if b.live {
		at = rec.MountTop
	}
	sb, _, err := h.config.Masks.Stack(ctx, rec, at)
	if err != nil {
		return nil, nil, nil, err
	}
	touched = rootspec.Differing(sa, sb)
	va, vb = h.config.Layers.View(sa), h.config.Layers.View(sb)
	if !b.live {
		return va, vb, touched, nil
	}
	root, err := h.config.Sandboxes.Root(ctx, rec)
	if err != nil {
		return nil, nil, nil, err
	}
	if root == nil {
		return va, vb, touched, nil
	}
	if root.Plain {
		vb = h.config.Layers.PlainView(root.Parts)
	} else {
		vb = h.config.Layers.LiveView(sb, root.Parts)
	}
	return va, vb, append(touched, root.Parts...), nil
}

// View opens a snapshot for reading as the parts of a live root would show it.
func (h *Histories) View(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID, parts []rootspec.Part,
) (*layer.View, error) {
	st, _, err := h.config.Masks.Stack(ctx, rec, id)
	if err != nil {
		return nil, err
	}
	return h.config.Layers.View(st, rootspec.Places(parts)...), nil
}
