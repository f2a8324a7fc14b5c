//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// actor is passed to each scenario. Its working directory is the overlay's root.
type actor struct{ failed bool }

func (a *actor) errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "  "+format+"\n", args...)
	a.failed = true
}

func (a *actor) must(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "  %v\n", err)
		os.Exit(1)
	}
}

func (a *actor) want(got, want error) {
	if !errors.Is(got, want) {
		a.errorf("got %v, want %v", got, want)
	}
}

// tree lists the files below dir: path, mode, mtime of directories, content.
func tree(dir string) string {
	var lines []string
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			lines = append(lines, err.Error())
			return nil
		}
		info, err := d.Info()
		if err != nil {
			lines = append(lines, err.Error())
			return nil
		}
		rel := strings.TrimPrefix(p, dir)
		content := ""
		switch {
		case info.Mode().IsRegular():
			b, _ := os.ReadFile(p)
			content = fmt.Sprintf("%q", b)
		case info.Mode()&fs.ModeSymlink != 0:
			content, _ = os.Readlink(p)
		}
		buf := make([]byte, 100)
		if n, err := unix.Lgetxattr(p, "user.note", buf); err == nil {
			content += " note=" + string(buf[:n])
		}
		lines = append(lines, fmt.Sprintf("%s %v %d %s", rel, info.Mode(), info.ModTime().UnixNano(), content))
		return nil
	})
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func rename2(from, to string, flags uint) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags)
}

