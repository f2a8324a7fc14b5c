package layer

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestCapture_KeepsZeroDevice captures, restores and removes a device 0:0 of a plain tree,
// which looks like a whiteout.
func TestCapture_KeepsZeroDevice(t *testing.T) {
	if !realRoot {
		t.Skip("needs real-root: to make devices")
	}
	base, with, without := timeline.LayerID("00000000000000aa"), timeline.LayerID("00000000000000bb"),
		timeline.LayerID("00000000000000cc")
	s := sparseStore(t, base, func(dir string) { _ = os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600) })
	live, again, last := filepath.Join(t.TempDir(), "live"), filepath.Join(t.TempDir(), "again"),
		filepath.Join(t.TempDir(), "last")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	view := func(ids ...timeline.LayerID) *View {
		var st rootspec.Stack
		for _, id := range ids {
			st.Layers = append(st.Layers, s.Dir(id))
		}
		return s.View(st)
	}
	for _, d := range []string{live, again, last} {
		must(os.Mkdir(d, 0o755))
	}
	must(s.Materialise(t.Context(), view(base), live))
	parts := []rootspec.Part{{Dir: live, Path: "/"}}
	index, err := s.Scan(t.Context(), parts, true)
	must(err)
	for _, name := range []string{"new", "f"} { // a new name, and one that a layer below has
		_ = os.Remove(filepath.Join(live, name))
		must(unix.Mknod(filepath.Join(live, name), unix.S_IFCHR|0o640, 0))
		must(os.Chown(filepath.Join(live, name), 7, 8))
	}
	got, err := s.Capture(t.Context(), with, CaptureInput{Parts: parts, Index: index, Plain: true})
	must(err)
	must(s.Materialise(t.Context(), view(with, base), again))
	for _, name := range []string{"new", "f"} {
		var a, b unix.Stat_t
		must(unix.Lstat(filepath.Join(live, name), &a))
		must(unix.Lstat(filepath.Join(again, name), &b))
		if a.Mode != b.Mode || a.Rdev != b.Rdev || a.Uid != b.Uid || a.Gid != b.Gid || mtimeNs(&a) != mtimeNs(&b) {
			t.Errorf("%s was restored as mode %o, device %x, owner %d:%d", name, b.Mode, b.Rdev, b.Uid, b.Gid)
		}
	}
	if _, err := s.Finalize(t.Context(), with); err != nil {
		t.Error(err)
	}
	must(os.Remove(filepath.Join(live, "new")))
	_, err = s.Capture(t.Context(), without, CaptureInput{Parts: parts, Index: got.Index, Plain: true})
	must(err)
	must(s.Materialise(t.Context(), view(without, with, base), last))
	if _, err := os.Lstat(filepath.Join(last, "new")); !os.IsNotExist(err) {
		t.Errorf("the removed entry is back: %v", err)
	}
}
