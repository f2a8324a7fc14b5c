//go:build linux

package engine

import (
	"context"
	"io"
	"path"
	"sort"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// history reads a sandbox's history.
func (e *Engine) history(ctx context.Context, rec *meta.Sandbox) (*timeline.History, error) {
	h, err := e.DB.History(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	return &h, nil
}

// find reads a sandbox's record and history without its lock: both come from one
// consistent state of the database.
func (e *Engine) find(ctx context.Context, name string) (meta.Sandbox, *timeline.History, error) {
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return rec, nil, err
	}
	h, err := e.history(ctx, &rec)
	return rec, h, err
}

// Log returns the whole history of a sandbox, drawn as far as limit.GraphBytes allows.
func (e *Engine) Log(ctx context.Context, name string) (wire.LogResult, error) {
	h, res, err := e.newestFirst(ctx, name)
	if err != nil {
		return res, err
	}
	rows, more := h.Graph(limit.GraphBytes)
	for _, row := range rows {
		res.Rows = append(res.Rows, wire.LogRow{Graph: row.Graph, Node: string(row.ID)})
	}
	res.Truncated = more
	return res, nil
}

// Snapshots returns the whole history of a sandbox, not drawn.
func (e *Engine) Snapshots(ctx context.Context, name string) (wire.LogResult, error) {
	_, res, err := e.newestFirst(ctx, name)
	return res, err
}

func (e *Engine) newestFirst(ctx context.Context, name string) (*timeline.History, wire.LogResult, error) {
	_, h, err := e.find(ctx, name)
	if err != nil {
		return nil, wire.LogResult{}, err
	}
	res := wire.LogResult{Head: string(h.Head)}
	nodes, err := e.nodes(ctx, h)
	if err != nil {
		return nil, res, err
	}
	for _, id := range h.NewestFirst() {
		res.Nodes = append(res.Nodes, nodes[id])
	}
	return h, res, nil
}

// Head gives the snapshot that the live state descends from.
func (e *Engine) Head(ctx context.Context, name string) (string, error) {
	head, err := e.DB.Head(ctx, name)
	return string(head), err
}

// Branches gives the leaves of the history, newest first.
func (e *Engine) Branches(ctx context.Context, name string) (wire.BranchesResult, error) {
	_, h, err := e.find(ctx, name)
	if err != nil {
		return wire.BranchesResult{}, err
	}
	res := wire.BranchesResult{Head: string(h.Head)}
	nodes, err := e.nodes(ctx, h)
	if err != nil {
		return res, err
	}
	for _, id := range h.Leaves() {
		res.Nodes = append(res.Nodes, nodes[id])
	}
	sort.SliceStable(res.Nodes, func(i, j int) bool { return res.Nodes[i].Created.After(res.Nodes[j].Created) })
	return res, nil
}

// nodes puts the snapshots of a history into what travels.
func (e *Engine) nodes(ctx context.Context, h *timeline.History) (map[timeline.SnapshotID]wire.Snapshot, error) {
	tags := map[timeline.SnapshotID][]string{}
	for t, id := range h.Tags {
		tags[id] = append(tags[id], t)
	}
	names := map[timeline.SandboxID]string{}
	for _, s := range h.Snapshots {
		if _, known := names[s.Sandbox]; known {
			continue
		}
		name, err := e.DB.Name(ctx, s.Sandbox)
		if err != nil {
			return nil, err
		}
		names[s.Sandbox] = name
	}
	leaf := map[timeline.SnapshotID]bool{}
	for _, id := range h.Leaves() {
		leaf[id] = true
	}
	out := make(map[timeline.SnapshotID]wire.Snapshot, len(h.Snapshots))
	for id, s := range h.Snapshots {
		n := wire.Snapshot{
			ID: string(id), Parent: string(s.Parent), Message: s.Message, Head: id == h.Head, Leaf: leaf[id],
			Cause: string(s.Cause), Created: s.Created, Exit: s.Exit, Paths: s.Stats.Paths, Bytes: s.Stats.Bytes,
			Sealed: s.Sealed, Tags: tags[id], Sandbox: names[s.Sandbox], Memory: wireMemory(s.Memory),
		}
		sort.Strings(n.Tags)
		out[id] = n
	}
	return out, nil
}

// Show gives a snapshot and what it changed against its parent.
func (e *Engine) Show(ctx context.Context, name, ref string) (wire.ShowResult, error) {
	return e.ShowSome(ctx, name, ref, 0)
}

// ShowSome is Show with at most that many changes; 0 is as many as one answer holds.
func (e *Engine) ShowSome(ctx context.Context, name, ref string, most int) (wire.ShowResult, error) {
	rec, h, err := e.find(ctx, name)
	if err != nil {
		return wire.ShowResult{}, err
	}
	id, err := h.Resolve(ref, e.Now())
	if err != nil {
		return wire.ShowResult{}, err
	}
	nodes, err := e.nodes(ctx, h)
	if err != nil {
		return wire.ShowResult{}, err
	}
	res := wire.ShowResult{Snapshot: nodes[id]}
	if parent := h.Snapshots[id].Parent; parent != "" {
		res.Changes, res.Truncated, err = e.changes(ctx, &rec, parent, side{at: id}, wire.DiffRequest{Limit: most})
	}
	return res, err
}

// side is one state of a comparison: a snapshot, or the live state.
type side struct {
	at   timeline.SnapshotID
	live bool
}

// Diff tells how two states of a sandbox differ.
func (e *Engine) Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error) {
	var res wire.DiffResult
	err := e.compare(ctx, name, req, func(rec *meta.Sandbox, a timeline.SnapshotID, b side) (err error) {
		res.A, res.B = string(a), string(b.at)
		res.Changes, res.Truncated, err = e.changes(ctx, rec, a, b, req)
		return err
	})
	return res, err
}

