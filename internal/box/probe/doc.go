// Package probe finds out what this host can do for each tier, driver and
// feature, by doing it. Children of the calling process make the namespaces, the
// mounts and the filters that a sandbox needs, in the home that the store uses,
// and say what the kernel answered. For each lack it names the command or
// setting that mends it.
//
// The children are the program itself under another name, which every program is
// that imports this package; see init.
//
// May be imported by box and daemon; it imports
// client/wire, quota and fault.
package probe
