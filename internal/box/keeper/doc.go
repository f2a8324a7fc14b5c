// Package keeper is the process that owns a live sandbox. It mounts the sandbox's root in a
// mount namespace of its own, starts init (package guest) and the gate, carries the bytes of
// commands, freezes the sandbox for captures, and outlives the daemon. The daemon starts it,
// and calls it over a socket: see package protocol.
//
// The program coppice-init is its main function.
package keeper
