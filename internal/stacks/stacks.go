// Package stacks finds the layers that make up snapshots.
//
// Stacks caches its answers, because reading the lineage of a long history takes longer than starting a command. Its
// lock, Stacks.mu, guards the cache; no other lock is taken while it is held. The engine imports it, and calls
// Rerouted; it needs nothing else from the engine.
package stacks

import (
	"context"
	"slices"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// maxStacks is how many answers of Below are cached; maxSteps, how many snapshots further down it looks for one of
// them before it reads the whole lineage.
const (
	maxStacks = 1 << 15
	maxSteps  = 8
)

// Records reads histories; a *meta.DB implements it.
type Records interface {
	// Lineage returns a snapshot and those below it, with their routes.
	Lineage(ctx context.Context, id timeline.SnapshotID) (timeline.Lineage, error)
	// Ground returns the parent of a snapshot and the routes that lead down from it.
	Ground(ctx context.Context, id timeline.SnapshotID) (timeline.SnapshotID, []timeline.Route, error)
}

// Stacks finds the layers of snapshots. New makes one; all methods are safe for concurrent use, and the
// caller may hold any lock.
type Stacks struct {
	records Records                          // never changed
	dir     func(id timeline.LayerID) string // never changed

	mu    sync.Mutex
	known map[timeline.SnapshotID][]timeline.LayerID // answers of Below; guarded by mu
	// routes counts changes of routes. An answer that was read before a change is not cached. Guarded by mu.
	routes int
}

// New returns a Stacks; dir returns the directory of a layer.
func New(records Records, dir func(timeline.LayerID) string) *Stacks {
	return &Stacks{records: records, dir: dir, known: map[timeline.SnapshotID][]timeline.LayerID{}}
}

// Dirs returns the directories of layers.
func (s *Stacks) Dirs(ids []timeline.LayerID) []string {
	dirs := make([]string, len(ids))
	for i, id := range ids {
		dirs[i] = s.dir(id)
	}
	return dirs
}

// Rerouted discards the cache. It must be called when routes other than those of new snapshots have changed.
func (s *Stacks) Rerouted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes++
	clear(s.known)
}

// Below returns the layers that make up a snapshot, topmost first. The slice is shared with other callers and
// must not be modified.
func (s *Stacks) Below(ctx context.Context, id timeline.SnapshotID) ([]timeline.LayerID, error) {
	if id == "" {
		return nil, nil
	}
	s.mu.Lock()
	ids, known := s.known[id]
	routes := s.routes
	s.mu.Unlock()
	if known {
		return ids, nil
	}
	ids, known, err := s.stepDown(ctx, id)
	if err != nil {
		return nil, err
	}
	if !known {
		line, err := s.records.Lineage(ctx, id)
		if err != nil {
			return nil, err
		}
		if ids, err = line.Stack(id); err != nil {
			return nil, fault.Wrap(err, "layers of snapshot %s", id)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.routes == routes {
		if len(s.known) >= maxStacks {
			clear(s.known)
		}
		s.known[id] = ids
	}
	return ids, nil
}

// stepDown looks for a cached answer for a snapshot just below. While there is only one route down, the shortest
// stack uses it.
func (s *Stacks) stepDown(ctx context.Context, id timeline.SnapshotID) (ids []timeline.LayerID, found bool, err error) {
	for range maxSteps {
		parent, routes, err := s.records.Ground(ctx, id)
		if err != nil || len(routes) > 1 {
			return nil, false, err
		}
		if id = parent; len(routes) == 1 {
			id, ids = routes[0].Below, append(ids, routes[0].Layer)
		}
		s.mu.Lock()
		below, ok := s.known[id]
		s.mu.Unlock()
		if ok {
			return append(ids, below...), true, nil
		}
		if id == "" {
			return nil, false, nil
		}
	}
	return nil, false, nil
}

// Over returns the layers that make up a snapshot, and how many of them are above base, which is a snapshot below it.
// They differ from the answer of Below if that has a merged layer with parts of both. The slice must not be modified.
func (s *Stacks) Over(ctx context.Context, base, id timeline.SnapshotID) ([]timeline.LayerID, int, error) {
	ids, err := s.Below(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	below, err := s.Below(ctx, base)
	if err != nil {
		return nil, 0, err
	}
	if n := len(ids) - len(below); n >= 0 && slices.Equal(ids[n:], below) {
		return ids, n, nil
	}
	line, err := s.records.Lineage(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	// Treat base as the bottom: no route passes it.
	under := map[timeline.SnapshotID]bool{"": true}
	for at := base; at != ""; {
		up := line.Parents[at]
		delete(line.Parents, at)
		delete(line.Routes, at)
		if at != base {
			under[at] = true
		}
		at = up
	}
	for top, routes := range line.Routes {
		line.Routes[top] = slices.DeleteFunc(slices.Clone(routes), func(r timeline.Route) bool { return under[r.Below] })
		if len(routes) > 0 && len(line.Routes[top]) == 0 {
			delete(line.Parents, top) // otherwise it would equal its parent
		}
	}
	line.Parents[base] = ""
	over, err := line.Stack(id)
	if err != nil {
		return nil, 0, fault.Wrap(err, "layers of snapshot %s above base %s", id, base)
	}
	return slices.Concat(over, below), len(over), nil
}
