//go:build linux

// Package command runs commands in sandboxes. It starts them, carries the frames of the clients that are
// attached to them, follows to their ends those that no client has to be attached to, captures what they
// have changed, and records their beginnings and ends.
//
// There is one type of command, with one life: opening, running, ending, settled. Who follows it differs.
// Exec follows the command of its client (exec.go reads from its start to its end); the Runner follows
// those that are kept and the supervised command of each sandbox (kept.go, run.go), to which clients are
// attached and leave (attach.go). As long as a command is not settled it is open. Register has the open
// ones of all sandboxes, which the next daemon finds noted in the database.
//
// Runner owns, for each sandbox, the kept commands, the supervised one, whose memory and whose changes are
// captured by themselves, and how many commands have begun; the lock of the sandbox guards all of these.
// Runner.mu guards the map of what is known of sandboxes, Register.mu the states of open commands,
// attachment.mu and presence.mu one client each. All four are leaves: no other lock is taken while one is
// held.
//
// Of the engine it needs the sandboxes (Sandboxes), their locks (Sandbox), and, with a lock, the box and a
// snapshot of the sandbox (Held). The engine imports it; it never imports the engine. Records go into the
// ledger through an audit.Book.
package command
