package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// refreshed is a source directory, the chain of layers from imports of it, and the index of the last import.
type refreshed struct {
	*world
	src  string
	opts ImportOptions
}

func newRefreshed(t tb, dir string) *refreshed {
	r := &refreshed{world: newWorld(t, dir, true), src: filepath.Join(dir, "src")}
	r.must(os.Mkdir(r.src, 0o755))
	return r
}

// start imports the whole source.
func (r *refreshed) start() {
	r.t.Helper()
	id := r.id()
	rep, err := r.s.ImportDir(context.Background(), id, r.src, r.opts)
	r.must(err)
	r.stack, r.index = []timeline.LayerID{id}, rep.Index
}

// refresh imports the difference and compares the chain with a full import.
func (r *refreshed) refresh() Refreshed {
	r.t.Helper()
	ctx := context.Background()
	id, whole := r.id(), r.id()
	got, err := r.s.Refresh(ctx, id, r.src, r.index, r.s.View(r.dirs(r.stack)), r.opts)
	r.must(err)
	if got.Empty == r.s.Has(id) {
		r.t.Fatalf("empty is %v, and the layer exists: %v", got.Empty, r.s.Has(id))
	}
	if !got.Empty {
		r.stack = append([]timeline.LayerID{id}, r.stack...)
	}
	r.index = got.Index
	rep, err := r.s.ImportDir(ctx, whole, r.src, r.opts)
	r.must(err)
	want := viewPicture(r.t, r.s.View(r.dirs([]timeline.LayerID{whole})))
	have := viewPicture(r.t, r.s.View(r.dirs(r.stack)))
	for _, p := range r.opts.Empty {
		// Its time is that of content that is not imported.
		delete(want, strings.TrimPrefix(p, r.src))
		delete(have, strings.TrimPrefix(p, r.src))
	}
	r.same("view", want, have)
	if !slices.Equal(rep.Unreadable, got.Unreadable) || !slices.Equal(rep.Changed, got.Changed) {
		r.t.Fatalf("full import lists %q %q, refresh %q %q", rep.Unreadable, rep.Changed, got.Unreadable, got.Changed)
	}
	r.must(r.s.Remove(ctx, whole))
	return got
}

// calm removes the racy marks of an index, as if no file had changed for a while.
func (x *Index) calm() {
	for i := range x.roots {
		x.roots[i].self.flags &^= entRacy
		x.roots[i].node.calm()
	}
}

func (d *dirNode) calm() {
	for i := range d.ents {
		d.ents[i].flags &^= entRacy
	}
	for _, k := range d.kids {
		k.calm()
	}
}

// aged calls change until the ctime of the file shows it.
func aged(t tb, p string, change func()) {
	t.Helper()
	var before, after unix.Stat_t
	if err := unix.Lstat(p, &before); err != nil {
		t.Fatalf("%v", err)
	}
	for after.Ctim == (unix.Timespec{}) || after.Ctim == before.Ctim {
		change()
		if err := unix.Lstat(p, &after); err != nil {
			t.Fatalf("%v", err)
		}
	}
}

