package layer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// built makes a layer on top of the stack.
func (w *world) built(fill func(b *Builder) error) timeline.LayerID {
	w.t.Helper()
	id := w.id()
	w.must(w.s.Build(context.Background(), id, fill))
	w.stack = append([]timeline.LayerID{id}, w.stack...)
	return id
}

// TestBuild_LayerMatchesMountAndView compares a built layer with the kernel's mount and with a view: files over
// files, removed entries and hidden entries.
func TestBuild_LayerMatchesMountAndView(t *testing.T) {
	needOverlay(t)
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	w.base(func(src string) {
		for _, p := range []string{"home/me/repo/old", "home/me/repo/goes/deep/x", "home/me/repo/goes.file",
			"home/me/repo/stays/x", "home/me/repo/swap", "home/me/other/x"} {
			w.must(os.MkdirAll(filepath.Join(src, filepath.Dir(p)), 0o755))
			w.must(os.WriteFile(filepath.Join(src, p), []byte("below"), 0o644))
		}
		w.must(os.Chmod(filepath.Join(src, "home/me"), 0o700))
	})
	at := time.Unix(1_600_000_000, 123456789)
	id := w.built(func(b *Builder) error {
		for _, d := range []string{"home", "home/me", "home/me/repo", "home/me/repo/stays", "home/me/repo/swap",
			"home/me/bare"} {
			w.must(b.Dir(d, DirMeta{Mode: 0o1750, Mtime: at, Skeleton: d == "home"}))
		}
		w.must(b.Whiteout("home/me/repo/goes"))
		w.must(b.Whiteout("home/me/repo/goes.file"))
		w.must(b.Opaque("home/me/repo/swap"))
		w.must(b.Opaque("home/me/bare"))
		w.must(b.Root().WriteFile("home/me/repo/old", []byte("above"), 0o600))
		w.must(b.Root().WriteFile("home/me/repo/swap/in", []byte("above"), 0o600))
		return nil
	})
	fresh, done := w.freshMount()
	defer done()
	// The kernel does not know skeletons: it shows their own metadata.
	want, got := picture(t, fresh), viewPicture(t, w.s.View(w.dirs(w.stack)))
	for _, skeleton := range []string{"/", "/home"} {
		delete(want, skeleton)
		delete(got, skeleton)
	}
	w.same("view", want, got)
	for p, there := range map[string]bool{"old": true, "goes": false, "goes.file": false, "stays/x": true,
		"swap/in": true} {
		if _, err := os.Stat(filepath.Join(fresh, "home/me/repo", p)); (err == nil) != there {
			t.Errorf("%s: %v", p, err)
		}
	}
	var st unix.Stat_t
	w.must(unix.Stat(filepath.Join(fresh, "home/me/repo"), &st))
	if st.Mode&0o7777 != 0o1750 || mtimeNs(&st) != at.UnixNano() {
		t.Errorf("%o %d", st.Mode, mtimeNs(&st))
	}
	_, err := w.s.Finalize(context.Background(), id)
	w.must(err)
	w.must(w.s.Verify(context.Background(), id))
}

func TestBuild_IsAtomic(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	const id = timeline.LayerID("00000000000000b1")
	broken := errors.New("broken")
	fill := func(err error) func(b *Builder) error {
		return func(b *Builder) error {
			w.must(b.Root().WriteFile("x", nil, 0o644))
			w.must(b.Dir("d", DirMeta{Mode: 0o755}))
			w.must(b.Whiteout("d/gone"))
			return err
		}
	}
	if err := w.s.Build(context.Background(), id, fill(broken)); !errors.Is(err, broken) || w.s.Has(id) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := w.s.Build(ctx, id,
		func(b *Builder) error { cancel(); return fill(nil)(b) }); !fault.Is(err, fault.Cancelled) || w.s.Has(id) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(filepath.Join(w.home, "layers", "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	w.must(w.s.Build(context.Background(), id, fill(nil)))
	if err := w.s.Build(context.Background(), id, fill(nil)); !fault.Is(err, fault.Exists) {
		t.Errorf("%v", err)
	}
	for _, bad := range []timeline.LayerID{"", "../../x", "B1"} {
		if err := w.s.Build(context.Background(), bad, fill(nil)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestBuilder_StaysInLayer checks that no request to a builder has an effect outside its layer.
func TestBuilder_StaysInLayer(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	err := w.s.Build(context.Background(), "00000000000000b1", func(b *Builder) error {
		w.must(b.Root().Symlink(w.home, "link"))
		for _, p := range []string{"../x", "..", ".", "/x", "link/x", "a/../../x", "no/where", ""} {
			if err := b.Whiteout(p); err == nil {
				t.Errorf("a whiteout at %q", p)
			}
			if err := b.Dir(p, DirMeta{Mode: 0o700}); err == nil && p != "." && p != "" {
				t.Errorf("a directory at %q", p)
			}
			if err := b.Opaque(p); err == nil && p != "." && p != "" {
				t.Errorf("%q is opaque", p)
			}
		}
		return nil
	})
	w.must(err)
	for _, p := range []string{"x", "layers/x", "layers/tmp/x"} {
		if _, err := os.Lstat(filepath.Join(w.home, p)); err == nil || !strings.Contains(err.Error(), "no such") {
			t.Errorf("%s: %v", p, err)
		}
	}
}
