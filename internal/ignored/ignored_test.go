//go:build linux

package ignored

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// tree is a root in memory.
type tree map[string]layer.Entry

func (t tree) look(p string) (layer.Entry, error) {
	e, ok := t[p]
	if !ok {
		return e, fault.New(fault.NotFound, "%s not found", p)
	}
	return e, nil
}

func someTree() tree {
	return tree{
		"/":          {Mode: unix.S_IFDIR | 0o755},
		"/home":      {Mode: unix.S_IFDIR | 0o755},
		"/home/a":    {Mode: unix.S_IFDIR | 0o750, UID: 1000, GID: 1001},
		"/home/a/x":  {Mode: unix.S_IFDIR | 0o2700, UID: 1000, GID: 1002},
		"/home/file": {Mode: unix.S_IFREG | 0o644},
		"/home/rel":  {Mode: unix.S_IFLNK | 0o777, Link: "a/x"},
		"/home/ro":   {Mode: unix.S_IFDIR | 0o555},
		"/home/abs":  {Mode: unix.S_IFLNK | 0o777, Link: "/home/a"},
		"/home/odd":  {Mode: unix.S_IFLNK | 0o777, Link: "a b"},
	}
}

func TestOwnerOf(t *testing.T) {
	t.Parallel()
	for p, want := range map[string]owner{
		"/home/a/x":          {1000, 1002, 0o700},
		"/home/a/.cache":     {1000, 1001, 0o755},
		"/home/ro":           {0, 0, 0o755},
		"/home/a/go/pkg/mod": {1000, 1001, 0o755},
		"/none/x":            {0, 0, 0o755},
	} {
		if got, err := ownerOf(someTree().look, p); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", p, got, err, want)
		}
	}
}

func TestCheck_RefusesWhatIsNotADirectory(t *testing.T) {
	t.Parallel()
	for p, hint := range map[string]string{
		"/home/file":   "only directories can be ignored",
		"/home/file/x": "only directories can be ignored",
		"/home/rel":    "--ignore /home/a/x",
		"/home/rel/y":  "--ignore /home/a/x/y",
		"/home/abs/y":  "--ignore /home/a/y",
		"/home/odd":    `--ignore '/home/a b'`,
	} {
		err := Check(someTree().look, p)
		if !fault.Is(err, fault.Invalid) || !strings.HasSuffix(fault.HintOf(err), hint) {
			t.Errorf("%s: %v, hint %q", p, err, fault.HintOf(err))
		}
	}
}

func TestPrepare_KeepsWhatExists(t *testing.T) {
	t.Parallel()
	real := t.TempDir()
	dir := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, dir); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "live", DirName)
	long := "/" + strings.Repeat(strings.Repeat("x", 200)+"/", 15) + "y"
	var made []rootspec.HostMount
	for try := range 2 {
		got, err := Prepare(vfs.OS(), dir, someTree().look, []rootspec.HostMount{{To: "/home/a/x", Write: true}, {To: long}})
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range got {
			st, err := os.Lstat(m.From)
			if err != nil || !st.IsDir() || !strings.HasPrefix(m.From, real+"/") {
				t.Fatalf("%+v: %v", m, err)
			}
			if try > 0 && m != made[i] {
				t.Errorf("%+v became %+v", made[i], m)
			}
		}
		made = got
		st, err := os.Lstat(got[0].From)
		if want := []os.FileMode{0o700, 0o500}[try]; err != nil || st.Mode().Perm() != want {
			t.Errorf("mode %v, %v; want %v", st.Mode(), err, want)
		}
		if err := os.Chmod(got[0].From, 0o500); err != nil { // as the sandbox may
			t.Fatal(err)
		}
	}
	if made[0].From == made[1].From || made[0].To != "/home/a/x" || !made[0].Write {
		t.Errorf("%+v", made)
	}
}

// limited is a file system whose caller can give files to no other user, as the daemon of an ordinary user.
type limited struct{ vfs.FS }

func (l limited) ChownAt(dir int, name string, uid, gid uint32) error {
	if int(uid) != os.Geteuid() || int(gid) != os.Getegid() {
		return unix.EINVAL
	}
	return l.FS.ChownAt(dir, name, uid, gid)
}

func TestPrepare_WithoutOtherOwners(t *testing.T) {
	t.Parallel()
	got, err := Prepare(limited{vfs.OS()}, filepath.Join(t.TempDir(), DirName), someTree().look,
		[]rootspec.HostMount{{To: "/home/a/x"}})
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(got[0].From, &st); err != nil || int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid() {
		t.Errorf("%d:%d, %v", st.Uid, st.Gid, err)
	}
}

// TestPrepare_IsWholeAfterEachFailure checks that a directory is never used before it has its mode.
func TestPrepare_IsWholeAfterEachFailure(t *testing.T) {
	t.Parallel()
	paths := []rootspec.HostMount{{To: "/home/a/x"}}
	for k := 1; ; k++ {
		dir := filepath.Join(t.TempDir(), DirName)
		fs := &vfs.Faulty{FS: vfs.OS()}
		fs.FailAt(k, unix.EIO, false)
		_, err := Prepare(fs, dir, someTree().look, paths)
		if !fs.Failed() {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if err == nil {
			t.Fatalf("call %d: its failure is not an error", k)
		}
		got, err := Prepare(vfs.OS(), dir, someTree().look, paths)
		if err != nil {
			t.Fatalf("call %d: %v", k, err)
		}
		if st, err := os.Lstat(got[0].From); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("call %d: mode %v, %v", k, st.Mode(), err)
		}
	}
}
