//go:build linux

package boxfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/looptest"
)

// nest creates n nested directories by relative names, as a program can whose paths are too long otherwise.
func (w world) nest(name string, n int) {
	w.t.Helper()
	fd, err := unix.Open(w.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(w.t, err)
	for range n {
		must(w.t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(w.t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	w.t.Cleanup(func() { _ = w.Remove(context.Background(), name, true) })
}

func TestList_RefusesPathsBeyondItsLimit(t *testing.T) {
	w := newWorld(t)
	w.nest(strings.Repeat("n", 200), 600) // 36 MB of paths
	_, err := w.List(context.Background(), ".", -1)
	w.kind(err, fault.TooLarge)
	links := newWorld(t) // hard links to one symbolic link take only the space of their names
	must(t, os.Symlink(strings.Repeat("<", 4_000), filepath.Join(links.dir, "0")))
	for i := range limit.ListBytes / 4_000 {
		must(t, os.Link(filepath.Join(links.dir, "0"), filepath.Join(links.dir, fmt.Sprint(i+1))))
	}
	_, err = links.List(context.Background(), ".", 1)
	w.kind(err, fault.TooLarge)
	if l, err := w.List(context.Background(), ".", 100); err != nil || len(l.Files) != 100 {
		t.Errorf("a hundred levels: %d files, %v", len(l.Files), err)
	}
}

func TestList_RefusesMoreEntriesThanItsLimit(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits = Limits{List: 9} })
	w.nest("d", 10)
	_, err := w.List(context.Background(), ".", -1)
	w.kind(err, fault.TooLarge)
	if n := DefaultLimits.List; n != limit.ListEntries {
		t.Errorf("the default limit is %d", n)
	}
}

func TestWatch_OmitsLongPaths(t *testing.T) {
	w := newWorld(t)
	w.nest(strings.Repeat("n", 200), 30) // 6,030 bytes
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	over, longest := 0, 0
	err := w.Watch(ctx, ".", true, func(e wire.FileEvent) error {
		if e.Kind == wire.FileOverflow {
			over, longest = over+1, max(longest, len(e.Path))
		}
		if e.Kind == "" {
			cancel()
		}
		return nil
	})
	if over != 1 || longest <= limit.WatchPath || longest > limit.WatchPath+201 {
		t.Errorf("%d overflows, the path has %d bytes, %v", over, longest, err)
	}
}

func TestPack_HoldsNoAncestorPaths(t *testing.T) {
	w := newWorld(t)
	const n = 1_000
	w.nest(strings.Repeat("n", 200), n)
	d, err := w.start(".")
	must(t, err)
	defer d.close()
	// The race detector makes a pool drop buffers at random, so the minimum of several runs counts.
	least := uint64(1 << 62)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		seen := 0
		must(t, w.walk(context.Background(), d, maxNames,
			func(*dir, string, *unix.Stat_t) (bool, error) { seen++; return true, nil }))
		runtime.ReadMemStats(&after)
		if seen != n {
			t.Fatalf("a walk saw %d of %d entries", seen, n)
		}
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	if least > 10<<20 { // the paths have 100 MB in total
		t.Errorf("a walk over %d entries allocates %d MiB", n, least>>20)
	}
}

func TestWalk_RefusesDeepTree(t *testing.T) {
	w := newWorld(t)
	w.nest("d", 2)
	d, err := w.start(".")
	must(t, err)
	defer d.close()
	d.depth = limit.Depth - 1
	err = w.walk(context.Background(), d, maxNames, func(*dir, string, *unix.Stat_t) (bool, error) { return true, nil })
	w.kind(err, fault.TooLarge)
}

func TestList_StopsOnCancel(t *testing.T) {
	w := newWorld(t)
	w.nest("d", 100)
	ctx, cancel := context.WithCancel(context.Background())
	d, err := w.start(".")
	must(t, err)
	defer d.close()
	seen := 0
	err = w.walk(ctx, d, maxNames, func(*dir, string, *unix.Stat_t) (bool, error) {
		if seen++; seen == 10 {
			cancel()
		}
		return true, nil
	})
	w.kind(err, fault.Cancelled)
	if seen > 11 {
		t.Errorf("%d entries were visited after the context ended", seen-10)
	}
	if err := w.TarTo(ctx, ".", io.Discard); !fault.Is(err, fault.Cancelled) {
		t.Errorf("TarTo: %v", err)
	}
}

// TestNames_EndWithTheirContext checks the context while names are read: one directory may have ten million, which
// are read before any of them is processed.
func TestNames_EndWithTheirContext(t *testing.T) {
	w := newWorld(t)
	for i := range 5000 {
		must(t, os.WriteFile(filepath.Join(w.dir, fmt.Sprint("a-name-of-some-length-", i)), nil, 0o600))
	}
	ctx := looptest.EndsAfter(t, 2)
	if _, err := w.List(ctx, ".", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
	if n := ctx.Calls(); n > 7 {
		t.Errorf("the context was checked %d times, 2 of them before it ended", n)
	}
}