func TestRefresh_ImportsDifference(t *testing.T) {
	r := newRefreshed(t, t.TempDir())
	defer r.close()
	oddTree(t, r.src)
	r.must(os.Remove(filepath.Join(r.src, "sparse"))) // four gigabytes are not needed here
	at := func(n string) string { return filepath.Join(r.src, n) }
	for i := range 70 {
		r.must(os.MkdirAll(at(fmt.Sprintf("many/%d", i%7)), 0o755))
		r.must(os.WriteFile(at(fmt.Sprintf("many/%d/%d", i%7, i)), []byte("same"), 0o644))
	}
	r.start()
	if got := r.refresh(); !got.Empty || got.Entries != 0 {
		t.Errorf("nothing changed, and %d entries were taken", got.Entries)
	}
	for _, c := range []struct {
		name   string
		change func()
		want   int64
	}{
		{"a new file", func() { r.must(os.WriteFile(at("new"), []byte("n"), 0o600)) }, 1},
		{"a new tree", func() {
			r.must(os.MkdirAll(at("a/b"), 0o755))
			r.must(os.WriteFile(at("a/b/c"), []byte("n"), 0o600))
		}, 3},
		{"the same size and time", func() {
			var st unix.Stat_t
			r.must(unix.Stat(at("dir/file"), &st))
			aged(t, at("many/1/1"), func() {
				r.must(os.WriteFile(at("many/1/1"), []byte("emas"), 0o644))
				r.must(unix.UtimesNanoAt(unix.AT_FDCWD, at("many/1/1"), []unix.Timespec{st.Mtim, st.Mtim}, 0))
			})
		}, 1},
		{"a file removed", func() { r.must(os.Remove(at("many/2/2"))) }, 1},
		{"a directory renamed", func() { r.must(os.Rename(at("many/3"), at("many/three"))) }, 12},
		{"a directory for a file", func() {
			r.must(os.Remove(at("new")))
			r.must(os.MkdirAll(at("new/in"), 0o755))
		}, 2},
		{"a file for a directory", func() {
			r.must(os.RemoveAll(at("many/4")))
			r.must(os.WriteFile(at("many/4"), []byte("file"), 0o644))
		}, 1},
		{"a directory for another", func() {
			r.must(os.RemoveAll(at("many/5")))
			r.must(os.MkdirAll(at("many/5"), 0o700))
			r.must(os.WriteFile(at("many/5/other"), []byte("file"), 0o644))
		}, 12},
		{"a mode", func() { aged(t, at("many/6"), func() { r.must(unix.Chmod(at("many/6"), 0o700)) }) }, 1},
		{"an attribute", func() {
			aged(t, at("many/6"), func() { r.must(unix.Setxattr(at("many/6"), "user.k", []byte("v"), 0)) })
		}, 1},
		{"one more name", func() { r.must(os.Link(at("large"), at("many/large"))) }, 2},
		{"one of two names", func() {
			aged(t, at("large"), func() { r.must(os.WriteFile(at("large"), []byte("now small"), 0o640)) })
		}, 2},
		{"a link led elsewhere", func() {
			r.must(os.Remove(at("dir/link")))
			r.must(os.Symlink("there", at("dir/link")))
		}, 1},
	} {
		r.index.calm()
		c.change()
		if got := r.refresh(); got.Entries != c.want || got.Empty {
			t.Errorf("%s: %d entries were taken, want %d", c.name, got.Entries, c.want)
		}
		r.index.calm()
		if got := r.refresh(); !got.Empty {
			t.Errorf("%s: taken twice", c.name)
		}
	}
}

// TestRefresh_ComparesRecentFiles covers changes that stat cannot show, through a mapping or
// within a tick of the clock: the content of a recently changed file is compared.
func TestRefresh_ComparesRecentFiles(t *testing.T) {
	r := newRefreshed(t, t.TempDir())
	defer r.close()
	file := filepath.Join(r.src, "f")
	r.must(os.WriteFile(file, []byte("before"), 0o644))
	r.must(os.Symlink("x", filepath.Join(r.src, "l")))
	r.start()
	if got := r.refresh(); !got.Empty {
		t.Error("a recent file was taken although it is the same")
	}
	r.must(os.WriteFile(file, []byte("after!"), 0o644))
	var st unix.Stat_t
	r.must(unix.Lstat(file, &st))
	node := r.index.roots[0].node
	node.ents[0].set(&st) // the change left no trace
	if got := r.refresh(); got.Entries != 1 {
		t.Errorf("%d entries were taken", got.Entries)
	}
}

