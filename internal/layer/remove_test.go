package layer

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemove_WithoutCapabilities covers a process that modes deny access, as in a pod: it removes its own layers.
func TestRemove_WithoutCapabilities(t *testing.T) {
	t.Parallel()
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.base(func(src string) {
		w.must(os.MkdirAll(filepath.Join(src, "ro/none"), 0o755))
		w.must(os.WriteFile(filepath.Join(src, "ro/x"), nil, 0o444))
		w.must(os.Chmod(filepath.Join(src, "ro/none"), 0))
		w.must(os.Chmod(filepath.Join(src, "ro"), 0o555))
	})
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		const access = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&head, &caps[0])
		caps[0].Effective &^= access
		if err == nil {
			err = unix.Capset(&head, &caps[0])
		}
		if err == nil {
			err = w.s.Remove(context.Background(), w.stack[0])
		}
		done <- err
	}()
	w.must(<-done)
	if w.s.Has(w.stack[0]) {
		t.Error("the layer was not removed")
	}
}
