package layer

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// maxCrew is the maximum number of goroutines of one walk or copy: more would only wait for the locks of the file
// system.
const maxCrew = 8

// crew counts the additional goroutines that one call may still start. They end before the call returns. The zero
// value allows none.
type crew struct {
	spare atomic.Int32
}

// hire allows n additional goroutines.
func (c *crew) hire(n int) { c.spare.Store(int32(n)) }

// gather allows one goroutine for each further processor, up to maxCrew with the caller.
func (c *crew) gather() { c.hire(min(runtime.GOMAXPROCS(0), maxCrew) - 1) }

// take claims a goroutine, if one is spare.
func (c *crew) take() bool {
	for n := c.spare.Load(); n > 0; n = c.spare.Load() {
		if c.spare.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// each calls mine(i) for each i below n, and returns when all calls have returned. Spare goroutines, also those that
// become spare meanwhile, make some of the calls: each calls a function that another made for it. After an error no
// further call starts.
func (c *crew) each(n int, mine func(i int) error, another func() func(i int) error) error {
	switch n {
	case 0:
		return nil
	case 1:
		return mine(0)
	}
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error // guarded by mu
		stop  atomic.Bool
		run   func(fn func(i int) error)
	)
	run = func(fn func(i int) error) {
		for !stop.Load() {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			if i < n-1 && c.take() {
				wg.Go(func() {
					run(another())
					c.spare.Add(1)
				})
			}
			if err := fn(i); err != nil {
				mu.Lock()
				if first == nil {
					first = err
				}
				mu.Unlock()
				stop.Store(true)
			}
		}
	}
	run(mine)
	// A waiting caller leaves its processor to the other goroutines: they may be deep in a tree with much left to do.
	c.spare.Add(1)
	wg.Wait()
	c.spare.Add(-1)
	mu.Lock()
	defer mu.Unlock()
	return first
}