func TestRefresh_HonorsOptions(t *testing.T) {
	r := newRefreshed(t, t.TempDir())
	defer r.close()
	for _, d := range []string{"empty", "skipped", "kept"} {
		r.must(os.MkdirAll(filepath.Join(r.src, d, "sub"), 0o755))
		r.must(os.WriteFile(filepath.Join(r.src, d, "f"), []byte("x"), 0o644))
	}
	r.opts = ImportOptions{Skip: []string{filepath.Join(r.src, "skipped")}, Empty: []string{filepath.Join(r.src, "empty")},
		OneFileSystem: true}
	r.start()
	r.index.calm()
	// Neither the content of a directory in Empty nor its time is a difference.
	aged(t, filepath.Join(r.src, "empty"), func() {
		r.must(os.WriteFile(filepath.Join(r.src, "empty", "more"), nil, 0o644))
		r.must(os.Remove(filepath.Join(r.src, "empty", "more")))
	})
	r.must(os.WriteFile(filepath.Join(r.src, "skipped", "more"), nil, 0o644))
	got, err := r.s.Refresh(context.Background(), r.id(), r.src, r.index, r.s.View(r.dirs(r.stack)), r.opts)
	if err != nil || !got.Empty {
		t.Fatalf("%d entries were taken: %v", got.Entries, err)
	}
	// Another file system that was mounted meanwhile hides the content below.
	kept := filepath.Join(r.src, "kept")
	r.must(unix.Mount("none", kept, "tmpfs", 0, "mode=755"))
	defer unix.Unmount(kept, unix.MNT_DETACH)
	r.must(os.WriteFile(filepath.Join(kept, "theirs"), nil, 0o644))
	if got := r.refresh(); got.Entries != 2 {
		t.Errorf("%d entries were taken", got.Entries)
	}
	r.must(unix.Unmount(kept, 0))
	r.refresh()
	// With other options, the result is that of a full import with them.
	r.opts = ImportOptions{Empty: []string{kept}}
	r.refresh()
	r.opts = ImportOptions{}
	r.refresh()
}

func TestRefresh_ListsSkippedEntries(t *testing.T) {
	r := newRefreshed(t, t.TempDir())
	defer r.close()
	at := func(n string) string { return filepath.Join(r.src, n) }
	r.must(os.WriteFile(at("f"), nil, 0o644))
	r.must(unix.Mknod(at("white"), unix.S_IFCHR, 0))
	r.start()
	if got := r.refresh(); !got.Empty || len(got.Changed) != 1 {
		t.Errorf("%d entries, %q", got.Entries, got.Changed)
	}
	r.must(os.Remove(at("f")))
	r.must(unix.Mknod(at("f"), unix.S_IFCHR, 0))
	if got := r.refresh(); got.Entries != 1 || len(got.Changed) != 2 {
		t.Errorf("%d entries, %q", got.Entries, got.Changed)
	}
	r.must(os.Remove(at("white")))
	r.must(os.WriteFile(at("white"), []byte("seen"), 0o644))
	if got := r.refresh(); got.Entries != 1 || len(got.Changed) != 1 {
		t.Errorf("%d entries, %q", got.Entries, got.Changed)
	}
}

// TestRefreshFaults lets every single write of a refresh fail.
func TestRefreshFaults(t *testing.T) {
	r := newRefreshed(t, t.TempDir())
	defer r.close()
	smallTree(t, r.src)
	r.start()
	r.must(os.Remove(filepath.Join(r.src, "gone")))
	r.must(os.MkdirAll(filepath.Join(r.src, "dir/sub/deep/new"), 0o755))
	r.must(os.WriteFile(filepath.Join(r.src, "dir/sub/deep/new/f"), []byte("x"), 0o644))
	r.must(unix.Chmod(filepath.Join(r.src, "dir"), 0o700))
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
		r.eachFault(t, errno, "refresh", func(id timeline.LayerID) error {
			_, err := r.s.Refresh(context.Background(), id, r.src, r.index, r.s.View(r.dirs(r.stack)), r.opts)
			return err
		})
	}
}

