//go:build linux

// Package gitwork is the git work on sandboxes that exist already and work on a repository of the
// host: it takes out what a sandbox did (Git.Collect), compares it, applies it to a branch, and
// rebases the sandbox. It hands what was done to a reviewer (Git.Propose), as a proposal that retells
// the records of the sandbox (Retelling), and keeps the keys of the logs that the proposals of others
// come with (Git.Signer). How proposals travel between repositories is in package travel.
//
// Git owns, for each sandbox, what was last taken out of it. One caller at a time takes out of a
// sandbox or rebases it: it holds the token of taking.turn, which is taken before the sandbox's own
// lock. Git.mu guards the map of these, and Git.signing the settings of signers.
//
// Where a client of the daemon could do the work, it goes through API, whose methods are those of
// client.Client. What no client can do is behind two interfaces: Layers reads the files of
// snapshots, and Work reads and writes the records of sandboxes. The engine implements all three; the
// package never imports the engine. Records go into the ledger through an audit.Book.
package gitwork
