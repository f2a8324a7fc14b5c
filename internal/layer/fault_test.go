package layer

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// oddTree fills dir with every kind of entry that a snapshot must keep.
func oddTree(t tb, dir string) {
	t.Helper()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("odd tree: %v", err)
		}
	}
	at := func(n string) string { return filepath.Join(dir, n) }
	do(os.MkdirAll(at("dir/sub/empty"), 0o755))
	do(os.WriteFile(at("dir/file"), []byte("content\n"), 0o644))
	do(os.WriteFile(at("setuid"), []byte("#!"), 0o600))
	do(unix.Chmod(at("setuid"), 0o6755))
	do(unix.Mkdir(at("sticky"), 0o755))
	do(unix.Chmod(at("sticky"), 0o1777))
	do(os.WriteFile(at("sys"), nil, 0o644))
	do(os.Link(at("dir/file"), at("dir/sub/hard")))
	do(os.Symlink("../nowhere\n", at("dir/link")))
	do(unix.Mkfifo(at("fifo"), 0o620))
	do(unix.Mknod(at("socket"), unix.S_IFSOCK|0o755, 0))
	if realRoot {
		do(unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		do(os.Lchown(at("dir/link"), 12, 34))
		do(os.Lchown(at("setuid"), 1000, 1001))
		do(unix.Chmod(at("setuid"), 0o6755))
	}
	do(os.WriteFile(at("\xff\n\x01"), []byte("not utf-8"), 0o000))
	do(unix.Setxattr(at("dir/file"), "user.key", []byte("va\x00lue"), 0))
	do(unix.Setxattr(at("dir"), "user.dir", nil, 0))
	f, err := os.Create(at("sparse"))
	do(err)
	do(f.Truncate(4<<30 + 1))
	_, err = f.WriteAt([]byte("island"), 1<<31)
	do(err)
	do(f.Close())
	do(os.WriteFile(at("large"), bytes.Repeat([]byte("0123456789abcdef"), 40000), 0o640))
	do(os.Mkdir(at("locked"), 0o755))
	do(os.WriteFile(at("locked/in"), []byte("x"), 0o600))
	do(unix.Chmod(at("locked"), 0o000))
	old := []unix.Timespec{{Sec: -5, Nsec: 123456789}, {Sec: -5, Nsec: 123456789}}
	do(unix.UtimesNanoAt(unix.AT_FDCWD, at("dir/link"), old, unix.AT_SYMLINK_NOFOLLOW))
	do(unix.UtimesNanoAt(unix.AT_FDCWD, at("dir/sub"), old, 0))
}

// TestFaults lets every single write fail, once with an I/O error and once with a disk that stays full: no incomplete
// layer may be visible, and a second attempt succeeds.
func TestFaults(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
		t.Run(errno.Error(), func(t *testing.T) {
			faults(t, errno, false)
			t.Run("removals as files", func(t *testing.T) { faults(t, errno, true) })
		})
	}
}

func faults(t *testing.T, errno syscall.Errno, byFiles bool) {
	ctx := context.Background()
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.s.byFiles = byFiles
	src := filepath.Join(w.home, "src")
	w.must(os.Mkdir(src, 0o755))
	smallTree(t, src)
	parts := []rootspec.Part{{Dir: src, Path: "/"}}
	c, err := w.s.Capture(ctx, "00000000000000aa", CaptureInput{Parts: parts, Plain: true})
	w.must(err)
	w.must(os.WriteFile(filepath.Join(src, "dir/file"), []byte("changed"), 0o644))
	w.must(os.Remove(filepath.Join(src, "gone")))
	adoptable := filepath.Join(w.home, "upper")
	steps := map[string]func(id timeline.LayerID) error{
		"capture": func(id timeline.LayerID) error {
			_, err := w.s.Capture(ctx, id, CaptureInput{Parts: parts, Index: c.Index, Plain: true})
			return err
		},
		"import": func(id timeline.LayerID) error { _, err := w.s.ImportDir(ctx, id, src, ImportOptions{}); return err },
		"merge": func(id timeline.LayerID) error {
			return w.s.Merge(ctx, id, []timeline.LayerID{"00000000000000aa", "00000000000000aa"})
		},
		"tar": func(id timeline.LayerID) error {
			_, err := w.s.ImportTar(ctx, id, bytes.NewReader(smallTar(t)), TarOptions{})
			return err
		},
		"adopt": func(id timeline.LayerID) error {
			_ = os.MkdirAll(filepath.Join(adoptable, "x"), 0o755)
			err := w.s.Adopt(ctx, id, []rootspec.Part{{Dir: adoptable, Path: "/usr/lib"}})
			if _, e := os.Stat(filepath.Join(adoptable, "x")); err != nil && e != nil {
				t.Errorf("after a failed adopt: %v", e)
			}
			return err
		},
		"build": func(id timeline.LayerID) error {
			return w.s.Build(ctx, id, func(b *Builder) error {
				if err := b.Dir("d", DirMeta{Mode: 0o750, Skeleton: true}); err != nil {
					return err
				}
				if err := b.Opaque("d"); err != nil {
					return err
				}
				return b.Whiteout("d/gone")
			})
		},
		"finalize": func(id timeline.LayerID) error {
			_, err := w.s.Finalize(ctx, "00000000000000aa")
			if err != nil {
				return err
			}
			return w.s.Verify(ctx, "00000000000000aa")
		},
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) { w.eachFault(t, errno, name, step) })
	}
}

