package layer

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// maxCrew is how many goroutines one walk or copy uses at most: further ones
// would only wait for the file system's locks.
const maxCrew = 8

// crew counts the goroutines that one call may still start beside its own. They
// end before the call does. The zero value has none to spare.
type crew struct {
	spare atomic.Int32
}

// hire makes n of them.
func (c *crew) hire(n int) { c.spare.Store(int32(n)) }

// gather makes one for each further processor.
func (c *crew) gather() { c.hire(min(runtime.GOMAXPROCS(0), maxCrew) - 1) }

// take claims a goroutine.
func (c *crew) take() bool {
	for n := c.spare.Load(); n > 0; n = c.spare.Load() {
		if c.spare.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// each calls mine(i) for each i below n and returns when all calls have. While there are goroutines to spare,
// also if some become free later, they take some of the calls: each calls the function that another made for
// it. After an error no further call starts.
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
	// A waiting caller leaves its processor to the others: they may be deep in a tree with much left to do.
	c.spare.Add(1)
	wg.Wait()
	c.spare.Add(-1)
	mu.Lock()
	defer mu.Unlock()
	return first
}
