package vfs

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// tb is the common part of testing.T and rapid.T.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// disk is a Crashable whose directories and files are named by paths.
type disk struct {
	t tb
	*Crashable
	home   string
	clones int
}

func newDisk(t tb) *disk {
	t.Helper()
	home, err := os.MkdirTemp("/dev/shm", "coppice-vfs-")
	if err != nil {
		home, err = os.MkdirTemp("", "coppice-vfs-")
	}
	d := &disk{t: t, home: home}
	d.must(err)
	d.must(os.Mkdir(d.path(""), 0o755))
	d.Crashable = NewCrashable(d.path(""))
	return d
}

func (d *disk) close() { d.must(d.Close(), os.RemoveAll(d.home)) }

func (d *disk) must(errs ...error) {
	d.t.Helper()
	for _, err := range errs {
		if err != nil {
			d.t.Fatalf("%v", err)
		}
	}
}

func (d *disk) path(name string) string { return filepath.Join(d.home, "disk", name) }

// open opens a file or directory until the end of fn.
func (d *disk) open(name string, flags int, fn func(fd int)) {
	d.t.Helper()
	fd, err := unix.Open(d.path(name), flags|unix.O_CLOEXEC, 0)
	d.must(err)
	fn(fd)
	unix.Close(fd)
}

// in calls fn with the directory of a path, and the name in it.
func (d *disk) in(path string, fn func(dir int, base string) error) {
	d.t.Helper()
	d.open(filepath.Dir(path), unix.O_DIRECTORY, func(dir int) {
		d.t.Helper()
		d.must(fn(dir, filepath.Base(path)))
	})
}

func (d *disk) mkdir(name string) {
	d.t.Helper()
	d.in(name, func(dir int, base string) error { return d.Mkdir(dir, base, 0o755) })
}

func (d *disk) create(name, content string) {
	d.t.Helper()
	d.in(name, func(dir int, base string) error {
		fd, err := d.Create(dir, base, 0o644)
		if err == nil {
			err = d.WriteAt(fd, []byte(content), 0)
			unix.Close(fd)
		}
		return err
	})
}

func (d *disk) rename(from, to string) {
	d.t.Helper()
	d.in(from, func(fromDir int, from string) error {
		d.in(to, func(toDir int, to string) error { return d.Rename(fromDir, from, toDir, to) })
		return nil
	})
}

func (d *disk) unlink(name string) { d.t.Helper(); d.in(name, d.Unlink) }
func (d *disk) rmdir(name string)  { d.t.Helper(); d.in(name, d.Rmdir) }

func (d *disk) sync(names ...string) {
	d.t.Helper()
	for _, name := range names {
		d.open(name, unix.O_RDONLY, func(fd int) { d.must(d.Sync(fd)) })
	}
}

// clone makes a clone and returns its path.
func (d *disk) clone(how Crash) string {
	d.t.Helper()
	d.clones++
	to := filepath.Join(d.home, fmt.Sprintf("clone%d", d.clones))
	d.must(d.CrashClone(to, how))
	return to
}

// tree returns the contents of a directory by path: "/" for directories, and the target of links.
func (d *disk) tree(dir string) map[string]string {
	d.t.Helper()
	all := map[string]string{}
	d.must(filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := path[len(dir)+1:]
		switch {
		case e.IsDir():
			all[name] = "/"
		case e.Type() == os.ModeSymlink:
			all[name], err = os.Readlink(path)
		default:
			var b []byte
			b, err = os.ReadFile(path)
			all[name] = string(b)
		}
		return err
	}))
	return all
}

// left fails unless a crash leaves exactly these pairs of path and content.
func (d *disk) left(how Crash, pairs ...string) {
	d.t.Helper()
	want := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		want[pairs[i]] = pairs[i+1]
	}
	if got := d.tree(d.clone(how)); !maps.Equal(got, want) {
		d.t.Errorf("a crash left %q, want %q", got, want)
	}
}

// nothing is a crash that leaves only what was synced.
var nothing = Crash{}

