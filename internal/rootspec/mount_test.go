//go:build linux

package rootspec_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootfs/rootfstest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

func TestMain(m *testing.M) {
	rootfstest.Main(m, map[string]rootfstest.Step{
		"ops": ops, "failing": failing, "oldKernel": oldKernel, "mountTimes": mountTimes, "walkTimes": walkTimes,
		"nothing": func(string, []byte, io.Writer) error { return nil },
	})
}

// ops runs a small script: one operation per line.
func ops(root string, arg []byte, out io.Writer) error {
	var lines []string
	if err := json.Unmarshal(arg, &lines); err != nil {
		return err
	}
	for _, l := range lines {
		f := strings.SplitN(l, " ", 3)
		var err error
		p := root + f[1]
		switch f[0] {
		case "write":
			err = os.WriteFile(p, []byte(f[2]), 0o644)
		case "mkdir":
			err = os.Mkdir(p, 0o755)
		case "chown":
			err = os.Chown(p, 5, 5)
		case "rm":
			err = os.Remove(p)
		case "read":
			var b []byte
			b, err = os.ReadFile(p)
			fmt.Fprintf(out, "%s=%s\n", f[1], b)
		case "ls":
			var es []os.DirEntry
			es, err = os.ReadDir(p)
			var names []string
			for _, e := range es {
				names = append(names, e.Name())
			}
			fmt.Fprintf(out, "%s:%s\n", f[1], strings.Join(names, ","))
		case "stat":
			var st unix.Stat_t
			err = unix.Lstat(p, &st)
			fmt.Fprintf(out, "%s %o %d:%d\n", f[1], st.Mode, st.Uid, st.Gid)
		case "dev":
			var a, b unix.Stat_t
			err = errors.Join(unix.Lstat(p, &a), unix.Lstat(root+f[2], &b))
			fmt.Fprintf(out, "same device %v\n", a.Dev == b.Dev)
		case "fails":
			err = os.WriteFile(p, nil, 0o644)
			fmt.Fprintf(out, "%s %v\n", f[1], errno(err))
			err = nil
		case "mounts":
			var b []byte
			b, err = os.ReadFile("/proc/self/mountinfo")
			for line := range strings.Lines(string(b)) {
				if strings.Contains(line, root) {
					fmt.Fprint(out, line)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l, err)
		}
	}
	return nil
}

func errno(err error) string {
	var e syscall.Errno
	if errors.As(err, &e) {
		return unix.ErrnoName(e)
	}
	return fmt.Sprint(err)
}

// fixture is a directory with layers, uppers and work directories.
type fixture struct {
	t   *testing.T
	dir string
}

func newFixture(t *testing.T) fixture {
	rootfstest.NeedsMount(t)
	return fixture{t, t.TempDir()}
}

// tree creates a directory from lines "path content", or "path/" for a directory.
func (f fixture) tree(name string, lines ...string) string {
	f.t.Helper()
	dir := filepath.Join(f.dir, name)
	must(f.t, os.MkdirAll(dir, 0o755))
	for _, l := range lines {
		p, content, _ := strings.Cut(l, " ")
		if strings.HasSuffix(p, "/") {
			must(f.t, os.MkdirAll(filepath.Join(dir, p), 0o755))
			continue
		}
		must(f.t, os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755))
		must(f.t, os.WriteFile(filepath.Join(dir, p), []byte(content), 0o644))
	}
	return dir
}

func (f fixture) overlay(target string, lowers ...string) rootspec.Overlay {
	n := strings.ReplaceAll(target, "/", "_")
	return rootspec.Overlay{Target: target, Lowers: lowers, Upper: f.tree("live/upper/" + n),
		Work: f.tree("live/work/" + n)}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f fixture) run(s rootspec.Spec, opts rootfstest.MountOptions, want string, lines ...string) {
	f.t.Helper()
	out, err := rootfstest.InRoot(f.t, s, opts, "ops", lines)
	if err != nil {
		f.t.Fatal(err)
	}
	if want != "" && strings.TrimSpace(out) != strings.TrimSpace(want) {
		f.t.Errorf("got\n%swant\n%s", out, want)
	}
}