// fill is the lower layer of all scenarios.
func fill(lower string) {
	write := func(name, content string) {
		p := filepath.Join(lower, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			panic(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			panic(err)
		}
	}
	write("d/one", "1")
	write("d/two", "22")
	write("d/sub/three", "333")
	write("d/sub/deep/er/four", "4444")
	write("d/sub/empty/x", "")
	_ = os.Remove(filepath.Join(lower, "d/sub/empty/x"))
	write("hl/a", "linked")
	write("hl/sub/x", "x")
	_ = os.Link(filepath.Join(lower, "hl/a"), filepath.Join(lower, "hl/sub/b"))
	write("other/file", "o")
	write("full/file", "f")
	write("file", "plain")
	_ = os.Mkdir(filepath.Join(lower, "void"), 0o755)
	_ = os.Symlink("one", filepath.Join(lower, "d/link"))
	_ = os.Symlink("/etc/passwd", filepath.Join(lower, "d/abs"))
	_ = unix.Mkfifo(filepath.Join(lower, "d/fifo"), 0o600)
	_ = os.Chmod(filepath.Join(lower, "d/sub"), 0o2750)
	_ = unix.Setxattr(filepath.Join(lower, "d/sub"), "user.note", []byte("hi"), 0)
	_ = unix.Setxattr(filepath.Join(lower, "d"), OwnerXattr, []byte("5:6"), 0)
	for i := range 300 {
		write(fmt.Sprintf("many/%d/file%d", i%10, i), strings.Repeat("x", i))
	}
	name := "deep"
	for range 150 {
		name += "/a-rather-long-name-of-a-directory"
	}
	must(os.MkdirAll(filepath.Join(lower, "deep/a-rather-long-name-of-a-directory"), 0o755))
	deep(filepath.Join(lower, "deep"), 150)
	old := time.Unix(1600000000, 123456789)
	_ = filepath.WalkDir(lower, func(p string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chtimes(p, old, old)
		}
		return nil
	})
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// deep creates a chain of n directories whose path exceeds PATH_MAX.
func deep(dir string, n int) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(err)
	for range n {
		if err := unix.Mkdirat(fd, "a-rather-long-name-of-a-directory", 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			panic(err)
		}
		next, err := unix.Openat(fd, "a-rather-long-name-of-a-directory", unix.O_PATH|unix.O_DIRECTORY, 0)
		must(err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
}

// renamesLike renames from to to and checks that everything arrived unchanged.
func (a *actor) renamesLike(from, to string) {
	before := tree(from)
	if err := os.Rename(from, to); err != nil {
		a.errorf("rename %s %s: %v", from, to, err)
		return
	}
	if after := tree(to); after != before {
		a.errorf("after renaming %s to %s:\n%s\nwant:\n%s", from, to, after, before)
	}
	if _, err := os.Lstat(from); !errors.Is(err, fs.ErrNotExist) {
		a.errorf("%s is still there: %v", from, err)
	}
	if _, err := os.Lstat(journalName); !errors.Is(err, fs.ErrNotExist) {
		a.errorf("the workshop is still there: %v", err)
	}
}

// scenarios run in an actor; events are the lines that must be reported.
var scenarios = map[string]struct {
	play   func(a *actor)
	events int // number of promotions, including failed ones
}{
	"plain file": {func(a *actor) { a.renamesLike("file", "file2"); a.renamesLike("d/one", "uno") }, 0},
	"own directory": {func(a *actor) {
		a.must(os.MkdirAll("new/dir", 0o755))
		a.renamesLike("new", "new2")
		a.renamesLike("new2/dir", "dir")
	}, 0},
	"lower directory": {func(a *actor) {
		a.renamesLike("d", "e")
		a.renamesLike("e", "d")
		a.renamesLike("d/sub", "sub")
		if b, err := unix.Getxattr("d", OwnerXattr, make([]byte, 9)); err != nil || b != 3 {
			a.errorf("the remembered owner: %d %v", b, err)
		}
	}, 1},
	"merged directory": {func(a *actor) {
		a.must(os.WriteFile("d/new", []byte("n"), 0o600))
		a.must(os.Remove("d/two"))
		a.must(os.WriteFile("d/sub/three", []byte("changed"), 0o600))
		a.must(os.MkdirAll("d/sub/mine/too", 0o700))
		a.renamesLike("d", "other/d")
		if _, err := os.Lstat("other/d/two"); err == nil {
			a.errorf("a removed file came back")
		}
	}, 1},
	"hard links": {func(a *actor) {
		a.must(os.WriteFile("hl/sub/own", []byte("own"), 0o600))
		a.must(os.Link("hl/sub/own", "hl/own2"))
		a.renamesLike("hl", "hl2")
		for _, pair := range [][2]string{{"hl2/a", "hl2/sub/b"}, {"hl2/own2", "hl2/sub/own"}} {
			x, err := os.Stat(pair[0])
			a.must(err)
			y, err := os.Stat(pair[1])
			a.must(err)
			if !os.SameFile(x, y) {
				a.errorf("%v are two files", pair)
			}
		}
		a.must(os.WriteFile("hl2/a", []byte("changed"), 0o600))
		if b, _ := os.ReadFile("hl2/sub/b"); string(b) != "changed" {
			a.errorf("a write by one name is not seen by the other: %q", b)
		}
	}, 1},
	"deep tree": {func(a *actor) {
		a.must(os.Rename("deep", "deeper"))
		a.renamesLike("many", "deeper/many")
	}, 2},
	"trailing slashes and dots": {func(a *actor) {
		a.must(os.Rename("./d//", "other/../e/"))
		a.want(unix.Rename("e/.", "f"), unix.EBUSY)
		a.want(unix.Rename("e/..", "f"), unix.EBUSY)
	}, 1},
	"between parents by descriptor": {func(a *actor) {
		d, err := unix.Open("d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		a.must(err)
		o, err := unix.Open("other", unix.O_PATH|unix.O_DIRECTORY, 0)
		a.must(err)
		before := tree("d/sub")
		a.must(unix.Renameat(d, "sub", o, "moved"))
		if after := tree("other/moved"); after != before {
			a.errorf("%s\nwant\n%s", after, before)
		}
	}, 1},
	"exchange": {func(a *actor) {
		d, o := tree("d"), tree("other")
		a.must(rename2("d", "other", unix.RENAME_EXCHANGE))
		if tree("d") != o || tree("other") != d {
			a.errorf("not exchanged")
		}
		a.must(rename2("file", "d", unix.RENAME_EXCHANGE))
		if tree("file") != o {
			a.errorf("file and directory are not exchanged")
		}
		a.must(rename2("void", "d", unix.RENAME_EXCHANGE))
	}, 3},
	"noreplace": {func(a *actor) {
		a.want(rename2("d", "other", unix.RENAME_NOREPLACE), unix.EEXIST)
		before := tree("d")
		a.must(rename2("d", "fresh", unix.RENAME_NOREPLACE))
		if tree("fresh") != before {
			a.errorf("not moved")
		}
	}, 1},
	"onto a directory": {func(a *actor) {
		a.want(unix.Rename("d", "full"), unix.ENOTEMPTY)
		a.want(unix.Rename("d", "file"), unix.ENOTDIR)
		a.want(unix.Rename("d", "d/sub/x"), unix.EINVAL)
		a.want(unix.Rename("d", "d"), nil)
		a.want(unix.Rename("nothing", "x"), unix.ENOENT)
		before := tree("d")
		a.must(os.Remove("other/file"))
		a.must(unix.Rename("d", "other"))
		if tree("other") != before {
			a.errorf("not moved")
		}
		a.must(unix.Rename("other", "void"))
	}, 1},
	"mount points": {func(a *actor) {
		a.want(unix.Rename("tmpfs", "x"), unix.EBUSY)
		a.want(unix.Rename("d", "tmpfs/d"), unix.EXDEV)
		a.must(os.Mkdir("tmpfs/a", 0o755))
		a.must(os.Rename("tmpfs/a", "tmpfs/b"))
	}, 0},
	"symbolic links are not followed": {func(a *actor) {
		a.must(os.Symlink("d", "ln"))
		a.must(os.Rename("ln", "ln2"))
		if l, err := os.Readlink("ln2"); err != nil || l != "d" {
			a.errorf("%s %v", l, err)
		}
		a.must(os.Rename("ln2/sub", "ln2/sub2")) // through a link, as a parent
		if _, err := os.Stat("d/sub2/three"); err != nil {
			a.errorf("%v", err)
		}
	}, 1},
	"permissions are the caller's": {func(a *actor) {
		a.must(os.Chmod("other", 0o555))
		a.want(unix.Rename("d", "other/d"), unix.EACCES)
		a.must(os.Chmod(".", 0o555))
		a.want(unix.Rename("d", "e"), unix.EACCES)
	}, 0},
	"chroot": {func(a *actor) {
		a.must(os.MkdirAll("d/etc", 0o755))
		a.must(os.Symlink("/sub", "d/in"))
		a.must(os.Symlink("/sub/deep", "d/etc/rel"))
		root, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY, 0)
		a.must(err)
		a.must(unix.Chroot("d"))
		a.must(unix.Chdir("/etc"))
		a.must(os.Rename("/in/deep", "/in/deep2")) // an absolute link, in another root
		if _, err := os.Stat("/sub/deep2/er/four"); err != nil {
			a.errorf("%v", err)
		}
		a.must(os.Rename("../sub", "../sub2"))
		if _, err := os.Stat("/sub2/deep2/er/four"); err != nil {
			a.errorf("%v", err)
		}
		a.must(unix.Renameat(root, "other", root, "other2")) // a descriptor from outside the root
	}, 3},
	"git mv": {func(a *actor) {
		git := func(args ...string) {
			cmd := exec.Command("git",
				append([]string{"-c", "user.name=n", "-c", "user.email=e", "-c", "safe.directory=*"}, args...)...)
			cmd.Env = append(os.Environ(), "HOME=/nonexistent")
			if out, err := cmd.CombinedOutput(); err != nil {
				a.errorf("git %v: %v %s", args, err, out)
			}
		}
		git("init", "-q")
		git("add", "d", "other")
		git("commit", "-qm", "first")
		git("mv", "d", "dd")
		git("mv", "dd/sub", "other/sub")
		git("commit", "-qm", "second")
		if _, err := os.Stat("other/sub/deep/er/four"); err != nil {
			a.errorf("%v", err)
		}
	}, 1},
	"racing threads": {func(a *actor) {
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 20 {
					from, to := "many", "moved"
					if (g+i)%2 == 0 {
						from, to = to, from
					}
					err := unix.Rename(from, to)
					if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) {
						a.errorf("rename: %v", err)
					}
					_ = os.Rename(fmt.Sprintf("many/%d", i%10), fmt.Sprintf("other/%d-%d", g, i))
					_ = os.Rename(fmt.Sprintf("other/%d-%d", g, i), fmt.Sprintf("moved/%d", i%10))
				}
			})
		}
		wg.Wait()
		count := 0
		_ = filepath.WalkDir(".", func(p string, d fs.DirEntry, _ error) error {
			if d != nil && strings.HasPrefix(d.Name(), "file") && d.Name() != "file" {
				count++
			}
			return nil
		})
		if count != 300 {
			a.errorf("%d files, want 300", count)
		}
	}, -1},
	// "break" is for TestPromotion_RollsBackAtEachStep: whatever fails, the tree remains as it was, or moves as a
	// whole.
	"break": {func(a *actor) {
		a.must(os.Remove("d/two"))
		a.must(os.MkdirAll("d/sub/mine", 0o700))
		if err := os.WriteFile("before", []byte(tree("d")), 0o600); err != nil {
			a.must(err)
		}
		err := unix.Rename("d", "e")
		if err != nil && !errors.Is(err, unix.EXDEV) {
			a.errorf("rename: %v", err)
		}
		checkBroken(a, true)
	}, -1},
	"check after break": {func(a *actor) { checkBroken(a, false) }, -1},
	"emulated owners":   {emulatedOwners, 0},
	"emulated xattrs":   {emulatedXattrs, 0},
	"emulated devices":  {emulatedDevices, 0},
	"terminals":         {concurrentTerminals, 0},
	"bench":             {benchRenames, 0},
}

