package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/vfs"
)

func emptyStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.Context(), vfs.OS(), filepath.Join(t.TempDir(), "layers"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestCopyContent_StopsOnCancel cancels the copy of one large file, in each way of copying bytes.
func TestCopyContent_StopsOnCancel(t *testing.T) {
	t.Parallel()
	const size = 4 * copyStep
	s := emptyStore(t)
	open := func(name string) (fd int, st unix.Stat_t) {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err == nil {
			t.Cleanup(func() { unix.Close(fd) })
			err = unix.Fstat(fd, &st)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fd, st
	}
	dir := t.TempDir()
	src, _ := open(filepath.Join(dir, "src"))
	if err := unix.Fallocate(src, 0, 0, size); err != nil {
		t.Skip("needs fallocate(2): " + err.Error())
	}
	_, st := open(filepath.Join(dir, "src"))
	for name, part := range map[string]func(ctx context.Context, dst int) error{
		"range":    func(ctx context.Context, dst int) error { return s.copyRange(ctx, dst, src, 0, size) },
		"buffered": func(ctx context.Context, dst int) error { return s.copyBuffered(ctx, dst, src, 0, size) },
		"whole":    func(ctx context.Context, dst int) error { return s.copyBytes(ctx, dst, src, &st) },
	} {
		dst, _ := open(filepath.Join(dir, name))
		if err := part(looptest.EndsAfter(t, 2), dst); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want it cancelled", name, err)
		}
		var got unix.Stat_t
		if err := unix.Fstat(dst, &got); err != nil || got.Size >= size {
			t.Errorf("%s: %d bytes were copied, %v", name, got.Size, err)
		}
	}
}

// TestRemove_StopsOnCancel matters because one directory may hold all files of a tree.
func TestRemove_StopsOnCancel(t *testing.T) {
	t.Parallel()
	s, dir := emptyStore(t), t.TempDir()
	const files = 100
	at := filepath.Join(dir, "d")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(at, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := dirfd.OpenDir(unix.AT_FDCWD, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := removeAt(looptest.EndsAfter(t, 10), s.fs, fd, "d"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want it cancelled", err)
	}
	if left, err := os.ReadDir(at); err != nil || len(left) < files/2 || len(left) == files {
		t.Errorf("%d of %d files are left, %v", len(left), files, err)
	}
}
