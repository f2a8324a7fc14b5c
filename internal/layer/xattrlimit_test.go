package layer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// imageOf makes a file system in a file, and mounts it until the test ends.
func imageOf(t *testing.T, size string, mkfs ...string) string {
	t.Helper()
	if !realRoot {
		t.Skip("needs real-root: to mount an image")
	}
	tmp, err := os.MkdirTemp("/var/tmp", "coppice-image-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	img, at := filepath.Join(tmp, "img"), filepath.Join(tmp, "mnt")
	for _, c := range [][]string{{"truncate", "-s", size, img}, append(mkfs, img), {"mkdir", at},
		{"mount", "-o", "loop", img, at}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs %s: %s: %v %s", strings.TrimPrefix(mkfs[0], "mkfs."), c[0], err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return at
}

// onExt4 returns a directory on ext4, where the attributes of a file have one block.
func onExt4(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if st.Type != unix.EXT4_SUPER_MAGIC {
		return imageOf(t, "64M", "mkfs.ext4", "-q")
	}
	return dir
}

// fillAttrs sets attributes of p until no byte more fits. The first one, which is the largest, is called first.
func fillAttrs(w *world, p, first string) {
	w.t.Helper()
	for i, size := 0, 4096; size >= 0; i++ {
		key := fmt.Sprintf("user.z%d", i)
		if i == 0 {
			key = first
		}
		var err error
		for ; size >= 0; size-- {
			if err = unix.Setxattr(p, key, bytes.Repeat([]byte("v"), size), 0); err == nil {
				break
			}
		}
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			w.must(err)
		}
	}
}

// manyAttrs sets more names than can be listed, among them one that root emulation reads.
func manyAttrs(w *world, p string) {
	w.t.Helper()
	for i := range 300 {
		w.must(unix.Setxattr(p, fmt.Sprintf("user.%0243d", i), nil, 0))
	}
	w.must(unix.Setxattr(p, xattrOwner, []byte("7:8"), 0))
}

func onBtrfs(t *testing.T) string {
	t.Helper()
	return imageOf(t, "512M", "mkfs.btrfs", "-q")
}

// TestCapture_SkipsUnstorableAttributes checks that a capture leaves out attributes that a layer cannot hold, keeps
// everything else, and counts the entries that lack some.
func TestCapture_SkipsUnstorableAttributes(t *testing.T) {
	remake := func(w *world) { // another inode, so another directory
		w.must(os.Mkdir(w.live+"/new", 0o755))
		w.must(os.RemoveAll(w.live + "/d"))
		w.must(os.Rename(w.live+"/new", w.live+"/d"))
	}
	for _, c := range []struct {
		name  string
		home  func(t *testing.T) string
		plain bool
		owned string // path with a stored owner, which is kept
		do    func(w *world)
	}{
		{"a name too long once escaped", onExt4, true, "/d/f", func(w *world) {
			w.must(unix.Setxattr(w.live+"/d/f", "user.overlay."+strings.Repeat("a", 240), nil, 0))
			w.must(unix.Setxattr(w.live+"/d/f", xattrOwner, []byte("7:8"), 0))
		}},
		{"a full block and an escaped name", onExt4, true, "",
			func(w *world) { fillAttrs(w, w.live+"/d/f", "user.overlay.a") }},
		{"a directory without room for the mark", onExt4, true, "", func(w *world) {
			remake(w)
			fillAttrs(w, w.live+"/d", "user.a")
		}},
		{"more names of a file than can be listed", onBtrfs, true, "/d/f", func(w *world) { manyAttrs(w, w.live+"/d/f") }},
		{"more names of a directory than can be listed", onBtrfs, true, "/d", func(w *world) { manyAttrs(w, w.live+"/d") }},
		{"the same of a file in overlay form", onBtrfs, false, "/d/f", func(w *world) { manyAttrs(w, w.live+"/d/f") }},
		{"the same of an opaque directory", onBtrfs, false, "/d", func(w *world) {
			remake(w)
			manyAttrs(w, w.live+"/d")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.plain {
				needOverlay(t)
			}
			w := newWorld(t, c.home(t), c.plain)
			defer w.close()
			w.base(func(dir string) {
				w.must(os.MkdirAll(dir+"/d", 0o755))
				w.must(os.WriteFile(dir+"/d/f", nil, 0o644))
				w.must(os.WriteFile(dir+"/d/old", nil, 0o644))
			})
			w.present()
			w.must(os.Remove(w.live + "/d/old"))
			c.do(w)
			w.must(os.WriteFile(w.live+"/other", []byte("x"), 0o600))
			w.must(unix.Setxattr(w.live+"/other", "user.k", []byte("v"), 0))
			id := w.id()
			got, err := w.s.Capture(t.Context(), id, CaptureInput{Parts: w.parts, Index: w.index, Plain: c.plain})
			w.must(err)
			if got.Unkept != 1 {
				t.Errorf("%d entries are reported to lack attributes, want 1", got.Unkept)
			}
			w.stack = append([]timeline.LayerID{id}, w.stack...)
			at, done := w.freshMount()
			defer done()
			has := func(p, key, want string) {
				t.Helper()
				if v, err := readXattr(xattrSource{path: at + p}, key); err != nil || string(v) != want {
					t.Errorf("%s of %s is %q (%v), want %q", key, p, v, err, want)
				}
			}
			has("/other", "user.k", "v")
			if c.owned != "" {
				has(c.owned, xattrOwner, "7:8")
			}
			if _, err := os.Lstat(at + "/d/old"); !os.IsNotExist(err) {
				t.Errorf("a removed entry shows through: %v", err)
			}
			finalized, err := w.s.Finalize(t.Context(), id)
			if err != nil || finalized.Digest == "" {
				t.Errorf("finalized as %q: %v", finalized.Digest, err)
			}
			w.must(w.s.Merge(t.Context(), w.id(), w.stack))
		})
	}
}

// TestRewind_RefusesUnlistableAttributes covers attributes that cannot be listed, and so cannot be removed one by
// one: an in-place rewind reports this, and leaves no entry behind that only appears to be that of the snapshot.
func TestRewind_RefusesUnlistableAttributes(t *testing.T) {
	w := wideWorld(t)
	defer w.close()
	w.base(func(dir string) { w.must(os.WriteFile(dir+"/f", nil, 0o644)) })
	w.present()
	manyAttrs(w, w.live+"/f")
	root, err := dirfd.OpenDir(unix.AT_FDCWD, w.live)
	w.must(err)
	defer unix.Close(root)
	_, err = w.s.Rewind(t.Context(), RewindInput{
		Root: root, Parts: []string{"/"}, Target: w.s.View(w.dirs(w.stack)),
		Touched: []rootspec.Part{{Dir: w.s.Dir(w.stack[0]), Path: "/"}},
	})
	if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("%v; want an error with a hint", err)
	}
}

