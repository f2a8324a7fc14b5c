// Package repo is the host's side of git: it writes what a sandbox begins with, takes
// what it did to a repository out of it, shows that, and applies it to the repository of
// the person who owns it. It imports beneath, fault, limit and undo; the engine imports it.
//
// What a sandbox begins with are the files of a commit (Checkout), an index that knows
// them (Index), and a .git of its own that borrows objects (Inside). They are written into
// directories that no sandbox sees yet, and are never read back from one.
//
// Two parties meet here. The user's repository is trusted as the user's own git trusts
// it. All that a sandbox wrote is hostile: its objects, its references, its files, and
// everything in and around its .git, of which nothing is ever read here, not by us and
// not by git. What comes out of a sandbox comes out as bytes (a bundle, or files that
// are read through an os.Root), and is looked at on a desk: a bare repository of our
// own, made for one piece of work, with a configuration of our own, that borrows the
// user's objects. There it is checked, compared and merged. Only what came through all
// of that is written into the user's repository, by the user's git, objects first, one
// reference after them.
//
// # Lock order
//
// An apply that changes a work tree holds the lock of its journal first, then git's own
// lock of the index, then (within git) that of a reference.
package repo