// TestRefreshModel makes random changes, and compares each refresh with a full import.
func TestRefreshModel(t *testing.T) {
	names := []string{"a", "b", "c"}
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "refresh")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		r := newRefreshed(rt, dir)
		defer r.close()
		draw := func(what string) string {
			return path.Join(rapid.SliceOfN(rapid.SampledFrom(names), 1, 4).Draw(rt, what)...)
		}
		ignore := func(error) {} // changes that fail are ignored
		r.start()
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {},
			"write": func(rt *rapid.T) {
				p := filepath.Join(r.src, draw("path"))
				ignore(os.MkdirAll(filepath.Dir(p), 0o755))
				ignore(os.WriteFile(p, []byte(strings.Repeat("x", rapid.IntRange(0, 2).Draw(rt, "size"))+draw("text")), 0o644))
			},
			"remove": func(rt *rapid.T) { ignore(os.RemoveAll(filepath.Join(r.src, draw("path")))) },
			"rename": func(rt *rapid.T) {
				ignore(os.Rename(filepath.Join(r.src, draw("from")), filepath.Join(r.src, draw("to"))))
			},
			"link": func(rt *rapid.T) {
				ignore(os.Link(filepath.Join(r.src, draw("from")), filepath.Join(r.src, draw("to"))))
			},
			"symlink": func(rt *rapid.T) { ignore(os.Symlink("target", filepath.Join(r.src, draw("path")))) },
			"mode": func(rt *rapid.T) {
				ignore(unix.Chmod(filepath.Join(r.src, draw("path")),
					uint32(rapid.SampledFrom([]int{0o700, 0o755, 0o4711}).Draw(rt, "mode"))))
			},
			"white": func(rt *rapid.T) { ignore(unix.Mknod(filepath.Join(r.src, draw("path")), unix.S_IFCHR, 0)) },
			"option": func(rt *rapid.T) {
				r.opts.Empty = []string{filepath.Join(r.src, draw("empty"))}
				r.opts.Skip = []string{filepath.Join(r.src, draw("skip"))}
			},
			"refresh": func(*rapid.T) { r.refresh() },
		})
		r.refresh()
		if len(r.stack) > 1 {
			id := r.id()
			r.must(r.s.Merge(context.Background(), id, r.stack))
			r.stack = []timeline.LayerID{id}
			r.index.calm()
			if got := r.refresh(); !got.Empty {
				rt.Fatalf("%d entries were taken again", got.Entries)
			}
		}
	})
}

// asUser is the variable that names the directory for a test process in an ordinary user's namespace.
const asUser = "COPPICE_LAYER_TEST_AS_USER"