func (w *world) eachFault(t *testing.T, errno syscall.Errno, name string, step func(timeline.LayerID) error) {
	const id = timeline.LayerID("00000000000000ff")
	fds := openFiles(t)
	for k := 1; ; k++ {
		if k > 1 {
			if now := openFiles(t); now != fds {
				t.Fatalf("write %d of %s failed, and %d descriptors stay open", k-1, name, now-fds)
			}
		}
		w.f.FailAt(k, errno, errno == syscall.ENOSPC)
		err := step(id)
		reached := w.f.Failed()
		w.f.FailAt(0, 0, false)
		if !reached {
			if err != nil {
				t.Fatalf("without a fault: %v", err)
			}
			if k < 3 {
				t.Fatalf("only %d writes seen", k-1)
			}
			w.must(w.s.Remove(context.Background(), id))
			return
		}
		if err == nil {
			// The step did not need the write that failed.
			w.must(w.s.Remove(context.Background(), id))
			continue
		}
		if errno == syscall.ENOSPC && !fault.Is(err, fault.NoSpace) {
			t.Fatalf("write %d of %s: not reported as a full disk: %v", k, name, err)
		}
		if w.s.Has(id) {
			t.Fatalf("write %d of %s failed, but the layer is visible: %v", k, name, err)
		}
		if left, err := os.ReadDir(filepath.Join(w.home, "layers", "tmp")); err != nil || len(left) > 0 &&
			errno == syscall.ENOSPC {
			t.Fatalf("write %d of %s left %v behind (%v)", k, name, left, err)
		}
		w.must(w.s.sweep(context.Background()))
		w.must(os.RemoveAll(filepath.Join(w.home, "layers", "00000000000000aa", "manifest")))
		if err := step(id); err != nil {
			t.Fatalf("second try after write %d of %s failed: %v", k, name, err)
		}
		w.must(w.s.Remove(context.Background(), id))
	}
}

// openFiles counts this process's open descriptors.
func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range d {
		// Leave out the runtime's own descriptors and the directory that is being read.
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			n++
		}
	}
	return n
}

func smallTree(t tb, dir string) {
	t.Helper()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "dir/sub"), 0o755),
		os.WriteFile(filepath.Join(dir, "dir/file"), []byte("content"), 0o4755),
		os.WriteFile(filepath.Join(dir, "gone"), []byte("content"), 0o644),
		os.Link(filepath.Join(dir, "dir/file"), filepath.Join(dir, "dir/sub/hard")),
		os.Symlink("x", filepath.Join(dir, "link")),
		unix.Setxattr(filepath.Join(dir, "dir/file"), "user.k", []byte("v"), 0),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
}