func both(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() == 0 && !rootfstest.IsUser() {
		fn(t)
	}
	if !t.Failed() && (rootfstest.IsUser() || os.Getenv("COPPICE_TEST_AS_USER") == "") {
		if rootfstest.AsUser(t) {
			fn(t)
		}
	}
}

func TestMount_OrdersLayersAndWritesToUpper(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		s := rootspec.Spec{Overlays: []rootspec.Overlay{f.overlay("/",
			f.tree("top", "a top", "d/x 1"), f.tree("base", "a base", "b base", "d/y 2"))}}
		f.run(s, rootfstest.MountOptions{}, "/a=top\n/b=base\n/d:x,y\n", "read /a", "read /b", "ls /d", "write /b new",
			"write /n new")
		f.run(s, rootfstest.MountOptions{}, "/b=new\n/n=new\n", "read /b", "read /n")
	})
}

func TestMount_OddAndLongLayerPaths(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		long := "a:b,c\\d e\nf\"" + strings.Repeat("/"+strings.Repeat("n", 200), 15)
		var lowers []string
		for i := range 12 {
			lowers = append(lowers, f.tree(fmt.Sprintf("%s/%d", long, i), fmt.Sprintf("f%d %d", i, i)))
		}
		s := rootspec.Spec{Overlays: []rootspec.Overlay{f.overlay("/", lowers...)}}
		f.run(s, rootfstest.MountOptions{}, "/f0=0\n/f11=11\n", "read /f0", "read /f11")
	})
}

func TestMount_MaxLowers(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		var lowers []string
		for i := range rootspec.MaxLowers {
			lowers = append(lowers, f.tree(fmt.Sprint("l", i), fmt.Sprintf("f%d %d", i, i)))
		}
		s := rootspec.Spec{Overlays: []rootspec.Overlay{f.overlay("/", lowers...)}}
		f.run(s, rootfstest.MountOptions{}, "/f0=0\n/f499=499\n", "read /f0", "read /f499")
	})
}

func TestMount_HidesStorePaths(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		s := rootspec.Spec{Overlays: []rootspec.Overlay{f.overlay("/", f.tree("secret-layer", "a 1"))}}
		out, err := rootfstest.InRoot(t, s, rootfstest.MountOptions{}, "ops", []string{"mounts /"})
		if err != nil || !strings.Contains(out, "overlay") || strings.Contains(out, "secret-layer") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

func TestMount_WrapAllowsLayersWithinBase(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		base := f.tree("base", "f base", "store/keep hidden", "store/layer/f top", "store/layer/n 1",
			"store/upper/", "store/work/")
		o := rootspec.Overlay{
			Target: "/", Lowers: []string{base + "/store/layer", base},
			Upper: base + "/store/upper", Work: base + "/store/work",
		}
		if _, err := rootfstest.InRoot(t, rootspec.Spec{Overlays: []rootspec.Overlay{o}}, rootfstest.MountOptions{},
			"nothing", nil); err == nil || !strings.Contains(err.Error(), "too many levels") {
			t.Errorf("without wrap: %v", err)
		}
		o.Wrap = true
		s := rootspec.Spec{Overlays: []rootspec.Overlay{o}, Hide: []string{"/store", "/missing/place"}}
		f.run(s, rootfstest.MountOptions{}, "/f=top\n/n=1\n/store:\nsame device true\n/store/x EROFS\n",
			"read /f", "read /n", "ls /store", "write /f changed", "dev /f /n", "fails /store/x")
		if b, _ := os.ReadFile(base + "/f"); string(b) != "base" {
			t.Errorf("the host's file was changed to %q", b)
		}
	})
}

// oldOrder is the argument of step oldKernel.
type oldOrder struct {
	Spec     rootspec.Spec
	Before65 bool
	Ops      []string
}

// oldKernel mounts the spec again with the code path for an older kernel, and checks that no other mounts remain.
func oldKernel(root string, arg []byte, out io.Writer) error {
	var o oldOrder
	if err := json.Unmarshal(arg, &o); err != nil {
		return err
	}
	if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
		return err
	}
	if err := rootspec.Mount(o.Spec, root, rootspec.OldKernel(o.Before65)); err != nil {
		return err
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if n := strings.Count(string(b), root); n != len(o.Spec.Overlays)+len(o.Spec.Hide) {
		return fmt.Errorf("%d mounts remain:\n%s", n, b)
	}
	lines, err := json.Marshal(o.Ops)
	if err != nil {
		return err
	}
	return ops(root, lines, out)
}