// TestRefresh_AsOrdinaryUser refreshes files of root, some of them unreadable, with the rights
// of an unprivileged user.
func TestRefresh_AsOrdinaryUser(t *testing.T) {
	if dir := os.Getenv(asUser); dir != "" {
		refreshAsUser(t, dir)
		return
	}
	if !realRoot {
		t.Skip("needs real-root: the tree must belong to another user")
	}
	dir, err := os.MkdirTemp("", "refresh")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at := func(n string) string { return filepath.Join(dir, n) }
	for _, err := range []error{
		unix.Chmod(dir, 0o755),
		os.Mkdir(at("home"), 0o777), unix.Chmod(at("home"), 0o777),
		os.MkdirAll(at("src/etc"), 0o755), os.MkdirAll(at("src/locked/in"), 0o755),
		os.WriteFile(at("src/etc/passwd"), []byte("x"), 0o644),
		os.WriteFile(at("src/etc/shadow"), []byte("x"), 0o600),
		os.WriteFile(at("src/locked/in/f"), []byte("x"), 0o644),
		os.Mkdir(at("src/private"), 0o700), os.Mkdir(at("src/root"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	toChild, fromChild := pipe(t), pipe(t)
	cmd := exec.Cmd{
		Path: "/proc/self/exe", Args: []string{os.Args[0], "-test.run=^TestRefresh_AsOrdinaryUser$"},
		Env: append(os.Environ(), asUser+"="+dir), Stdin: toChild[0], Stdout: os.Stderr, Stderr: os.Stderr,
		ExtraFiles:  []*os.File{fromChild[1]},
		SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}},
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	toChild[0].Close()
	fromChild[1].Close()
	for _, change := range []func() error{
		func() error { return nil },
		func() error { return os.WriteFile(at("src/etc/new"), []byte("x"), 0o600) },
		func() error { return unix.Chmod(at("src/locked"), 0o700) },
		func() error { return unix.Chmod(at("src/etc/passwd"), 0o600) },
		func() error {
			return errors.Join(unix.Chmod(at("src/locked"), 0o755), unix.Chmod(at("src/etc/shadow"), 0o644))
		},
	} {
		if _, err := fromChild[0].Read(make([]byte, 1)); err != nil {
			break // the child reports why
		}
		if err := change(); err != nil {
			t.Error(err)
		}
		if _, err := toChild[1].Write([]byte{0}); err != nil {
			t.Error(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("as an ordinary user: %v", err)
	}
}

func pipe(t *testing.T) [2]*os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return [2]*os.File{r, w}
}

func refreshAsUser(t *testing.T, dir string) {
	r := &refreshed{world: newWorld(t, filepath.Join(dir, "home"), true), src: filepath.Join(dir, "src")}
	defer r.close()
	r.opts.Empty = []string{filepath.Join(r.src, "root")} // its content is not imported, so it need not be readable
	parent := os.NewFile(3, "to the parent")
	defer parent.Close()
	next := func() {
		t.Helper()
		_, err := parent.Write([]byte{0})
		r.must(err)
		_, err = os.Stdin.Read(make([]byte, 1))
		r.must(err)
	}
	step := func(what string, entries int64, unreadable ...string) {
		t.Helper()
		next()
		got := r.refresh()
		for i := range unreadable {
			unreadable[i] = filepath.Join(r.src, unreadable[i])
		}
		if got.Entries != entries || !slices.Equal(got.Unreadable, unreadable) {
			t.Errorf("%s: %d entries were taken, %q could not be read", what, got.Entries, got.Unreadable)
		}
		if again := r.refresh(); !again.Empty {
			t.Errorf("%s: taken twice", what)
		}
	}
	r.start()
	step("nothing changed", 0, "etc/shadow", "private")
	step("one more that may not be read", 0, "etc/new", "etc/shadow", "private")
	step("a directory is locked", 2, "etc/new", "etc/shadow", "locked", "private")
	step("a file is locked", 1, "etc/new", "etc/passwd", "etc/shadow", "locked", "private")
	step("both may be read", 4, "etc/new", "etc/passwd", "private")
}

func TestRefreshDeepTree(t *testing.T) {
	r := newRefreshed(t, t.TempDir())
	defer r.close()
	const depth = 60
	deeper := strings.Repeat("deeper-and", 20) // far beyond PATH_MAX
	fd, err := dirfd.OpenDir(unix.AT_FDCWD, r.src)
	r.must(err)
	for range depth {
		r.must(unix.Mkdirat(fd, deeper, 0o755))
		next, err := dirfd.OpenDir(fd, deeper)
		r.must(err)
		unix.Close(fd)
		fd = next
	}
	defer unix.Close(fd)
	open, err := os.ReadDir("/proc/self/fd")
	r.must(err)
	var before, after unix.Rlimit
	r.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	after = before
	after.Cur = uint64(len(open) + 90) // less than one for each directory and its copy
	r.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &after))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	ctx := context.Background()
	r.start()
	if got := r.refresh(); !got.Empty {
		t.Errorf("%d entries were taken again", got.Entries)
	}
	r.must(unix.Mkdirat(fd, "new", 0o755))
	out, err := r.s.fs.Create(fd, "bottom", 0o644)
	r.must(err)
	unix.Close(out)
	if got := r.refresh(); got.Entries != 2 {
		t.Errorf("%d entries were taken", got.Entries)
	}
	r.must(unix.Unlinkat(fd, "bottom", 0))
	if got := r.refresh(); got.Entries != 1 {
		t.Errorf("%d entries were taken", got.Entries)
	}
	r.must(r.s.RemoveTree(ctx, r.src))
	r.must(os.Mkdir(r.src, 0o755))
	if got := r.refresh(); got.Entries != 1 {
		t.Errorf("%d entries were taken", got.Entries)
	}
	for _, id := range r.stack {
		r.must(r.s.Remove(ctx, id))
	}
}

// TestRefresh_KeepsHardLinks checks that all names of a file are taken when one of them changes: in two layers they
// would be two files.
func TestRefresh_KeepsHardLinks(t *testing.T) {
	r := newRefreshed(t, t.TempDir())
	defer r.close()
	at := func(n string) string { return filepath.Join(r.src, n) }
	for _, d := range []string{"stays/deep", "moves"} {
		r.must(os.MkdirAll(at(d), 0o755))
	}
	r.must(os.WriteFile(at("stays/deep/a"), []byte("one file"), 0o640))
	r.must(os.Link(at("stays/deep/a"), at("b")))
	r.must(os.Link(at("b"), at("moves/c")))
	r.start()
	r.index.calm()
	r.must(os.Rename(at("moves"), at("moved")))
	if got := r.refresh(); got.Entries != 5 { // the old directory, the new one, and three names
		t.Errorf("%d entries were taken", got.Entries)
	}
	r.index.calm()
	if got := r.refresh(); !got.Empty {
		t.Errorf("%d entries were taken again", got.Entries)
	}
}
