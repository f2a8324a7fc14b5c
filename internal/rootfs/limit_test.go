//go:build linux

package rootfs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/quota"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootfs/rootfstest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// limited maps the drivers that can limit a live root to functions that create a store for them.
var limited = map[string]func(t *testing.T) string{"overlay": onProjects, "btrfs": onQgroups}

// onProjects creates a store on the file system with project quotas that the environment names (scripts/vm), or on a
// new one.
func onProjects(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 || rootfstest.IsUser() {
		t.Skip("needs real-root: to set quotas")
	}
	dir := os.Getenv("COPPICE_TEST_PROJECTS")
	if dir == "" {
		var why string
		if dir, why = mountImage(t, "prjquota", "mkfs.ext4", "-q", "-O", "quota,project", "-E",
			"quotatype=prjquota"); why != "" {
			t.Skip("needs project-quotas: " + why)
		}
	}
	return storeIn(t, dir)
}

// onQgroups creates a store on a btrfs with quotas enabled.
func onQgroups(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 || rootfstest.IsUser() {
		t.Skip("needs real-root: to set quotas")
	}
	at, why := mountImage(t, "rw", "mkfs.btrfs", "-q")
	if why != "" {
		t.Skip("needs btrfs: " + why)
	}
	for _, args := range [][]string{{"quota", "enable", at}, {"quota", "rescan", "-w", at}} {
		if out, err := exec.Command("btrfs", args...).CombinedOutput(); err != nil {
			t.Fatalf("btrfs %q: %v %s", args, err, out)
		}
	}
	return storeIn(t, at)
}

func storeIn(t *testing.T, dir string) string {
	t.Helper()
	home, err := os.MkdirTemp(dir, "home-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	if err := os.MkdirAll(filepath.Join(home, "layer"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "layer", "below"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	return home
}

const diskLimit = 4 << 20

// fill tries to exceed the limit as a command would, and prints the results.
func fill(root string, arg []byte, out io.Writer) error {
	var size int
	if err := json.Unmarshal(arg, &size); err != nil {
		return err
	}
	say := func(what string, err error) { fmt.Fprintln(out, what+":", stopped(err)) }
	say("within", os.WriteFile(root+"/within", make([]byte, size/4), 0o600))
	say("beyond", os.WriteFile(root+"/beyond", make([]byte, 2*size), 0o600))
	say("removed", os.Remove(root+"/beyond"))
	// Possible evasions: another project for a file or for what is created in a directory, and a file from a layer,
	// which is not counted.
	for _, name := range []string{root, root + "/within"} {
		say("project of "+filepath.Base(name), setProject(name))
	}
	if err := os.Mkdir(root+"/dir", 0o700); err != nil {
		return err
	}
	say("project of a new directory", setProject(root+"/dir"))
	err := errors.Join(os.Rename(root+"/below", root+"/dir/below"), os.Chmod(root+"/dir/below", 0o600))
	say("copied up and renamed", err)
	say("beyond, there", os.WriteFile(root+"/dir/below", make([]byte, 2*size), 0o600))
	say("removed, there", os.RemoveAll(root+"/dir"))
	n := 0
	for err = nil; err == nil && n < 1<<20; n++ {
		err = os.WriteFile(root+"/empty-"+strconv.Itoa(n), nil, 0o600)
	}
	say("empty files", err)
	return nil
}

// stopped describes the result of a call in the same words for all drivers.
func stopped(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, unix.EDQUOT), errors.Is(err, unix.ENOSPC):
		return "full"
	}
	return err.Error()
}

// setProject tries to leave the project with FS_IOC_FSSETXATTR and FS_IOC_SETFLAGS. A call that the file system does
// not support does not evade the limit either.
func setProject(name string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	before, err := projectOf(fd)
	if err != nil {
		return err
	}
	var clear [7]uint32 // struct fsxattr: no flags, project 0
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), 0x401c5820, uintptr(unsafe.Pointer(&clear)))
	_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0)
	after, err := projectOf(fd)
	if err == nil && before != after {
		err = fmt.Errorf("changed from %v to %v", before, after)
	}
	return err
}

// projectOf returns a file's project and whether it is inherited.
func projectOf(fd int) (p [2]uint32, err error) {
	var x [7]uint32
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), 0x801c581f, uintptr(unsafe.Pointer(&x))); e != 0 {
		return p, e
	}
	return [2]uint32{x[3], x[0] & 0x200}, nil
}

