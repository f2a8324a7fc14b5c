//go:build linux

package history

import (
	"context"
	"io"
	"math"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/masks"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// side is one side of a comparison: a snapshot of a sandbox, or its live state.
type side struct {
	rec  *meta.Sandbox
	at   timeline.SnapshotID
	live bool
}

// pair is a comparison, from a to b.
type pair struct{ a, b side }

// twice returns the comparison of two snapshots of one sandbox.
func twice(rec *meta.Sandbox, a, b timeline.SnapshotID) pair {
	return pair{side{rec: rec, at: a}, side{rec: rec, at: b}}
}

// two reports whether the sides belong to two sandboxes.
func (p pair) two() bool { return p.a.rec.ID != p.b.rec.ID }

// Diff compares two states of a sandbox: two snapshots, or without req.B a snapshot and the present. With req.Other,
// B is a state of that sandbox; then A is the present of the first sandbox if req.A is empty.
func (h *Histories) Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error) {
	var res wire.DiffResult
	err := h.compare(ctx, name, req, func(p pair) (err error) {
		res.A, res.B = string(p.a.at), string(p.b.at)
		res.Changes, res.Truncated, err = h.changes(ctx, p, req)
		return err
	})
	return res, err
}

// Patch writes the differences between two states of a sandbox as unified diffs.
func (h *Histories) Patch(ctx context.Context, name string, req wire.DiffRequest, w io.Writer) error {
	return h.compare(ctx, name, req, func(p pair) error {
		va, vb, touched, err := h.views(ctx, p)
		if err != nil {
			return err
		}
		ignore, err := h.ignored(ctx, p, va, vb)
		if err != nil {
			return err
		}
		return layer.Patch(ctx, w, va, vb, touched,
			layer.DiffOptions{Paths: req.Paths, Ignore: ignore, Timeless: p.two()})
	})
}

// compare resolves the two sides, and calls fn with them. If B is the live state of the same sandbox, it holds the
// lock of the sandbox meanwhile, so that the generation does not change.
func (h *Histories) compare(ctx context.Context, name string, req wire.DiffRequest, fn func(pair) error) error {
	if err := CheckPaths(req.Paths); err != nil {
		return err
	}
	if req.Other != "" {
		return h.compareTwo(ctx, name, req, fn)
	}
	rec, t, err := h.Find(ctx, name)
	if err != nil {
		return err
	}
	a, err := t.Resolve(req.A, h.config.Now())
	if err != nil {
		return err
	}
	if req.B != "" {
		b, err := t.Resolve(req.B, h.config.Now())
		if err != nil {
			return err
		}
		return fn(twice(&rec, a, b))
	}
	release, rec, err := h.config.Sandboxes.Acquire(ctx, name, "comparing the live state")
	if err != nil {
		return err
	}
	defer release()
	return fn(pair{side{rec: &rec, at: a}, side{rec: &rec, live: true}})
}

// compareTwo compares states of two sandboxes. It takes no lock, so that neither sandbox waits for the comparison. If
// the generation of a live state changes meanwhile, it returns a Conflict.
func (h *Histories) compareTwo(ctx context.Context, name string, req wire.DiffRequest, fn func(pair) error) error {
	a, err := h.side(ctx, name, req.A)
	if err != nil {
		return err
	}
	b, err := h.side(ctx, req.Other, req.B)
	if err != nil {
		return err
	}
	if a.rec.ID == b.rec.ID {
		return fault.New(fault.Invalid, "cannot compare sandbox %s with itself", a.rec.Name).
			WithHint("compare snapshots of it: coppice diff %s HEAD~1 HEAD", a.rec.Name)
	}
	err = fn(pair{a, b})
	for _, s := range []side{a, b} {
		if changed := h.replaced(ctx, s); changed != nil {
			return changed
		}
	}
	return err
}

// replaced returns a Conflict if the live root that a side was read from no longer belongs to the sandbox.
func (h *Histories) replaced(ctx context.Context, s side) error {
	if !s.live {
		return nil
	}
	now, err := h.config.DB.Sandbox(ctx, string(s.rec.ID))
	if err != nil {
		return err
	}
	if now.Gen == s.rec.Gen && now.MountTop == s.rec.MountTop {
		return nil
	}
	return fault.New(fault.Conflict, "the live root of sandbox %s was replaced while it was compared", s.rec.Name).
		WithHint("try again, or compare a snapshot: coppice diff %s@HEAD OTHER", s.rec.Name)
}

