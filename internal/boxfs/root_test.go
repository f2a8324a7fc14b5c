//go:build linux

package boxfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// asUser is set when the suite runs as an unprivileged user, so that files outside of the root that a bug exposes are
// not damaged. Tests that need real root run in addition.
const asUser = "COPPICE_TEST_AS_USER"

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		os.Exit(m.Run())
	}
	code := 0
	if !fuzzing() {
		args := slices.DeleteFunc(slices.Clone(os.Args), func(a string) bool {
			return strings.HasPrefix(a, "-test.testlogfile") || strings.HasPrefix(a, "-test.coverprofile") ||
				strings.HasPrefix(a, "-test.gocoverdir")
		})
		cmd := &exec.Cmd{Path: "/proc/self/exe", Args: args, Dir: "/",
			Env: append(os.Environ(), asUser+"=1", "TMPDIR=/var/tmp"), Stdout: os.Stdout, Stderr: os.Stderr,
			SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1001, Gid: 1001}}}
		if err := cmd.Run(); err != nil {
			fmt.Println("as an ordinary user:", err)
			code = 1
		}
	}
	os.Exit(code | m.Run())
}

func fuzzing() bool {
	return slices.ContainsFunc(os.Args, func(a string) bool {
		return strings.HasPrefix(a, "-test.fuzz=") || strings.HasPrefix(a, "-test.fuzzworker")
	})
}

// ordinaryUser skips a test as root, where a bug could do damage.
func ordinaryUser(t testing.TB) {
	t.Helper()
	if os.Getuid() == 0 {
		t.Skip("needs an ordinary user: what gets out must harm nothing; it is run as one as well")
	}
}

func me() User {
	u, g := uint32(os.Getuid()), uint32(os.Getgid())
	return User{UID: u, GID: g, UIDs: []IDMap{{u, u, 1}}, GIDs: []IDMap{{g, g, 1}}}
}

type world struct {
	*Root
	t    testing.TB
	dir  string
	base string // parent of dir, in which nothing may change
}

func newWorld(t testing.TB, change ...func(*Options)) world {
	t.Helper()
	ordinaryUser(t)
	base, err := os.MkdirTemp("/var/tmp", "boxfs")
	must(t, err)
	t.Cleanup(func() { exec.Command("rm", "-rf", base).Run() })
	dir := filepath.Join(base, "root")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(base, "secret"), []byte("outside"), 0o644))
	opt := Options{Dir: open(t, dir), User: me()}
	for _, f := range change {
		f(&opt)
	}
	r, err := New(opt)
	must(t, err)
	t.Cleanup(func() { r.Close() })
	return world{r, t, dir, base}
}

func open(t testing.TB, dir string) *os.File {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	return os.NewFile(uintptr(fd), dir)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w world) write(p, text string) {
	w.t.Helper()
	_, err := w.WriteFile(context.Background(), p, strings.NewReader(text), wire.WriteOptions{})
	must(w.t, err)
}