func TestCrashClone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(d *disk){
		"a file without its name": func(d *disk) {
			d.create("f", "one")
			d.sync("f")
			d.left(nothing)
			d.left(Kill, "f", "one")
			d.sync("")
			d.left(nothing, "f", "one")
		},
		"a name without its file": func(d *disk) {
			d.create("f", "one")
			d.sync("")
			d.left(nothing, "f", "")
			d.left(Kill, "f", "one")
		},
		"a directory whose name is lost loses what is in it": func(d *disk) {
			d.mkdir("d")
			d.create("d/f", "one")
			d.sync("d", "d/f")
			d.left(nothing)
			d.sync("")
			d.left(nothing, "d", "/", "d/f", "one")
		},
		"what was unlinked comes back": func(d *disk) {
			d.create("f", "one")
			d.sync("f", "")
			d.unlink("f")
			d.left(nothing, "f", "one")
			d.left(Kill)
			d.create("f", "two")
			d.left(nothing, "f", "one")
			d.sync("")
			d.left(nothing, "f", "")
		},
		"what was replaced comes back": func(d *disk) {
			d.create("f", "one")
			d.create("f.tmp", "two")
			d.sync("f", "f.tmp", "")
			d.rename("f.tmp", "f")
			d.left(nothing, "f", "one", "f.tmp", "two")
			d.left(Kill, "f", "two")
			d.sync("")
			d.left(nothing, "f", "two")
		},
		"a tree that was removed comes back": func(d *disk) {
			d.mkdir("d")
			d.create("d/f", "one")
			d.sync("d/f", "d", "")
			d.unlink("d/f")
			d.rmdir("d")
			d.left(nothing, "d", "/", "d/f", "one")
			d.sync("")
			d.left(nothing)
		},
		"a directory is moved with what is in it": func(d *disk) {
			d.mkdir("a")
			d.mkdir("b")
			d.mkdir("a/d")
			d.create("a/d/f", "one")
			d.sync("a/d/f", "a/d", "a", "b", "")
			d.rename("a/d", "b/d")
			d.create("b/d/g", "two")
			d.sync("b/d/g", "b/d")
			d.left(nothing, "a", "/", "b", "/", "a/d", "/", "a/d/f", "one", "a/d/g", "two")
			d.sync("a")
			d.left(nothing, "a", "/", "b", "/", "a/d", "/", "a/d/f", "one", "a/d/g", "two")
			d.sync("b")
			d.left(nothing, "a", "/", "b", "/", "b/d", "/", "b/d/f", "one", "b/d/g", "two")
		},
		"a rename that is followed is durable": func(d *disk) {
			d.mkdir("a")
			d.create("f", "one")
			d.sync("f", "a", "")
			d.rename("f", "a/f")
			d.create("f", "two")
			d.sync("f", "")
			d.left(nothing, "a", "/", "a/f", "one", "f", "two")
		},
		"a file that is written over": func(d *disk) {
			d.create("f", "one")
			d.sync("f", "")
			d.open("f", unix.O_WRONLY, func(fd int) { d.must(d.WriteAt(fd, []byte("more"), 1), d.Truncate(fd, 4)) })
			d.left(nothing, "f", "one")
			d.left(Kill, "f", "omor")
		},
		"what is lost is lost from some change on": func(d *disk) {
			for _, name := range []string{"a", "b", "c"} {
				d.mkdir(name)
			}
			seen := map[int]bool{}
			for seed := range uint64(50) {
				got := d.tree(d.clone(Crash{Names: 50, InOrder: true, Seed: seed}))
				if got["a"] < got["b"] || got["b"] < got["c"] {
					d.t.Errorf("seed %d: a crash left %q", seed, got)
				}
				seen[len(got)] = true
			}
			if len(seen) != 4 {
				d.t.Errorf("crashes left %v of 3 names", seen)
			}
			d.left(Crash{InOrder: true})
			d.left(Crash{InOrder: true, Names: 100}, "a", "/", "b", "/", "c", "/")
		},
		"the whole file system is synced": func(d *disk) {
			d.mkdir("d")
			d.create("d/f", "one")
			d.open("", unix.O_RDONLY, func(fd int) { d.must(d.SyncFS(fd)) })
			d.left(nothing, "d", "/", "d/f", "one")
		},
		"what was written by other means": func(d *disk) {
			d.must(os.Mkdir(d.path("d"), 0o755), os.WriteFile(d.path("d/f"), []byte("one"), 0o600))
			d.left(nothing, "d", "/", "d/f", "one")
			d.must(d.Unsync(d.path("d")))
			d.left(nothing, "d", "/")
			d.left(Kill, "d", "/", "d/f", "one")
			d.sync("d")
			d.left(nothing, "d", "/", "d/f", "")
			d.create("g", "two")
			d.must(os.Remove(d.path("g")))
			d.left(Kill, "d", "/", "d/f", "one")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			defer d.close()
			test(d)
			if d.open("", unix.O_RDONLY, func(fd int) { d.must(d.SyncFS(fd)) }); len(d.nodes) > 0 {
				t.Errorf("%d files are still open", len(d.nodes))
			}
		})
	}
}

