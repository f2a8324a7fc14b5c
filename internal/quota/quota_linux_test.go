package quota

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// projectsEnv names a directory on a file system with project quotas, for hosts on which the tests cannot create one,
// as in scripts/vm.
const projectsEnv = "COPPICE_TEST_PROJECTS"

// onProjects returns an empty directory on a file system that enforces limits of projects.
func onProjects(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs real-root: to mount, and to set quotas")
	}
	dir := os.Getenv(projectsEnv)
	if dir == "" {
		var why string
		if dir, why = mount(t, "prjquota", "mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"); why != "" {
			t.Skip("needs project-quotas: " + why)
		}
	}
	dir, err := os.MkdirTemp(dir, "test-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// mount creates a file system in a file and mounts it until the test ends, or returns why it cannot.
func mount(t *testing.T, options string, mkfs ...string) (at, why string) {
	t.Helper()
	tmp := t.TempDir()
	img, at := filepath.Join(tmp, "img"), filepath.Join(tmp, "mnt")
	for _, c := range [][]string{{"truncate", "-s", "320M", img}, append(mkfs, img), {"mkdir", at},
		{"mount", "-o", "loop," + options, img, at}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Sprintf("%s: %v %s", c[0], err, strings.TrimSpace(string(out)))
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	return at, ""
}

// command calls fn like a command, without CAP_SYS_RESOURCE.
func command(t *testing.T, fn func() error) (got error) {
	t.Helper()
	if err := asCommand(func() { got = fn() }); err != nil {
		t.Fatal(err)
	}
	return got
}

func full(err error) bool { return errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC) }

func TestProject(t *testing.T) {
	dir := onProjects(t)
	if by, err := Try(dir); err != nil {
		t.Fatal(by, err, fault.HintOf(err))
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Fatalf("a try left %v", left)
	}
	if err := Holds(dir); err != nil {
		t.Fatal(err)
	}
	const size = 2 << 20
	top, other := filepath.Join(dir, "top"), filepath.Join(dir, "other")
	for _, d := range []string{top, other} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p, err := Claim(top, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Limit(dir, p, 0); err != nil {
			t.Error(err)
		}
	})
	q, err := Claim(other, size)
	if err != nil || p == q || !p.Ours() || !q.Ours() {
		t.Fatal(p, q, err)
	}
	defer func() { _ = Limit(dir, q, 0) }()
	if got, inherited, err := Of(top); got != p || !inherited || err != nil {
		t.Fatal(got, inherited, err)
	}
	f, err := Read(dir, p)
	if err != nil || f.Limit != size || f.InodeLimit != Inodes(size) || f.Inode != 1 {
		t.Fatalf("%+v %v", f, err)
	}
	sub := filepath.Join(top, "a", "b")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	// Both bytes and empty files are limited.
	if err := command(t,
		func() error { return os.WriteFile(filepath.Join(sub, "big"), make([]byte, 2*size), 0o600) }); !full(err) {
		t.Errorf("twice the limit: %v", err)
	}
	if err := os.Remove(filepath.Join(sub, "big")); err != nil {
		t.Fatal(err)
	}
	made := 0
	for ; made < 2*int(Inodes(size)); made++ {
		err = command(t, func() error { return os.WriteFile(filepath.Join(sub, fmt.Sprint(made)), nil, 0o600) })
		if err != nil {
			break
		}
	}
	if !full(err) || made >= int(Inodes(size)) {
		t.Errorf("%d empty files: %v", made, err)
	}
	// No file crosses into another project, by rename or by link.
	if err := os.WriteFile(filepath.Join(other, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(sub, "0"), filepath.Join(other, "stolen")); !errors.Is(err, unix.EXDEV) {
		t.Errorf("renamed into another project: %v", err)
	}
	if err := os.Link(filepath.Join(other, "f"), filepath.Join(sub, "0", "..", "link")); !errors.Is(err, unix.EXDEV) &&
		!errors.Is(err, unix.ENOTDIR) {
		t.Errorf("linked into another project: %v", err)
	}
	// The daemon's own writes are exempt, if the file system has exemptions.
	if err := os.WriteFile(filepath.Join(sub, "daemon"), make([]byte, 2*size), 0o600); (err == nil) != Exempt(dir) {
		t.Errorf("exempt %v: %v", Exempt(dir), err)
	}
	// A limit that another program removed is set again.
	if err := Limit(dir, p, 0); err != nil {
		t.Fatal(err)
	}
	if err := Limit(dir, p, size); err != nil {
		t.Fatal(err)
	}
	if f, err := Read(dir, p); err != nil || f.Limit != size || f.Used == 0 {
		t.Errorf("%+v %v", f, err)
	}
}

func TestProject_Nested(t *testing.T) {
	dir := onProjects(t)
	fd, err := openDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := Put(fd, 1000); err != nil {
		t.Fatal(err)
	}
	if err := TryProject(dir); !fault.Is(err, fault.Unsupported) ||
		!strings.Contains(err.Error(), "already belongs to project 1000") {
		t.Error(err)
	}
}

func TestNoProjects(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs real-root: to mount")
	}
	for _, mkfs := range []string{"mkfs.ext4", "mkfs.xfs"} {
		t.Run(mkfs, func(t *testing.T) {
			at, why := mount(t, "rw", mkfs, "-q")
			if why != "" {
				t.Skip("needs " + strings.TrimPrefix(mkfs, "mkfs.") + ": " + why)
			}
			err := TryProject(at)
			if !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), at) {
				t.Errorf("%v, hint %q", err, fault.HintOf(err))
			}
			if left, _ := filepath.Glob(at + "/.coppice*"); len(left) != 0 {
				t.Errorf("left %v", left)
			}
			if p, _, err := Of(at); p != 0 || err != nil {
				t.Error(p, err)
			}
		})
	}
}

