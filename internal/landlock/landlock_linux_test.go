package landlock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/thread"
)

// TestHandledBy checks that each version restricts what the one before does, and nothing that it does not know.
func TestHandledBy(t *testing.T) {
	t.Parallel()
	if h := HandledBy(0); h != (Handled{}) {
		t.Errorf("without Landlock: %+v", h)
	}
	last := []Handled{{}, {FS: 1<<13 - 1}, {FS: 1<<14 - 1}, {FS: 1<<15 - 1}, {FS: 1<<15 - 1, Net: 3},
		{FS: 1<<16 - 1, Net: 3}, {FS: 1<<16 - 1, Net: 3, Scoped: 3}, {FS: 1<<16 - 1, Net: 3, Scoped: 3}}
	for abi, want := range last {
		if h := HandledBy(abi); h != want {
			t.Errorf("ABI %d: %+v, want %+v", abi, h, want)
		}
	}
}

// TestRestrict_AppliesToItsThread restricts a thread to one directory and one file, and checks what it and another
// thread can do.
func TestRestrict_AppliesToItsThread(t *testing.T) {
	t.Parallel()
	abi, err := Version()
	if err != nil {
		t.Skip("needs landlock: " + err.Error())
	}
	open, closed := t.TempDir(), t.TempDir()
	for _, dir := range []string{open, closed} {
		for _, name := range []string{"file", "other"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	thread.OnOwn(func() {
		r, err := New(HandledBy(abi))
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Close()
		allow := func(path string, rights uint64) {
			fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err == nil {
				err = r.Allow(fd, rights)
				unix.Close(fd)
			}
			if err != nil {
				t.Errorf("allow %s: %v", path, err)
			}
		}
		allow(open, RunRights)
		allow(filepath.Join(closed, "file"), RunRights|unix.LANDLOCK_ACCESS_FS_MAKE_DIR) // as far as a file has them
		allow(filepath.Join(closed, "other"), unix.LANDLOCK_ACCESS_FS_MAKE_DIR)          // none: no rule
		if err := r.Allow(-1, RunRights); !errors.Is(err, unix.EBADF) {
			t.Errorf("allow no file: %v", err)
		}
		if err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), r.Restrict()); err != nil {
			t.Error(err)
			return
		}
		for path, want := range map[string]error{
			filepath.Join(open, "file"): nil, filepath.Join(closed, "file"): nil, filepath.Join(closed, "other"): unix.EACCES,
		} {
			if _, err := os.ReadFile(path); !errors.Is(err, want) {
				t.Errorf("read %s: %v, want %v", path, err, want)
			}
		}
		if err := os.WriteFile(filepath.Join(open, "file"), nil, 0o600); !errors.Is(err, unix.EACCES) {
			t.Errorf("write where only reading is allowed: %v", err)
		}
		if err := unix.Kill(os.Getppid(), 0); abi >= ABIScopes && !errors.Is(err, unix.EPERM) {
			t.Errorf("signal a process outside: %v", err)
		}
	})
	if _, err := os.ReadFile(filepath.Join(closed, "other")); err != nil {
		t.Errorf("another thread is restricted: %v", err)
	}
}

// TestAllow_ReportsUnrestrictedFiles checks the error for a file to which Landlock never refuses access.
func TestAllow_ReportsUnrestrictedFiles(t *testing.T) {
	t.Parallel()
	if _, err := Version(); err != nil {
		t.Skip("needs landlock: " + err.Error())
	}
	r, err := New(HandledBy(1))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd, err := unix.MemfdCreate("file", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := r.Allow(fd, RunRights); !errors.Is(err, unix.EBADFD) {
		t.Errorf("allow a memfd: %v", err)
	}
}
