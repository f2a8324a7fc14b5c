//go:build linux && (amd64 || arm64)

package control

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/landlock"
	"github.com/coppice-dev/coppice/internal/thread"
)

// TestWall_ConfinesGate tries on a confined thread what a gate process must be able to do, and what it must not.
func TestWall_ConfinesGate(t *testing.T) {
	t.Parallel()
	abi, err := landlock.Version()
	if err != nil {
		t.Skip("needs landlock: " + err.Error())
	}
	journal, other := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "file"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	thread.OnOwn(func() {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			t.Error(err)
			return
		}
		if err := wall("/proc/self/exe", journal); err != nil {
			t.Error(err)
			return
		}
		for _, p := range []string{"/etc/hosts", "/proc/self/status", "/dev/null"} {
			if _, err := os.ReadFile(p); err != nil {
				t.Errorf("cannot read %s: %v", p, err)
			}
		}
		name := filepath.Join(journal, "net.jsonl")
		if err := errors.Join(os.WriteFile(name, []byte("x"), 0o600), os.Rename(name, name+".1"),
			os.Remove(name+".1")); err != nil {
			t.Errorf("cannot write the journal: %v", err)
		}
		for what, try := range map[string]func() error{
			"read a file":      func() error { _, err := os.ReadFile(filepath.Join(other, "file")); return err },
			"list a directory": func() error { _, err := os.ReadDir(other); return err },
			"write a file":     func() error { return os.WriteFile(filepath.Join(other, "file"), nil, 0o600) },
			"make a file":      func() error { return os.WriteFile(filepath.Join(other, "new"), nil, 0o600) },
			"make a directory": func() error { return os.Mkdir(filepath.Join(journal, "new"), 0o700) },
			"make a link":      func() error { return os.Symlink("/", filepath.Join(journal, "link")) },
			"remove a file":    func() error { return os.Remove(filepath.Join(other, "file")) },
			"move a file": func() error {
				return os.Rename(filepath.Join(other, "file"), filepath.Join(journal, "file"))
			},
			"run another binary": func() error { return unix.Exec(filepath.Join(other, "file"), nil, nil) },
		} {
			if err := try(); !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EXDEV) {
				t.Errorf("the thread may %s: %v", what, err)
			}
		}
		if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); abi >= 4 && !errors.Is(err, unix.EACCES) {
			t.Errorf("the thread may listen: %v", err)
		}
		if err := unix.Kill(os.Getppid(), 0); abi >= 6 && !errors.Is(err, unix.EPERM) {
			t.Errorf("the thread may send signals: %v", err)
		}
	})
}
