//go:build linux

// Package rootfstest is the conformance suite of rootfs drivers, which every driver passes as real root and as an
// unprivileged user (Run). It also lets tests examine live roots (InRoot).
package rootfstest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Steps returns the steps that the suite runs inside mounted roots; TestMain passes them to Main.
func Steps() map[string]Step {
	return map[string]Step{
		"dump":   within(func(root string, _ []byte, out io.Writer) error { return Dump(root, out) }),
		"change": within(change),
		"deep":   within(deep),
		"host":   within(host),
		"masked": within(masked),
		"links":  within(links),
		"write":  within(write),
	}
}

// within changes the root directory of the process to the step's root, so that no link leads out of it.
func within(step Step) Step {
	return func(root string, arg []byte, out io.Writer) error {
		if err := errors.Join(unix.Chroot(root), os.Chdir("/")); err != nil {
			return err
		}
		return step("", arg, out)
	}
}

// suite is one driver under test.
type suite struct {
	t    *testing.T
	home string
	drv  rootfs.Driver
	n    int
}

// NewDriver returns the driver for a store at home.
type NewDriver func(t *testing.T, home string) rootfs.Driver

// Run tests the driver. newHome returns an empty directory for a store.
func Run(t *testing.T, newHome func(t *testing.T) string, newDriver NewDriver) {
	NeedsMount(t)
	for _, c := range []struct {
		name string
		fn   func(*suite)
	}{
		{"ShowsTheStack", testStack},
		{"DeepStack", testDeepStack},
		{"KeepsChangesOverARestart", testRestart},
		{"ANewGenerationIsExactlyItsStack", testGenerations},
		{"PartsHoldTheChanges", testParts},
		{"HardLinks", testHardLinks},
		{"AWriteToOneOfTwoNames", testSplitLinks},
		{"LongPathsAndRemoval", testLongPaths},
		{"AnInterruptedPresentIsRedone", testInterrupted},
		{"RemoveOfNothing", testRemoveNothing},
		{"Host", testHost},
		{"HostBehindAMask", testMask},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := newHome(t)
			s := &suite{t: t, home: home, drv: newDriver(t, home)}
			must(t, os.MkdirAll(filepath.Join(home, "layers"), 0o700))
			c.fn(s)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// layers creates n random layers, topmost first; the last is a base.
func (s *suite) layers(n int, seed uint64) []string {
	s.t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	tree, err := os.MkdirTemp(s.home, "tree")
	must(s.t, err)
	defer func() { must(s.t, os.RemoveAll(tree)) }()
	dirs := make([]string, n)
	below := ""
	for i := n - 1; i >= 0; i-- {
		s.n++
		dir := filepath.Join(s.home, "layers", fmt.Sprintf("%04d", s.n), "fs")
		must(s.t, os.MkdirAll(dir, 0o755))
		must(s.t, GenLayer(dir, below, r))
		must(s.t, apply(dir, tree, map[uint64]string{}))
		dirs[i], below = dir, tree
	}
	return dirs
}

func (s *suite) live(gen string, layers ...string) rootfs.Live {
	return rootfs.Live{Dir: filepath.Join(s.home, gen), Stack: rootspec.Stack{Layers: layers}}
}

func (s *suite) present(l rootfs.Live) rootspec.Spec {
	s.t.Helper()
	spec, err := s.drv.Present(s.t.Context(), l)
	must(s.t, err)
	return spec
}

func (s *suite) step(spec rootspec.Spec, name string, arg any) string {
	s.t.Helper()
	out, err := InRoot(s.t, spec, MountOptions{}, name, arg)
	must(s.t, err)
	return out
}

// want returns the dump of the layers as the reference implementation materialises them.
func (s *suite) want(layers ...string) string {
	s.t.Helper()
	dir, err := os.MkdirTemp(s.home, "want")
	must(s.t, err)
	defer func() { must(s.t, os.RemoveAll(dir)) }()
	must(s.t, Materialise(s.t.Context(), rootspec.Stack{Layers: layers}, dir))
	var b bytes.Buffer
	must(s.t, Dump(dir, &b))
	return b.String()
}

func (s *suite) same(what, got, want string) {
	s.t.Helper()
	if got == want {
		return
	}
	s.t.Errorf("%s: the trees differ\n%s", what, diff(want, got))
}

// diff lists the lines that only one of two texts has.
func diff(want, got string) string {
	var b strings.Builder
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	in := func(l []string) map[string]bool {
		m := map[string]bool{}
		for _, s := range l {
			m[s] = true
		}
		return m
	}
	inW, inG := in(w), in(g)
	for _, l := range w {
		if !inG[l] {
			fmt.Fprintln(&b, "-", l)
		}
	}
	for _, l := range g {
		if !inW[l] {
			fmt.Fprintln(&b, "+", l)
		}
	}
	return b.String()
}

func testStack(s *suite) {
	for seed := range uint64(8) {
		layers := s.layers(1+int(seed), seed)
		l := s.live(fmt.Sprint("gen", seed), layers...)
		s.same(fmt.Sprint("seed ", seed), s.step(s.present(l), "dump", nil), s.want(layers...))
	}
}

func testDeepStack(s *suite) {
	layers := s.layers(40, 99)
	s.same("40 layers", s.step(s.present(s.live("gen", layers...)), "dump", nil), s.want(layers...))
}

// change changes a root like programs do.
func change(root string, arg []byte, _ io.Writer) error {
	var n int
	if err := json.Unmarshal(arg, &n); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(uint64(n), 1))
	for i := range 40 {
		p := root + "/" + names[r.IntN(len(names))]
		if r.IntN(2) == 0 {
			p += "/" + names[r.IntN(len(names))]
		}
		if fi, err := os.Lstat(filepath.Dir(p)); err != nil || !fi.IsDir() {
			continue
		}
		switch r.IntN(8) {
		case 0:
			_ = os.RemoveAll(p)
		case 1:
			_ = os.Mkdir(p, 0o750)
		case 2:
			_ = os.Remove(p)
			_ = os.Symlink("x", p)
		case 3:
			_ = os.Chmod(p, 0o640)
		case 4:
			_ = os.Rename(p, root+"/renamed"+fmt.Sprint(i))
		case 5:
			_ = unix.Lsetxattr(p, "user.changed", []byte{byte('0' + i%10)}, 0)
		default:
			if f, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600); err == nil {
				fmt.Fprintf(f, "change %d", i)
				_ = f.Close()
			}
		}
	}
	return os.WriteFile(root+"/changed", arg, 0o600)
}

