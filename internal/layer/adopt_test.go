package layer

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// TestAdopt_SurvivesCrash kills the process while it turns uppers into a layer: no file is lost, and the next process
// moves them back, even if it is killed too.
func TestAdopt_SurvivesCrash(t *testing.T) {
	const id = timeline.LayerID("00000000000000ff")
	for k := 1; ; k++ {
		w := newWorld(t, t.TempDir(), false)
		root, lib := filepath.Join(w.home, "root"), filepath.Join(w.home, "lib")
		parts := []rootspec.Part{{Dir: root, Path: "/"}, {Dir: lib, Path: "/usr/lib"}}
		for _, p := range parts {
			w.must(os.Mkdir(p.Dir, 0o750))
			w.must(os.WriteFile(filepath.Join(p.Dir, "file"), []byte(p.Path), 0o640))
		}
		w.f.CrashAt(k)
		err := w.s.Adopt(t.Context(), id, parts)
		reached := w.f.Failed()
		w.f.FailAt(0, 0, false)
		if !reached {
			w.must(err)
		}
		w.must(w.s.Close())

		disk := &vfs.Faulty{FS: vfs.OS()}
		for again := 1; ; again++ {
			w.s, err = Open(t.Context(), disk, filepath.Join(w.home, "layers"))
			w.must(err)
			disk.CrashAt(again)
			err = w.s.Unadopt(t.Context(), id, parts)
			crashed := disk.Failed()
			disk.FailAt(0, 0, false)
			if !crashed {
				w.must(err)
				break
			}
			w.must(w.s.Close())
		}
		for _, p := range parts {
			var st unix.Stat_t
			w.must(unix.Stat(p.Dir, &st))
			text, err := os.ReadFile(filepath.Join(p.Dir, "file"))
			if err != nil || string(text) != p.Path || st.Mode != syscall.S_IFDIR|0o750 {
				t.Fatalf("after a crash at write %d: part %s has mode %o and holds %q, %v", k, p.Path, st.Mode, text, err)
			}
		}
		if list, err := w.s.List(t.Context()); err != nil || len(list) > 0 {
			t.Errorf("after a crash at write %d: layers %v, %v", k, list, err)
		}
		w.close()
		if !reached {
			if k < 5 {
				t.Errorf("only %d writes seen", k-1)
			}
			return
		}
	}
}

// oneWay lets the first of two parts be moved into a layer, and no part be moved back.
type oneWay struct{ vfs.FS }

func (o oneWay) Rename(from int, name string, to int, as string) error {
	if name == "lib" && as == "lib" || name == "fs" && as == "root" {
		return unix.EIO
	}
	return o.FS.Rename(from, name, to, as)
}

// TestAdopt_KeepsFilesOfFailedRollback covers a rollback that fails as well: the layer keeps the files that cannot be
// moved back, for another attempt.
func TestAdopt_KeepsFilesOfFailedRollback(t *testing.T) {
	const id = timeline.LayerID("00000000000000ff")
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	root, lib := filepath.Join(w.home, "root"), filepath.Join(w.home, "lib")
	parts := []rootspec.Part{{Dir: root, Path: "/"}, {Dir: lib, Path: "/usr/lib"}}
	for _, p := range parts {
		w.must(os.Mkdir(p.Dir, 0o750))
		w.must(os.WriteFile(filepath.Join(p.Dir, "file"), []byte(p.Path), 0o640))
	}
	sound := w.s.fs
	w.s.fs = oneWay{sound}
	if err := w.s.Adopt(t.Context(), id, parts); !errors.Is(err, unix.EIO) {
		t.Errorf("adopt: %v", err)
	}
	if err := w.s.Unadopt(t.Context(), id, parts); !errors.Is(err, unix.EIO) {
		t.Errorf("the next try: %v", err)
	}
	w.s.fs = sound
	w.must(w.s.Unadopt(t.Context(), id, parts))
	for _, p := range parts {
		if text, err := os.ReadFile(filepath.Join(p.Dir, "file")); err != nil || string(text) != p.Path {
			t.Errorf("part %s: %q, %v", p.Path, text, err)
		}
	}
}

// TestUnadopt_FollowsNoLink covers an upper of / with a link out of the layer on the path to another part.
func TestUnadopt_FollowsNoLink(t *testing.T) {
	const id = timeline.LayerID("00000000000000ff")
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	root, lib, outside := filepath.Join(w.home, "root"), filepath.Join(w.home, "lib"), filepath.Join(w.home, "outside")
	w.must(os.MkdirAll(filepath.Join(outside, "local", "lib"), 0o750))
	w.must(os.Mkdir(root, 0o750))
	w.must(os.Symlink(outside, filepath.Join(root, "usr")))
	w.must(os.Mkdir(lib, 0o750))
	parts := []rootspec.Part{{Dir: root, Path: "/"}, {Dir: lib, Path: "/usr/local/lib"}}
	if err := w.s.Adopt(t.Context(), id, parts); err == nil {
		t.Error("adopted through a link")
	}
	w.must(os.Remove(lib))
	w.must(w.s.Unadopt(t.Context(), id, parts))
	for _, dir := range []string{root, filepath.Join(outside, "local", "lib")} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

func TestUnadopt_OverwritesNothing(t *testing.T) {
	const id = timeline.LayerID("00000000000000ff")
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	upper := filepath.Join(w.home, "upper")
	parts := []rootspec.Part{{Dir: upper, Path: "/"}}
	w.must(os.Mkdir(upper, 0o750))
	w.must(os.WriteFile(filepath.Join(upper, "old"), nil, 0o600))
	w.must(w.s.Adopt(t.Context(), id, parts))
	w.must(os.Mkdir(upper, 0o750))
	w.must(os.WriteFile(filepath.Join(upper, "new"), nil, 0o600))
	if err := w.s.Unadopt(t.Context(), id, parts); !errors.Is(err, os.ErrExist) {
		t.Errorf("a part that is in two places: %v", err)
	}
	for _, f := range []string{filepath.Join(upper, "new"), filepath.Join(w.s.Dir(id), "old")} {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
}
