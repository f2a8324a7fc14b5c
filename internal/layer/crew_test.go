package layer

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
)

func likewise(fn func(int) error) func() func(int) error {
	return func() func(int) error { return fn }
}

func TestCrew_CallsEachOnce(t *testing.T) {
	for _, n := range []int{0, 1, 2, 1000} {
		var c crew
		c.spare.Store(3)
		calls := make([]atomic.Int32, n)
		do := func(i int) error { calls[i].Add(1); return nil }
		if err := c.each(n, do, likewise(do)); err != nil {
			t.Fatal(err)
		}
		for i := range calls {
			if calls[i].Load() != 1 {
				t.Errorf("call %d of %d was made %d times", i, n, calls[i].Load())
			}
		}
		if c.spare.Load() != 3 {
			t.Errorf("%d spare goroutines afterwards", c.spare.Load())
		}
	}
}

func TestCrew_StopsOnError(t *testing.T) {
	var c crew
	bad := errors.New("bad")
	calls := 0
	do := func(i int) error {
		if calls++; i == 2 {
			return bad
		}
		return nil
	}
	if err := c.each(10, do, likewise(do)); !errors.Is(err, bad) || calls != 3 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

// TestCrew_WaitingCallerHelps makes the second of two subtrees the large one, so that the caller, done with the
// first, waits. Its goroutine must help with the second.
func TestCrew_WaitingCallerHelps(t *testing.T) {
	var c crew
	c.spare.Store(1)
	meet := make(chan struct{})
	small := func(int) error { return nil }
	inner := func(i int) error {
		if i == 0 {
			meet <- struct{}{} // until call 1 runs beside this one
		} else {
			<-meet
		}
		return nil
	}
	large := func(int) error {
		for c.spare.Load() == 0 { // the caller is not waiting yet
			runtime.Gosched()
		}
		return c.each(2, inner, likewise(inner))
	}
	if err := c.each(2, small, likewise(large)); err != nil {
		t.Fatal(err)
	}
}
