// Package looptest helps tests with long loops: contexts that end in the middle of one, and samples of the cases,
// since the race detector makes all of them too slow.
package looptest

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
)

// Context counts the calls of Err, and ends at one of them. A loop that checks its context
// in every step ends in the middle, however fast the machine is.
type Context struct {
	context.Context
	end   context.CancelFunc
	after int64
	calls atomic.Int64
}

// EndsAfter returns a context that ends at the first call of Err after n others, or with the test.
func EndsAfter(t *testing.T, n int64) *Context {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	return &Context{Context: ctx, end: end, after: n}
}

// Counts returns a context that ends with the test.
func Counts(t *testing.T) *Context {
	t.Helper()
	return EndsAfter(t, math.MaxInt64)
}

// Err implements context.Context. Any goroutine may call it.
func (c *Context) Err() error {
	if c.calls.Add(1) > c.after {
		c.end()
	}
	return c.Context.Err()
}

// Calls returns the number of calls of Err.
func (c *Context) Calls() int64 { return c.calls.Load() }
