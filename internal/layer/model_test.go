package layer

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/timeline"
)

// The oracle: whatever programs do to a live root, after a capture the stack shows the live tree, in a view and in a
// fresh mount.

func TestOracleOverlay(t *testing.T) {
	needOverlay(t)
	rapid.Check(t, func(rt *rapid.T) { oracle(t, rt, false) })
}

// TestOraclePlain also moves the store between file systems with and without whiteouts.
func TestOraclePlain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { oracle(t, rt, true) })
}

func oracle(t *testing.T, rt *rapid.T, plain bool) {
	dir, err := os.MkdirTemp(t.TempDir(), "w")
	if err != nil {
		rt.Fatalf("%v", err)
	}
	w := newWorld(rt, dir, plain)
	defer func() {
		w.close()
		_ = os.RemoveAll(dir)
	}()
	w.base(func(src string) {
		a := actor{rt, src}
		for range rapid.IntRange(0, 12).Draw(rt, "base ops") {
			a.step()
		}
	})
	w.present()
	w.check("present")
	for range rapid.IntRange(1, 6).Draw(rt, "batches") {
		a := actor{rt, w.live}
		for range rapid.IntRange(0, 8).Draw(rt, "ops") {
			a.step()
		}
		w.s.byFiles = plain && rapid.Bool().Draw(rt, "removals as files")
		w.capture()
		switch rapid.IntRange(0, 9).Draw(rt, "then") {
		case 0:
			w.present() // present the captured snapshot
			w.check("present")
		case 1:
			w.merge(rt)
		case 2:
			w.adopt()
		case 3:
			w.index = w.reread()
		case 4:
			for _, id := range w.stack {
				_, err := w.s.Finalize(context.Background(), id)
				w.must(err)
				w.must(w.s.Verify(context.Background(), id))
			}
		}
	}
}

// merge replaces some neighbouring layers by their merge.
func (w *world) merge(rt *rapid.T) {
	w.t.Helper()
	i := rapid.IntRange(0, len(w.stack)-1).Draw(rt, "from")
	j := rapid.IntRange(i, len(w.stack)-1).Draw(rt, "to")
	id := w.id()
	w.must(w.s.Merge(context.Background(), id, w.stack[i:j+1]))
	st := append([]timeline.LayerID{}, w.stack[:i]...)
	w.stack = append(append(st, id), w.stack[j+1:]...)
	w.check("merge")
}

// adopt makes the upper a layer, on top of the layers that the live root was mounted on.
func (w *world) adopt() {
	if w.plain {
		return
	}
	w.t.Helper()
	want := unlinked(picture(w.t, w.live))
	w.unmount()
	id := w.id()
	w.must(w.s.Adopt(context.Background(), id, w.parts))
	w.stack = append([]timeline.LayerID{id}, w.mounted...)
	w.same("adopt: view", want, unlinked(viewPicture(w.t, w.s.View(w.dirs(w.stack)))))
	w.present()
	w.same("adopt: mount", want, unlinked(picture(w.t, w.live)))
}

// reread writes the index and reads it back.
func (w *world) reread() *Index {
	w.t.Helper()
	var b strings.Builder
	_, err := w.index.WriteTo(&b)
	w.must(err)
	x, err := ReadIndex(strings.NewReader(b.String()))
	w.must(err)
	return x
}

// actor changes a tree as programs do. It ignores failures.
type actor struct {
	rt   *rapid.T
	root string
}

var someNames = []string{"a", "b", "c", "d\nx", "\xff\xfe", ".wh.e", "with space %41"}

func (a actor) path(label string) string {
	n := rapid.IntRange(1, 3).Draw(a.rt, label+" depth")
	p := a.root
	for range n {
		p = filepath.Join(p, rapid.SampledFrom(someNames).Draw(a.rt, label))
	}
	return p
}

func (a actor) content() []byte {
	return []byte(
		strings.Repeat(rapid.SampledFrom([]string{"x", "y", "zz", "\x00"}).Draw(a.rt, "content"),
			rapid.SampledFrom([]int{0, 1, 7, 4096, 140000}).Draw(a.rt, "times")))
}

