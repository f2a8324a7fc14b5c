// Package ownthread runs what changes a thread for ever on one that ends with it. Any
// room may import it; it imports none of ours.
package ownthread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread of its own, which ends when f returns, and returns then. It is
// never the first thread of the process, which cannot end, and by which /proc/PID tells
// of the namespaces and credentials of the process.
//
// A child that was started with Pdeathsig from f, or from a thread that no goroutine
// had locked, may take the end of the thread for the death of its parent (prctl(2)).
func Run(f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlocked: the runtime ends the thread
		if unix.Gettid() != unix.Getpid() {
			defer close(done)
			f()
			return
		}
		// While this goroutine holds the first thread, another one is on another.
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
