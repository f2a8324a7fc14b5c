package diskuse

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
)

func newWalk(t *testing.T) *walk {
	return &walk{ctx: t.Context(), tell: func(int) {}, mostNames: math.MaxInt, mostLinks: math.MaxInt}
}

// measure measures dir.
func measure(t *testing.T, w *walk, dir string) *sum {
	t.Helper()
	at, err := dirfd.OpenDir(unix.AT_FDCWD, filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(at)
	s := &sum{links: map[inode]*linked{}}
	if err := w.tree(at, filepath.Base(dir), s); err != nil {
		t.Fatal(err)
	}
	if w.names != 0 {
		t.Errorf("%d names are still counted after the walk", w.names)
	}
	return s
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// file writes n bytes to a file, and returns the size of its blocks in bytes.
func file(t *testing.T, name string, n int) int64 {
	t.Helper()
	must(t, os.WriteFile(name, make([]byte, n), 0o600))
	return blocks(t, name)
}

func blocks(t *testing.T, name string) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(name, &st))
	return st.Blocks * 512
}

func TestTree_CountsAFileOfSeveralNamesOnce(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	a, b := filepath.Join(top, "a"), filepath.Join(top, "b")
	must(t, os.Mkdir(a, 0o700), os.Mkdir(b, 0o700))
	one := file(t, a+"/one", 100_000)
	both := file(t, a+"/both", 50_000)
	must(t, os.Link(a+"/both", b+"/both"))
	inside := file(t, b+"/x", 30_000)
	must(t, os.Link(b+"/x", b+"/y"))
	da, db := blocks(t, a), blocks(t, b)

	sa, sb := measure(t, newWalk(t), a), measure(t, newWalk(t), b)
	if got, want := sa.bytes()+sb.bytes(), da+db+one+both+inside; got != want {
		t.Errorf("%d bytes in both, want %d", got, want)
	}
	// Files with a link in the other tree are not freed.
	if got, want := sa.freed(), da+one; got != want {
		t.Errorf("removing a frees %d bytes, want %d", got, want)
	}
	if got, want := sb.freed(), db+inside; got != want {
		t.Errorf("removing b frees %d bytes, want %d", got, want)
	}
}

func TestTree_FollowsNoLinkAndEntersNothingElse(t *testing.T) {
	t.Parallel()
	top, outside := t.TempDir(), t.TempDir()
	file(t, filepath.Join(outside, "large"), 1<<20)
	dir := filepath.Join(top, "d")
	must(t, os.Mkdir(dir, 0o700), os.Symlink(outside, filepath.Join(dir, "out")),
		os.Symlink("/proc/self/root", filepath.Join(dir, "magic")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		os.Symlink(outside, filepath.Join(top, "link")))
	if n := measure(t, newWalk(t), dir).bytes(); n >= 1<<20 {
		t.Errorf("%d bytes", n)
	}
	if n := measure(t, newWalk(t), filepath.Join(top, "link")).bytes(); n >= 1<<20 {
		t.Errorf("%d bytes of a link", n)
	}
	if n := measure(t, newWalk(t), filepath.Join(top, "missing")).bytes(); n != 0 {
		t.Errorf("%d bytes of a missing entry", n)
	}
}

// nest creates n nested directories, deeper than a path can be.
func nest(t *testing.T, dir string, n int) {
	t.Helper()
	at, err := dirfd.OpenDir(unix.AT_FDCWD, dir)
	must(t, err)
	for i := range n {
		must(t, unix.Mkdirat(at, "d"+strconv.Itoa(i), 0o700))
		next, err := dirfd.OpenDir(at, "d"+strconv.Itoa(i))
		must(t, err, unix.Close(at))
		at = next
	}
	fd, err := unix.Openat(at, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	must(t, err)
	_, err = unix.Write(fd, make([]byte, 1<<20))
	must(t, err, unix.Close(fd), unix.Close(at))
}

func TestTree_MeasuresDirectoriesOfAnyDepth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nest(t, dir, 3000)
	w := newWalk(t)
	if n := measure(t, w, dir).bytes(); n < 1<<20 || w.partial || w.files != 3001 {
		t.Errorf("%d bytes, %d files, partial %v", n, w.files, w.partial)
	}
}

func TestTree_CountsUpToItsBounds(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "d")
	must(t, os.Mkdir(dir, 0o700))
	for i := range 10 {
		sub := filepath.Join(dir, strconv.Itoa(i))
		must(t, os.Mkdir(sub, 0o700))
		file(t, sub+"/f", 100_000)
		must(t, os.Link(sub+"/f", sub+"/g"))
	}
	w := newWalk(t)
	whole := measure(t, w, dir)
	if w.partial {
		t.Error("partial without a bound")
	}
	w = newWalk(t)
	w.mostNames = 5
	if s := measure(t, w, dir); !w.partial || s.bytes() >= whole.bytes() {
		t.Errorf("%d of %d bytes with few names, partial %v", s.bytes(), whole.bytes(), w.partial)
	}
	w = newWalk(t)
	w.mostLinks = 5
	if s := measure(t, w, dir); !w.partial || s.bytes() != whole.bytes() || s.freed() >= whole.freed() {
		t.Errorf("%d of %d bytes with few links, partial %v", s.bytes(), whole.bytes(), w.partial)
	}
}

func TestTree_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 2 * tellEvery {
		file(t, filepath.Join(dir, strconv.Itoa(i)), 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := newWalk(t)
	w.ctx = ctx
	told := 0
	w.tell = func(int) { told++; cancel() }
	at, err := dirfd.OpenDir(unix.AT_FDCWD, filepath.Dir(dir))
	must(t, err)
	defer unix.Close(at)
	if err := w.tree(at, filepath.Base(dir), &sum{}); !errors.Is(err, context.Canceled) || told != 1 {
		t.Errorf("%v after %d reports", err, told)
	}
}

// TestTree_MeasuresWhatChanges checks that a tree that processes change can be measured at any time.
func TestTree_MeasuresWhatChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file(t, filepath.Join(dir, "stays"), 1<<20)
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o700), os.Mkdir(filepath.Join(dir, "else"), 0o700))
	nest(t, filepath.Join(dir, "d"), 100)
	deep := filepath.Join(dir, "d/d0/d1")
	stop := make(chan struct{})
	var moves sync.WaitGroup
	moves.Go(func() {
		for {
			select {
			case <-stop:
				return
			default: // a directory is moved away and back while the walk is below it
				_ = unix.Rename(deep, filepath.Join(dir, "else/d1"))
				_ = unix.Rename(filepath.Join(dir, "else/d1"), deep)
			}
		}
	})
	for range 50 {
		if n := measure(t, newWalk(t), dir).bytes(); n < 1<<20 || n > 6<<20 {
			t.Errorf("%d bytes", n)
			break
		}
	}
	close(stop)
	moves.Wait()
}
