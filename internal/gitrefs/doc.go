//go:build linux

// Package gitrefs holds commits in users' repositories, by references, for as long as sandboxes need
// them.
//
// What sandboxes began with is held by refs/coppice/base/COMMIT/HOME for as long as one of them is
// there, so that a fork costs none; what was last taken out of a sandbox by refs/coppice/box/ID, which
// goes with it. An intent is stored before a reference is made, and before a sandbox is removed, so
// that a daemon that is killed leaves none behind: the next Sweep drops it.
package gitrefs