func testRestart(s *suite) {
	for seed := range uint64(6) {
		l := s.live(fmt.Sprint("gen", seed), s.layers(5, seed)...)
		s.step(s.present(l), "change", seed)
		before := s.step(s.present(l), "dump", nil)
		after := s.step(s.present(l), "dump", nil)
		s.same("restart", after, before)
		if !strings.Contains(after, `"/changed"`) {
			s.t.Errorf("the change is gone:\n%s", after)
		}
	}
}

func testGenerations(s *suite) {
	a, b := s.layers(4, 1), s.layers(3, 2)
	want := s.want(a...)
	l := s.live("gen1", a...)
	s.step(s.present(l), "change", 5)
	s.same("other stack", s.step(s.present(s.live("gen2", b...)), "dump", nil), s.want(b...))
	s.same("same stack", s.step(s.present(s.live("gen3", a...)), "dump", nil), want)
	must(s.t, s.drv.Remove(s.t.Context(), l.Dir))
	s.same("a removed", s.step(s.present(s.live("gen4", a...)), "dump", nil), want)
	if _, err := os.Lstat(l.Dir); !errors.Is(err, os.ErrNotExist) {
		s.t.Errorf("the removed generation is there: %v", err)
	}
}

// testParts reads the parts from outside, and checks that they form the live root.
func testParts(s *suite) {
	for seed := range uint64(6) {
		layers := s.layers(4, seed)
		l := s.live(fmt.Sprint("gen", seed), layers...)
		spec := s.present(l)
		parts, err := s.drv.Parts(l)
		must(s.t, err)
		if len(parts) != 1 || parts[0].Path != "/" {
			s.t.Fatalf("parts %v", parts)
		}
		all := []string{parts[0].Dir}
		if !s.drv.Plain() {
			all = append(all, layers...)
		}
		s.same("before", s.want(all...), s.want(layers...))
		s.step(spec, "change", seed)
		s.same("after", s.want(all...), s.step(s.present(l), "dump", nil))
	}
}

