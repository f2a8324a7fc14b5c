//go:build linux

package engine

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRecovery_SkipsUnremovableEntries checks that an entry that cannot be removed only takes disk space.
func TestRecovery_SkipsUnremovableEntries(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs real-root: to mount")
	}
	h := newHome(t)
	head := h.onDir("a").Head
	h.close()
	// A mount point cannot be removed: EBUSY.
	var held []string
	for _, p := range []string{"sandboxes/0123456789ab.removed/live/1/root", "sandboxes/0123456789ab/run",
		"layers/tmp/rm-0123456789abcdef/fs", "masks/left/x"} {
		dir := filepath.Join(h.dir, p)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			t.Skipf("needs real-root: to mount: %v", err)
		}
		held = append(held, dir)
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	h.open()
	if got := h.run("a", "write", "f", "x").Head; got == head {
		t.Error("the home cannot be used")
	}
	for _, dir := range held {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
	h.close()
	h.open()
	for _, dir := range held {
		if _, err := os.Lstat(filepath.Dir(dir)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
}
