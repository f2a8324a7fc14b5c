package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestWriteFile checks that whichever call fails, and whenever a crash happens, a file is the old one or the new one;
// the new one once WriteFile has returned.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	for k := 1; ; k++ {
		d := newDisk(t)
		d.create("f", "old")
		d.create("f.tmp", "of a process that was killed")
		d.sync("f", "f.tmp", "")
		f := &Faulty{FS: d.Crashable}
		f.FailAt(k, syscall.EIO, false)
		done := false
		check := func(at string) {
			got, err := os.ReadFile(filepath.Join(at, "f"))
			d.must(err)
			if s := string(got); s != "new" && (s != "old" || done) {
				t.Errorf("call %d fails, written: %v: %q", k, done, s)
			}
		}
		clones := func() {
			for _, how := range []Crash{Kill, {}, {Names: 100}, PowerLoss(uint64(k))} {
				check(d.clone(how))
			}
		}
		d.OnCall = func(Op) { clones() }
		err := WriteFile(f, d.path("f"), []byte("new"))
		d.OnCall = nil
		done = err == nil
		clones()
		check(d.path(""))
		failed := f.Failed()
		if !failed && err != nil || failed && !errors.Is(err, syscall.EIO) {
			t.Errorf("call %d fails: %v", k, err)
		}
		f.FailAt(0, 0, false)
		d.must(WriteFile(f, d.path("f"), []byte("new")))
		d.left(nothing, "f", "new")
		d.close()
		if !failed {
			break
		}
	}
}

func TestWriteUnsynced(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	defer d.close()
	d.must(MkdirAll(d, d.path("a/b")), MkdirAll(d, d.path("a/b")), NoteUnsynced(d, d.path("a/b/f"), []byte("new")))
	d.left(Kill, "a", "/", "a/b", "/", "a/b/f", "new")
	d.left(nothing)
	d.must(Sync(d, d.path("")), Sync(d, d.path("a")), Sync(d, d.path("a/b")))
	d.left(nothing, "a", "/", "a/b", "/", "a/b/f", "")
	d.must(Rename(d, d.path("a/b/f"), d.path("g")), Remove(d, d.path("g")), Remove(d, d.path("g")),
		Remove(d, d.path("none/g")))
	d.left(Kill, "a", "/", "a/b", "/")
	failed := errors.New("no more")
	err := WriteUnsynced(d, d.path("h"), func(w *Writer) error {
		for i := range 3 {
			if _, err := fmt.Fprint(w, i); err != nil {
				return err
			}
		}
		return failed
	})
	var named *fs.PathError
	if !errors.Is(err, failed) || !errors.As(err, &named) || named.Path != d.path("h") {
		t.Errorf("%v", err)
	}
	d.left(Kill, "a", "/", "a/b", "/")
	d.must(os.WriteFile(d.path("h"), nil, 0o600))
	for _, path := range []string{"h", "h/i"} {
		if err := MkdirAll(d, d.path(path)); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a directory %s, and h is a file: %v", path, err)
		}
	}
}