// checkBroken checks that the tree is complete under one of its two names. Times are preserved only if nothing was
// killed.
func checkBroken(a *actor, times bool) {
	before, err := os.ReadFile("before")
	a.must(err)
	want := string(before)
	var got []string
	for _, name := range []string{"d", "e"} {
		if _, err := os.Lstat(name); err == nil {
			got = append(got, tree(name))
		}
	}
	if len(got) != 1 {
		a.errorf("there are %d trees", len(got))
		return
	}
	if !times {
		strip := func(s string) string {
			lines := strings.Split(s, "\n")
			for i, l := range lines {
				f := strings.SplitN(l, " ", 4)
				lines[i] = f[0] + " " + f[1] + " " + f[3]
			}
			return strings.Join(lines, "\n")
		}
		want, got[0] = strip(want), strip(got[0])
	}
	if got[0] != want {
		a.errorf("got:\n%s\nwant:\n%s", got[0], want)
	}
	if _, err := os.Lstat(journalName); !errors.Is(err, fs.ErrNotExist) {
		a.errorf("the workshop is still there: %v", err)
	}
}

func play(name string) int {
	a := &actor{}
	unix.Umask(0o022)
	scenarios[name].play(a)
	if a.failed {
		return 1
	}
	return 0
}

func xattr(path, name string) string {
	b := make([]byte, 256)
	n, err := unix.Lgetxattr(path, name, b)
	if err != nil {
		return err.Error()
	}
	return string(b[:n])
}