func (w world) read(p string) (string, error) {
	f, err := w.ReadFile(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return string(b), err
}

func (w world) is(p, want string) {
	w.t.Helper()
	if got, err := w.read(p); err != nil || got != want {
		w.t.Errorf("%q holds %q, %v: want %q", p, got, err, want)
	}
}

func (w world) kind(err error, want fault.Kind) {
	w.t.Helper()
	if fault.KindOf(err) != want {
		w.t.Errorf("%v: kind %q, want %q", err, fault.KindOf(err), want)
	}
	if err != nil && want != fault.NotFound && want != fault.Cancelled && fault.HintOf(err) == "" {
		w.t.Errorf("%v has no hint", err)
	}
}

// untouched verifies that nothing beside the root was changed.
func (w world) untouched() {
	w.t.Helper()
	list, err := os.ReadDir(w.base)
	must(w.t, err)
	b, err := os.ReadFile(filepath.Join(w.base, "secret"))
	if len(list) != 2 || string(b) != "outside" {
		w.t.Errorf("beside the root: %v, %q, %v", list, b, err)
	}
}

func TestFiles_WriteReadList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("/src/deep/main.go", "package main")
	w.is("src/deep/main.go", "package main")
	mode := uint32(0o4750)
	info, err := w.WriteFile(t.Context(), "bin/x", strings.NewReader("#!"), wire.WriteOptions{Mode: &mode})
	if err != nil || info.Mode != mode || info.Size != 2 || info.ETag == "" || info.Path != "bin/x" {
		t.Errorf("%+v, %v", info, err)
	}
	w.write("bin/x", "again")
	if info, err = w.Stat("bin/x", false); err != nil || info.Mode != 0o750 || info.UID != uint32(os.Getuid()) {
		t.Errorf("%+v, %v: want the mode without the setuid bit", info, err)
	}
	must(t, os.Symlink("src/deep", w.dir+"/link"))
	list, err := w.List(t.Context(), "/", 1)
	must(t, err)
	if got := namesOf(list); !slices.Equal(got, []string{"bin", "link", "src"}) || list.Files[1].Target != "src/deep" {
		t.Errorf("%q", got)
	}
	list, err = w.List(t.Context(), "/", -1)
	must(t, err)
	if got := namesOf(list); !slices.Equal(got, []string{"bin", "bin/x", "link", "src", "src/deep", "src/deep/main.go"}) {
		t.Errorf("%q", got)
	}
	list, err = w.List(t.Context(), "link", 0)
	if got := namesOf(list); err != nil || !slices.Equal(got, []string{"link/main.go"}) {
		t.Errorf("%q, %v", got, err)
	}
	must(t, w.Move("src/deep/main.go", "/moved"))
	must(t, w.Mkdir("a/b/c", 0o700, true))
	must(t, w.Mkdir("a/b/c", 0, true))
	w.kind(w.Mkdir("a/b", 0, false), fault.Exists)
	w.kind(w.Mkdir("no/b", 0, false), fault.NotFound)
	w.kind(w.Remove(t.Context(), "a", false), fault.Conflict)
	must(t, w.Remove(t.Context(), "a", true))
	w.kind(w.Remove(t.Context(), "a", true), fault.NotFound)
	must(t, w.Remove(t.Context(), "link", true))
	if _, err := os.Stat(w.dir + "/src/deep"); err != nil {
		t.Error("Remove followed a link")
	}
	if left, _ := filepath.Glob(w.dir + "/*/" + scratch + "*"); left != nil {
		t.Errorf("%q are left", left)
	}
}

func namesOf(l wire.FileList) []string {
	out := []string{}
	for _, f := range l.Files {
		out = append(out, f.Name())
	}
	return out
}

func TestPaths_RefuseInvalid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("f", "x")
	must(t, os.Mkdir(w.dir+"/d", 0o755))
	for _, p := range []string{"", "a\x00b", strings.Repeat("x", 300), strings.Repeat("x", 1<<21)} {
		_, err := w.WriteFile(t.Context(), p, strings.NewReader(""), wire.WriteOptions{})
		w.kind(err, fault.Invalid)
		_, err = w.ReadFile(p)
		w.kind(err, fault.Invalid)
		w.kind(w.Move("f", p), fault.Invalid)
	}
	for _, p := range []string{"/", ".", "..", "d/.."} {
		w.kind(w.Remove(t.Context(), p, true), fault.Invalid)
		_, err := w.WriteFile(t.Context(), p, strings.NewReader(""), wire.WriteOptions{})
		w.kind(err, fault.Invalid)
	}
	_, err := w.WriteFile(t.Context(), "d", strings.NewReader(""), wire.WriteOptions{})
	w.kind(err, fault.Invalid)
	_, err = w.ReadFile("d")
	w.kind(err, fault.Invalid)
	_, err = w.WriteFile(t.Context(), "f/x", strings.NewReader(""), wire.WriteOptions{})
	w.kind(err, fault.Invalid)
	_, err = w.List(t.Context(), "f", 0)
	w.kind(err, fault.Invalid)
	w.untouched()
}

func TestLinks_StayBelowRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, os.Mkdir(w.dir+"/d", 0o755))
	for name, to := range map[string]string{
		"up": "../secret", "far": "../../../../../../var/tmp", "d/up": "../../secret", "abs": w.base + "/secret",
		"root": "/", "dirs": "..",
		"self": "/proc/self/root" + w.base + "/secret", "loop": "loop", "fd": "/proc/self/fd/1",
	} {
		must(t, os.Symlink(to, w.dir+"/"+name))
	}
	for _, p := range []string{"up", "d/up", "abs", "self", "../secret", "/../../secret", "d/../../secret", "dirs/secret",
		"root/../secret", "loop", "fd", "far/passwd"} {
		if got, err := w.read(p); err == nil {
			t.Errorf("%s reads %q", p, got)
		}
	}
	w.write("up", "in") // creates the target of the link inside
	w.is("secret", "in")
	w.write("d/up", "in again")
	w.is("secret", "in again")
	w.write("abs", "deep")
	w.is(w.base+"/secret", "deep")
	w.write("../../x", "y")
	w.is("x", "y")
	if i, err := w.Stat("up", false); err != nil || i.Type != wire.FileLink || i.Target != "../secret" {
		t.Errorf("%+v, %v", i, err)
	}
	_, err := w.WriteFile(t.Context(), "loop", strings.NewReader(""), wire.WriteOptions{})
	w.kind(err, fault.Invalid)
	w.untouched()
}

