//go:build linux && (amd64 || arm64)

package box

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// Thousands of boxes come and go while a daemon serves.
func TestBox_ClosesDescriptorOnExit(t *testing.T) {
	t.Parallel()
	fd := -1
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &fd}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &Box{child: cmd.Process, gone: make(chan struct{})}
	if err := b.follow(fd); err != nil {
		t.Fatal(err)
	}
	if err := b.kill(); err != nil {
		t.Fatal(err)
	}
	<-b.Gone()
	b.watch.Wait()
	if _, err := b.pidfd.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the descriptor is open still: %v", err)
	}
	if err := b.kill(); err != nil {
		t.Errorf("kill it again: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("close it: %v", err)
	}
}