// Patch writes how two states of a sandbox differ as unified diffs.
func (e *Engine) Patch(ctx context.Context, name string, req wire.DiffRequest, w io.Writer) error {
	return e.compare(ctx, name, req, func(rec *meta.Sandbox, a timeline.SnapshotID, b side) error {
		va, vb, touched, err := e.views(ctx, rec, a, b)
		if err != nil {
			return err
		}
		return layer.Patch(ctx, w, va, vb, touched, req.Paths)
	})
}

// compare resolves the two sides. With the live state as B the sandbox is locked
// meanwhile, so that no generation changes underneath.
func (e *Engine) compare(
	ctx context.Context, name string, req wire.DiffRequest, fn func(*meta.Sandbox, timeline.SnapshotID, side) error,
) error {
	if err := chosen(req.Paths); err != nil {
		return err
	}
	var b side
	rec, h, err := e.find(ctx, name)
	if err != nil {
		return err
	}
	a, err := h.Resolve(req.A, e.Now())
	if err != nil {
		return err
	}
	if req.B != "" {
		if b.at, err = h.Resolve(req.B, e.Now()); err != nil {
			return err
		}
		return fn(&rec, a, b)
	}
	s, rec, err := e.acquire(ctx, name, "comparing the live state")
	if err != nil {
		return err
	}
	defer s.unlock(e)
	return fn(&rec, a, side{live: true})
}

// chosen checks the number and the size of the paths that a comparison is limited to.
func chosen(paths []string) error {
	size := 0
	for _, p := range paths {
		size += len(p)
	}
	if len(paths) <= limit.ChosenPaths && size <= limit.ChosenBytes {
		return nil
	}
	return fault.New(fault.TooLarge, "compare: %d paths of %d bytes are chosen: the limit is %d paths and %d bytes",
		len(paths), size, limit.ChosenPaths, limit.ChosenBytes).
		WithHint("choose a directory that they are in, as in: coppice diff NAME -- DIRECTORY")
}