// TestDotDot_CreatesNothingAboveRoot uses paths that would lead outside if ".." after a missing component were
// resolved literally.
func TestDotDot_CreatesNothingAboveRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	must(t, os.Symlink("no/../../../leak/f", w.dir+"/link"))
	must(t, os.Symlink("no/../../../leak", w.dir+"/dir"))
	for _, p := range []string{"no/../../leak/f", "no/../../../../../leak/f", "a/b/../../../leak/f", "link", "dir/f",
		"no/../leak/f"} {
		_, err := w.WriteFile(ctx, p, strings.NewReader("x"), wire.WriteOptions{})
		if err != nil && !fault.Is(err, fault.NotFound) {
			w.kind(err, fault.Invalid)
		}
		_ = w.Mkdir(p, 0, true)
		_, _ = w.TarFrom(ctx, p, packed(t, entry{name: "x/y", body: "x"}))
		_, _ = w.TarFrom(ctx, p+"/../../..", packed(t, entry{name: "leak", body: "x"}))
		w.untouched()
	}
}

func FuzzPaths(f *testing.F) {
	for _, p := range []string{"no/../../leak/f", "a/../b", "link/../../x", "/../x", "a/./b//c/", "d/../../d/../../x"} {
		f.Add(p, "../"+p)
	}
	if os.Getuid() == 0 {
		f.Skip("needs an ordinary user: what gets out must harm nothing")
	}
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, p, link string) {
		w := w
		w.t = t
		ctx := context.Background()
		_ = os.Symlink(link, w.dir+"/link")
		_, _ = w.WriteFile(ctx, p, strings.NewReader("x"), wire.WriteOptions{})
		_ = w.Mkdir(p, 0, true)
		_, _ = w.TarFrom(ctx, p, packed(t, entry{name: "x/y", body: "x"}))
		_ = w.Move(p, link)
		_ = w.Remove(ctx, p, true)
		w.untouched()
		list, err := w.List(ctx, "/", 1)
		must(t, err)
		for _, i := range list.Files {
			must(t, w.Remove(ctx, i.Name(), true))
		}
	})
}

func TestOpen_RefusesSpecialFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, unix.Mkfifo(w.dir+"/fifo", 0o666))
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	must(t, unix.Bind(s, &unix.SockaddrUnix{Name: w.dir + "/sock"}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, p := range []string{"fifo", "sock"} {
			_, err := w.ReadFile(p)
			w.kind(err, fault.Invalid)
			_, err = w.WriteFile(t.Context(), p, strings.NewReader("x"), wire.WriteOptions{})
			w.kind(err, fault.Invalid)
			w.kind(w.Watch(t.Context(), p, false, func(wire.FileEvent) error { return nil }), fault.Invalid)
			if i, err := w.Stat(p, true); err != nil || i.Type == wire.FileRegular {
				t.Errorf("%+v, %v", i, err)
			}
		}
		if err := w.TarTo(t.Context(), "/", io.Discard); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("an open blocks")
	}
}

func TestKernelFilesystems_AreRefused(t *testing.T) {
	t.Parallel()
	ordinaryUser(t)
	r, err := New(Options{Dir: open(t, "/"), User: me()})
	must(t, err)
	defer r.Close()
	for _, p := range []string{"/proc/version", "/proc/self/status", "/sys/kernel/notes", "/dev/null", "/dev/shm", "/proc",
		"/dev/fd/0", "/proc/self/root/etc/passwd", "/proc/1/root"} {
		if _, err := r.Stat(p, true); err == nil {
			t.Errorf("Stat of %s succeeded", p)
		}
		if f, err := r.ReadFile(p); err == nil {
			f.Close()
			t.Errorf("ReadFile of %s succeeded", p)
		}
		if _, err := r.List(t.Context(), p, 1); err == nil {
			t.Errorf("List of %s succeeded", p)
		}
	}
	if _, err := r.Stat("/etc/passwd", true); err != nil {
		t.Error(err)
	}
}

