//go:build linux

// Package worktree creates sandboxes that work on a git repository of the host. It finds the repository that a
// request names (Trees.Find), imports the files of a commit as a base shared by all sandboxes at that commit
// (Trees.Import), and gives each sandbox its own .git, which borrows the objects of the user's repository
// (Trees.Create). The commits are held there for as long as the sandbox exists: see gitrefs.
//
// Trees has no lock and no state in memory. The records of imported trees are those of bases whose keys begin
// with "git "; Bases.Importing is held during an import. Config.Keep is held from the check that a base exists
// until a sandbox on it is recorded, so that no layer of the base is removed.
//
// It requires these interfaces of the engine: Maker creates the first snapshot of a sandbox, and records the
// sandbox in the ledger and in the database; Stacks names layers while they are created, and finds those of a
// snapshot.
// The engine implements both; the package never imports the engine.
package worktree
