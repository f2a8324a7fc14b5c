// Package landlock restricts the calling thread, and the processes that it starts, with the kernel's Landlock
// (landlock(7)). A ruleset lists what stays allowed; rules can only add rights.
//
// It has no rules by path: how a path is opened, and which links are followed, is up to the caller, who passes a
// descriptor. docs/dependencies.md says why github.com/landlock-lsm/go-landlock is not used.
//
// It is imported by box/guest and gate/control, and for the version also by box/keeper. It imports no package of
// this module.
package landlock