func TestNames_AcceptAnyBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := []string{"latin\xe4", "new\nline", "\x1b[31m", " ", "-rf", "a\\b", "日本", "\xff\xfe"}
	for _, n := range names {
		w.write("d/"+n, n)
	}
	list, err := w.List(t.Context(), "d", 1)
	must(t, err)
	if len(list.Files) != len(names) {
		t.Errorf("%q", namesOf(list))
	}
	for _, f := range list.Files {
		w.is(f.Name(), strings.TrimPrefix(f.Name(), "d/"))
	}
	var b bytes.Buffer
	must(t, w.TarTo(t.Context(), "d", &b))
	res, err := w.TarFrom(t.Context(), "copy", &b)
	if err != nil || len(res.LeftOut) > 0 {
		t.Fatal(res, err)
	}
	for _, n := range names {
		w.is("copy/"+n, n)
	}
}

func TestTreesOfAnyDepth(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.List = 20_000 })
	const depth = 10_000
	deep := strings.TrimSuffix(strings.Repeat("d/", depth), "/")
	w.write("t/"+deep+"/f", "bottom")
	w.is("t/"+deep+"/f", "bottom")
	list, err := w.List(t.Context(), "t", 5000)
	if err != nil || len(list.Files) != 5000 {
		t.Errorf("%d entries, %v", len(list.Files), err)
	}
	_, err = w.List(t.Context(), "t", -1) // 100 MB of names
	w.kind(err, fault.TooLarge)
	var b bytes.Buffer
	low := 2 * 8000 // bytes of the path above the packed directory
	must(t, w.TarTo(t.Context(), "t/"+deep[:low], &b))
	if res, err := w.TarFrom(t.Context(), "t/"+deep[:low]+"u", &b); err != nil || len(res.LeftOut) > 0 {
		t.Fatal(res, err)
	}
	w.is("t/"+deep[:low]+"u/"+deep[low:]+"/f", "bottom")
	must(t, w.Remove(t.Context(), "t", true))
}

func TestList_IsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.List = 10 })
	for i := range 11 {
		w.write(fmt.Sprint("d/", i), "")
	}
	_, err := w.List(t.Context(), "d", 1)
	w.kind(err, fault.TooLarge)
	must(t, w.Remove(t.Context(), "d/3", false))
	if l, err := w.List(t.Context(), "d", 1); err != nil || len(l.Files) != 10 {
		t.Error(len(l.Files), err)
	}
}

func TestWriteFile_ChecksETag(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	put := func(text string, o wire.WriteOptions) (wire.FileInfo, error) {
		return w.WriteFile(ctx, "f", strings.NewReader(text), o)
	}
	_, err := put("1", wire.WriteOptions{Match: "*"})
	w.kind(err, fault.Conflict)
	one, err := put("1", wire.WriteOptions{New: true})
	must(t, err)
	_, err = put("2", wire.WriteOptions{New: true})
	w.kind(err, fault.Exists)
	two, err := put("2", wire.WriteOptions{Match: one.ETag})
	must(t, err)
	_, err = put("3", wire.WriteOptions{Match: one.ETag})
	w.kind(err, fault.Conflict)
	must(t, os.WriteFile(w.dir+"/f", []byte("4"), 0o644)) // same size, but another time
	_, err = put("5", wire.WriteOptions{Match: two.ETag})
	w.kind(err, fault.Conflict)
	w.is("f", "4")
	// Of several writers with the same ETag, one succeeds.
	now, err := w.Stat("f", false)
	must(t, err)
	won := make(chan bool)
	for i := range 8 {
		go func() {
			_, err := put(fmt.Sprint("by ", i), wire.WriteOptions{Match: now.ETag})
			won <- err == nil
		}()
	}
	n := 0
	for range 8 {
		if <-won {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d writers succeeded, want 1", n)
	}
}

func TestWriteFile_IsAtomic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("f", "before")
	_, err := w.WriteFile(t.Context(), "f", io.MultiReader(strings.NewReader("half"), failing{}), wire.WriteOptions{})
	w.kind(err, fault.Cancelled)
	w.is("f", "before")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.WriteFile(ctx, "f", strings.NewReader("other"), wire.WriteOptions{})
	w.kind(err, fault.Cancelled)
	w.is("f", "before")
	if l, _ := w.List(t.Context(), "/", 1); len(l.Files) != 1 {
		t.Errorf("%q", namesOf(l))
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the client went away") }

// TestSwappedDirectories repeatedly replaces a directory with a link to the outside, while files are written to and
// removed from it.
func TestSwappedDirectories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	out := filepath.Join(w.base, "root", "..") // where a leak would be visible
	must(t, os.MkdirAll(w.dir+"/d/e", 0o755))
	must(t, os.Symlink(w.base, w.dir+"/link"))
	must(t, os.Symlink("..", w.dir+"/dots"))
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, l := range []string{"link", "dots"} {
				_ = unix.Renameat2(unix.AT_FDCWD, w.dir+"/d", unix.AT_FDCWD, w.dir+"/"+l, unix.RENAME_EXCHANGE)
				_ = unix.Renameat2(unix.AT_FDCWD, w.dir+"/d", unix.AT_FDCWD, w.dir+"/"+l, unix.RENAME_EXCHANGE)
			}
			_ = os.Rename(w.dir+"/d/e", w.dir+"/e")
			_ = os.Rename(w.dir+"/e", w.dir+"/d/e")
		}
	}()
	end := time.Now().Add(3 * time.Second)
	for i := 0; time.Now().Before(end); i++ {
		ctx := t.Context()
		_, _ = w.WriteFile(ctx, "d/secret", strings.NewReader("inside"), wire.WriteOptions{})
		_, _ = w.WriteFile(ctx, "d/e/../../secret", strings.NewReader("inside"), wire.WriteOptions{})
		_ = w.Mkdir("d/made", 0, false)
		_ = w.Mkdir("d/e/x/y/z", 0, true)
		_ = w.Move("d/secret", "d/made/secret")
		_ = w.Remove(ctx, "d/secret", true)
		_ = w.Remove(ctx, "d/made", true)
		_ = w.Remove(ctx, "d/root", true)
		_ = w.Remove(ctx, "d/e", true)
		if got, err := w.read("d/secret"); err == nil && got == "outside" {
			t.Error("a file outside was read")
		}
		_, _ = w.TarFrom(ctx, "d", packed(t, entry{name: "secret", body: "inside"}, entry{name: "e/f/g", body: "x"}))
		_, _ = w.List(ctx, "d", -1)
		_ = w.TarTo(ctx, "d", io.Discard)
	}
	close(stop)
	<-done
	list, err := os.ReadDir(out)
	must(t, err)
	if len(list) != 2 {
		t.Errorf("beside the root: %v", list)
	}
	w.untouched()
}

