package dirfd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree creates a directory with one entry of each kind, and a link to the outside.
func tree(t *testing.T) (fd int, dir string) {
	t.Helper()
	top, dir := openTemp(t)
	outside := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "f"), nil, 0o600), os.Mkdir(filepath.Join(dir, "d"), 0o700),
		os.WriteFile(filepath.Join(dir, "d/f"), []byte("x"), 0o600), os.Symlink(outside, filepath.Join(dir, "out")),
		os.Symlink("/d", filepath.Join(dir, "in")), os.Symlink("/proc/self/root", filepath.Join(dir, "magic")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return int(top.Fd()), dir
}

func TestOpen_HonorsResolveFlags(t *testing.T) {
	t.Parallel()
	fd, dir := tree(t)
	for _, c := range []struct {
		p       string
		resolve uint64
		want    error
	}{
		{"d/f", Beneath, nil},
		{"in/f", Beneath, unix.ELOOP},
		{"out/f", Beneath, unix.ELOOP},
		{"d/../../x", Beneath, unix.EXDEV},
		{dir, Beneath, unix.EXDEV},
		{"in/f", InRoot, nil},
		{"/in/f", InRoot, nil},
		{"../../d/f", InRoot, nil},
		{"out/f", InRoot, unix.ENOENT},
		{"in/f", InRoot | NoLinks, unix.ELOOP},
		{"/d/f", InRoot | NoLinks, nil},
		{dir + "/d/f", NoLinks, nil},
		{dir + "/out/f", NoLinks, unix.ELOOP},
		{"d", Beneath | OneMount, nil},
		{"", Beneath, unix.ENOENT},
	} {
		got, err := Open(fd, c.p, unix.O_PATH, c.resolve)
		if !errors.Is(err, c.want) {
			t.Errorf("%q, %#x: %v, want %v", c.p, c.resolve, err, c.want)
		}
		if err == nil {
			unix.Close(got)
		}
	}
	proc, err := OpenDir(unix.AT_FDCWD, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(proc)
	if _, err := Open(proc, "self/root", unix.O_PATH, InRoot); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a magic link in a root: %v", err)
	}
	root, err := Open(unix.AT_FDCWD, "/", unix.O_PATH, NoLinks)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	if _, err := Open(root, "proc", unix.O_PATH, Beneath|OneMount); !errors.Is(err, unix.EXDEV) {
		t.Errorf("another mount: %v", err)
	}
}

func TestOpenLong_OpensPathsOfAnyLength(t *testing.T) {
	t.Parallel()
	top, _ := openTemp(t)
	fd := int(top.Fd())
	name := strings.Repeat("n", 200)
	var names []string
	cur := fd
	for range 50 {
		if err := unix.Mkdirat(cur, name, 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := OpenDir(cur, name)
		if err != nil {
			t.Fatal(err)
		}
		if cur != fd {
			unix.Close(cur)
		}
		cur, names = next, append(names, name)
	}
	defer unix.Close(cur)
	if err := errors.Join(unix.Symlinkat(".", cur, "link"), unix.Symlinkat(name, fd, "first")); err != nil {
		t.Fatal(err)
	}
	var want unix.Stat_t
	if err := unix.Fstat(cur, &want); err != nil {
		t.Fatal(err)
	}
	long := strings.Join(names, "/")
	linked := "first/" + strings.Join(names[1:], "/")
	for _, c := range []struct {
		p       string
		resolve uint64
		want    error
	}{
		{long, Beneath, nil},
		{long + "//", Beneath, nil},
		{long, InRoot, nil},
		{"/" + long, InRoot, nil},
		{long + "/link", Beneath, unix.ELOOP},
		{long + "/link", InRoot, unix.ELOOP},
		{linked, Beneath, unix.ELOOP},
		{linked, InRoot, nil},
		{long + "/..", InRoot, nil},
		{long + strings.Repeat("/..", 51), InRoot, unix.EXDEV},
		{long + "/no", Beneath, unix.ENOENT},
		{strings.Repeat("x", unix.PathMax), Beneath, unix.ENAMETOOLONG},
	} {
		got, err := OpenLong(fd, c.p, unix.O_PATH|unix.O_DIRECTORY, c.resolve)
		if !errors.Is(err, c.want) {
			t.Errorf("…%q, %#x: %v, want %v", c.p[max(0, len(c.p)-20):], c.resolve, err, c.want)
		}
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(got, &st); err != nil || !strings.HasSuffix(c.p, "..") && st.Ino != want.Ino {
			t.Errorf("another directory: %v", err)
		}
		unix.Close(got)
	}
	if _, err := OpenLong(fd, "", unix.O_PATH, Beneath); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no path: %v", err)
	}
}

