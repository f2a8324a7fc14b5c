//go:build linux && (amd64 || arm64)

package box

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestBox_ClosesDescriptorOnExit guards against a leak: a daemon starts and stops thousands of sandboxes.
func TestBox_ClosesDescriptorOnExit(t *testing.T) {
	t.Parallel()
	fd := -1
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &fd}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := newBox(t.TempDir())
	b.child = cmd.Process
	if err := b.follow(fd); err != nil {
		t.Fatal(err)
	}
	if err := b.kill(); err != nil {
		t.Fatal(err)
	}
	<-b.Gone()
	b.watch.Wait()
	if _, err := b.pidfd.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the descriptor is still open: %v", err)
	}
	if err := b.kill(); err != nil {
		t.Errorf("kill of an ended box: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("close of an ended box: %v", err)
	}
}
