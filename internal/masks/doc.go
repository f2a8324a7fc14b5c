//go:build linux

// Package masks hides the paths that policies hide from sandboxes, wherever their files are read: in live
// roots, snapshots and comparisons.
//
// Paths are hidden by a layer, the mask, directly above what the sandbox started from, including the files of
// its repository: see rootfs.Mask. Masks.Stack inserts it, and never returns a stack with the host as its
// base without one.
//
// Masks owns the directory masks of COPPICE_HOME, the file mask of each sandbox, which names the mask that
// its live root was last mounted with and so outlives the daemon, and a cache of both. Masks are never
// changed. They are removed only while the daemon starts: at any other time one may be in use, and would
// reveal what it hides during its removal. The lock Masks.mu guards the cache, and is a leaf: no other lock
// is taken while it is held. The file of a sandbox is written with the lock of the sandbox.
//
// Of the engine it needs to know what a policy hides (Policies), and a way to remove trees (Config.Discard).
// The engine imports it; it never imports the engine.
package masks