func (a *actor) is(got, want string) {
	if got != want {
		a.errorf("got %q, want %q", got, want)
	}
}

func emulatedOwners(a *actor) {
	a.must(os.Chown("file", 101, 102))
	a.is(xattr("file", OwnerXattr), "101:102")
	a.must(os.Chown("file", -1, 7))
	a.is(xattr("file", OwnerXattr), "101:7")
	a.must(os.Chown("file", 0, 0))
	a.is(xattr("file", OwnerXattr), unix.ENODATA.Error())
	a.must(os.Chown("d/sub", 5, -1))
	a.is(xattr("d/sub", OwnerXattr), "5:0")
	a.must(os.Lchown("d/link", 9, 9)) // cannot be remembered; must not affect d/one
	a.is(xattr("d/one", OwnerXattr), unix.ENODATA.Error())
	a.must(os.Chown("d/link", 9, 9))
	a.is(xattr("d/one", OwnerXattr), "9:9")
	f, err := os.Create("new")
	a.must(err)
	a.must(f.Chown(33, 33))
	a.is(xattr("new", OwnerXattr), "33:33")
	a.must(os.Chown(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), 34, 34))
	a.is(xattr("new", OwnerXattr), "34:34")
	a.must(unix.Fchownat(int(f.Fd()), "", 35, 35, unix.AT_EMPTY_PATH))
	a.is(xattr("new", OwnerXattr), "35:35")
	a.must(f.Chmod(0o755 | fs.ModeSetuid))
	a.must(f.Chown(36, 36))
	if info, _ := f.Stat(); info.Mode()&fs.ModeSetuid != 0 {
		a.errorf("chown kept the setuid bit")
	}
	a.want(os.Chown("nothing", 1, 1), unix.ENOENT)
	a.want(os.Chown("file/x", 1, 1), unix.ENOTDIR)
	a.want(unix.Fchown(999, 1, 1), unix.EBADF)
	a.want(unix.Fchownat(unix.AT_FDCWD, "file", 1, 1, 0x40000), unix.EINVAL)
	// PID 1 must not follow its own links with its own rights.
	if err := os.Chown("/proc/1/cwd/tmp", 1, 1); err == nil {
		a.errorf("followed a link of PID 1")
	}
	for _, call := range []func() error{
		func() error { return unix.Setgroups([]int{1, 2}) },
		func() error { return unix.Setresuid(5, 5, 5) },
		func() error { return unix.Setresgid(5, 5, 5) },
	} {
		a.must(call())
	}
	if os.Getuid() != 0 {
		a.errorf("uid is %d", os.Getuid())
	}
}