func TestOlderKernels(t *testing.T) {
	both(t, func(t *testing.T) {
		for _, before65 := range []bool{false, true} {
			f := newFixture(t)
			base := f.tree("base", "f base", "a/b 1", "store/layer/f top", "store/layer/n 1", "store/upper/", "store/work/",
				"store/upper2/", "store/work2/")
			wrapped := rootspec.Overlay{
				Target: "/", Lowers: []string{base + "/store/layer", base}, Wrap: true,
				Upper: base + "/store/upper", Work: base + "/store/work",
			}
			inner := rootspec.Overlay{
				Target: "/a", Lowers: []string{base + "/store/layer", base + "/a"},
				Upper: base + "/store/upper2", Work: base + "/store/work2",
			}
			s := rootspec.Spec{Overlays: []rootspec.Overlay{wrapped, inner}, Hide: []string{"/store"}}
			out, err := rootfstest.InRoot(t, s, rootfstest.MountOptions{}, "oldKernel",
				oldOrder{s, before65, []string{"read /f", "read /n", "ls /store", "ls /a", "write /f changed", "write /a/x y"}})
			if want := "/f=top\n/n=1\n/store:\n/a:b,f,n\n"; err != nil || out != want {
				t.Errorf("before 6.5: %v: %v\n%s", before65, err, out)
			}
		}
	})
}

func TestOlderKernel_RefusesTooManyLayers(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		var lowers []string
		for i := range 300 {
			lowers = append(lowers, f.tree(fmt.Sprint("l", i)))
		}
		s := rootspec.Spec{Overlays: []rootspec.Overlay{f.overlay("/", lowers...)}}
		_, err := rootfstest.InRoot(t, s, rootfstest.MountOptions{}, "oldKernel", oldOrder{s, true, nil})
		if err == nil || !strings.Contains(err.Error(), "cannot mount 300 layers at once") {
			t.Error(err)
		}
	})
}

func TestMount_FailureLeavesNothingMounted(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		good := f.overlay("/", f.tree("base", "a/", "file 1"))
		for _, bad := range []rootspec.Overlay{
			f.overlay("/file", f.tree("x")),                  // not a directory
			f.overlay("/a", filepath.Join(f.dir, "missing")), // layer does not exist
			{Target: "/a", Lowers: []string{good.Lowers[0]}, Upper: good.Upper, Work: f.tree("elsewhere") + "/none"},
		} {
			s := rootspec.Spec{Overlays: []rootspec.Overlay{good, bad}}
			out, err := rootfstest.InRoot(t, rootspec.Spec{Overlays: []rootspec.Overlay{good}},
				rootfstest.MountOptions{}, "failing", s)
			if err != nil {
				t.Error(err)
			}
			if !strings.Contains(out, bad.Target) {
				t.Errorf("the error does not name %s: %s", bad.Target, out)
			}
		}
	})
}

// failing mounts a spec that cannot be mounted, and checks that no mounts remain.
func failing(root string, arg []byte, out io.Writer) error {
	var s rootspec.Spec
	if err := json.Unmarshal(arg, &s); err != nil {
		return err
	}
	if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
		return err
	}
	merr := rootspec.Mount(s, root, rootspec.Options{})
	if merr == nil {
		return errors.New("the invalid spec was mounted")
	}
	fmt.Fprintln(out, merr)
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil && strings.Contains(string(b), root) {
		err = fmt.Errorf("mounts remain:\n%s", b)
	}
	return err
}

