// Package undo is a stack of clean-ups for things that are half built. Each step pushes the function that reverts it,
// success releases the stack, and every other return runs it in reverse order. Every package may import it; it
// imports no package of Coppice. (The idea is from gVisor's pkg/cleanup.)
package undo

import "errors"

// Stack holds pending clean-ups. The zero value is an empty stack. It is not safe for concurrent use.
type Stack struct{ fns []func() error }

// Push adds a clean-up, which runs before all earlier ones.
func (s *Stack) Push(fn func() error) { s.fns = append(s.fns, fn) }

// Release discards all clean-ups, so that what was built stays.
func (s *Stack) Release() { s.fns = nil }

// Run runs the clean-ups, newest first, and joins their errors to *errp. It is meant for defer with a named
// result; after Release it does nothing.
func (s *Stack) Run(errp *error) {
	fns := s.fns
	s.fns = nil
	for i := len(fns) - 1; i >= 0; i-- {
		if err := fns[i](); err != nil {
			*errp = errors.Join(*errp, err)
		}
	}
}
