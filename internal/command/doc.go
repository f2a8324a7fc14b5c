//go:build linux

// Package command runs commands in sandboxes. It starts them, relays frames to and from attached
// clients, follows detached commands until they exit, captures what they change, and records their
// starts and exits.
//
// All commands have one type and the same states: opening, running, ending, settled. They differ in what follows
// them. Exec follows the command of its client (exec.go reads from its start to its end). The Runner follows detached
// commands and the supervised command of each sandbox (kept.go, run.go), to which clients attach and from which they
// detach (attach.go). A command is open until it is settled. Register has the open commands of all sandboxes, and
// stores them in the database for the next daemon.
//
// For each sandbox, Runner owns the detached commands, the supervised one, whose memory may be captured automatically,
// the follower that captures what processes change while commands run (follow.go; pace.go decides when), and the
// number of commands started; all of these are guarded by the lock of the sandbox. Runner.mu guards the map of
// sandboxes, Register.mu the states of open commands, attachment.mu and presence.mu one client each. All four are
// leaves: no other lock is taken while one is held.
//
// The package needs from the engine the sandboxes (Sandboxes), their locks (Sandbox), and, while a lock is held, the
// box and a snapshot of the sandbox (Held). The engine imports it; it never imports the engine. Records are written
// to the ledger through an audit.Book.
package command
