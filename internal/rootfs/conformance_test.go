//go:build linux

package rootfs_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootfs/rootfstest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(presentEnv); text != "" {
		if err := presentChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	steps := rootfstest.Steps()
	steps["badHomes"], steps["rewind"], steps["fill"] = badHomes, rewind, fill
	steps["stillFull"] = func(root string, _ []byte, out io.Writer) error {
		fmt.Fprintln(out, stopped(os.WriteFile(root+"/more", make([]byte, diskLimit), 0o600)))
		return nil
	}
	rootfstest.Main(m, steps)
}

// badHomes presents with stores on unsuitable file systems: the overlay root that it runs in, a full tmpfs, and a
// read-only one. It prints the kind of each error.
func badHomes(root string, _ []byte, out io.Writer) error {
	layer := root + "/layer"
	for _, mount := range []string{"", "size=4k,nr_inodes=3", "ro"} {
		home := root + "/home" + strconv.Itoa(len(mount))
		if err := os.Mkdir(home, 0o700); err != nil {
			return err
		}
		if mount != "" {
			var flags uintptr
			if mount == "ro" {
				flags, mount = unix.MS_RDONLY, ""
			}
			if err := unix.Mount("tmpfs", home, "tmpfs", flags, mount); err != nil {
				return err
			}
		}
		for _, name := range []string{"overlay", "copy", "btrfs"} {
			d, err := rootfs.New(name, rootfs.Deps{Home: home, Materialise: rootfstest.Materialise})
			if err != nil {
				return err
			}
			live := rootfs.Live{Dir: home + "/gen", Stack: rootspec.Stack{Layers: []string{layer}}}
			_, err = d.Present(context.Background(), live)
			fmt.Fprintln(out, name, fault.KindOf(err), strings.Contains(fault.HintOf(err), "COPPICE_HOME"))
			if _, lerr := os.Lstat(live.Dir); err != nil && lerr == nil {
				return fmt.Errorf("%s did not remove its directory after: %w", name, err)
			}
			if rerr := d.Remove(context.Background(), live.Dir); rerr != nil {
				return rerr
			}
		}
	}
	return nil
}

