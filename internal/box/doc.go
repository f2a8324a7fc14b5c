// Package box is the daemon's side of a sandbox's processes: it starts a box, runs commands in
// it, freezes and stops it.
//
// A box is two processes, both of the program coppice-init. The keeper (package keeper) owns
// it: it lives in a mount namespace of its own, holds terminals, pipes and results, and
// outlives the daemon. Init (package guest) is PID 1 inside. What this package and the keeper
// say to each other is package protocol.
package box
