package dirfd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func openTemp(t *testing.T) (*os.File, string) {
	t.Helper()
	dir := t.TempDir()
	top, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { top.Close() })
	return top, dir
}

func TestOpenFile_FollowsNoLinkAndLeavesNothing(t *testing.T) {
	t.Parallel()
	top, dir := openTemp(t)
	outside := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "f"), nil, 0o600), os.Mkdir(filepath.Join(dir, "d"), 0o700),
		os.WriteFile(filepath.Join(dir, "d/f"), nil, 0o600),
		os.Symlink(outside, filepath.Join(dir, "out")), os.Symlink("d", filepath.Join(dir, "in")),
		os.Symlink("/proc/self/root", filepath.Join(dir, "magic")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]error{"d/f": nil, "": nil, "d": nil, "fifo": nil, "out/f": unix.ELOOP,
		"in/f": unix.ELOOP, "in": unix.ELOOP, "magic/etc": unix.ELOOP,
		"../x": unix.EXDEV, outside: unix.EXDEV, "d/f/x": unix.ENOTDIR, "no": unix.ENOENT} {
		f, err := OpenFile(top, p, os.O_RDONLY, 0)
		if !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", p, err, want)
		}
		if err == nil {
			f.Close()
		}
	}
	for _, p := range []string{"out/new", "in/new", "../new"} {
		if err := MkdirAll(top, p, 0o700); err == nil {
			t.Errorf("%q was created", p)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
		t.Errorf("outside: %v, %v", left, err)
	}
}

func TestMkdirAll_CreatesDeepestPaths(t *testing.T) {
	t.Parallel()
	top, _ := openTemp(t)
	deep := strings.TrimSuffix(strings.Repeat("d/", 2047), "/")
	for range 2 {
		if err := MkdirAll(top, deep, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f, err := OpenFile(top, deep+"/fff", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		f.Close()
		t.Error("a path longer than PATH_MAX was opened")
	}
	if f, err = OpenFile(top, deep, os.O_RDONLY, 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
}
