//go:build linux

// Package command runs commands in sandboxes. It starts them, relays frames to and from attached
// clients, follows detached commands until they exit, captures what they change, and records their
// starts and exits.
//
// There is one type of command, with one life: opening, running, ending, settled. What follows it
// differs. Exec follows the command of its client (exec.go reads from its start to its end); the Runner
// follows detached commands and the supervised command of each sandbox (kept.go, run.go), to which
// clients attach and from which they detach (attach.go). A command is open until it is settled.
// Register has the open ones of all sandboxes, which the next daemon finds noted in the database.
//
// Runner owns, for each sandbox, the detached commands, the supervised one, whose memory and changes are
// captured automatically, and the number of commands started; the lock of the sandbox guards all of these.
// Runner.mu guards the map of what is known of sandboxes, Register.mu the states of open commands,
// attachment.mu and presence.mu one client each. All four are leaves: no other lock is taken while one is
// held.
//
// Of the engine it needs the sandboxes (Sandboxes), their locks (Sandbox), and, with a lock, the box and a
// snapshot of the sandbox (Held). The engine imports it; it never imports the engine. Records go into the
// ledger through an audit.Book.
package command