func TestSubvolume(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs real-root: to mount, and to set quotas")
	}
	at, why := mount(t, "rw", "mkfs.btrfs", "-q")
	if why != "" {
		t.Skip("needs btrfs: " + why)
	}
	if _, err := Try(at); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) != "btrfs quota enable "+at {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
	for _, c := range []string{"enable", "rescan -w"} {
		args := append([]string{"quota"}, strings.Fields(c)...)
		if out, err := exec.Command("btrfs", append(args, at)...).CombinedOutput(); err != nil {
			t.Fatalf("btrfs quota %s: %v %s", c, err, out)
		}
	}
	if by, err := Try(at); err != nil {
		t.Fatal(by, err, fault.HintOf(err))
	}
	if left, _ := os.ReadDir(at); len(left) != 0 {
		t.Errorf("a try left %v", left)
	}
	if err := TryProject(at); !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "--driver btrfs") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
}

func TestFindMount(t *testing.T) {
	t.Parallel()
	const mounts = `21 1 8:1 / / rw - ext4 /dev/vda1 rw
22 21 8:2 / /srv rw shared:3 - xfs /dev/vdb rw
23 22 8:2 /x /srv/in/side rw - xfs /dev/vdb rw
24 21 0:5 / /srv2 rw - tmpfs tmpfs rw
25 21 8:3 / /with\040blank rw - ext4 /dev/disk/by-label/my\040disk rw
`
	for _, c := range []struct {
		major, minor  uint32
		dir           string
		device, mount string
	}{
		{8, 1, "/var/home", "/dev/vda1", "/"},
		{8, 1, "/", "/dev/vda1", "/"},
		{8, 2, "/srv/home", "/dev/vdb", "/srv"},
		{8, 2, "/srv", "/dev/vdb", "/srv"},
		{8, 2, "/srv/in/side/x", "/dev/vdb", "/srv/in/side"},
		{8, 2, "/srv2", "", ""},
		{9, 9, "/srv", "", ""},
		{8, 3, "/with blank/x", "/dev/disk/by-label/my disk", "/with blank"},
	} {
		dev := unix.Mkdev(c.major, c.minor)
		if device, mount := findMount(strings.NewReader(mounts), dev, c.dir); device != c.device || mount != c.mount {
			t.Errorf("%d:%d, %s: %q on %q", c.major, c.minor, c.dir, device, mount)
		}
		if device, mount := findMount(strings.NewReader(mounts+"torn line\n"), dev, c.dir); device != "" || mount != "" {
			t.Errorf("after a torn line: %q on %q", device, mount)
		}
	}
}