// changes lists how two states differ, as far as one answer may hold it; more reports
// that the list is cut off.
func (e *Engine) changes(
	ctx context.Context, rec *meta.Sandbox, a timeline.SnapshotID, b side, req wire.DiffRequest,
) (list []wire.Change, more bool, err error) {
	if req.Limit < 0 || req.Limit > limit.DiffEntries {
		return nil, false,
			fault.New(fault.Invalid, "invalid limit %d for a list of changes: must be between 1 and %d", req.Limit,
				limit.DiffEntries).
				WithHint("leave it out to list as many changes as one answer holds: coppice diff NAME")
	}
	va, vb, touched, err := e.views(ctx, rec, a, b)
	if err != nil {
		return nil, false, err
	}
	found, more, err := layer.Some(ctx, va, vb, touched,
		layer.DiffOptions{Paths: req.Paths, Stat: req.Stat, Most: req.Limit, Bytes: diffBytes(req.Limit)})
	if err != nil {
		return nil, false, err
	}
	roots, err := e.partRoots(ctx, rec)
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

// partRoots are the root directories of the live root's parts. The host's own
// lie below them, with owners that an ordinary user cannot give to his: that they
// differ is none of the sandbox's doing.
func (e *Engine) partRoots(ctx context.Context, rec *meta.Sandbox) (map[string]bool, error) {
	if !rec.Host || !e.presented(rec) {
		return nil, nil
	}
	drv, live, err := e.live(ctx, rec)
	if err != nil {
		return nil, err
	}
	parts, err := drv.Parts(live)
	if err != nil {
		return nil, err
	}
	roots := map[string]bool{}
	for _, p := range parts {
		roots[path.Clean(p.Path)] = true
	}
	return roots, nil
}

// views opens two states for reading, and names the trees in which they can
// differ: the layers above what both have in common, and the live parts.
func (e *Engine) views(
	ctx context.Context, rec *meta.Sandbox, a timeline.SnapshotID, b side,
) (va, vb *layer.View, touched []rootspec.Part, err error) {
	sa, _, err := e.masks.Stack(ctx, rec, a)
	if err != nil {
		return nil, nil, nil, err
	}
	at := b.at
	if b.live {
		at = rec.MountTop
	}
	sb, _, err := e.masks.Stack(ctx, rec, at)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, dir := range difference(sa.Layers, sb.Layers) {
		touched = append(touched, rootspec.Part{Dir: dir, Path: "/"})
	}
	va, vb = e.Layers.View(sa), e.Layers.View(sb)
	if b.live && e.presented(rec) {
		drv, live, err := e.live(ctx, rec)
		if err != nil {
			return nil, nil, nil, err
		}
		parts, err := drv.Parts(live)
		if err != nil {
			return nil, nil, nil, err
		}
		if drv.Plain() {
			vb = e.Layers.PlainView(parts)
		} else {
			vb = e.Layers.LiveView(sb, parts)
		}
		touched = append(touched, parts...)
	}
	return va, vb, touched, nil
}

// viewOf opens a snapshot for reading as the parts of a live root would show it.
func (e *Engine) viewOf(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID, parts []rootspec.Part,
) (*layer.View, error) {
	st, _, err := e.masks.Stack(ctx, rec, id)
	if err != nil {
		return nil, err
	}
	return e.Layers.View(st, inside(parts)...), nil
}

// inside gives the places of parts.
func inside(parts []rootspec.Part) []string {
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = path.Clean(p.Path)
	}
	return out
}

// difference gives the directories that only one of two stacks holds. Both end
// in the layers that they have in common.
func difference(a, b []string) []string {
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return append(append([]string{}, a...), b...)
}

// Tags lists a sandbox's tags.
func (e *Engine) Tags(ctx context.Context, name string) (map[string]string, error) {
	_, h, err := e.find(ctx, name)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for t, id := range h.Tags {
		out[t] = string(id)
	}
	return out, nil
}

// SetTag names a snapshot, or moves the name there.
func (e *Engine) SetTag(ctx context.Context, name, tag, ref string) (wire.TagResult, error) {
	rec, h, err := e.find(ctx, name)
	if err != nil {
		return wire.TagResult{}, err
	}
	if err := timeline.ValidTag(tag); err != nil {
		return wire.TagResult{}, err
	}
	if err := e.cleaners.For(ctx, &rec).CheckName("tag", tag); err != nil {
		return wire.TagResult{}, err
	}
	if ref == "" {
		ref = "HEAD"
	}
	id, err := h.Resolve(ref, e.Now())
	if err != nil {
		return wire.TagResult{}, err
	}
	changed, err := e.budgets.MayChange(ctx, &rec)
	if err != nil {
		return wire.TagResult{}, err
	}
	changed()
	if err := e.DB.SetTag(ctx, rec.ID, tag, id); err != nil {
		return wire.TagResult{}, err
	}
	e.Feed.Emit(events.Tagged(&rec, tag, id))
	return wire.TagResult{Name: tag, Node: string(id)}, nil
}

// DeleteTag removes a name; the snapshot stays.
func (e *Engine) DeleteTag(ctx context.Context, name, tag string) error {
	rec, h, err := e.find(ctx, name)
	if err != nil {
		return err
	}
	if _, ok := h.Tags[tag]; !ok {
		known := make([]string, 0, len(h.Tags))
		for t := range h.Tags {
			known = append(known, t)
		}
		sort.Strings(known)
		return fault.New(fault.NotFound, "sandbox %s has no tag %q", rec.Name, tag).
			WithHint("its tags: %s", strings.Join(known, " "))
	}
	if err := e.DB.DeleteTag(ctx, rec.ID, tag); err != nil {
		return err
	}
	e.Feed.Emit(events.Tagged(&rec, tag, ""))
	return nil
}
