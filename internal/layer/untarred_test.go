package layer

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// wideWorld returns a world on a file system where only listxattr(2) limits the attributes of a file.
func wideWorld(t *testing.T) *world {
	t.Helper()
	if !realRoot {
		t.Skip("needs real-root: to mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Setxattr(dir, "user.probe", nil, 0); err != nil {
		t.Skipf("needs attributes on tmpfs: %v", err)
	}
	return newWorld(t, dir, true)
}

// attribute sets n attributes with long names on a file, and an attribute that overlayfs sets on a file that it
// copied.
func attribute(w *world, name string, n, size int) {
	w.t.Helper()
	w.must(unix.Setxattr(name, xattrOverlay+"metacopy", []byte("x"), 0))
	for i := range n {
		w.must(unix.Setxattr(name, fmt.Sprintf("user.%03d%s", i, strings.Repeat("n", 240)),
			bytes.Repeat([]byte("v"), size), 0))
	}
}

func TestFinalize_AcceptsLongAttributeNames(t *testing.T) {
	w := wideWorld(t)
	w.base(func(src string) { w.must(os.WriteFile(filepath.Join(src, "f"), nil, 0o600)) })
	id := w.stack[0]
	attribute(w, filepath.Join(w.s.Dir(id), "f"), 40, 1)
	got, err := w.s.Finalize(t.Context(), id)
	if err != nil || got.Digest == "" || got.DiffID == "" {
		t.Fatalf("%+v, %v", got, err)
	}
	a, err := readAttrs(xattrSource{path: filepath.Join(w.s.Dir(id), "f")}, false)
	if err != nil || a.noise || len(a.list) != 40 {
		t.Errorf("%d attributes are left, overlayfs's own among them: %v; %v", len(a.list), a.noise, err)
	}
}

// TestFinalize_DescribesEntriesUnfitForTar checks that an entry for which tar has no header has a
// manifest and can be verified, but not exported.
func TestFinalize_DescribesEntriesUnfitForTar(t *testing.T) {
	w := wideWorld(t)
	w.base(func(src string) { w.must(os.WriteFile(filepath.Join(src, "f"), nil, 0o600)) })
	id := w.stack[0]
	attribute(w, filepath.Join(w.s.Dir(id), "f"), 40, 40<<10)
	got, err := w.s.Finalize(t.Context(), id)
	if err != nil || got.Digest == "" || got.DiffID != "" {
		t.Fatalf("%+v, %v; want a digest and no DiffID", got, err)
	}
	w.must(w.s.VerifyDigest(t.Context(), id, got.Digest))
	if err := w.s.WriteTar(t.Context(), id, io.Discard); !fault.Is(err, fault.TooLarge) || fault.HintOf(err) == "" {
		t.Errorf("write as tar: %v, want too_large with a hint", err)
	}
}

func TestFinalize_FlushesUndescribableEntries(t *testing.T) {
	w := wideWorld(t)
	w.base(func(src string) { w.must(os.WriteFile(filepath.Join(src, "f"), nil, 0o600)) })
	id := w.stack[0]
	attribute(w, filepath.Join(w.s.Dir(id), "f"), 300, 1) // more than listxattr(2) returns
	got, err := w.s.Finalize(t.Context(), id)
	if err != nil || got != (Finalized{}) || w.s.Finalized(id) {
		t.Errorf("%+v, %v; want no digest", got, err)
	}
}

// TestFinalize_KeepsInvalidDeviceAsAttribute covers a number that no device can have: the
// attribute is kept as it is.
func TestFinalize_KeepsInvalidDeviceAsAttribute(t *testing.T) {
	for _, value := range []string{"c 4000000000:1", "b 4096:1", "c 1:1048576"} {
		w := newWorld(t, t.TempDir(), true)
		w.base(func(src string) {
			f := filepath.Join(src, "f")
			w.must(os.WriteFile(f, nil, 0o600))
			w.must(unix.Setxattr(f, xattrDevice, []byte(value), 0))
		})
		got, err := w.s.Finalize(t.Context(), w.stack[0])
		if err != nil || got.DiffID == "" {
			t.Errorf("%s: %+v, %v", value, got, err)
		}
	}
}

// TestSkeletonMark_IsIgnoredFromSandbox checks that the mark of a skeleton only counts where no program of a sandbox
// can have set it: neither in a live root, nor in a layer that was one. Layers of earlier versions have another mark.
func TestSkeletonMark_IsIgnoredFromSandbox(t *testing.T) {
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	w.base(func(src string) { w.must(os.Mkdir(filepath.Join(src, "d"), 0o755)) })
	base, adopted, old := w.stack[0], w.id(), w.id()
	upper := filepath.Join(w.home, "upper")
	w.must(os.MkdirAll(filepath.Join(upper, "d"), 0o755))
	w.must(os.Chmod(upper, 0o755))
	w.must(os.Chmod(filepath.Join(upper, "d"), 0o777))
	w.must(unix.Setxattr(filepath.Join(upper, "d"), xattrSkeleton1, []byte("y"), 0))
	parts := []rootspec.Part{{Dir: upper, Path: "/"}}
	mode := func(v *View) uint32 {
		e, err := v.Lookup("/d")
		w.must(err)
		return e.Mode & 0o777
	}
	below := w.dirs([]timeline.LayerID{base})
	if got := mode(w.s.LiveView(below, parts)); got != 0o777 {
		t.Errorf("in the live root d has mode %o", got)
	}
	w.must(w.s.Adopt(t.Context(), adopted, parts))
	if got := mode(w.s.View(w.dirs([]timeline.LayerID{adopted, base}))); got != 0o777 {
		t.Errorf("in the layer d has mode %o", got)
	}
	list, err := Changes(t.Context(), w.s.View(below), w.s.View(w.dirs([]timeline.LayerID{adopted, base})),
		[]rootspec.Part{{Dir: w.s.Dir(adopted), Path: "/"}}, DiffOptions{})
	if err != nil || len(list) != 1 || list[0].Path != "/d" {
		t.Errorf("the diff has %+v, %v; want /d", list, err)
	}

	w.must(os.Rename(filepath.Dir(w.s.Dir(adopted)), filepath.Dir(w.s.Dir(old))))
	w.must(unix.Removexattr(filepath.Dir(w.s.Dir(old)), xattrMarks))
	if got := mode(w.s.View(w.dirs([]timeline.LayerID{old, base}))); got != 0o755 {
		t.Errorf("in a layer of an earlier version, d has mode %o, and is a skeleton", got)
	}
	merged := w.id()
	w.must(w.s.Merge(t.Context(), merged, []timeline.LayerID{old, old}))
	if got := mode(w.s.View(w.dirs([]timeline.LayerID{merged, base}))); got != 0o755 ||
		!isSkeletonDir(t, filepath.Join(w.s.Dir(merged), "d")) {
		t.Errorf("merged from one, d has mode %o, and is a skeleton", got)
	}
}
