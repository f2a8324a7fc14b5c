package thread

import (
	"runtime"
	"sync"
)

// Reserve makes the Go runtime start n threads, which it keeps and uses when it needs more than it has. The runtime
// aborts the process if it cannot start a thread, as when a limit of tasks is reached.
func Reserve(n int) {
	var running, done sync.WaitGroup
	running.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			running.Done()
			running.Wait()
		})
	}
	done.Wait()
}
