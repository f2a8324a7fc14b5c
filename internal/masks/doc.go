//go:build linux

// Package masks hides the paths that policies hide from sandboxes, wherever their files are read: in live roots,
// snapshots and comparisons.
//
// Paths are hidden by a layer, the mask, directly above the state that the sandbox started from, including the files
// of its repository: see rootfs.Mask. Masks.Stack inserts it, and never returns a stack with the host as its base
// without one.
//
// Masks owns the directory masks of COPPICE_HOME; the file mask of each sandbox, which names the mask with which its
// live root was last mounted, and so outlives the daemon; and a cache of both. Masks are never changed. They are
// removed only while the daemon starts: at any other time one may be in use, and its removal would reveal what it
// hides. The lock Masks.mu guards the cache, and is a leaf: no other lock is taken while it is held. The file of a
// sandbox is written with the lock of the sandbox held.
//
// From the engine it needs what a policy hides (Policies), and a way to remove trees (Config.Discard). The engine
// imports it; it never imports the engine.
package masks
