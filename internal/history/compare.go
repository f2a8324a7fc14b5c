//go:build linux

package history

import (
	"context"
	"io"
	"math"

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

// Diff compares two states of a sandbox: two snapshots, or without req.B a snapshot and the present.
func (h *Histories) Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error) {
	var res wire.DiffResult
	err := h.compare(ctx, name, req, func(rec *meta.Sandbox, a timeline.SnapshotID, b side) (err error) {
		res.A, res.B = string(a), string(b.at)
		res.Changes, res.Truncated, err = h.changes(ctx, rec, a, b, req)
		return err
	})
	return res, err
}

// Patch writes the differences between two states of a sandbox as unified diffs.
func (h *Histories) Patch(ctx context.Context, name string, req wire.DiffRequest, w io.Writer) error {
	return h.compare(ctx, name, req, func(rec *meta.Sandbox, a timeline.SnapshotID, b side) error {
		va, vb, touched, err := h.views(ctx, rec, a, b)
		if err != nil {
			return err
		}
		ignore, err := h.ignored(ctx, rec)
		if err != nil {
			return err
		}
		return layer.Patch(ctx, w, va, vb, touched, layer.DiffOptions{Paths: req.Paths, Ignore: ignore})
	})
}

// compare resolves the two sides. With the live state as B it locks the sandbox meanwhile, so that the
// generation does not change.
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

// changes lists the differences between two states, as far as one answer may hold them; more reports that the
// list is cut.
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
	ignore, err := h.ignored(ctx, rec)
	if err != nil {
		return nil, false, err
	}
	found, more, err := layer.Some(ctx, va, vb, touched, layer.DiffOptions{
		Paths: req.Paths, Stat: req.Stat, Most: req.Limit, Bytes: diffBytes(req.Limit), Ignore: ignore,
	})
	if err != nil {
		return nil, false, err
	}
	out := make([]wire.Change, 0, len(found))
	for _, c := range found {
		w := wire.NewChange(c.Kind, c.Path)
		w.Type, w.Size, w.Binary = c.Type, c.Size, c.Binary
		if c.Lines != nil {
			w.Lines = &wire.Lines{Added: c.Lines.Added, Removed: c.Lines.Removed}
		}
		out = append(out, w)
	}
	return out, more, nil
}

// diffBytes returns the limit on the bytes of paths in a diff of at most that many changes.
func diffBytes(most int) int {
	if most == 0 {
		return limit.DiffBytes
	}
	return min(limit.DiffBytes, limit.LineChangeBytes*max(1, most/limit.LineChanges))
}

// Weigh returns how many paths differ between two snapshots of a sandbox, and the size in bytes of those
// among them that are files in the second snapshot.
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
	ignore, err := h.ignored(ctx, &rec)
	if err != nil {
		return 0, 0, err
	}
	all := layer.DiffOptions{Most: math.MaxInt, Bytes: limit.PatchBytes, Ignore: ignore}
	err = layer.EachChange(ctx, va, vb, touched, all, func(c *layer.Change) error {
		paths++
		if c.Kind != layer.Removed && c.Type == "file" {
			bytes += c.Size
		}
		return nil
	})
	return paths, bytes, err
}

// ignored returns the differences that a comparison of a sandbox leaves out. Each root of a part of the live
// root covers a directory of the host, with an owner that an ordinary user cannot give to it, and so does
// each directory of the host that such a user's overlay copies up: neither is a change of the sandbox.
func (h *Histories) ignored(ctx context.Context, rec *meta.Sandbox) (of layer.Ignored, err error) {
	if !rec.Host {
		return of, nil
	}
	root, err := h.config.Sandboxes.Root(ctx, rec)
	if err != nil || root == nil {
		return of, err
	}
	of.Roots = map[string]bool{}
	for _, p := range rootspec.Places(root.Parts) {
		of.Roots[p] = true
	}
	of.Owners = !of.Roots["/"] // the overlays of real root keep owners; it has one for the whole root
	return of, nil
}

// views opens two states for reading, and returns the trees in which they can differ: the layers above what
// both have in common, and the live parts.
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

// View opens a snapshot for reading, as the parts of a live root would show it.
func (h *Histories) View(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID, parts []rootspec.Part,
) (*layer.View, error) {
	st, _, err := h.config.Masks.Stack(ctx, rec, id)
	if err != nil {
		return nil, err
	}
	return h.config.Layers.View(st, rootspec.Places(parts)...), nil
}
