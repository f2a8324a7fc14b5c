//go:build linux

// Package gitrefs holds commits in users' repositories, by references, for as long as sandboxes need
// them.
//
// The commits that sandboxes started from are held by refs/coppice/base/COMMIT/HOME as long as one of
// these sandboxes exists, so that a fork adds none; what was last collected from a sandbox by
// refs/coppice/box/ID, which goes with it. An intent is stored before a reference is made, and before
// a sandbox is removed, so that a daemon that is killed leaves none behind: the next Sweep drops it.
package gitrefs