func TestDriver_ClassifiesStoreErrors(t *testing.T) {
	if !rootfstest.AsUser(t) {
		return
	}
	dir := t.TempDir()
	for _, d := range []string{"base/layer/a/b/c/d", "up", "work"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := rootspec.Spec{
		Overlays: []rootspec.Overlay{{Target: "/", Lowers: []string{dir + "/base"}, Upper: dir + "/up", Work: dir + "/work"}}}
	out, err := rootfstest.InRoot(t, s, rootfstest.MountOptions{}, "badHomes", nil)
	const want = `overlay unsupported true
copy  false
btrfs unsupported true
overlay no_space false
copy no_space false
btrfs unsupported true
overlay read_only false
copy read_only false
btrfs unsupported true
`
	if err != nil || out != want {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestConformance(t *testing.T) {
	if !rootfstest.IsUser() {
		t.Run("root", func(t *testing.T) {
			rootfstest.NeedsMount(t)
			suites(t, true)
		})
	}
	forUser(t)
	if rootfstest.AsUser(t) {
		suites(t, false)
	}
}

// forUser creates a directory on btrfs for the unprivileged user of AsUser.
func forUser(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 || rootfstest.IsUser() || os.Getenv(btrfsEnv) != "" {
		return
	}
	at, why := mountBtrfs(t)
	if why != "" {
		return
	}
	if err := os.Chmod(at, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Setenv(btrfsEnv, at)
}

func suites(t *testing.T, root bool) {
	for _, name := range []string{"overlay", "copy", "btrfs"} {
		t.Run(name, func(t *testing.T) {
			newHome := tempHome
			if name == "btrfs" {
				newHome = onBtrfs(t)
			}
			rootfstest.Run(t, newHome, func(t *testing.T, home string) rootfs.Driver {
				return newDriver(t, name, home, root, rootfstest.Materialise)
			})
		})
	}
}

func newDriver(
	t *testing.T, name, home string, root bool, m func(context.Context, rootspec.Stack, string) error,
) rootfs.Driver {
	t.Helper()
	d, err := rootfs.New(name, rootfs.Deps{Home: home, Root: root, Materialise: m})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// tempHome creates a store: in memory if that supports extended attributes, and for tests of the host in a directory
// that live roots show.
func tempHome(t *testing.T) string {
	base := "/var/tmp"
	if !strings.Contains(t.Name(), "/Host") && keepsAttributes("/dev/shm") {
		base = "/dev/shm"
	}
	dir, err := os.MkdirTemp(base, "coppice-rootfs-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	return home
}

func keepsAttributes(dir string) bool {
	f, err := os.CreateTemp(dir, "coppice-*")
	if err != nil {
		return false
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return unix.Fsetxattr(int(f.Fd()), "user.test", nil, 0) == nil
}

const btrfsEnv = "COPPICE_TEST_BTRFS"

// onBtrfs returns a function that creates stores on a new btrfs; as an unprivileged user, on the one that the
// environment names.
func onBtrfs(t *testing.T) func(*testing.T) string {
	t.Helper()
	dir := os.Getenv(btrfsEnv)
	if dir == "" {
		var why string
		if dir, why = mountBtrfs(t); why != "" {
			t.Skip("needs btrfs: " + why)
		}
	}
	return func(t *testing.T) string {
		home, err := os.MkdirTemp(dir, "home-*")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(home) })
		return home
	}
}

// mountBtrfs mounts a new btrfs until the test ends, or returns why it cannot.
func mountBtrfs(t *testing.T) (at, why string) {
	t.Helper()
	if rootfstest.IsUser() || os.Geteuid() != 0 {
		return "", "set " + btrfsEnv + " to a directory on it"
	}
	return mountImage(t, "rw", "mkfs.btrfs", "-q")
}

// mountImage creates a file system in a file and mounts it until the test ends, or returns why it cannot.
func mountImage(t *testing.T, options string, mkfs ...string) (at, why string) {
	t.Helper()
	tmp, err := os.MkdirTemp("/var/tmp", "coppice-image-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	img := filepath.Join(tmp, "img")
	at = filepath.Join(tmp, "mnt")
	for _, c := range [][]string{{"chmod", "755", tmp}, {"truncate", "-s", "512M", img}, append(mkfs, img), {"mkdir", at},
		{"mount", "-o", "loop," + options, img, at}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Sprintf("%s: %v %s", c[0], err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return at, ""
}

// TestShiftedHost checks that with shifted IDs, uid 0 of a user namespace can write to the host's root, and that its
// files are stored with owner 0.
func TestShiftedHost(t *testing.T) {
	if os.Geteuid() != 0 || rootfstest.IsUser() {
		t.Skip("needs real-root: only it shifts ids")
	}
	dir, err := os.MkdirTemp("/var/tmp", "coppice-shift-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	home := filepath.Join(dir, "home")
	layer := filepath.Join(home, "layers", "l", "fs")
	if err := os.MkdirAll(layer+"/opt/from-layer", 0o755); err != nil {
		t.Fatal(err)
	}
	drv := newDriver(t, "overlay", home, true, nil)
	live := rootfs.Live{Dir: filepath.Join(home, "gen"), Stack: rootspec.Stack{Host: true, Layers: []string{layer}}}
	spec, err := drv.Present(t.Context(), live)
	if err != nil {
		t.Fatal(err)
	}
	o := rootfstest.HostOrder{Home: home, Dirs: []string{"/etc", "/root", "/opt/from-layer"},
		Want: []string{"/usr/bin", "/etc/passwd"}}
	out, err := rootfstest.InRoot(t, spec, rootfstest.MountOptions{Shift: true}, "host", o)
	if err != nil || out != "ok" {
		t.Fatal(out, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(live.Dir, "upper/p0/etc/coppice-made"), &st); err != nil || st.Uid != 0 {
		t.Errorf("stored with uid %d: %v", st.Uid, err)
	}
}