// side finds a state of a sandbox; an empty ref means its live state.
func (h *Histories) side(ctx context.Context, name, ref string) (side, error) {
	rec, t, err := h.Find(ctx, name)
	if err != nil || ref == "" {
		return side{rec: &rec, live: true}, err
	}
	at, err := t.Resolve(ref, h.config.Now())
	return side{rec: &rec, at: at}, fault.Wrap(err, "find the snapshot of sandbox %s", rec.Name)
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

// changes lists the differences between two states, up to the limits of one answer; more reports that the list is
// truncated.
func (h *Histories) changes(
	ctx context.Context, p pair, req wire.DiffRequest,
) (list []wire.Change, more bool, err error) {
	if req.Limit < 0 || req.Limit > limit.DiffEntries {
		return nil, false,
			fault.New(fault.Invalid, "invalid limit %d for a list of changes: must be between 1 and %d", req.Limit,
				limit.DiffEntries).
				WithHint("omit it to list as many changes as fit in one response: coppice diff NAME")
	}
	va, vb, touched, err := h.views(ctx, p)
	if err != nil {
		return nil, false, err
	}
	ignore, err := h.ignored(ctx, p, va, vb)
	if err != nil {
		return nil, false, err
	}
	found, more, err := layer.Some(ctx, va, vb, touched, layer.DiffOptions{
		Paths: req.Paths, Stat: req.Stat, Most: req.Limit, Bytes: diffBytes(req.Limit), Ignore: ignore,
		Timeless: p.two(),
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

// diffBytes returns the limit on the bytes of paths in a diff of at most most changes.
func diffBytes(most int) int {
	if most == 0 {
		return limit.DiffBytes
	}
	return min(limit.DiffBytes, limit.LineChangeBytes*max(1, most/limit.LineChanges))
}

// Weigh returns how many paths differ between two snapshots of a sandbox, and the size in bytes of those that are
// files in the second snapshot.
func (h *Histories) Weigh(
	ctx context.Context, name string, from, to timeline.SnapshotID,
) (paths int, bytes int64, err error) {
	rec, err := h.config.DB.Sandbox(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	p := twice(&rec, from, to)
	va, vb, touched, err := h.views(ctx, p)
	if err != nil {
		return 0, 0, err
	}
	ignore, err := h.ignored(ctx, p, va, vb)
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

// ignored returns the differences that a comparison omits. The root of each part of a live root covers a directory of
// the host, and has another owner if an ordinary user cannot give it the original one. The same holds for each
// directory of the host that such a user's overlay copies up. Neither is a change by the sandbox.
func (h *Histories) ignored(ctx context.Context, p pair, va, vb *layer.View) (of layer.Ignored, err error) {
	of.Files = masks.Identities(p.a.rec, p.b.rec, va, vb)
	for _, s := range []side{p.a, p.b} {
		if !s.rec.Host {
			continue
		}
		root, err := h.config.Sandboxes.Root(ctx, s.rec)
		if err != nil {
			return of, err
		}
		if root != nil {
			if of.Roots == nil {
				of.Roots = map[string]bool{}
			}
			for _, p := range rootspec.Places(root.Parts) {
				of.Roots[p] = true
			}
		}
		if !p.two() {
			break
		}
	}
	// Real root has one part for the whole root, and its overlays keep owners.
	of.Owners = of.Roots != nil && !of.Roots["/"]
	return of, nil
}

// views opens two states for reading, and returns the trees in which they can differ: the layers above those that
// both have in common, and the live parts.
func (h *Histories) views(ctx context.Context, p pair) (va, vb *layer.View, touched []rootspec.Part, err error) {
	va, sa, la, err := h.view(ctx, p.a)
	if err != nil {
		return nil, nil, nil, err
	}
	vb, sb, lb, err := h.view(ctx, p.b)
	if err != nil {
		return nil, nil, nil, err
	}
	if sa.Host != sb.Host {
		return nil, nil, nil, fault.New(fault.Unsupported,
			"cannot compare sandboxes %s and %s: one has the host as its base, and the other has not", p.a.rec.Name,
			p.b.rec.Name).WithHint("compare each with its own history: coppice diff %s", p.a.rec.Name)
	}
	return va, vb, slices.Concat(rootspec.Differing(sa, sb), la, lb), nil
}

// view opens one state for reading. live are the parts of the live root, if it was made.
func (h *Histories) view(
	ctx context.Context, s side,
) (v *layer.View, st rootspec.Stack, live []rootspec.Part, err error) {
	at := s.at
	if s.live {
		at = s.rec.MountTop
	}
	st, _, err = h.config.Masks.Stack(ctx, s.rec, at)
	st = st.Unidentified()
	if err != nil || !s.live {
		return h.config.Layers.View(st), st, nil, err
	}
	root, err := h.config.Sandboxes.Root(ctx, s.rec)
	switch {
	case err != nil:
		return nil, st, nil, err
	case root == nil:
		return h.config.Layers.View(st), st, nil, nil
	case root.Plain:
		return h.config.Layers.PlainView(root.Parts), st, root.Parts, nil
	}
	return h.config.Layers.LiveView(st, root.Parts), st, root.Parts, nil
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
