//go:build linux

package boxfs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// instances counts the inotify instances of this process. Tests that call it are not parallel, so that there are no
// others.
func instances(t *testing.T) (n int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	must(t, err)
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == "anon_inode:inotify" {
			n++
		}
	}
	return n
}

// watcherOf is a watcher of the directory dir.
type watcherOf struct {
	*watching
	stop func() error
	dir  string
}

func (x watcherOf) end(t *testing.T) {
	t.Helper()
	if err := x.stop(); !fault.Is(err, fault.Cancelled) {
		t.Errorf("a watch ended with %v", err)
	}
}

func TestWatches_ShareOneInstance(t *testing.T) {
	before, routines := instances(t), runtime.NumGoroutine()
	shared := new(Watches)
	w := newWorld(t, func(o *Options) { o.Watches = shared })
	must(t, w.Mkdir("d/sub", 0, true))
	must(t, w.Mkdir("e", 0, true))
	other, err := New(Options{Dir: open(t, w.dir), User: me(), Watches: shared})
	must(t, err)
	defer other.Close()
	second := world{other, t, w.dir, w.base}
	var all []watcherOf
	for i := range limit.Watchers {
		of, dir := w, "d"
		if i%2 == 1 {
			of, dir = second, "e"
		}
		x, stop := of.watch(dir, true)
		all = append(all, watcherOf{x, stop, dir})
	}
	if n := instances(t) - before; n != 1 {
		t.Errorf("%d watchers have %d instances", len(all), n)
	}
	must(t, os.WriteFile(w.dir+"/d/sub/f", nil, 0o644))
	must(t, os.Rename(w.dir+"/d/sub", w.dir+"/e/sub")) // the watchers of d remove the watch, and those of e add it
	must(t, os.WriteFile(w.dir+"/e/sub/g", nil, 0o644))
	for _, x := range all {
		if x.dir == "d" {
			x.sees(t, "created d/sub/f", "removed d/sub")
		} else {
			x.sees(t, "created e/sub", "created e/sub/f", "created e/sub/g")
		}
	}
	all[0].end(t)
	must(t, os.WriteFile(w.dir+"/d/h", nil, 0o644))
	all[2].sees(t, "created d/h") // the others continue
	for _, x := range all[1:] {
		x.end(t)
	}
	if n := instances(t) - before; n != 0 {
		t.Errorf("%d instances are left", n)
	}
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > routines; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, want %d", runtime.NumGoroutine(), routines)
		}
	}
	x, stop := w.watch("d", true) // a new watcher creates an instance again
	must(t, os.WriteFile(w.dir+"/d/i", nil, 0o644))
	x.sees(t, "created d/i")
	if err := stop(); !fault.Is(err, fault.Cancelled) {
		t.Errorf("%v", err)
	}
}

// fill starts n watchers, and returns a function that ends them.
func (w world) fill(n int) (end func()) {
	var stops []func() error
	for range n {
		_, stop := w.watch(".", false)
		stops = append(stops, stop)
	}
	return func() {
		for _, stop := range stops {
			if err := stop(); !fault.Is(err, fault.Cancelled) {
				w.t.Errorf("a watch ended with %v", err)
			}
		}
	}
}

func (w world) refusesOneMore() {
	w.t.Helper()
	err := w.Watch(w.t.Context(), ".", false, func(wire.FileEvent) error { return nil })
	if !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		w.t.Errorf("a watcher beyond the limit: %v, hint %q", err, fault.HintOf(err))
	}
}

func TestWatches_BoundsTheWatchersOfASandbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	end := w.fill(limit.Watchers)
	w.refusesOneMore()
	end()
	w.fill(1)()
}

func TestWatches_BoundsTheWatchersOfAll(t *testing.T) {
	t.Parallel()
	all := new(WatchersOfAll)
	var ends []func()
	for range limit.WatchersOfAll / limit.Watchers {
		w := newWorld(t, func(o *Options) { o.Watches = &Watches{All: all} })
		ends = append(ends, w.fill(limit.Watchers))
	}
	last := newWorld(t, func(o *Options) { o.Watches = &Watches{All: all} })
	last.refusesOneMore()
	for _, end := range ends {
		end()
	}
	if n := all.n.Load(); n != 0 {
		t.Errorf("%d watchers are left", n)
	}
	last.fill(1)()
}

func TestWatches_BoundsTheDirectories(t *testing.T) {
	t.Parallel()
	shared := new(Watches)
	w := newWorld(t, func(o *Options) { o.Watches, o.Limits.Watches = shared, 2*limit.WatchedDirectories })
	must(t, os.Mkdir(w.dir+"/d", 0o755))
	for i := range limit.WatchedDirectories {
		must(t, os.Mkdir(fmt.Sprint(w.dir, "/d/", i), 0o755))
	}
	x, stop := w.watch("d", true)
	x.mu.Lock()
	// It precedes the first event, for which the test has waited.
	if len(x.seen) != 1 || !strings.HasPrefix(x.seen[0], wire.FileOverflow) {
		t.Errorf("%q", x.seen)
	}
	x.mu.Unlock()
	shared.mu.Lock()
	n := len(shared.at)
	shared.mu.Unlock()
	if n > limit.WatchedDirectories {
		t.Errorf("%d directories are watched", n)
	}
	_ = stop()
}

func TestWatches_SlowReaderDoesNotBlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Watches = new(Watches) })
	must(t, w.Mkdir("d", 0, true))
	ctx, cancel := context.WithCancel(t.Context())
	asleep, awake, overflow := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, full sync.Once
	done := make(chan error, 1)
	go func() {
		done <- w.Watch(ctx, "d", false, func(e wire.FileEvent) error {
			if e.Kind == "" {
				once.Do(func() { close(asleep) })
				<-awake
			}
			if e.Kind == wire.FileOverflow {
				full.Do(func() { close(overflow) })
			}
			return nil
		})
	}()
	<-asleep
	x, stop := w.watch("d", false)
	const each = 2 // events for creating, writing and closing an empty file
	for i := range limit.WatchQueue/each + 1 {
		name := fmt.Sprint("d/f", i)
		must(t, os.WriteFile(filepath.Join(w.dir, name), nil, 0o644))
		if i%256 == 0 {
			x.sees(t, "written "+name) // keeps the fast watcher from falling behind
		}
	}
	x.sees(t, fmt.Sprint("written d/f", limit.WatchQueue/each))
	x.mu.Lock()
	for _, s := range x.seen {
		if strings.HasPrefix(s, wire.FileOverflow) {
			t.Error("the fast watcher lost events")
		}
	}
	x.mu.Unlock()
	close(awake)
	<-overflow
	cancel()
	if err := <-done; !fault.Is(err, fault.Cancelled) {
		t.Errorf("%v", err)
	}
	_ = stop()
}
