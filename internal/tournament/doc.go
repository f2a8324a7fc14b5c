//go:build linux

// Package tournament tries commands in forks of a sandbox. A tournament runs several candidates and a test of each,
// and selects the winner; a trial runs one command.
//
// Tournaments owns the set of tournaments and trials in progress, whose forks a garbage collection must not remove,
// and the limit on concurrent trials. The forks are ordinary sandboxes with the tag of their tournament in their
// records. The lock Tournaments.mu guards the tags in progress, and is a leaf: no other lock is acquired while it is
// held.
//
// It needs the operations on sandboxes of the engine (Operations), and calls none of them with a lock held. The
// engine imports it; it never imports the engine.
package tournament
