//go:build linux

package rootfs_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootfs/rootfstest"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/rootspec/rootspectest"
)

func TestMain(m *testing.M) { rootspectest.Main(m, rootfstest.Steps()) }

func TestConformance(t *testing.T) {
	if !rootspectest.IsUser() {
		t.Run("root", func(t *testing.T) {
			rootspectest.NeedsMount(t)
			suites(t, true)
		})
	}
	if rootspectest.AsUser(t) {
		suites(t, false)
	}
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

func newDriver(t *testing.T, name, home string, root bool, m func(context.Context, rootspec.Stack, string) error) rootfs.Driver {
	t.Helper()
	d, err := rootfs.New(name, rootfs.Deps{Home: home, Root: root, Materialise: m})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// tempHome makes a store outside /tmp, which no live root shows.
func tempHome(t *testing.T) string {
	base := "/var/tmp"
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

const btrfsEnv = "COPPICE_TEST_BTRFS"

// onBtrfs mounts a btrfs of its own; as an ordinary user it uses the directory
// that the root run left in the environment.
func onBtrfs(t *testing.T) func(*testing.T) string {
	t.Helper()
	dir := os.Getenv(btrfsEnv)
	if dir == "" {
		dir = mountBtrfs(t)
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

func mountBtrfs(t *testing.T) string {
	t.Helper()
	if rootspectest.IsUser() || os.Geteuid() != 0 {
		t.Skip("feature: btrfs (set " + btrfsEnv + " to a directory on it)")
	}
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		t.Skip("feature: btrfs (mkfs.btrfs is not installed)")
	}
	tmp := t.TempDir()
	img, at := filepath.Join(tmp, "img"), filepath.Join(tmp, "mnt")
	for _, c := range [][]string{{"truncate", "-s", "512M", img}, {"mkfs.btrfs", "-q", img}, {"mkdir", "-p", at}, {"mount", "-o", "loop", img, at}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("feature: loop devices with btrfs (%s: %v %s)", c[0], err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return at
}
