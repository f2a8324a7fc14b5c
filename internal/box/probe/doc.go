// Package probe finds out what this host can do for each tier, driver and
// feature, by doing it: children of the calling process make the namespaces, the
// mounts and the filters that a sandbox needs, in the home that the store uses,
// and say what the kernel answered. For each lack it names the command or
// setting that mends it.
//
// A program that calls Probe must call Dispatch first thing in main: the children
// are the program itself under another name.
//
// May be imported by box, cli, daemon and engine wiring; it imports client/wire
// and fault.
package probe