func emulatedXattrs(a *actor) {
	a.must(unix.Setxattr("file", "user.note", []byte("n"), 0))
	a.is(xattr("file", "user.note"), "n")
	a.must(unix.Removexattr("file", "user.note"))
	a.want(unix.Removexattr("file", "user.note"), unix.ENODATA)
	a.must(unix.Setxattr("file", "trusted.note", []byte("n"), 0))
	a.must(unix.Setxattr("file", "security.selinux", []byte("label"), 0))
	a.must(unix.Lsetxattr("d/link", "security.ima", []byte("label"), 0))
	cap := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // cap_net_bind_service+ep, version 2
	a.must(unix.Setxattr("file", "security.capability", cap, 0))
	f, err := os.Open("file")
	a.must(err)
	a.must(unix.Fsetxattr(int(f.Fd()), "security.capability", cap, 0))
	// u::rw- g:4:r-- g::r-- m::r-- o::r--, with a group that is not mapped
	acl := []byte{2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 8, 0, 4, 0, 4, 0, 0, 0,
		16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255}
	a.must(unix.Setxattr("file", "system.posix_acl_access", acl, 0))
	a.want(unix.Setxattr("nothing", "security.capability", cap, 0), unix.ENOENT)
}

func emulatedDevices(a *actor) {
	a.must(unix.Mknod("null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	a.is(xattr("null", DeviceXattr), "c 1:3")
	if info, err := os.Lstat("null"); err != nil || info.Mode() != 0o644 {
		a.errorf("%v %v", info.Mode(), err)
	}
	a.must(unix.Mknod("loop", unix.S_IFBLK|0o660, int(unix.Mkdev(7, 300))))
	a.is(xattr("loop", DeviceXattr), "b 7:300")
	a.want(unix.Mknod("null", unix.S_IFCHR|0o666, 3), unix.EEXIST)
	a.want(unix.Mknod("nodir/null", unix.S_IFCHR|0o666, 3), unix.ENOENT)
	a.must(unix.Mkfifo("pipe", 0o600))
	a.must(os.Chown("null", 0, 5))
	a.is(xattr("null", OwnerXattr), "0:5")
}

func benchRenames(a *actor) {
	const n = 20000
	a.must(os.WriteFile("x", nil, 0o600))
	var d []time.Duration
	for range n {
		start := time.Now()
		_ = unix.Rename("x", "y")
		_ = unix.Rename("y", "x")
		d = append(d, time.Since(start)/2)
	}
	sort.Slice(d, func(i, j int) bool { return d[i] < d[j] })
	fmt.Printf("rename of a plain file: median %v p99 %v\n", d[n/2], d[n*99/100])
}

func TestRename(t *testing.T) {
	t.Parallel()
	userNamespaces(t)
	for name, sc := range scenarios {
		if name == "bench" || name == "terminals" || strings.Contains(name, "break") || strings.HasPrefix(name, "emulated") {
			continue
		}
		for kind, c := range worldKinds(t) {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				if name == "permissions are the caller's" && kind != "user-as-me" || name == "chroot" && kind == "user-as-me" {
					return // the scenario requires capabilities, or their absence
				}
				c.Scenario = name
				prepare(t, &c, fill)
				out := c.run(t)
				if n := strings.Count(out, "event "); sc.events >= 0 && n != sc.events {
					t.Errorf("%d promotions, want %d\n%s", n, sc.events, out)
				}
				if strings.Contains(out, "event failed") {
					t.Error(out)
				}
			})
		}
	}
}

