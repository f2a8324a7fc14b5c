// Package probe finds out what this host supports for each tier, driver and feature, by trying it. Children of the
// calling process create the namespaces, mounts and filters that a sandbox needs, in the home that the store uses, and
// report the kernel's answers. For each lack the report names the command or setting that fixes it.
//
// The children are the helper program coppice-init, whose main function calls Child.
//
// May be imported by box, daemon and cmd/coppice-init; it imports client/wire, quota and fault.
package probe
