//go:build linux

// Package masks hides the paths that policies hide from sandboxes, wherever their files are read: in live roots,
// snapshots and comparisons.
//
// Paths are hidden by a layer, the mask, directly above the state that the sandbox started from, including the files
// of its repository: see rootfs.Mask. Masks.Stack inserts it, and never returns a stack with the host as its base
// without one.
//
// A sandbox with its own machine ID has one more layer, above all others, with that ID in place of the ones that its
// files have from the host or from the sandbox that it was forked from: see rootfs.Identity. So the ID is not part of
// the history, and a rewind does not change it.
//
// Masks owns the directory masks of COPPICE_HOME; the files mask and identity of each sandbox, which name the layers
// with which its live root was last mounted, and so outlive the daemon; and a cache of these. Masks are never
// changed. Masks are removed only while the daemon starts: at any other time one may be in use, and its removal would
// reveal what it hides. Identity layers are also removed with their sandbox and by garbage collection, like the layers
// of snapshots. The lock Masks.mu guards the cache, and is a leaf: no other lock is taken while it is held.
// The files of a sandbox are written with the lock of the sandbox held.
//
// From the engine it needs what a policy hides (Policies), and a way to remove trees (Config.Discard). The engine
// imports it; it never imports the engine.
package masks
