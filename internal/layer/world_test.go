package layer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// tb is the common part of testing.T and rapid.T.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// realRoot reports whether device nodes can be made: the process is root of the machine, not of a user namespace.
var realRoot = func() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Contains(string(b), "4294967295")
}()

// world is a store and one live root on a stack of its layers.
type world struct {
	t       tb
	s       *Store
	f       *vfs.Faulty
	home    string
	plain   bool // copy driver instead of overlay
	stack   []timeline.LayerID
	mounted []timeline.LayerID // layers that the live root was mounted on
	index   *Index
	gen     int
	live    string // path of the live root
	parts   []rootspec.Part
	next    int
}

func newWorld(t tb, dir string, plain bool) *world {
	f := &vfs.Faulty{FS: vfs.OS()}
	s, err := Open(context.Background(), f, filepath.Join(dir, "layers"))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	w := &world{t: t, s: s, f: f, home: dir, plain: plain}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%v", err)
	}
}

func (w *world) id() timeline.LayerID {
	w.next++
	return timeline.LayerID(fmt.Sprintf("%016x", w.next))
}

func (w *world) dirs(ids []timeline.LayerID) rootspec.Stack {
	var st rootspec.Stack
	for _, id := range ids {
		st.Layers = append(st.Layers, w.s.Dir(id))
	}
	return st
}

// base makes the bottom layer from the files that fn writes into a directory.
func (w *world) base(fn func(dir string)) {
	w.t.Helper()
	src := filepath.Join(w.home, "src")
	w.must(os.Mkdir(src, 0o755))
	fn(src)
	id := w.id()
	_, err := w.s.ImportDir(context.Background(), id, src, ImportOptions{})
	w.must(err)
	w.stack = []timeline.LayerID{id}
}

// present makes a live root of the current stack.
func (w *world) present() {
	w.t.Helper()
	w.unmount()
	w.gen++
	g := filepath.Join(w.home, fmt.Sprintf("live%d", w.gen))
	w.must(os.Mkdir(g, 0o755))
	w.mounted = w.stack
	if w.plain {
		w.live = g
		w.must(w.s.Materialise(context.Background(), w.s.View(w.dirs(w.stack)), g))
		w.parts = []rootspec.Part{{Dir: g, Path: "/"}}
	} else {
		upper, work := filepath.Join(g, "upper"), filepath.Join(g, "work")
		w.live = filepath.Join(g, "merged")
		for _, d := range []string{upper, work, w.live} {
			w.must(os.Mkdir(d, 0o755))
		}
		w.copyMeta(w.s.Dir(w.stack[0]), upper)
		w.parts = []rootspec.Part{{Dir: upper, Path: "/"}}
		opt := "userxattr,lowerdir=" + strings.Join(w.dirs(w.stack).Layers, ":") + ",upperdir=" + upper + ",workdir=" + work
		if err := unix.Mount("overlay", w.live, "overlay", 0, opt); err != nil {
			w.t.Fatalf("mount overlay: %v", err)
		}
	}
	var err error
	w.index, err = w.s.Scan(context.Background(), w.parts, w.plain)
	w.must(err)
}

// copyMeta copies the metadata of the stack's root to an upper, as the driver does.
func (w *world) copyMeta(from, to string) {
	w.t.Helper()
	src, err := dirfd.OpenDir(unix.AT_FDCWD, from)
	w.must(err)
	defer unix.Close(src)
	dst, err := dirfd.OpenDir(unix.AT_FDCWD, to)
	w.must(err)
	defer unix.Close(dst)
	p := putter{s: w.s}
	w.must(p.dirMeta(src, dst, false))
}

func (w *world) unmount() {
	if w.live != "" && !w.plain {
		_ = unix.Unmount(w.live, unix.MNT_DETACH)
	}
	w.live = ""
}

func (w *world) close() {
	w.unmount()
	w.must(w.s.Close())
}

// capture captures the live tree and compares the result with it.
func (w *world) capture(suspects ...string) Captured {
	w.t.Helper()
	return w.captureSuspecting(Suspects{Paths: suspects})
}

func (w *world) captureSuspecting(suspects Suspects) Captured {
	w.t.Helper()
	id := w.id()
	c, err := w.s.Capture(context.Background(), id,
		CaptureInput{Parts: w.parts, Index: w.index, Plain: w.plain, Suspects: suspects})
	w.must(err)
	w.index = c.Index
	if !c.Empty {
		w.stack = append([]timeline.LayerID{id}, w.stack...)
	}
	w.check("capture")
	return c
}

// check compares the live tree with the stack's view and with a fresh mount.
func (w *world) check(when string) {
	w.t.Helper()
	want, view := picture(w.t, w.live), viewPicture(w.t, w.s.View(w.dirs(w.stack)))
	at, done := w.freshMount()
	defer done()
	fresh := picture(w.t, at)
	if !w.plain {
		// The overlayfs of a user namespace cannot find the origin of a copied file again. With userxattr none can do
		// so for entries that cannot have user attributes: links and special files (xattr(7)). Such an overlayfs may
		// give two names of one inode two numbers.
		w.same(when+": links", fresh, view)
		want, view, fresh = unlinked(want), unlinked(view), unlinked(fresh)
	}
	w.same(when+": view", want, view)
	w.same(when+": mount", want, fresh)
	rm, err := os.ReadDir(filepath.Join(w.home, "layers", "tmp"))
	w.must(err)
	if len(rm) > 0 {
		w.t.Fatalf("%s: left behind in tmp: %v", when, rm)
	}
}

