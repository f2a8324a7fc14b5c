//go:build linux

package boxfs

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// watching collects the events of a watch.
type watching struct {
	mu   sync.Mutex
	seen []string
}

func (w world) watch(p string, recursive bool) (*watching, func() error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	x := &watching{}
	ready := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- w.Watch(ctx, p, recursive, func(e wire.FileEvent) error {
			if e.Kind == "" {
				close(ready)
				return nil
			}
			s := e.Kind + " " + e.Name()
			if e.From != "" {
				s += " from " + e.From
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.seen = append(x.seen, s)
			return nil
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		w.t.Fatal(err)
	}
	return x, func() error { cancel(); return <-done }
}

func (x *watching) sees(t *testing.T, want ...string) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for {
		x.mu.Lock()
		all := strings.Join(x.seen, "\n") + "\n"
		x.mu.Unlock()
		missing := ""
		for _, s := range want {
			if !strings.Contains(all, s+"\n") {
				missing = s
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no %q among:\n%s", missing, all)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.Mkdir("d/sub", 0, true))
	must(t, w.Mkdir("other", 0, true))
	x, stop := w.watch("d", true)
	w.write("d/f", "1")
	w.write("d/f", "2")
	must(t, os.WriteFile(w.dir+"/d/sub/g", nil, 0o644))
	must(t, w.Mkdir("d/new/deep", 0, true))
	x.sees(t, "created d/f", "written d/f", "created d/sub/g", "written d/sub/g", "created d/new", "created d/new/deep")
	must(t, os.WriteFile(w.dir+"/d/new/deep/h\xff", nil, 0o644))
	must(t, os.Rename(w.dir+"/d/f", w.dir+"/d/sub/f2"))
	must(t, os.Rename(w.dir+"/d/new", w.dir+"/d/renamed"))
	x.sees(t, "created d/new/deep/h\xff", "moved d/sub/f2 from d/f", "moved d/renamed from d/new")
	must(t, os.WriteFile(w.dir+"/d/renamed/deep/i", nil, 0o644))
	must(t, os.Chmod(w.dir+"/d/sub/g", 0o600))
	must(t, os.Rename(w.dir+"/d/sub/g", w.dir+"/other/g"))
	must(t, os.Remove(w.dir+"/d/sub/f2"))
	x.sees(t, "created d/renamed/deep/i", "attributes d/sub/g", "removed d/sub/g", "removed d/sub/f2")
	must(t, os.Rename(w.dir+"/d/renamed", w.dir+"/other/away"))
	must(t, os.WriteFile(w.dir+"/other/away/unseen", nil, 0o644))
	must(t, os.Rename(w.dir+"/other/away", w.dir+"/d/back"))
	x.sees(t, "removed d/renamed", "created d/back", "created d/back/deep")
	for _, s := range x.seen {
		if strings.Contains(s, scratch) || strings.Contains(s, "#") {
			t.Errorf("reported %q", s)
		}
	}
	if err := stop(); err == nil {
		t.Error("a cancelled watch returned no error")
	}
}

func TestWatch_IsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.Watches = 5 })
	for i := range 10 {
		must(t, w.Mkdir(fmt.Sprint("d/", i), 0, true))
	}
	var got []string
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_ = w.Watch(ctx, "d", true, func(e wire.FileEvent) error {
		got = append(got, e.Kind)
		if e.Kind == "" {
			cancel()
		}
		return nil
	})
	if strings.Join(got, " ") != "overflow " {
		t.Errorf("%q", got)
	}
}

func TestWatch_EndsWhenDirectoryIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.Mkdir("d", 0, true))
	done := make(chan error, 1)
	ready := make(chan struct{}, 1)
	go func() {
		done <- w.Watch(t.Context(), "d", false, func(wire.FileEvent) error { ready <- struct{}{}; return nil })
	}()
	<-ready
	must(t, w.Remove(t.Context(), "d", true))
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the watch did not end")
	}
}
