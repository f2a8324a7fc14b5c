//go:build linux

// Package restore resumes the processes of sandboxes from memory images. If they resume in a fork, it re-keys
// the fork. It also pauses (Restorer.Pause) and resumes (Restorer.Resume) the processes of a running sandbox.
//
// A sandbox whose processes resume from the memory of another one is quarantined, with its gate closed, until it is
// re-keyed. First its box replaces, from outside, what both would have in common. Then the SSH host keys are replaced
// and the hooks of the sandbox run, as commands that are recorded like any other. Last, the gate opens. Tokens,
// sessions and forwarded ports belong to the id of a sandbox, so those of the parent give no access to a fork.
//
// Restorer owns the set of sandboxes that are being released from quarantine. One caller at a time releases a
// sandbox, since a second caller would open the gate while hooks run for the first. Its lock, Restorer.mu, guards
// that set; no other lock is taken while it is held. The reason for a quarantine is in the record of the sandbox, and
// the images are in package images.
//
// The package needs little from the engine: Sandboxes finds sandboxes, takes their locks, and runs commands in them;
// Held is a sandbox whose lock is held, and starts its box from an image. The engine imports it; it never imports the
// engine.
package restore