// TestCapture_FullDiskDropsNoAttributes checks that a full disk is not mistaken for attributes that do not fit:
// however much space is left, either all of them are captured or the capture fails.
func TestCapture_FullDiskDropsNoAttributes(t *testing.T) {
	home, live := imageOf(t, "16M", "mkfs.ext4", "-q", "-m", "0"), t.TempDir()
	s, err := Open(t.Context(), vfs.OS(), filepath.Join(home, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 8 {
		p := filepath.Join(live, fmt.Sprint(i))
		if err := errors.Join(os.WriteFile(p, nil, 0o600),
			unix.Setxattr(p, "user.k", bytes.Repeat([]byte{byte(i)}, 600), 0)); err != nil {
			t.Fatal(err)
		}
	}
	full := 0
	for blocks := range uint64(24) {
		leaveFree(t, filepath.Join(home, "ballast"), blocks)
		id := timeline.LayerID(fmt.Sprintf("%016x", blocks))
		got, err := s.Capture(t.Context(), id, CaptureInput{Parts: []rootspec.Part{{Dir: live, Path: "/"}}, Plain: true})
		if fault.Is(err, fault.NoSpace) {
			full++
			continue
		}
		if err != nil || got.Unkept > 0 {
			t.Errorf("with %d free blocks: %d entries lack attributes, %v", blocks, got.Unkept, err)
		}
		if err := s.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if full == 0 || full == 24 {
		t.Errorf("%d of 24 captures found a full disk", full)
	}
}

// leaveFree lets the file p take all but the given number of blocks of its file system.
func leaveFree(t *testing.T, p string, blocks uint64) {
	t.Helper()
	f, err := os.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := errors.Join(f.Sync(), unix.Fstatfs(int(f.Fd()), &st)); err != nil {
		t.Fatal(err)
	}
	for n := int64(st.Bavail-blocks) * st.Bsize; n > 0; n -= st.Bsize { // less the space of the extents themselves
		if err = unix.Fallocate(int(f.Fd()), 0, 0, n); err == nil {
			return
		}
	}
	t.Fatal(err)
}