func FuzzCut(f *testing.F) {
	f.Add(strings.Repeat("abc/", 2000))
	f.Fuzz(func(t *testing.T, p string) {
		head, tail := cut(p)
		if tail != "" && (tail[0] == '/' || head == "" || !strings.HasSuffix(head, "/")) || len(head)+len(tail) > len(p) {
			t.Errorf("%q: %q %q", p, head, tail)
		}
	})
}

func TestOpenRegular_RefusesOtherTypes(t *testing.T) {
	t.Parallel()
	fd, dir := tree(t)
	if err := os.Symlink("d/f", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"d/f": nil, "d": unix.EINVAL, "fifo": unix.EINVAL, "link": unix.ELOOP,
		"no": unix.ENOENT} {
		got, st, err := OpenRegular(fd, name)
		if !errors.Is(err, want) || err == nil && st.Size != 1 {
			t.Errorf("%q: %d bytes, %v, want %v", name, st.Size, err, want)
		}
		if err == nil {
			unix.Close(got)
		}
	}
}

func TestOpenAbove_DetectsMovedDirectory(t *testing.T) {
	t.Parallel()
	fd, dir := tree(t)
	var st unix.Stat_t
	child, err := OpenDir(fd, "d")
	if err := errors.Join(err, unix.Fstat(fd, &st)); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	up, err := OpenAbove(child, st.Dev, st.Ino)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(up)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "other"), 0o700),
		os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "other/d"))); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAbove(child, st.Dev, st.Ino); !errors.Is(err, unix.ESTALE) {
		t.Errorf("%v, want ESTALE", err)
	}
}

func TestLstat_FollowsNoLink(t *testing.T) {
	t.Parallel()
	fd, dir := tree(t)
	for name, is := range map[string]func(*unix.Stat_t) bool{"d": IsDir, "d/f": IsRegular, "in": IsLink, "magic": IsLink} {
		if st, err := Lstat(fd, name); err != nil || !is(&st) {
			t.Errorf("%q: mode %o, %v", name, st.Mode, err)
		}
	}
	long := strings.Repeat("t/", 2000)
	if err := os.Symlink(long, filepath.Join(dir, "long")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"in": "/d", "long": long} {
		if got, err := Readlink(fd, name); got != want || err != nil {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	link, err := Open(fd, "in", unix.O_PATH|unix.O_NOFOLLOW, InRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(link)
	if got, err := Readlink(link, ""); got != "/d" || err != nil {
		t.Errorf("an open link: %q, %v", got, err)
	}
	if _, err := Readlink(fd, "d"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a directory: %v", err)
	}
}

func TestReader_GivesEachEntryOnce(t *testing.T) {
	t.Parallel()
	top, dir := openTemp(t)
	var want []string
	for i := range 2000 { // more than one buffer
		name := strings.Repeat("n", i%200) + strconv.Itoa(i)
		want = append(want, name)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(want)
	for range 2 {
		got, err := Names(int(top.Fd()))
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d names, %v", len(got), err)
		}
	}
	r := NewReader()
	defer r.Close()
	if err := r.Start(int(top.Fd())); err != nil {
		t.Fatal(err)
	}
	for range want {
		name, typ, ok, err := r.Next()
		var st unix.Stat_t
		if err := errors.Join(err, r.Lstat(name, &st)); err != nil || !ok || typ != unix.DT_REG && typ != unix.DT_UNKNOWN ||
			!IsRegular(&st) {
			t.Fatalf("%q: type %d, %v", name, typ, err)
		}
	}
	if _, _, ok, err := r.Next(); ok || err != nil {
		t.Errorf("after the end: %v, %v", ok, err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(make([]byte, 40))
	f.Add([]byte("inode---offset--\x18\x00\x04ab\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := Reader{buf: b, n: len(b), fd: -1}
		for {
			name, _, ok, err := r.Next()
			if !ok {
				if err == nil {
					t.Error("no error for a closed directory")
				}
				return
			}
			if n := string(name); n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
				t.Errorf("%q", n)
			}
		}
	})
}
