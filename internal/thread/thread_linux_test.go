package thread

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnOwn changes the thread that it runs on, and checks that no other thread is changed.
func TestOnOwn(t *testing.T) {
	t.Parallel()
	for range 50 {
		OnOwn(func() {
			if unix.Gettid() == unix.Getpid() {
				t.Error("runs on the first thread")
			}
			if v, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); v != 0 || err != nil {
				t.Errorf("no_new_privs is %d, %v, on a new thread", v, err)
			}
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReserve_Keeps checks that the process keeps the threads that Reserve started. The kernel lists all threads only
// while none exits.
func TestReserve_Keeps(t *testing.T) { //nolint:paralleltest // see above
	const n = 40
	Reserve(n)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(tasks) < n {
		t.Errorf("%d threads, expected at least %d", len(tasks), n)
	}
}
