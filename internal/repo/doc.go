// Package repo is the host's side of git: it writes the initial files of a sandbox, exports the changes of a
// sandbox from its repository, shows them, and applies them to the user's repository.
//
// A sandbox starts with the files of a commit (Checkout), an index for them (Index), and its own .git that borrows
// objects (Inside). They are written into directories that no sandbox sees yet, and are never read back from one.
//
// The user's repository is trusted as far as the user's own git trusts it. Everything that a sandbox wrote is
// hostile: its objects, references and files, and everything in and around its .git, which is never read here,
// neither by Coppice nor by git. Data leaves a sandbox as bytes (a bundle, or files that are read through an
// os.Root), and is examined on a desk: a temporary bare repository with a configuration of Coppice, which borrows the
// user's objects. There it is checked, compared and merged. Only what passed all of that is written into the user's
// repository, by the user's git, objects first, one reference after them.
//
// # Lock order
//
// An apply that changes a work tree acquires the lock of its journal first, then git's own lock of the index, then
// (within git) that of a reference.
package repo