func links(root string, _ []byte, out io.Writer) error {
	if err := os.WriteFile(root+"/made1", nil, 0o600); err != nil {
		return err
	}
	if err := errors.Join(os.Link(root+"/made1", root+"/made2"), os.Link(root+"/lower1", root+"/lower2")); err != nil {
		return err
	}
	return Dump(root, out)
}

// testHardLinks checks that the names of one file remain its names. A file of a lower layer that gets a second name
// is examined after a restart: for an unprivileged user overlayfs cannot record where a file came from (its origin
// xattr stays empty), and until the inode is evicted the old name has the inode number of the lower file.
func testHardLinks(s *suite) {
	base := filepath.Join(s.home, "layers", "base", "fs")
	must(s.t, os.MkdirAll(base, 0o755))
	must(s.t, os.WriteFile(base+"/one", []byte("linked"), 0o600))
	must(s.t, os.Link(base+"/one", base+"/two"))
	must(s.t, os.WriteFile(base+"/lower1", nil, 0o600))
	l := s.live("gen", base)
	out := s.step(s.present(l), "links", nil)
	again := s.step(s.present(l), "dump", nil)
	for _, w := range []string{`= "/one"`, `= "/made1"`} {
		if !strings.Contains(out, w) {
			s.t.Errorf("no link %q in\n%s", w, out)
		}
	}
	for _, w := range []string{`= "/one"`, `= "/made1"`, `= "/lower1"`} {
		if !strings.Contains(again, w) {
			s.t.Errorf("after a restart no link %q in\n%s", w, again)
		}
	}
}

