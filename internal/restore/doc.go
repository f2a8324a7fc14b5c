//go:build linux

// Package restore lets the processes of sandboxes go on from memory images, and makes a sandbox that
// they go on in, and that is not the one they come from, a sandbox of its own. It also has the processes
// of a live sandbox stand still (Restorer.Pause) and go on (Restorer.Resume).
//
// A sandbox whose processes go on from what those of another had in memory is quarantined until it is a
// sandbox of its own: its gate is closed. What can be the same in both is drawn again from outside the
// sandbox. Then come the SSH host keys and the hooks of the sandbox, as commands that are recorded like
// any other, and last the gate opens. Tokens, sessions and forwarded ports belong to the id of a sandbox,
// so those of the parent reach nothing in a fork.
//
// Restorer owns which sandboxes are being released from quarantine: one caller at a time releases one,
// since a second caller would open the gate while hooks run for the first. Its lock, Restorer.mu, guards
// that set, and is a leaf: no other lock is taken while it is held. Why a sandbox is quarantined is in its
// record, and the images are in package images.
//
// Of the engine it needs little: Sandboxes finds sandboxes, takes their locks, and runs commands in them;
// Held is a sandbox whose lock is held, whose box it starts from an image. The engine imports it; it never
// imports the engine.
package restore
