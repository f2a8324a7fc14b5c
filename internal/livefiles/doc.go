//go:build linux

// Package livefiles opens the live files of sandboxes for requests from outside: it reads, writes and watches
// them while commands run, and makes operations that change all files at once wait for that.
//
// Opener owns, for each sandbox, which requests have its files open, the lock of its names (tree.renames),
// which a capture holds while it walks the live root, and the watches of its files. Opener.mu guards which
// files are open; no other lock is taken while it is held. Files are opened with the lock of their sandbox,
// and used without it.
//
// Of the engine it needs the locks of sandboxes and the paths that their policies keep in place (Sandboxes),
// and of a sandbox whose lock it holds the live root and captures (Held). The engine imports it; it never
// imports the engine.
package livefiles
