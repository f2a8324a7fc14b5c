//go:build linux

// Package lifetime ends sandboxes: it removes those that have expired, except tagged snapshots, and stops those that
// have been idle for longer than their limit.
//
// Lifetimes owns the two loops that look for such sandboxes, and tracks which sandboxes clients use and when they
// last used them. It owns no record: the expiry of a sandbox is in package meta. Its lock, Lifetimes.mu, guards the
// uses of sandboxes; no other lock is taken while it is held.
//
// The package needs from the engine the locks and boxes of sandboxes (Finder), and the operations that end their
// processes or remove them (Ender). The engine imports it; it never imports the engine.
package lifetime
