package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/protocol"
)

// TestRemoveLeft_RemovesGroupsWithoutMonitor uses directories in place of control groups. Those of a sandbox with
// a live monitor, and those of another home, are kept.
func TestRemoveLeft_RemovesGroupsWithoutMonitor(t *testing.T) {
	t.Parallel()
	home, groups := t.TempDir(), t.TempDir()
	for _, id := range []string{"ended", "live", "other"} {
		run := filepath.Join(home, "sandboxes", id, "run")
		if id == "other" {
			run = filepath.Join(t.TempDir(), "sandboxes", id, "run")
		}
		group := filepath.Join(groups, "coppice-"+id+"-1")
		if err := errors.Join(os.MkdirAll(run, 0o700), os.Mkdir(group, 0o700),
			os.WriteFile(filepath.Join(run, "cgroups"), []byte(group+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		lock, err := os.Create(filepath.Join(run, protocol.LockName))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if id == "live" {
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}
	}
	removeLeft(home, slog.New(slog.DiscardHandler))
	for id, want := range map[string]bool{"ended": false, "live": true, "other": true} {
		_, err := os.Lstat(filepath.Join(groups, "coppice-"+id+"-1"))
		if (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestRemoveProbes_RemovesOldOnes(t *testing.T) {
	t.Parallel()
	home, now := t.TempDir(), time.Now()
	for name, age := range map[string]time.Duration{
		".coppice-probe-1": 2 * time.Hour, ".coppice-probe-2": time.Minute, "sandboxes": 2 * time.Hour,
	} {
		dir := filepath.Join(home, name)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "run", "deep"), 0o700),
			os.Chtimes(dir, now, now.Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	removeProbes(t.Context(), home, now, slog.New(slog.DiscardHandler))
	for name, want := range map[string]bool{".coppice-probe-1": false, ".coppice-probe-2": true, "sandboxes": true} {
		if _, err := os.Lstat(filepath.Join(home, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
