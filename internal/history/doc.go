//go:build linux

// Package history lists, shows, compares, tags and verifies the snapshots of sandboxes. It makes none.
//
// The package owns no state: histories and tags are records of package meta, and layers are in package layer. It
// starts no sandbox, and only a comparison with the present takes the lock of a sandbox.
//
// Config.Shape belongs to the engine: Verify holds it for reading, so that no layer is removed meanwhile.
//
// The package needs from the engine the locks and live roots of sandboxes (Sandboxes), and verifiers of the rest of
// the store. The engine imports it; it never imports the engine.
package history
