//go:build linux

// Package masks hides from sandboxes what their policies hide, in everything that is read of them: live
// roots, snapshots and comparisons.
//
// What a policy hides is hidden by a layer, the mask, right above what a sandbox began on, the files of
// its repository among it: see rootfs.Mask. Masks.Stack puts it there, and returns no stack with the host
// at its bottom that has none.
//
// Masks owns the directory masks of COPPICE_HOME, the file mask of each sandbox, which names the mask that
// its live root was last mounted with and so outlives the daemon, and what it remembers of both. Masks are
// never changed. They are removed only while the daemon starts: at any other time somebody may read through
// one or have it mounted, and would see what it hides while it goes. The lock Masks.mu guards what is
// remembered, and is a leaf: no other lock is taken while it is held. The file of a sandbox is written with
// the lock of the sandbox.
//
// Of the engine it needs to know what a policy hides (Policies), and a way to remove trees
// (Config.Discard). The engine imports it; it never imports the engine.
package masks
