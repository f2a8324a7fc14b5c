//go:build linux

// Package upkeep keeps the stored layers of histories in order: it finalizes new layers, merges long chains,
// deletes snapshots and old automatic ones, and removes unused data.
//
// Upkeep owns the queues of its background work: which snapshots may stand on long chains, and which
// histories may have automatic snapshots to remove. It owns no record: histories are in package meta, and
// layers in package layer. Its locks are these; docs/design/locks.md has their order.
//   - thinning: one caller at a time removes snapshots of a whole history.
//   - merging: one caller at a time merges what is queued.
//   - finalizing: one caller at a time finalizes layers.
//   - mu guards the queues, and what is known of chains and of the layer that is being finalized.
//
// Config.Shape is the engine's: upkeep holds it for writing while it removes layers, and for reading while it
// reads layers of sandboxes whose locks it does not hold.
//
// Of the engine it needs the locks of sandboxes (Sandboxes), the layers that are being made or are mounted
// (Stacks), a way to record removals (Recorder), and the sweeps of other parts that belong to a garbage
// collection (Sweeps). The engine imports it; it never imports the engine.
package upkeep
