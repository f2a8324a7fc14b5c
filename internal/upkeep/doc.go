//go:build linux

// Package upkeep maintains the stored layers of histories: it finalizes new layers, merges long chains, deletes
// snapshots and old automatic ones, and removes unused data.
//
// Upkeep owns the queues of its background work: snapshots whose chains may be long, and histories that may have
// automatic snapshots to remove. It owns no record: histories are in package meta, and layers in package layer. Its
// locks are these; docs/design/locks.md has their order.
//   - thinning: one caller at a time removes snapshots of a whole history.
//   - merging: one caller at a time merges the queued chains.
//   - finalizing: one caller at a time finalizes layers.
//   - mu guards the queues, the cache of chains, and the layer that is being finalized.
//
// Config.Shape is the engine's: upkeep holds it for writing while it removes layers, and for reading while it
// reads layers of sandboxes whose locks it does not hold.
//
// The package needs from the engine the locks of sandboxes (Sandboxes), the layers that are being made or are mounted
// (Stacks), a way to record removals (Recorder), and the sweeps of other packages that are part of a garbage
// collection (Sweeps). The engine imports it; it never imports the engine.
package upkeep
