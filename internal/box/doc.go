// Package box is the daemon's side of a sandbox's processes: it starts a box, runs commands in it, freezes
// and stops it.
//
// A box is two processes, both running the program coppice-init. The keeper (package keeper) owns the box: it
// has its own mount namespace, holds terminals, pipes and results, and outlives the daemon. Init (package
// guest) is PID 1 inside. Package protocol defines the calls between this package and the keeper.
package box
