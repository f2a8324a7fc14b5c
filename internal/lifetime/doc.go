//go:build linux

// Package lifetime ends sandboxes: it removes those that have expired, except what their tags name, and
// stops those that have been idle for as long as they were given.
//
// Lifetimes owns the two loops that look for such sandboxes, and which sandboxes clients use and last
// used. It owns no record: when a sandbox expires is in package meta. Its lock, Lifetimes.mu, guards who
// uses sandboxes, and is a leaf: no other lock is taken while it is held.
//
// Of the engine it needs the locks and boxes of sandboxes (Finder), and the operations that end their
// processes or remove them (Ender). The engine imports it; it never imports the engine.
package lifetime
