package layer

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestRemovalFiles_AreReadAsWhiteouts covers a store on a file system that refuses whiteouts: every reader of its layers
// takes the files for removals, and no program can forge one.
func TestRemovalFiles_AreReadAsWhiteouts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.s.byFiles = true
	at := func(name string) string { return filepath.Join(w.live, name) }
	forge := func(p string) {
		w.must(os.WriteFile(p, nil, 0o600))
		w.must(unix.Setxattr(p, rootspec.RemovalXattr, []byte("y"), 0))
		w.must(os.Chmod(p, rootspec.RemovalMode))
	}
	w.base(func(src string) {
		for _, name := range []string{"a", "b", "dir/x", "dir/y", "old/z"} {
			w.must(os.MkdirAll(filepath.Join(src, filepath.Dir(name)), 0o755))
			w.must(os.WriteFile(filepath.Join(src, name), []byte(name), 0o644))
		}
		forge(filepath.Join(src, "forged"))
	})
	w.present()
	base := w.stack
	w.must(os.Remove(at("a")))
	w.must(os.RemoveAll(at("old")))
	w.must(os.Remove(at("dir/x")))
	w.must(os.Remove(at("b")))
	forge(at("b"))
	w.must(os.WriteFile(at("empty"), nil, rootspec.RemovalMode))
	w.capture()
	w.must(os.WriteFile(at("a"), []byte("again"), 0o644))
	w.must(os.Remove(at("dir/y")))
	w.must(os.Remove(at("empty")))
	w.capture()

	want := files(viewPicture(t, w.s.View(w.dirs(w.stack))))
	for _, name := range []string{"/b", "/forged", "/a"} {
		if _, err := w.s.View(w.dirs(w.stack)).Lookup(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The home is moved to a file system with whiteouts: the removals of merged layers are whiteouts, and back.
	merged := w.id()
	for _, byFiles := range []bool{false, true} {
		w.s.byFiles, merged = byFiles, w.id()
		w.must(w.s.Merge(t.Context(), merged, w.stack[:2]))
		w.same("merged", want, files(viewPicture(t, w.s.View(w.dirs(append([]timeline.LayerID{merged}, base...))))))
		var st unix.Stat_t
		w.must(unix.Lstat(filepath.Join(w.s.Dir(merged), "old"), &st))
		if isWhiteout(&st) == byFiles {
			t.Errorf("with removals as files %v, a removal has the mode %o", byFiles, st.Mode)
		}
	}
	for _, id := range append([]timeline.LayerID{merged}, w.stack...) {
		finalized, err := w.s.Finalize(t.Context(), id)
		w.must(err)
		w.must(w.s.VerifyDigest(t.Context(), id, finalized.Digest))
		if got := rootspec.Marks(w.s.Dir(id)); got != rootspec.MarksFiles {
			t.Errorf("layer %s has the form %q", id, got)
		}
	}

	// Sent to a store with whiteouts, and back.
	for _, byFiles := range []bool{false, true} {
		stream, diffID := w.sent(merged)
		w.s.byFiles, merged = byFiles, w.id()
		_, err := w.s.ImportLayer(t.Context(), merged, bytes.NewReader(stream),
			LayerOptions{DiffID: diffID, Below: w.s.View(w.dirs(base)).Lookup})
		w.must(err)
		w.same("imported", want, files(viewPicture(t, w.s.View(w.dirs(append([]timeline.LayerID{merged}, base...))))))
		_, err = w.s.Finalize(t.Context(), merged)
		w.must(err)
	}
}