// TestCrashClone_KeepsMetadata checks that types, links and metadata are cloned; metadata that were not synced may be
// lost.
func TestCrashClone_KeepsMetadata(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	defer d.close()
	d.create("f", "one")
	d.in("f", func(dir int, base string) error {
		d.must(d.Link(dir, base, dir, "same"), d.Symlink("f", dir, "link"), d.Mknod(dir, "fifo", unix.S_IFIFO|0o600, 0),
			d.Utimes(dir, base, 1e18))
		if err := d.SetXattrAt(dir, base, "user.k", []byte("v")); err != unix.ENOTSUP {
			d.must(err)
		}
		return nil
	})
	d.sync("f", "")
	d.in("f", func(dir int, base string) error { return d.ChmodAt(dir, base, 0o4711) })
	for how, want := range map[Crash]os.FileMode{nothing: 0o644, Kill: 0o711 | os.ModeSetuid} {
		at := d.clone(how)
		f, err := os.Lstat(filepath.Join(at, "f"))
		d.must(err)
		same, err := os.Lstat(filepath.Join(at, "same"))
		d.must(err)
		fifo, err := os.Lstat(filepath.Join(at, "fifo"))
		d.must(err)
		if f.Mode() != want || f.ModTime().UnixNano() != 1e18 || !os.SameFile(f, same) ||
			fifo.Mode() != os.ModeNamedPipe|0o600 {
			t.Errorf("%v, %v, %v, the same: %v", f.Mode(), f.ModTime(), fifo.Mode(), os.SameFile(f, same))
		}
		var here, there unix.Stat_t
		d.must(unix.Lstat(d.path("f"), &here), unix.Lstat(filepath.Join(at, "f"), &there))
		buf, clone := make([]byte, 100), make([]byte, 100)
		n, _ := unix.Lgetxattr(d.path("f"), "user.k", buf)
		m, _ := unix.Lgetxattr(filepath.Join(at, "f"), "user.k", clone)
		if n != m || !bytes.Equal(buf, clone) {
			t.Errorf("attribute %q, want %q", clone[:max(m, 0)], buf[:max(n, 0)])
		}
	}
}

// names models what a crash may do to names: after a directory was synced, each of its names leads to where it led
// then or to where a later change made it lead. The removal of a name by a rename is durable when the directory that
// the file was moved to is synced.
type names struct {
	now     map[string]string          // symbolic links by path
	maybe   map[string]map[string]bool // what each path may lead to; "": nothing
	durable map[string]bool            // links with a synced name
	gone    map[string]bool            // links of which a name was removed, other than by a rename
	left    map[string]bool            // paths whose last change was a rename away
}

func (s *names) set(path, to string) {
	if s.maybe[path] == nil {
		s.maybe[path] = map[string]bool{s.now[path]: true}
	}
	s.maybe[path][to] = true
	s.now[path] = to
	s.left[path] = false
}

func (s *names) sync(dir string) {
	for path, to := range s.now {
		if dir == "." || filepath.Dir(path) == dir && !s.left[path] {
			s.maybe[path] = map[string]bool{to: true}
			s.durable[to] = true
		}
	}
}

// check fails unless a crash may leave this tree.
func (s *names) check(t tb, got map[string]string) {
	t.Helper()
	seen := map[string]int{}
	for path, may := range s.maybe {
		if !may[got[path]] {
			t.Errorf("%s leads to %q, and can only lead to %v", path, got[path], may)
		}
		seen[got[path]]++
	}
	for link := range s.durable {
		if link != "" && !s.gone[link] && seen[link] != 1 {
			t.Errorf("%s has %d names", link, seen[link])
		}
	}
}