func TestEmulation(t *testing.T) {
	t.Parallel()
	userNamespaces(t)
	for name := range scenarios {
		if !strings.HasPrefix(name, "emulated") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, ok := worldKinds(t)["user-as-root"]
			if !ok {
				t.Skip("needs ordinary-user: to be one (make it: useradd coppiceuser)")
			}
			c.Scenario, c.Emulate = name, true
			prepare(t, &c, func(lower string) { fill(lower); _ = unix.Removexattr(filepath.Join(lower, "d"), OwnerXattr) })
			c.run(t)
		})
	}
}

// BenchmarkRename_PlainFile measures the cost of the listener, and the second way to detect a pure upper directory.
func BenchmarkRename_PlainFile(b *testing.B) {
	for _, filtered := range []bool{false, true} {
		b.Run(fmt.Sprintf("filtered=%v", filtered), func(b *testing.B) {
			c := worldConfig{UID: os.Getuid(), Inside: 0, Scenario: "bench", NoFilter: !filtered}
			prepare(b, &c, fill)
			b.Log(strings.TrimSpace(c.run(b)))
		})
	}
}

// TestPromotion_RollsBackAtEachStep checks that a promotion that fails at any step leaves the tree as it was, with its
// times, and that the next PID 1 undoes a promotion that was killed at any step.
func TestPromotion_RollsBackAtEachStep(t *testing.T) {
	t.Parallel()
	userNamespaces(t)
	for _, die := range []bool{false, true} {
		for kind, c := range worldKinds(t) {
			if kind == "user-as-me" { // does not differ in anything that matters here
				continue
			}
			t.Run(fmt.Sprintf("%s/killed=%v", kind, die), func(t *testing.T) {
				t.Parallel()
				for k := 1; ; k++ {
					c := c
					c.Scenario, c.Break, c.Die = "break", k, die
					prepare(t, &c, fillSmall)
					out, err := c.start().CombinedOutput()
					if err != nil && !die {
						t.Fatalf("step %d: %v\n%s", k, err, out)
					}
					check := c
					check.Scenario, check.Break = "check after break", 0
					check.run(t)
					if strings.Contains(string(out), "all steps were taken") {
						if k < 10 {
							t.Errorf("only %d steps", k)
						}
						return
					}
					if !die && !strings.Contains(string(out), "event failed") {
						t.Errorf("step %d: no failure was reported\n%s", k, out)
					}
				}
			})
		}
	}
}

func fillSmall(lower string) {
	for _, d := range []string{"d/sub/deep/er", "d/sub/empty"} {
		must(os.MkdirAll(filepath.Join(lower, d), 0o755))
	}
	for _, f := range []string{"d/one", "d/two", "d/sub/three", "d/sub/deep/er/four"} {
		must(os.WriteFile(filepath.Join(lower, f), []byte(f), 0o644))
	}
	must(os.Symlink("one", filepath.Join(lower, "d/link")))
	must(os.Link(filepath.Join(lower, "d/one"), filepath.Join(lower, "d/sub/uno")))
	must(unix.Setxattr(filepath.Join(lower, "d/sub"), "user.note", []byte("hi"), 0))
}

func TestPureUpper(t *testing.T) {
	t.Parallel()
	userNamespaces(t)
	for kind, c := range worldKinds(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c.Scenario = inWorld
			prepare(t, &c, fill)
			c.run(t)
		})
	}
}
