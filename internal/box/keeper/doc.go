// Package keeper implements the process that owns a live sandbox. It mounts the sandbox's root in its own
// mount namespace, starts init (package guest) and the gate, relays the input and output of commands, freezes
// the sandbox for captures, and outlives the daemon. The daemon starts it and calls it over a socket: see
// package protocol.
//
// Main is the main function of coppice-init when it runs as a keeper.
package keeper