// TestCrashClone_Names checks that a crash leaves each synced name, and that a rename loses nothing.
func TestCrashClone_Names(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := newDisk(t)
		defer d.close()
		dirs := []string{"a", "b", "c"}
		var paths []string
		for _, dir := range dirs {
			d.mkdir(dir)
			paths = append(paths, dir+"/x", dir+"/y")
		}
		d.sync("")
		s := names{now: map[string]string{}, maybe: map[string]map[string]bool{}, durable: map[string]bool{},
			gone: map[string]bool{}, left: map[string]bool{}}
		for step := range rapid.IntRange(1, 30).Draw(t, "steps") {
			path := rapid.SampledFrom(paths).Draw(t, "path")
			there := s.now[path]
			switch rapid.SampledFrom([]string{"link", "rename", "rename", "unlink", "sync", "sync all"}).Draw(t, "op") {
			case "link":
				if there == "" {
					link := fmt.Sprint("link", step)
					d.in(path, func(dir int, base string) error { return d.Symlink(link, dir, base) })
					s.set(path, link)
				}
			case "rename":
				if to := rapid.SampledFrom(paths).Draw(t, "to"); there != "" && to != path {
					d.rename(path, to)
					s.gone[s.now[to]] = true
					s.set(path, "")
					s.set(to, there)
					s.left[path] = true
				}
			case "unlink":
				if there != "" {
					d.unlink(path)
					s.gone[there] = true
					s.set(path, "")
				}
			case "sync":
				d.sync(filepath.Dir(path))
				s.sync(filepath.Dir(path))
			case "sync all":
				d.open("", unix.O_RDONLY, func(fd int) { d.must(d.SyncFS(fd)) })
				s.sync(".")
			}
		}
		seed := rapid.Uint64().Draw(t, "seed")
		got := d.tree(d.clone(PowerLoss(seed)))
		s.check(t, got)
		if again := d.tree(d.clone(PowerLoss(seed))); !maps.Equal(got, again) {
			t.Errorf("the same crash left %q, and then %q", got, again)
		}
		killed, now := d.tree(d.clone(Kill)), d.tree(d.path(""))
		if !maps.Equal(killed, now) {
			t.Errorf("a killed process left %q, want %q", killed, now)
		}
		s.check(t, killed)
	})
}

// TestCrashClone_Blocks checks that a crash leaves each block of a file as it was last synced or last written.
func TestCrashClone_Blocks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := newDisk(t)
		defer d.close()
		d.create("f", "")
		d.sync("")
		var old, now []byte
		fd, err := unix.Open(d.path("f"), unix.O_RDWR|unix.O_CLOEXEC, 0)
		d.must(err)
		defer unix.Close(fd)
		for step := range rapid.IntRange(1, 12).Draw(t, "steps") {
			at, n := rapid.IntRange(0, 4*blockSize).Draw(t, "at"), rapid.IntRange(1, 2*blockSize).Draw(t, "n")
			switch rapid.SampledFrom([]string{"write", "write", "truncate", "sync"}).Draw(t, "op") {
			case "write":
				p := bytes.Repeat([]byte{byte(step + 1)}, n)
				d.must(d.WriteAt(fd, p, int64(at)))
				now = append(now, make([]byte, max(0, at+n-len(now)))...)
				copy(now[at:], p)
			case "truncate":
				d.must(d.Truncate(fd, int64(at)))
				now = append(now[:min(at, len(now))], make([]byte, max(0, at-len(now)))...)
			case "sync":
				d.must(d.Sync(fd))
				old = bytes.Clone(now)
			}
		}
		got, err := os.ReadFile(filepath.Join(d.clone(PowerLoss(rapid.Uint64().Draw(t, "seed"))), "f"))
		d.must(err)
		if len(got) < min(len(old), len(now)) || len(got) > max(len(old), len(now)) {
			t.Errorf("the file has %d bytes, had %d, and then %d", len(got), len(old), len(now))
		}
		for at := 0; at < len(got); at += blockSize {
			n := min(blockSize, len(got)-at)
			of := func(b []byte) []byte {
				block := make([]byte, n)
				copy(block, b[min(at, len(b)):])
				return block
			}
			if b := got[at : at+
				n]; !slices.ContainsFunc([][]byte{of(old), of(now)}, func(c []byte) bool { return bytes.Equal(b, c) }) {
				t.Errorf("block at %d is neither the synced nor the written one", at)
			}
		}
	})
}

// TestCrashable_PassesErrorsOn checks that a failed call changes nothing, and that OnCall runs before each call.
func TestCrashable_PassesErrorsOn(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	defer d.close()
	var calls []Op
	d.OnCall = func(op Op) {
		calls = append(calls, op)
		d.must(d.CrashClone(filepath.Join(d.home, fmt.Sprint(len(calls))), Kill))
	}
	d.mkdir("d")
	d.in("d", func(dir int, base string) error {
		for _, err := range []error{d.Mkdir(dir, base, 0o755), d.Symlink("x", dir, base)} {
			if err != syscall.EEXIST {
				t.Errorf("%v", err)
			}
		}
		if _, err := d.Create(dir, base, 0o600); err != syscall.EEXIST {
			t.Errorf("%v", err)
		}
		if err := d.Rename(dir, "missing", dir, "to"); err != syscall.ENOENT {
			t.Errorf("%v", err)
		}
		return nil
	})
	if want := []Op{OpMkdir, OpMkdir, OpSymlink, OpCreate, OpRename}; !slices.Equal(calls, want) {
		t.Errorf("%q", calls)
	}
	d.left(Kill, "d", "/")
	d.left(nothing)
}
