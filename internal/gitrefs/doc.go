//go:build linux

// Package gitrefs holds commits in users' repositories, by references, for as long as sandboxes need them.
//
// The reference refs/coppice/base/COMMIT/HOME holds the commit that sandboxes started from, as long as one of
// these sandboxes exists; a fork adds none. The references refs/coppice/box/ID hold the last export of a sandbox,
// and are deleted with it. An intent is stored before a reference is created, and before a sandbox is removed, so
// that a killed daemon leaves no reference behind: the next Sweep deletes it.
package gitrefs