func TestLimit(t *testing.T) {
	for name, newHome := range limited {
		t.Run(name, func(t *testing.T) {
			home := newHome(t)
			drv := newDriver(t, name, home, true, rootfstest.Materialise)
			l := drv.(rootfs.Limiter)
			if err := l.CanLimit(); err != nil {
				t.Fatal(err, fault.HintOf(err))
			}
			const want = `within: done
beyond: full
removed: done
project of %s: done
project of within: done
project of a new directory: done
copied up and renamed: done
beyond, there: full
removed, there: done
empty files: full
`
			top := filepath.Join(home, "live")
			if err := os.Mkdir(top, 0o700); err != nil {
				t.Fatal(err)
			}
			live := rootfs.Live{Dir: filepath.Join(top, "1"),
				Stack: rootspec.Stack{Layers: []string{filepath.Join(home, "layer")}}, Disk: diskLimit}
			spec, err := drv.Present(t.Context(), live)
			if err != nil {
				t.Fatal(err, fault.HintOf(err))
			}
			lim, err := l.Limit(live)
			if err != nil || lim.By == "" {
				t.Fatal(lim, err)
			}
			t.Log(lim.By)
			fills := func() {
				t.Helper()
				out, err := rootfstest.InRoot(t, spec, rootfstest.MountOptions{Shift: true}, "fill", diskLimit)
				lines := strings.SplitAfter(out, "\n")
				if len(lines) > 3 {
					lines[3] = "project of %s: " + lines[3][strings.LastIndex(lines[3], ": ")+2:]
				}
				if out = strings.Join(lines, ""); err != nil || out != want {
					t.Errorf("%v\n%s", err, out)
				}
			}
			fills()
			used, err := l.Used(live)
			if err != nil || used < diskLimit/4 || used > diskLimit+diskLimit/8 {
				t.Errorf("%d bytes used, %v", used, err)
			}
			// Present the same generation again when it is full.
			if spec, err = drv.Present(t.Context(), live); err != nil {
				t.Fatal(err)
			}
			// If the kernel, too, is subject to the limit (xfs), it may fail to create its work directory.
			out, err := rootfstest.InRoot(t, spec, rootfstest.MountOptions{Shift: true}, "stillFull", nil)
			if (err != nil || out != "full\n") && (name == "btrfs" || quota.Exempt(home)) {
				t.Errorf("%q %v", out, err)
			}
			// The next generation can begin although the previous one used up the limit, and is limited once that is
			// removed.
			old := live.Dir
			live.Dir = filepath.Join(top, "2")
			if spec, err = drv.Present(t.Context(), live); err != nil {
				t.Fatal(err)
			}
			if err := drv.Remove(t.Context(), old); err != nil {
				t.Fatal(err)
			}
			fills()
			// Another sandbox has its own limit.
			other := live
			other.Dir = filepath.Join(home, "other", "1")
			if err := os.Mkdir(filepath.Dir(other.Dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if spec, err = drv.Present(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			if lim2, err := l.Limit(other); err != nil || lim2.By == lim.By {
				t.Error(lim2, err)
			}
			fills()
			for _, dir := range []string{top, filepath.Dir(other.Dir), filepath.Join(home, "none")} {
				if err := l.Unlimit(dir); err != nil {
					t.Error(err)
				}
			}
			if p, _, err := quota.Of(top); err == nil && p.Ours() {
				if f, err := quota.Read(top, p); err != nil || f.Limit != 0 || f.InodeLimit != 0 {
					t.Errorf("the limit was not removed: %+v %v", f, err)
				}
			}
		})
	}
}

// TestLimit_CopiedHome checks that a root that was not created by a driver is refused under a limit, until a new
// generation begins.
func TestLimit_CopiedHome(t *testing.T) {
	for name, newHome := range limited {
		t.Run(name, func(t *testing.T) {
			home := newHome(t)
			drv := newDriver(t, name, home, true, rootfstest.Materialise)
			top := filepath.Join(home, "live")
			if err := os.Mkdir(top, 0o700); err != nil {
				t.Fatal(err)
			}
			live := rootfs.Live{Dir: filepath.Join(top, "1"),
				Stack: rootspec.Stack{Layers: []string{filepath.Join(home, "layer")}}}
			if _, err := drv.Present(t.Context(), live); err != nil {
				t.Fatal(err)
			}
			live.Disk = diskLimit
			if _, err := drv.Present(t.Context(), live); !fault.Is(err, fault.Conflict) ||
				!strings.Contains(fault.HintOf(err), "coppice rewind") {
				t.Errorf("%v, hint %q", err, fault.HintOf(err))
			}
			live.Dir = filepath.Join(top, "2")
			if _, err := drv.Present(t.Context(), live); err != nil {
				t.Error(err)
			}
			if err := drv.(rootfs.Limiter).Unlimit(top); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLimit_RefusesUnenforceable checks that a driver that cannot enforce a limit presents nothing.
func TestLimit_RefusesUnenforceable(t *testing.T) {
	home := tempHome(t)
	if err := os.Mkdir(filepath.Join(home, "layer"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		driver string
		root   bool
	}{{"overlay", false}, {"copy", false}, {"copy", true}, {"btrfs", false}} {
		drv := newDriver(t, c.driver, home, c.root, rootfstest.Materialise)
		if err := drv.(rootfs.Limiter).CanLimit(); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v, hint %q", c, err, fault.HintOf(err))
		}
		live := rootfs.Live{Dir: filepath.Join(home, "live"),
			Stack: rootspec.Stack{Layers: []string{filepath.Join(home, "layer")}}, Disk: 1 << 20}
		if _, err := drv.Present(t.Context(), live); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v, hint %q", c, err, fault.HintOf(err))
		}
		if _, err := os.Lstat(live.Dir); err == nil {
			t.Errorf("%+v leaves its directory behind", c)
		}
	}
}
