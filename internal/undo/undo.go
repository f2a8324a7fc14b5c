// Package undo is a stack of clean-ups for things that are half built: each step
// pushes how to take it back, success releases the stack, and every other way
// out runs it in reverse. Every room may import it; it imports none of ours.
// (The idea is gVisor's pkg/cleanup.)
package undo

import "errors"

// Stack holds the pending clean-ups. The zero value is ready. Not safe for
// concurrent use.
type Stack struct{ fns []func() error }

// Push adds a clean-up, to be run before all earlier ones.
func (s *Stack) Push(fn func() error) { s.fns = append(s.fns, fn) }

// Release forgets all clean-ups: what was built stays.
func (s *Stack) Release() { s.fns = nil }

// Run runs the clean-ups, newest first, and joins their errors to *errp. Meant
// for defer with a named result; after Release it does nothing.
func (s *Stack) Run(errp *error) {
	fns := s.fns
	s.fns = nil
	for i := len(fns) - 1; i >= 0; i-- {
		if err := fns[i](); err != nil {
			*errp = errors.Join(*errp, err)
		}
	}
}