// freshMount mounts the stack, or materialises it for a plain world.
func (w *world) freshMount() (string, func()) {
	w.t.Helper()
	at, err := os.MkdirTemp(w.home, "fresh")
	w.must(err)
	if w.plain {
		w.must(w.s.Materialise(context.Background(), w.s.View(w.dirs(w.stack)), at))
		return at, func() { w.must(w.s.RemoveTree(context.Background(), at)) }
	}
	layers := w.dirs(w.stack).Layers
	if len(layers) == 1 {
		none := filepath.Join(w.home, "none")
		if err := os.Mkdir(none, 0o755); err != nil && !os.IsExist(err) {
			w.t.Fatalf("%v", err)
		}
		layers = append(layers, none)
	}
	if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY,
		"userxattr,lowerdir="+strings.Join(layers, ":")); err != nil {
		w.t.Fatalf("mount %d layers: %v", len(layers), err)
	}
	return at, func() {
		w.must(unix.Unmount(at, unix.MNT_DETACH))
		w.must(os.Remove(at))
	}
}

func (w *world) same(when string, want, got map[string]string) {
	w.t.Helper()
	var diff []string
	for p, a := range want {
		if b, ok := got[p]; !ok {
			diff = append(diff, fmt.Sprintf("missing %q: %s", p, a))
		} else if a != b {
			diff = append(diff, fmt.Sprintf("%q:\n   want %s\n   got  %s", p, a, b))
		}
	}
	for p, b := range got {
		if _, ok := want[p]; !ok {
			diff = append(diff, fmt.Sprintf("extra %q: %s", p, b))
		}
	}
	if len(diff) > 0 {
		sort.Strings(diff)
		w.t.Fatalf("%s:\n%s", when, strings.Join(diff, "\n"))
	}
}

// picture returns what an independent walker, with paths and package os, finds in a tree: each path with everything
// that a snapshot must keep.
func picture(t tb, root string) map[string]string {
	t.Helper()
	return pictureSkip(t, root, "")
}

func pictureSkip(t tb, root, skip string) map[string]string {
	t.Helper()
	out := map[string]string{}
	groups := map[string][]string{}
	err := filepath.WalkDir(root, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := "/" + strings.TrimPrefix(strings.TrimPrefix(p, root), "/")
		if rel == skip {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		content := ""
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%d:%x", len(b), sha256.Sum256(b))
		case unix.S_IFLNK:
			if content, err = os.Readlink(p); err != nil {
				return err
			}
		}
		x := map[string][]byte{}
		buf := make([]byte, 4096)
		if n, err := unix.Llistxattr(p, buf); err == nil {
			for _, k := range strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
				v := make([]byte, 1024)
				if m, err := unix.Lgetxattr(p, k, v); err == nil && k != "" {
					x[k] = v[:m]
				}
			}
		}
		out[rel] = line(st.Mode, st.Uid, st.Gid, mtimeNs(&st), st.Rdev, content, x)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			key := fmt.Sprint(st.Dev, st.Ino)
			groups[key] = append(groups[key], rel)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("walk %s: %v", root, err)
	}
	addLinks(out, groups)
	return out
}

func line(mode, uid, gid uint32, mtime int64, rdev uint64, content string, x map[string][]byte) string {
	if m := mode & unix.S_IFMT; m != unix.S_IFCHR && m != unix.S_IFBLK {
		rdev = 0
	}
	return fmt.Sprintf("%o %d:%d %d %d %q %q", mode, uid, gid, mtime, rdev, content, x)
}

// unlinked leaves out which names belong to one file; for real root, only of entries that are not regular files.
func unlinked(p map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range p {
		out[k] = v
		if !realRoot || !strings.HasPrefix(v, "100") {
			out[k], _, _ = strings.Cut(v, " links [")
		}
	}
	return out
}

func addLinks(out map[string]string, groups map[string][]string) {
	for _, g := range groups {
		if len(g) < 2 {
			continue
		}
		sort.Strings(g)
		for _, p := range g {
			out[p] += fmt.Sprintf(" links %q", g)
		}
	}
}

// viewPicture is picture for a view.
func viewPicture(t tb, v *View) map[string]string {
	t.Helper()
	out := map[string]string{}
	groups := map[string][]string{}
	add := func(e Entry) error {
		content := e.Link
		if e.Mode&unix.S_IFMT == unix.S_IFREG {
			f, err := v.Open(e.Path)
			if err != nil {
				return err
			}
			b, err := io.ReadAll(f)
			f.Close()
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%d:%x", len(b), sha256.Sum256(b))
		}
		x, err := v.Xattrs(e.Path)
		if err != nil {
			return err
		}
		out[e.Path] = line(e.Mode, e.UID, e.GID, e.Mtime, e.Rdev, content, x)
		if !e.IsDir() {
			key := fmt.Sprint(e.Layer, e.Ino)
			groups[key] = append(groups[key], e.Path)
		}
		return nil
	}
	root, err := v.Lookup("/")
	if err == nil {
		err = add(root)
	}
	if err == nil {
		err = v.Walk(context.Background(), add)
	}
	if err != nil {
		t.Fatalf("walk view: %v", err)
	}
	addLinks(out, groups)
	return out
}

func needOverlay(t *testing.T) {
	t.Helper()
	d := t.TempDir()
	for _, n := range []string{"l", "u", "w", "m"} {
		if err := os.Mkdir(filepath.Join(d, n), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := unix.Mount("overlay", d+"/m", "overlay", 0, "userxattr,lowerdir="+d+"/l,upperdir="+d+"/u,workdir="+d+"/w")
	if err != nil {
		t.Skipf("overlayfs: %v", err)
	}
	if err := unix.Unmount(d+"/m", 0); err != nil {
		t.Fatal(err)
	}
	_ = os.RemoveAll(d + "/w")
}
