package timeline

import (
	"github.com/coppice-dev/coppice/internal/fault"
)

// Routes maps snapshots to the routes with that Top.
type Routes map[SnapshotID][]Route

// RoutesByTop groups routes by their Top.
func RoutesByTop(routes []Route) Routes {
	m := make(Routes, len(routes))
	for _, r := range routes {
		m[r.Top] = append(m[r.Top], r)
	}
	return m
}

// Lineage has the known parents and routes of a snapshot and of all snapshots below it.
type Lineage struct {
	Parents map[SnapshotID]SnapshotID // "" for a first snapshot
	Routes  Routes
}

// ParentOf returns the parent of a snapshot, for StackOf and PlanMerges; false means that the snapshot is
// unknown.
func (l Lineage) ParentOf(id SnapshotID) (SnapshotID, bool) {
	p, ok := l.Parents[id]
	return p, ok
}

// Stack is StackOf for a lineage.
func (l Lineage) Stack(target SnapshotID) ([]LayerID, error) {
	return StackOf(l.Routes, target, l.ParentOf)
}

// Merges is PlanMerges for a lineage.
func (l Lineage) Merges(target SnapshotID) ([]MergePlan, error) {
	return PlanMerges(l.Routes, target, l.ParentOf)
}

// StackOf lists the layers that make up target above its base, topmost first, and as few as the routes allow. A
// snapshot without a route equals its parent. parentOf returns a snapshot's parent ("" for a first snapshot) and
// whether the snapshot is known. The error is Corrupt if every way down leads to an unknown snapshot or a cycle. An
// empty target is the base itself.
func StackOf(routes Routes, target SnapshotID, parentOf func(SnapshotID) (SnapshotID, bool)) ([]LayerID, error) {
	path, err := shortestPath(routes, target, parentOf)
	if err != nil {
		return nil, err
	}
	layers := make([]LayerID, len(path))
	for i, r := range path {
		layers[i] = r.Layer
	}
	return layers, nil
}

// shortestPath finds the way from target to the base with the fewest routes, topmost first. It is a breadth-first
// search in which a step to the parent (of a snapshot without routes) costs nothing. Of two ways of equal length, it
// chooses the one whose first route comes first in its slice, so the result depends only on the arguments.
func shortestPath(routes Routes, target SnapshotID, parentOf func(SnapshotID) (SnapshotID, bool)) ([]Route, error) {
	type arrival struct {
		from SnapshotID
		by   Route // Layer == "": the snapshot equals its parent
	}
	seen := map[SnapshotID]arrival{target: {}}
	missing := target
	frontier := []SnapshotID{target}
	for len(frontier) > 0 {
		var next []SnapshotID
		for i := 0; i < len(frontier); i++ {
			id := frontier[i]
			if id == "" {
				break
			}
			parent, known := parentOf(id)
			if !known {
				missing = id
				continue
			}
			if len(routes[id]) == 0 {
				if _, ok := seen[parent]; !ok {
					seen[parent] = arrival{from: id}
					frontier = append(frontier, parent)
				}
				continue
			}
			for _, r := range routes[id] {
				if _, ok := seen[r.Below]; !ok {
					seen[r.Below] = arrival{from: id, by: r}
					next = append(next, r.Below)
				}
			}
		}
		if _, ok := seen[""]; ok {
			break
		}
		frontier = next
	}
	if _, ok := seen[""]; !ok {
		if _, known := parentOf(missing); known {
			return nil, fault.New(fault.Corrupt, "the layers of snapshot %s form a loop", target).
				WithHint("coppice system verify")
		}
		return nil, fault.New(fault.Corrupt, "snapshot %s is based on snapshot %s, which is missing", target, missing).
			WithHint("coppice system verify")
	}
	var path []Route
	for id := SnapshotID(""); id != target; {
		a := seen[id]
		if a.by.Layer != "" {
			path = append(path, a.by)
		}
		id = a.from
	}
	for i, j := 0, len(path)-1; i < j; i, j = i+1, j-1 {
		path[i], path[j] = path[j], path[i]
	}
	return path, nil
}
