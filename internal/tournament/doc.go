//go:build linux

// Package tournament tries commands in forks of a sandbox. A tournament runs several candidates and a
// test of each, and finds the one that wins; a trial runs one command.
//
// Tournaments owns which tournaments and trials are under way, whose forks a garbage collection leaves
// alone, and how many trials run at once. The forks are sandboxes as others are, with the tag of their
// tournament in their records. Its lock, Tournaments.mu, guards the tags that are under way, and is a
// leaf: no other lock is taken while it is held.
//
// Of the engine it needs the operations on sandboxes (Operations), none of which it calls with a lock
// held. The engine imports it; it never imports the engine.
package tournament
