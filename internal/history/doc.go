//go:build linux

// Package history answers questions about the snapshots of sandboxes: what there are, how they differ from
// each other and from the present, which files they have, and whether they are as they were sealed. It
// names snapshots by tags, and makes none.
//
// It owns no state: histories and tags are records of package meta, and layers are in package layer.
// Nothing is started, and only a comparison with the present takes the lock of a sandbox.
//
// Config.Shape is the engine's: Verify holds it for reading, so that no layer goes meanwhile.
//
// Of the engine it needs the locks and live roots of sandboxes (Sandboxes), and what verifies the rest of
// the store. The engine imports it; it never imports the engine.
package history
