//go:build linux

package history

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/masks"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Sandboxes gives Histories access to sandboxes that may be live.
type Sandboxes interface {
	// Acquire finds a sandbox by name or id and takes its lock, for which it waits with patience. what names
	// the operation in the error that other callers get meanwhile. The caller calls release.
	Acquire(ctx context.Context, name, what string) (release func(), rec meta.Sandbox, err error)
	// Root returns the directories in which changes of the live root of a sandbox appear; nil if the live
	// root was not made yet. An error that wraps fs.ErrNotExist says that the live root was removed
	// meanwhile, which can happen to a caller that does not hold the sandbox's lock.
	Root(ctx context.Context, rec *meta.Sandbox) (*Root, error)
}

// Root lists the directories in which changes of a live root appear.
type Root struct {
	Parts []rootspec.Part
	Plain bool // the parts are the whole root, and not only its changes
}

// Verifier verifies data of a sandbox, or with name "" of the whole store, and adds damage to res.
type Verifier func(ctx context.Context, name string, progress func(wire.Progress), res *wire.VerifyResult) error

// Config configures Histories. All fields are required.
type Config struct {
	DB        *meta.DB
	Layers    *layer.Store
	Masks     *masks.Masks
	Sandboxes Sandboxes
	Budgets   *audit.Budgets
	Cleaners  *audit.Cleaners
	Feed      *events.Bus
	// Shape is held for reading by callers that read layers.
	Shape *sync.RWMutex
	// Finalize finalizes the layers that are not finalized yet.
	Finalize func(ctx context.Context) error
	// VerifyRecords verifies the audit log, and VerifyImages verifies memory images.
	VerifyRecords, VerifyImages Verifier
	Now                         func() time.Time
}

// Histories answers queries from records and layers. New makes one; all methods are safe for concurrent use.
type Histories struct {
	config Config // never changed
}

// New returns the Histories of a home.
func New(c Config) *Histories { return &Histories{config: c} }

// History reads the history of a sandbox.
func (h *Histories) History(ctx context.Context, rec *meta.Sandbox) (*timeline.History, error) {
	t, err := h.config.DB.History(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// Find reads the record of a sandbox, by its name or id, and its history. They are not read at the same
// moment, so they may disagree about what was recorded in between.
func (h *Histories) Find(ctx context.Context, name string) (meta.Sandbox, *timeline.History, error) {
	rec, err := h.config.DB.Sandbox(ctx, name)
	if err != nil {
		return rec, nil, err
	}
	t, err := h.History(ctx, &rec)
	return rec, t, err
}

// Log returns the whole history of a sandbox, with a graph of up to limit.GraphBytes.
func (h *Histories) Log(ctx context.Context, name string) (wire.LogResult, error) {
	t, res, err := h.newestFirst(ctx, name)
	if err != nil {
		return res, err
	}
	rows, more := t.Graph(limit.GraphBytes)
	for _, row := range rows {
		res.Rows = append(res.Rows, wire.LogRow{Graph: row.Graph, Node: string(row.ID)})
	}
	res.Truncated = more
	return res, nil
}

// Snapshots returns the whole history of a sandbox, without a graph.
func (h *Histories) Snapshots(ctx context.Context, name string) (wire.LogResult, error) {
	_, res, err := h.newestFirst(ctx, name)
	return res, err
}

func (h *Histories) newestFirst(ctx context.Context, name string) (*timeline.History, wire.LogResult, error) {
	_, t, err := h.Find(ctx, name)
	if err != nil {
		return nil, wire.LogResult{}, err
	}
	res := wire.LogResult{Head: string(t.Head)}
	nodes, err := h.Nodes(ctx, t)
	if err != nil {
		return nil, res, err
	}
	for _, id := range t.NewestFirst() {
		res.Nodes = append(res.Nodes, nodes[id])
	}
	return t, res, nil
}

// Head returns the snapshot that the live state descends from.
func (h *Histories) Head(ctx context.Context, name string) (string, error) {
	head, err := h.config.DB.Head(ctx, name)
	return string(head), err
}

// Branches returns the leaves of the history, newest first.
func (h *Histories) Branches(ctx context.Context, name string) (wire.BranchesResult, error) {
	_, t, err := h.Find(ctx, name)
	if err != nil {
		return wire.BranchesResult{}, err
	}
	res := wire.BranchesResult{Head: string(t.Head)}
	nodes, err := h.Nodes(ctx, t)
	if err != nil {
		return res, err
	}
	for _, id := range t.Leaves() {
		res.Nodes = append(res.Nodes, nodes[id])
	}
	slices.SortStableFunc(res.Nodes, func(a, b wire.Snapshot) int { return b.Created.Compare(a.Created) })
	return res, nil
}

// Nodes describes the snapshots of a history for clients.
func (h *Histories) Nodes(
	ctx context.Context, t *timeline.History,
) (map[timeline.SnapshotID]wire.Snapshot, error) {
	tags := map[timeline.SnapshotID][]string{}
	for tag, id := range t.Tags {
		tags[id] = append(tags[id], tag)
	}
	names := map[timeline.SandboxID]string{}
	for _, s := range t.Snapshots {
		if _, known := names[s.Sandbox]; known {
			continue
		}
		name, err := h.config.DB.Name(ctx, s.Sandbox)
		if err != nil {
			return nil, err
		}
		names[s.Sandbox] = name
	}
	leaf := map[timeline.SnapshotID]bool{}
	for _, id := range t.Leaves() {
		leaf[id] = true
	}
	out := make(map[timeline.SnapshotID]wire.Snapshot, len(t.Snapshots))
	for id, s := range t.Snapshots {
		n := wire.Snapshot{
			ID: string(id), Parent: string(s.Parent), Message: s.Message, Head: id == t.Head, Leaf: leaf[id],
			Cause: string(s.Cause), Created: s.Created, Exit: s.Exit, Paths: s.Stats.Paths, Bytes: s.Stats.Bytes,
			Finalized: s.Finalized, Tags: tags[id], Sandbox: names[s.Sandbox], Memory: images.WireMemory(s.Memory),
		}
		slices.Sort(n.Tags)
		out[id] = n
	}
	return out, nil
}

// Show returns a snapshot and its changes against its parent.
func (h *Histories) Show(ctx context.Context, name, ref string) (wire.ShowResult, error) {
	return h.ShowSome(ctx, name, ref, 0)
}

// ShowSome is Show with at most that many changes; 0: as many as one answer holds.
func (h *Histories) ShowSome(ctx context.Context, name, ref string, most int) (wire.ShowResult, error) {
	rec, t, err := h.Find(ctx, name)
	if err != nil {
		return wire.ShowResult{}, err
	}
	id, err := t.Resolve(ref, h.config.Now())
	if err != nil {
		return wire.ShowResult{}, err
	}
	nodes, err := h.Nodes(ctx, t)
	if err != nil {
		return wire.ShowResult{}, err
	}
	res := wire.ShowResult{Snapshot: nodes[id]}
	if parent := t.Snapshots[id].Parent; parent != "" {
		res.Changes, res.Truncated, err = h.changes(ctx, twice(&rec, parent, id), wire.DiffRequest{Limit: most})
	}
	return res, err
}