func TestFidelity(t *testing.T) {
	for _, plain := range []bool{true, false} {
		name := map[bool]string{true: "plain", false: "overlay"}[plain]
		t.Run(name, func(t *testing.T) {
			if !plain {
				needOverlay(t)
			}
			w := newWorld(t, t.TempDir(), plain)
			defer w.close()
			w.base(func(src string) { w.must(os.WriteFile(filepath.Join(src, "x"), nil, 0o644)) })
			w.present()
			oddTree(t, w.live)
			want := light(t, w.live)
			id := w.id()
			c, err := w.s.Capture(context.Background(), id, CaptureInput{Parts: w.parts, Index: w.index, Plain: plain})
			w.must(err)
			w.index, w.stack = c.Index, append([]timeline.LayerID{id}, w.stack...)
			if n, err := w.s.Usage(context.Background(), id); err != nil || n > 4<<20 {
				t.Errorf("layer takes %d bytes (%v): the holes were filled", n, err)
			}
			// Damage the tree, rewind and compare.
			w.must(os.RemoveAll(filepath.Join(w.live, "dir")))
			w.must(os.Truncate(filepath.Join(w.live, "sparse"), 0))
			w.present()
			w.same("restored", want, light(t, w.live))
		})
	}
}

// light is picture without reading large files.
func light(t tb, root string) map[string]string {
	t.Helper()
	sparse := filepath.Join(root, "sparse")
	var st unix.Stat_t
	if err := unix.Stat(sparse, &st); err != nil {
		t.Fatalf("%v", err)
	}
	f, err := os.Open(sparse)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer f.Close()
	b := make([]byte, 8192)
	if _, err := f.ReadAt(b, 1<<31-4096); err != nil {
		t.Fatalf("%v", err)
	}
	out := pictureSkip(t, root, "/sparse")
	out["/sparse"] = line(st.Mode, st.Uid, st.Gid, mtimeNs(&st), 0, string(bytes.Trim(b, "\x00")), nil)
	return out
}

func TestDeepTree(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	w.base(func(src string) {})
	w.present()
	const depth = 450 // names of 10 bytes: far beyond PATH_MAX
	fd, err := dirfd.OpenDir(unix.AT_FDCWD, w.live)
	w.must(err)
	for range depth {
		w.must(unix.Mkdirat(fd, "deeper-and", 0o700))
		next, err := dirfd.OpenDir(fd, "deeper-and")
		w.must(err)
		unix.Close(fd)
		fd = next
	}
	out, err := w.s.fs.Create(fd, "bottom", 0o644)
	w.must(err)
	closeAll(out)
	var before, after unix.Rlimit
	w.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	after = before
	after.Cur = uint64(openFiles(t)) + 2*maxHeld + 50
	w.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &after))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	ctx := context.Background()
	c, err := w.s.Capture(ctx, "00000000000000d1", CaptureInput{Parts: w.parts, Index: w.index, Plain: true})
	w.must(err)
	if c.Stats.Paths != depth+1 {
		t.Errorf("%d paths", c.Stats.Paths)
	}
	f, err := w.s.fs.Create(fd, "second", 0o644)
	w.must(err)
	closeAll(f, fd)
	c, err = w.s.Capture(ctx, "00000000000000d2", CaptureInput{Parts: w.parts, Index: c.Index, Plain: true})
	w.must(err)
	if c.Stats.Paths != 1 {
		t.Errorf("%d paths after one more file", c.Stats.Paths)
	}
	ids := []timeline.LayerID{"00000000000000d2", "00000000000000d1"}
	w.must(w.s.Merge(ctx, "00000000000000d3", ids))
	_, err = w.s.Finalize(ctx, "00000000000000d3")
	w.must(err)
	w.must(w.s.Verify(ctx, "00000000000000d3"))
	dst := filepath.Join(w.home, "out")
	w.must(os.Mkdir(dst, 0o755))
	v := w.s.View(w.dirs(ids))
	w.must(w.s.Materialise(ctx, v, dst))
	diff, err := Changes(ctx, w.s.View(w.dirs(w.stack)), v,
		[]rootspec.Part{{Dir: w.s.Dir("00000000000000d2"), Path: "/"}, {Dir: w.s.Dir("00000000000000d1"), Path: "/"}},
		DiffOptions{})
	w.must(err)
	if len(diff) != depth+2 {
		t.Errorf("%d changes", len(diff))
	}
	w.must(w.s.RemoveTree(ctx, dst))
	w.must(w.s.RemoveTree(ctx, w.live))
	w.must(w.s.Remove(ctx, "00000000000000d1"))
}
