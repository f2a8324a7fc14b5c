// Package box is the host side of the tiers: it starts a sandbox's box, runs
// commands in it, freezes and stops it.
//
// A box is two processes. The keeper owns it: it lives in a mount namespace of
// its own, holds terminals, pipes and results, and outlives the daemon. Init
// (package guest) is PID 1 inside. Both are this binary, started again under
// another name, which every program is that imports this package; see init.
//
// It may be imported by daemon and cmd/coppice; it imports box/plan, box/guest,
// rootspec, client/wire, fault and undo.
package box
