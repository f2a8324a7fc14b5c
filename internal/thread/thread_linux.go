package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnOwn runs f, which may change its thread permanently, on a separate thread, and returns when f does; the thread
// then exits. It is never the first thread of the process, which cannot exit, and whose namespaces and credentials
// /proc/PID shows as those of the process.
//
// A child that was started with Pdeathsig from f, or from a thread that no goroutine had locked, may be killed when
// that thread exits, as if its parent had died (prctl(2)).
func OnOwn(f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		if unix.Gettid() != unix.Getpid() {
			defer close(done)
			f()
			return
		}
		// While this goroutine holds the first thread, the other goroutine runs on another one.
		other := make(chan struct{})
		go func() {
			defer close(other)
			runtime.LockOSThread()
			f()
		}()
		<-other
		runtime.UnlockOSThread()
		close(done)
	}()
	<-done
}
