//go:build linux

// Package gitwork does the git work on existing sandboxes with a repository of the host: it exports their changes
// (Git.Collect), compares them, applies them to a branch, and rebases the sandbox. It makes proposals for reviewers
// (Git.Propose), which summarize the records of the sandbox (Retelling), and stores the log keys of pulled proposals
// (Git.Signer). Package travel transfers proposals between repositories.
//
// Git owns, for each sandbox, the result of its last export. One caller at a time exports from a sandbox or rebases
// it: it holds the token of taking.turn, which is acquired before the sandbox's own lock. Git.mu guards the map of
// these, and Git.signing the settings of signers.
//
// Work that a client of the daemon could do goes through API, whose methods are those of client.Client. The rest is
// behind two interfaces: Layers reads the files of snapshots, and Work reads and writes the records of sandboxes. The
// engine implements all three; the package never imports the engine. Records are written to the ledger through an
// audit.Book.
package gitwork