func write(root string, arg []byte, out io.Writer) error {
	var path string
	if err := json.Unmarshal(arg, &path); err != nil {
		return err
	}
	f, err := os.OpenFile(root+path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(", written"); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	for _, name := range []string{"/one", "/two"} {
		b, err := os.ReadFile(root + name)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is %q\n", name, b)
	}
	return nil
}

// testSplitLinks verifies what the documents say about overlayfs: a write to a name whose file is in a lower layer
// separates that name from the file's other names. In a plain tree it does not.
func testSplitLinks(s *suite) {
	base := filepath.Join(s.home, "layers", "base", "fs")
	must(s.t, os.MkdirAll(base, 0o755))
	must(s.t, os.WriteFile(base+"/one", []byte("linked"), 0o600))
	must(s.t, os.Link(base+"/one", base+"/two"))
	other := "linked"
	if s.drv.Plain() {
		other = "linked, written"
	}
	want := fmt.Sprintf("/one is %q\n/two is %q\n", "linked, written", other)
	if got := s.step(s.present(s.live("gen", base)), "write", "/one"); got != want {
		s.t.Errorf("got %swant %s", got, want)
	}
}

// deep creates or reads a chain of directories whose path is much longer than PATH_MAX.
func deep(root string, arg []byte, out io.Writer) error {
	if err := os.Chdir(root + "/"); err != nil {
		return err
	}
	name := strings.Repeat("n", 250)
	if string(arg) == `"make"` {
		for range 300 {
			if err := errors.Join(os.Mkdir(name, 0o700), os.Chdir(name)); err != nil {
				return err
			}
		}
		return errors.Join(os.WriteFile("bottom", []byte("x"), 0), os.Mkdir("closed", 0), os.Chmod(".", 0o500))
	}
	n := 0
	for os.Chdir(name) == nil {
		n++
	}
	b, err := os.ReadFile("bottom")
	fmt.Fprint(out, n, string(b))
	return err
}

func testLongPaths(s *suite) {
	l := s.live("gen", s.layers(2, 3)...)
	s.step(s.present(l), "deep", "make")
	if got := s.step(s.present(l), "deep", "look"); got != "300x" {
		s.t.Errorf("got %q", got)
	}
	must(s.t, s.drv.Remove(s.t.Context(), l.Dir))
	if _, err := os.Lstat(l.Dir); !errors.Is(err, os.ErrNotExist) {
		s.t.Errorf("the removed generation is there: %v", err)
	}
}

// testInterrupted leaves behind what a killed daemon can leave behind.
func testInterrupted(s *suite) {
	layers := s.layers(3, 4)
	l := s.live("gen", layers...)
	ctx, cancel := context.WithCancel(s.t.Context())
	cancel()
	_, _ = s.drv.Present(ctx, l)
	must(s.t, s.drv.Remove(s.t.Context(), l.Dir))
	for _, d := range []string{"root.new/half", "upper/p0", "work/p0"} {
		must(s.t, os.MkdirAll(filepath.Join(l.Dir, d), 0o700))
	}
	must(s.t, os.WriteFile(filepath.Join(l.Dir, "left"), []byte(`[{"pa`), 0o600))
	s.same("redone", s.step(s.present(l), "dump", nil), s.want(layers...))
}

func testRemoveNothing(s *suite) {
	must(s.t, s.drv.Remove(s.t.Context(), filepath.Join(s.home, "nothing", "here")))
	dir := filepath.Join(s.home, "half")
	must(s.t, os.MkdirAll(filepath.Join(dir, "root.new", "x"), 0o700))
	must(s.t, s.drv.Remove(s.t.Context(), dir))
	must(s.t, s.drv.Remove(s.t.Context(), dir))
}

// HostOrder is the argument of the step "host", which examines a root with the host as its base, and writes to it.
type HostOrder struct {
	Home string   // the store
	Dirs []string // each gets a file
	Want []string // files that must be there
	Deaf []string // sockets of the host that must not accept connections
}

func host(root string, arg []byte, out io.Writer) error {
	var o HostOrder
	if err := json.Unmarshal(arg, &o); err != nil {
		return err
	}
	entries, err := os.ReadDir(root + o.Home)
	if err == nil && len(entries) > 0 {
		return fmt.Errorf("the store is visible: %v", entries)
	}
	if err := os.WriteFile(root+o.Home+"/x", nil, 0o600); err == nil {
		return errors.New("the directory of the store is writable")
	}
	for _, p := range o.Want {
		if _, err := os.Lstat(root + p); err != nil {
			return err
		}
	}
	for _, p := range o.Deaf {
		if c, err := net.Dial("unix", root+p); err == nil {
			_ = c.Close()
			return fmt.Errorf("the host's socket %s answers", p)
		}
	}
	for _, d := range o.Dirs {
		if err := os.WriteFile(root+d+"/coppice-made", []byte(d), 0o600); err != nil {
			return err
		}
	}
	_, err = io.WriteString(out, "ok")
	return err
}

// testHost uses the root of this machine as the base.
func testHost(s *suite) {
	l := s.live("gen")
	l.Stack.Host = true
	if s.drv.Plain() {
		_, err := s.drv.Present(s.t.Context(), l)
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "--from host-copy") {
			s.t.Errorf("%v (%s)", err, fault.HintOf(err))
		}
		return
	}
	// A directory on the host, beside the store and not in /tmp.
	mine := filepath.Join(filepath.Dir(s.home), "mine")
	must(s.t, os.MkdirAll(mine, 0o755))
	must(s.t, os.WriteFile(mine+"/precious", []byte("host"), 0o600))
	sock, err := new(net.ListenConfig).Listen(s.t.Context(), "unix", mine+"/socket")
	must(s.t, err)
	defer sock.Close()
	layer := filepath.Join(s.home, "layers", "l", "fs")
	must(s.t, os.MkdirAll(layer+"/usr/lib/coppice-layer", 0o755))
	must(s.t, os.MkdirAll(layer+mine, 0o755))
	must(s.t, os.WriteFile(layer+mine+"/from-layer", nil, 0o600))
	l.Stack.Layers = []string{layer}
	o := HostOrder{Home: s.home, Dirs: []string{mine},
		Want: []string{"/usr/bin", "/etc/passwd", "/usr/lib/coppice-layer", mine + "/precious", mine + "/from-layer",
			mine + "/socket"}, Deaf: []string{mine + "/socket"}}
	for range 2 {
		if got := s.step(s.present(l), "host", o); got != "ok" {
			s.t.Error(got)
		}
	}
	if _, err := os.Lstat(mine + "/coppice-made"); err == nil {
		s.t.Error("the host was written to")
	}
	parts, err := s.drv.Parts(l)
	must(s.t, err)
	found := 0
	for _, p := range parts {
		if rootspec.Within(mine, p.Path) {
			if _, err := os.Lstat(p.Dir + strings.TrimPrefix(mine, strings.TrimSuffix(p.Path, "/")) +
				"/coppice-made"); err == nil {
				found++
			}
		}
	}
	if found != 1 {
		s.t.Errorf("the change is in %d parts of %v", found, parts)
	}
	must(s.t, s.drv.Remove(s.t.Context(), l.Dir))
}
