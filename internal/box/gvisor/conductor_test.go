//go:build linux && (amd64 || arm64)

package gvisor

import (
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
)

// TestConductor_RefusesForgedMessages checks that a compromised init cannot send messages that only the conductor may
// send: which programs ran, and that the memory is saved.
func TestConductor_RefusesForgedMessages(t *testing.T) {
	t.Parallel()
	for _, k := range []initlink.Kind{initlink.MsgPrograms, initlink.MsgSaved} {
		err := (&conductor{}).toKeeper(&initlink.Message{Kind: k, Payload: []byte("{}")})
		if fault.KindOf(err) != fault.Denied {
			t.Errorf("message %q from inside: %v", byte(k), err)
		}
	}
}

// TestReserveFirstThread_RunsNothingElse checks that no goroutine that takes a thread for itself, as those of gVisor that
// change its namespaces, gets the first one.
func TestReserveFirstThread_RunsNothingElse(t *testing.T) {
	t.Parallel()
	reserveFirstThread()
	const n = 64
	var locked, done sync.WaitGroup
	locked.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if unix.Gettid() == unix.Getpid() {
				t.Error("a goroutine has the first thread")
			}
			locked.Done()
			locked.Wait() // so that each has a thread of its own
		})
	}
	done.Wait()
}
