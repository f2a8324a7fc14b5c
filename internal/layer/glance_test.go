package layer

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// glance returns a glance at the live root of w.
func (w *world) glance() Glance {
	w.t.Helper()
	g, err := w.s.Glance(context.Background(), CaptureInput{Parts: w.parts, Index: w.index, Plain: w.plain})
	w.must(err)
	return g
}

// calm waits until captured changes can be distinguished from later ones.
func (w *world) calm() {
	w.t.Helper()
	for w.glance().Unsure {
		time.Sleep(2 * racyWindow)
		w.capture()
	}
}

func TestGlance(t *testing.T) {
	for name, plain := range map[string]bool{"plain": true, "overlay": false} {
		t.Run(name, func(t *testing.T) {
			if !plain {
				needOverlay(t)
			}
			w := newWorld(t, t.TempDir(), plain)
			defer w.close()
			w.base(func(src string) {
				w.must(os.MkdirAll(filepath.Join(src, "d/e"), 0o755))
				w.must(os.WriteFile(filepath.Join(src, "d/f"), []byte("f"), 0o644))
			})
			w.present()
			w.capture()
			w.calm()
			if g := w.glance(); g.Changed || g.Unsure {
				t.Fatalf("nothing changed: %+v", g)
			}
			at := func(p string) string { return filepath.Join(w.live, p) }
			for _, do := range []func() error{
				func() error { return os.WriteFile(at("d/f"), []byte("g"), 0o644) },
				func() error { return os.WriteFile(at("d/e/new"), nil, 0o644) },
				func() error { return os.Chmod(at("d/e"), 0o700) },
				func() error { return os.Remove(at("d/e/new")) },
				func() error { return os.Remove(at("d/f")) },
				func() error { return os.Symlink("x", at("link")) },
				func() error { return os.Rename(at("link"), at("d/e/link")) },
				func() error { return os.Chtimes(at("d"), time.Unix(1, 0), time.Unix(1, 0)) },
			} {
				before := time.Now().Add(-2 * racyWindow)
				w.must(do())
				g := w.glance()
				if !g.Changed || g.Oldest.Before(before) || g.Newest.Before(g.Oldest) || g.Newest.After(time.Now()) {
					t.Errorf("a change at %v: %+v", before, g)
				}
				if w.capture().Empty {
					t.Error("there was nothing to capture")
				}
				w.calm()
			}
		})
	}
}

// TestGlance_TimesAside covers a file that is created and removed again, which changes only
// the time of its directory.
func TestGlance_TimesAside(t *testing.T) {
	for name, plain := range map[string]bool{"plain": true, "overlay": false} {
		t.Run(name, func(t *testing.T) {
			if !plain {
				needOverlay(t)
			}
			w := newWorld(t, t.TempDir(), plain)
			defer w.close()
			w.base(func(src string) { w.must(os.MkdirAll(filepath.Join(src, "d/e"), 0o755)) })
			w.present()
			w.capture()
			w.calm()
			look := func() (Glance, Captured) {
				in := CaptureInput{Parts: w.parts, Index: w.index, Plain: plain,
					Head: func() *View { return w.s.View(w.dirs(w.stack)) }, TimesAside: true}
				g, err := w.s.Glance(context.Background(), in)
				w.must(err)
				c, err := w.s.Capture(context.Background(), "00000000000000ff", in)
				w.must(err)
				if !c.Empty {
					w.must(w.s.Remove(context.Background(), "00000000000000ff"))
				} else if c.Index != w.index {
					t.Error("the index was updated, so the times would be lost")
				}
				return g, c
			}
			f := filepath.Join(w.live, "d/e/f")
			w.must(os.WriteFile(f, nil, 0o644))
			w.must(os.Remove(f))
			if g, c := look(); g.Changed || !c.Empty {
				t.Errorf("%+v, %+v", g, c)
			}
			// They are captured with the next change, such as that of a directory's mode.
			w.must(os.Chmod(filepath.Join(w.live, "d/e"), 0o700))
			if g, c := look(); !g.Changed || c.Empty {
				t.Errorf("a mode: %+v, %+v", g, c)
			}
			w.capture()
			w.calm()
			w.must(os.Mkdir(filepath.Join(w.live, "d/new"), 0o755))
			if g, c := look(); !g.Changed || c.Empty {
				t.Errorf("a directory: %+v, %+v", g, c)
			}
			w.capture()
		})
	}
}

func TestGlance_ToleratesChangingTree(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.base(func(src string) { w.must(os.Mkdir(filepath.Join(src, "d"), 0o755)) })
	w.present()
	w.capture()
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		writers.Go(func() {
			p := filepath.Join(w.live, "d", name)
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = os.MkdirAll(filepath.Join(p, "x/y/z"), 0o755)
				_ = os.WriteFile(filepath.Join(p, "x/f"), []byte("f"), 0o644)
				_ = os.RemoveAll(p)
				_ = os.Symlink("/", p)
				_ = os.Remove(p)
			}
		})
	}
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		if g := w.glance(); g.Changed && g.Newest.IsZero() {
			t.Errorf("%+v", g)
		}
	}
	close(stop)
	writers.Wait()
}