func TestSkeletonFilesAndSeveralOverlays(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		s := rootspec.Spec{
			Overlays: []rootspec.Overlay{f.overlay("/usr", f.tree("usr", "bin/sh x")),
				f.overlay("/var/lib", f.tree("var", "db 1"))},
			Skeleton: []rootspec.Entry{{Path: "/bin", Link: "usr/bin"}, {Path: "/var", Mode: 0o751}, {Path: "/closed"}},
			Files: []rootspec.File{{Source: f.tree("one", "file text") + "/file", Target: "/etc/one"},
				{Source: "/nonexistent", Target: "/etc/two"}},
		}
		defer syscall.Umask(syscall.Umask(0o077))
		f.run(s, rootfstest.MountOptions{}, `/:bin,closed,dev,etc,proc,run,sys,tmp,usr,var
/var 40751 0:0
/closed 40000 0:0
/dev 40755 0:0
/bin/sh=x
/etc:one
/etc/one=text
/etc/one EROFS
/new EROFS
`, "ls /", "stat /var", "stat /closed", "stat /dev", "read /bin/sh", "ls /etc", "read /etc/one", "fails /etc/one", "fails /new", "write /usr/x y", "write /var/lib/db 2")
	})
}

func TestMount_IgnoresPlantedLinks(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		outside := f.tree("outside", "host 1")
		base := f.tree("base", "home/")
		must(t, os.Symlink(outside, base+"/data"))
		s := rootspec.Spec{Overlays: []rootspec.Overlay{f.overlay("/", base), f.overlay("/home", f.tree("home", "me/f 1"))}}
		f.run(s, rootfstest.MountOptions{}, "/home:me\n", "ls /home")
		s.Overlays[1] = f.overlay("/data", f.tree("home"))
		if out, err := rootfstest.InRoot(t, s, rootfstest.MountOptions{}, "nothing", nil); err == nil {
			t.Errorf("an overlay was mounted through a link: %s", out)
		}
		s.Overlays = s.Overlays[:1]
		s.Hide = []string{"/data"}
		f.run(s, rootfstest.MountOptions{}, "/home:\n", "ls /home")
	})
}

func TestBind(t *testing.T) {
	both(t, func(t *testing.T) {
		f := newFixture(t)
		dir := f.tree("plain", "a 1")
		f.run(rootspec.Spec{Bind: dir}, rootfstest.MountOptions{}, "/a=1\n", "read /a", "write /b 2")
		if b, err := os.ReadFile(dir + "/b"); string(b) != "2" {
			t.Error(err)
		}
	})
}

func TestShiftedIDs(t *testing.T) {
	if os.Geteuid() != 0 || rootfstest.IsUser() {
		t.Skip("needs real-root: only it shifts ids")
	}
	f := newFixture(t)
	base := f.tree("base", "f base", "etc/passwd p", "store/layer/f top", "store/layer/n 1", "store/live/upper/",
		"store/live/work/")
	must(t, os.Chown(base+"/etc/passwd", 1000, 7))
	check := func(name string, s rootspec.Spec, dir string) {
		t.Run(name, func(t *testing.T) {
			g := f
			g.t = t
			g.run(s, rootfstest.MountOptions{Shift: true},
				"/ 40755 0:0\n/etc/passwd 100644 1000:7\n/etc/passwd=p\n/new 100644 0:0\n",
				"stat /", "stat /etc/passwd", "read /etc/passwd", "write /new x", "stat /new", "write /etc/passwd q",
				"mkdir /d", "rm /d", "rm /f", "chown /new 5")
			var st unix.Stat_t
			must(t, unix.Lstat(dir+"/new", &st))
			if st.Uid != 5 {
				t.Errorf("stored with uid %d", st.Uid)
			}
			must(t, unix.Lstat(dir+"/etc/passwd", &st))
			if st.Uid != 1000 || st.Gid != 7 {
				t.Errorf("copied up with ids %d:%d", st.Uid, st.Gid)
			}
		})
	}
	o := f.overlay("/", base)
	check("overlay", rootspec.Spec{Overlays: []rootspec.Overlay{o}}, o.Upper)
	w := rootspec.Overlay{
		Target: "/", Lowers: []string{base + "/store/layer", base}, Wrap: true,
		Upper: base + "/store/live/upper", Work: base + "/store/live/work",
	}
	check("wrapped", rootspec.Spec{Overlays: []rootspec.Overlay{w}, Hide: []string{"/store"}}, w.Upper)
	check("bind", rootspec.Spec{Bind: base}, base)
}
