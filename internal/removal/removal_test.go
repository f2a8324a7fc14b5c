package removal

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func gone(t *testing.T, dir string) {
	t.Helper()
	if err := Tree(t.Context(), dir); err != nil {
		t.Errorf("remove: %v", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTree_RemovesEntriesWithoutPermissions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "top")
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/f"), []byte("x"), 0o000))
	for _, d := range []string{"a/b", "a", ""} {
		must(t, os.Chmod(filepath.Join(dir, d), 0o000))
	}
	gone(t, dir)
}

func TestTree_RemovesDirectoriesBeyondPathMax(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "top")
	must(t, os.Mkdir(dir, 0o755))
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 5000 {
		must(t, unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
	gone(t, dir)
}

func TestTree_DoesNotFollowLinks(t *testing.T) {
	tmp := t.TempDir()
	dir, kept := filepath.Join(tmp, "top"), filepath.Join(tmp, "kept")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.Mkdir(kept, 0o755))
	must(t, os.WriteFile(filepath.Join(kept, "f"), nil, 0o600))
	must(t, os.Symlink(kept, filepath.Join(dir, "l")))
	gone(t, dir)
	if _, err := os.Lstat(filepath.Join(kept, "f")); err != nil {
		t.Error(err)
	}
}

func TestMakeAccessible_DoesNotFollowALink(t *testing.T) {
	tmp := t.TempDir()
	kept := filepath.Join(tmp, "kept")
	must(t, os.Mkdir(kept, 0o755))
	must(t, os.Symlink(kept, filepath.Join(tmp, "l")))
	at, err := unix.Open(tmp, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(at)
	if err := makeAccessible(at, "l"); err == nil {
		t.Error("the mode of a link's target was changed")
	}
	if st, err := os.Stat(kept); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestTree_DoesNotEnterMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs real-root: to mount")
	}
	for _, at := range []string{"top", "top/a/b"} {
		tmp := t.TempDir()
		kept, on := filepath.Join(tmp, "kept"), filepath.Join(tmp, at)
		must(t, os.MkdirAll(on, 0o755))
		must(t, os.MkdirAll(filepath.Join(kept, "d"), 0o755))
		must(t, os.WriteFile(filepath.Join(kept, "d/f"), nil, 0o600))
		if err := unix.Mount(kept, on, "", unix.MS_BIND, ""); err != nil {
			t.Skipf("needs real-root: to mount: %v", err)
		}
		err := Tree(t.Context(), filepath.Join(tmp, "top"))
		must(t, unix.Unmount(on, unix.MNT_DETACH))
		if err == nil {
			t.Errorf("%s: the mount was not detected", at)
		}
		if _, err := os.Lstat(filepath.Join(kept, "d/f")); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		gone(t, filepath.Join(tmp, "top"))
	}
}

func TestTree_RemovesImmutableFilesAndDirectories(t *testing.T) {
	tmp, err := os.MkdirTemp("/var/tmp", "coppice-removal-*") // old kernels do not support the flags on tmpfs
	must(t, err)
	t.Cleanup(func() { _ = Tree(t.Context(), tmp); _ = os.Remove(tmp) })
	dir := filepath.Join(tmp, "top")
	must(t, os.MkdirAll(filepath.Join(dir, "a/empty"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/f"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "a/log"), nil, 0o600))
	for _, c := range [][2]string{{"a/f", "+i"}, {"a/log", "+a"}, {"a/empty", "+i"}, {"a", "+i"}, {"", "+i"}} {
		if out, err := exec.Command("chattr", c[1], filepath.Join(dir, c[0])).CombinedOutput(); err != nil {
			t.Skipf("needs real-root: to set flags: %s", out)
		}
	}
	gone(t, dir)
}

func TestTree_RemovesReadOnlySubvolumes(t *testing.T) {
	top := btrfs(t)
	dir := filepath.Join(top, "top")
	must(t, os.Mkdir(dir, 0o755))
	for _, s := range []string{"outer", "outer/inner", "outer/inner/innermost"} {
		subvolume(t, filepath.Join(dir, s))
		must(t, os.WriteFile(filepath.Join(dir, s, "f"), []byte("x"), 0o600))
	}
	for _, s := range []string{"outer/inner/innermost", "outer/inner", "outer"} {
		readOnly(t, filepath.Join(dir, s))
	}
	gone(t, dir)
}

func subvolume(t *testing.T, path string) {
	t.Helper()
	if out, err := exec.Command("btrfs", "-q", "subvolume", "create", path).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}

func readOnly(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	flags := uint64(1 << 1) // BTRFS_SUBVOL_RDONLY
	must(t, ioctl(fd, iocSubvolSetflags, unsafe.Pointer(&flags)))
}

// btrfs mounts a new btrfs until the test ends.
func btrfs(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs real-root: to mount btrfs")
	}
	tmp, err := os.MkdirTemp("/var/tmp", "coppice-removal-*")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	img, at := filepath.Join(tmp, "img"), filepath.Join(tmp, "mnt")
	for _, c := range [][]string{{"truncate", "-s", "512M", img}, {"mkfs.btrfs", "-q", img}, {"mkdir", at},
		{"mount", "-o", "loop", img, at}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs btrfs: %s: %v %s", c[0], err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return at
}