func (a actor) step() {
	p := a.path("path")
	switch op := rapid.IntRange(0, 19).Draw(a.rt, "op"); op {
	case 0, 1, 2:
		// O_NONBLOCK: the path may be a FIFO.
		if f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, 0o644); err == nil {
			_, _ = f.Write(a.content())
			_ = f.Close()
		}
	case 3:
		_ = os.MkdirAll(p, 0o755)
	case 4:
		_ = os.Mkdir(p, 0o711)
	case 5:
		_ = os.RemoveAll(p)
	case 6:
		_ = os.Remove(p)
	case 7:
		_ = os.Rename(p, a.path("to"))
	case 8:
		_ = os.Link(p, a.path("to"))
	case 9:
		_ = os.Symlink(rapid.SampledFrom([]string{"a", "/nonexistent/target", "../../../nonexistent/x", "b\n"}).
			Draw(a.rt, "target"), p)
	case 10:
		_ = unix.Chmod(p, rapid.SampledFrom([]uint32{0, 0o755, 0o4755, 0o2770, 0o1777, 0o600}).Draw(a.rt, "mode"))
	case 11:
		_ = os.Truncate(p, int64(rapid.SampledFrom([]int{0, 1, 100, 300000}).Draw(a.rt, "size")))
	case 12:
		if f, err := os.OpenFile(p, os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
			_, _ = f.WriteString("more")
			_ = f.Close()
		}
	case 13:
		a.sameSizeOldTime(p)
	case 14:
		_ = unix.Lsetxattr(p, rapid.SampledFrom([]string{"user.k", "user.overlay.opaque", "user.overlay.x"}).
			Draw(a.rt, "key"), []byte(rapid.SampledFrom([]string{"", "y", "v"}).Draw(a.rt, "value")), 0)
	case 15:
		_ = unix.Lremovexattr(p, "user.k")
	case 16:
		// Replace the entry by a directory with a file in it.
		_ = os.RemoveAll(p)
		_ = os.Mkdir(p, 0o755)
		_ = os.WriteFile(filepath.Join(p, "a"), a.content(), 0o600)
	case 17:
		// Exchange two paths: whiteouts move too.
		_ = unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, a.path("to"), unix.RENAME_EXCHANGE)
	case 18:
		// Use a separate name: os.RemoveAll blocks on a FIFO that it takes for a directory.
		p = filepath.Join(filepath.Dir(p), "pipe")
		if os.Remove(p) != nil {
			_ = unix.Mkfifo(p, 0o640)
		}
	case 19:
		ts := unix.NsecToTimespec(rapid.Int64Range(-1e18, 2e18).Draw(a.rt, "mtime"))
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	}
}

// sameSizeOldTime edits a file and keeps its size and mtime.
func (a actor) sameSizeOldTime(p string) {
	var st unix.Stat_t
	if unix.Lstat(p, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size == 0 {
		return
	}
	if f, err := os.OpenFile(p, os.O_WRONLY|unix.O_NOFOLLOW, 0); err == nil {
		_, _ = f.WriteAt([]byte{byte(rapid.IntRange(0, 255).Draw(a.rt, "byte"))}, 0)
		_ = f.Close()
	}
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{st.Mtim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func TestMmapWrites(t *testing.T) {
	for _, plain := range []bool{true, false} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			if !plain {
				needOverlay(t)
			}
			w := newWorld(t, t.TempDir(), plain)
			defer w.close()
			w.base(func(src string) { w.must(os.WriteFile(filepath.Join(src, "m"), make([]byte, 8192), 0o644)) })
			w.present()
			f, err := os.OpenFile(filepath.Join(w.live, "m"), os.O_RDWR, 0)
			w.must(err)
			defer f.Close()
			m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			w.must(err)
			defer unix.Munmap(m)
			w.must(os.Link(filepath.Join(w.live, "m"), filepath.Join(w.live, "n")))
			for i := range 5 {
				m[i*1000] = byte(i + 1)
				w.capture("/m")
				time.Sleep(15 * time.Millisecond)
			}
			if c := w.capture("/m"); !c.Empty {
				t.Fatalf("nothing changed, but captured %v", c.Paths)
			}
		})
	}
}

// TestMmapWrites_AfterCaptureAreFound covers a mapping that exists at a capture and is written after it, with no
// effect on stat until the process is killed: the next capture compares the content, whether it is informed of the
// mapping or not.
func TestMmapWrites_AfterCaptureAreFound(t *testing.T) {
	began := time.Now()
	for how, suspects := range map[string]func(*unix.Stat_t) Suspects{
		"path":  func(*unix.Stat_t) Suspects { return Suspects{Paths: []string{"/m"}} },
		"inode": func(st *unix.Stat_t) Suspects { return Suspects{Inodes: []uint64{st.Ino}} },
		"any":   func(*unix.Stat_t) Suspects { return Suspects{Since: began} },
	} {
		for _, plain := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s-plain=%v", how, plain), func(t *testing.T) {
				if !plain {
					needOverlay(t)
				}
				w := newWorld(t, t.TempDir(), plain)
				defer w.close()
				w.base(func(string) {})
				w.present()
				name := filepath.Join(w.live, "m")
				w.must(os.WriteFile(name, make([]byte, 4096), 0o644))
				f, err := os.OpenFile(name, os.O_RDWR, 0)
				w.must(err)
				m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				w.must(err)
				m[0] = 1
				var st unix.Stat_t
				w.must(unix.Fstat(int(f.Fd()), &st))
				time.Sleep(2 * racyWindow)
				w.captureSuspecting(suspects(&st))
				w.captureSuspecting(suspects(&st)) // the content has been the same for long enough
				m[1] = 2
				w.must(unix.Munmap(m))
				w.must(f.Close())
				var b bytes.Buffer // as the next daemon reads it
				_, err = w.index.WriteTo(&b)
				w.must(err)
				w.index, err = ReadIndex(&b)
				w.must(err)
				if c := w.capture(); c.Empty {
					t.Error("a mapped write is lost")
				}
				if c := w.capture(); !c.Empty {
					t.Errorf("nothing changed, but captured %v", c.Paths)
				}
			})
		}
	}
}
