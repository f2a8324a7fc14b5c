//go:build linux

// Package livefiles opens the live files of sandboxes for requests from outside. It reads, writes and watches them
// while commands run, and makes operations that change all files at once wait until it is done.
//
// For each sandbox, Opener owns the requests that have files open, the lock of the names (tree.renames), which a
// capture holds while it walks the live root, and the watches of files. Opener.mu guards the open files; no other
// lock is taken while it is held. Files are opened with the lock of their sandbox, and used without it.
//
// The package needs from the engine the locks of sandboxes and the paths that their policies keep in place
// (Sandboxes), and, while a lock is held, the live root and captures (Held). The engine imports it; it never imports
// the engine.
package livefiles
