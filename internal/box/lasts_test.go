//go:build linux && (amd64 || arm64)

package box

import (
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestConnLasts_IgnoresSignals checks that a connection is open although poll(2) is interrupted, as it is by signals of
// the Go runtime, and that its end is noticed.
func TestConnLasts_IgnoresSignals(t *testing.T) {
	t.Parallel()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := net.DialUnix("unix", nil, ln.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	var done atomic.Bool
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for !done.Load() {
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // which the runtime handles
			}
		})
	}
	defer all.Wait()
	defer done.Store(true)
	for range 5_000 {
		if lasts, err := connLasts(conn); err != nil || !lasts {
			t.Fatalf("%v, %v", lasts, err)
		}
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if lasts, err := connLasts(conn); err != nil || lasts {
		t.Errorf("a closed connection: %v, %v", lasts, err)
	}
}