func TestFiles_ObeyUserPermissions(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs real-root: to act as somebody else")
	}
	base, err := os.MkdirTemp("/var/tmp", "boxfs")
	must(t, err)
	defer os.RemoveAll(base)
	must(t, os.Chmod(base, 0o755))
	must(t, os.Mkdir(base+"/mine", 0o755))
	must(t, os.WriteFile(base+"/closed", []byte("x"), 0o600))
	const shift = 0x70000000
	must(t, os.Chown(base+"/mine", shift+5, shift+6))
	u := User{UID: 5, GID: 6, Groups: []uint32{7}, UIDs: []IDMap{{0, shift, 65536}}, GIDs: []IDMap{{0, shift, 65536}}}
	r, err := New(Options{Dir: open(t, base), User: u})
	must(t, err)
	defer r.Close()
	ctx := t.Context()
	put := func(p string) (wire.FileInfo, error) {
		return r.WriteFile(ctx, p, strings.NewReader("y"), wire.WriteOptions{})
	}
	i, err := put("mine/a/b")
	if err != nil || i.UID != 5 || i.GID != 6 {
		t.Errorf("%+v, %v", i, err)
	}
	var st unix.Stat_t
	must(t, unix.Lstat(base+"/mine/a/b", &st))
	if st.Uid != shift+5 || st.Gid != shift+6 {
		t.Errorf("stored as %d:%d", st.Uid, st.Gid)
	}
	for _, err := range []error{
		func() error { _, err := put("new"); return err }(), func() error { _, err := put("closed"); return err }(),
		func() error { _, err := r.ReadFile("closed"); return err }(), r.Remove(ctx, "closed", false), r.Mkdir("d", 0,
			false), r.Move("closed", "mine/c"),
		func() error { _, err := r.TarFrom(ctx, "/", packed(t, entry{name: "new", body: "x"})); return err }(),
	} {
		if !fault.Is(err, fault.Denied) || fault.HintOf(err) == "" {
			t.Errorf("%v: want denied", err)
		}
	}
	if os.Getuid() != 0 || os.WriteFile(base+"/after", nil, 0o600) != nil {
		t.Error("the identity of the process changed")
	}
	must(t, unix.Lstat(base+"/after", &st))
	if st.Uid != 0 {
		t.Errorf("afterwards files are created with uid %d", st.Uid)
	}
	// Root of the sandbox may do more, and owns the files that it creates.
	u.UID, u.GID = 0, 0
	r0, err := New(Options{Dir: open(t, base), User: u})
	must(t, err)
	defer r0.Close()
	if i, err := r0.WriteFile(ctx, "mine/a/b", strings.NewReader("z"), wire.WriteOptions{}); err != nil || i.UID != 0 {
		t.Errorf("%+v, %v", i, err)
	}
}
