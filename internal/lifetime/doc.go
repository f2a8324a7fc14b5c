//go:build linux

// Package lifetime ends sandboxes: it removes those that have expired, except what their tags name, and stops
// those that have been idle for longer than their limit.
//
// Lifetimes owns the two loops that look for such sandboxes, and knows which sandboxes clients use and when
// they last used them. It owns no record: when a sandbox expires is in package meta. Its lock, Lifetimes.mu,
// guards the uses of sandboxes; no other lock is taken while it is held.
//
// Of the engine it needs the locks and boxes of sandboxes (Finder), and the operations that end their
// processes or remove them (Ender). The engine imports it; it never imports the engine.
package lifetime
