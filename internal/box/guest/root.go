//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/mounts"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// MakeRoot makes the first of trees, a detached mount of the sandbox's files, the root. On it, it mounts the kernel's
// file systems, then the next g.Shared trees and, with g.Client and g.Self, the trees after them. It returns the
// protections that are weaker than planned.
//
// The caller's mount namespace is a copy of the keeper's in a new user namespace, so every mount that was copied is
// locked; the mounts that are made here are not.
//
// No path of the sandbox is used while the host's root is attached: pivot_root(2) with two dots leaves the host's root
// on top of "/", where ".." leads into it, even with openat2's RESOLVE_IN_ROOT. So the required parts of the host are
// cloned first.
func MakeRoot(g plan.Guest, trees []int) ([]plan.Item, error) {
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	host, err := mounts.TakeHost(devices, true)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	if err := mounts.LeaveHost(func() error {
		// pivot_root(2) requires the root to be mounted. Init's user may not be able to enter the store's directories.
		err := unix.MoveMount(trees[0], "", unix.AT_FDCWD, "/dev", unix.MOVE_MOUNT_F_EMPTY_PATH)
		if err != nil {
			return fault.Wrap(err, "attach the root")
		}
		return fault.Wrap(unix.Fchdir(trees[0]), "enter the root")
	}); err != nil {
		return nil, err
	}
	weak, err := mountKernel(g, host)
	if err != nil {
		return nil, err
	}
	more := trees[1:]
	if err := mountShared(more[:g.Shared]); err != nil {
		return nil, err
	}
	more = more[g.Shared:]
	if g.Client {
		if err := mountClient(more[0]); err != nil {
			return nil, err
		}
		more = more[1:]
	}
	if g.Self {
		if err := mountSelf(more[0]); err != nil {
			return nil, err
		}
	}
	switch err := setHostname(g); {
	case errors.Is(err, unix.EPERM): // init may set it, so this is a filter of the container in which Coppice runs
		weak = append(weak, plan.Item{Name: "host name", State: plan.Weak,
			Detail: "it is that of the container, whose system call filter refuses sethostname(2)"})
	case err != nil:
		return nil, err
	}
	if g.Loopback {
		if err := loopbackUp(); err != nil {
			return nil, fault.Wrap(err, "bring up the loopback interface")
		}
	}
	return weak, nil
}

// setHostname sets the host name of the sandbox, if it has one of its own.
func setHostname(g plan.Guest) error {
	if g.Hostname == "" {
		return nil
	}
	return fault.Wrap(unix.Sethostname([]byte(g.Hostname)), "set the host name")
}

func mountKernel(g plan.Guest, host *mounts.Host) (weak []plan.Item, err error) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Wrap(err, "open the root")
	}
	defer unix.Close(root)
	if err := mountDev(root, host); err != nil {
		return nil, err
	}
	if weak, err = mountProc(g, root, host); err != nil {
		return nil, err
	}
	if err := mountSys(root, host); err != nil {
		return nil, err
	}
	if err := mountRun(g, root); err != nil {
		return nil, err
	}
	if err := mountTmp(g, root); err != nil {
		return nil, err
	}
	if err := mountResolv(g); err != nil {
		return nil, err
	}
	return weak, mountTrust(g)
}

// Paths of /proc that are hidden or read-only, as in runc (libcontainer/specconv/example.go): they reveal or change
// state of the whole machine.
var (
	procHiddenFiles = []string{"kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "interrupts"}
	procHiddenDirs  = []string{"acpi", "asound", "scsi"}
	procReadOnly    = []string{"bus", "fs", "irq", "sys", "sysrq-trigger"}
)

func mountProc(g plan.Guest, root int, host *mounts.Host) (weak []plan.Item, err error) {
	if err := mounts.Attach(host.Proc, root, "proc"); err != nil {
		return nil, err
	}
	if weak, err = boundCounts(host.Proc); err != nil {
		return nil, err
	}
	if host.OuterProc {
		return append(weak, plan.Item{Name: "proc", State: plan.Weak,
			Detail: "the host's /proc is visible, because parts of it are masked here; ps shows nothing of the sandbox, and " +
				"its processes can be stopped but not watched"}), nil
	}
	if g.PidMax > 0 {
		if err := writeBeneath(host.Proc, "sys/kernel/pid_max", strconv.Itoa(g.PidMax)); err != nil {
			return nil, fault.Wrap(err, "limit the number of processes")
		}
	}
	for _, name := range procHiddenFiles {
		if err := mounts.HideFile(host.Proc, name); err != nil {
			return nil, fault.Wrap(err, "hide /proc/%s", name)
		}
	}
	for _, name := range procHiddenDirs {
		if err := mounts.HideDir(host.Proc, name); err != nil {
			return nil, fault.Wrap(err, "hide /proc/%s", name)
		}
	}
	for _, name := range procReadOnly {
		if err := mounts.MakeReadOnly(host.Proc, name); err != nil {
			return nil, fault.Wrap(err, "make /proc/%s read-only", name)
		}
	}
	return weak, nil
}

// devices are all devices of the sandbox.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

var devLinks = [][2]string{
	{"pts/ptmx", "ptmx"},
	{"/proc/self/fd", "fd"},
	{"/proc/self/fd/0", "stdin"},
	{"/proc/self/fd/1", "stdout"},
	{"/proc/self/fd/2", "stderr"},
}

func mountDev(root int, host *mounts.Host) error {
	dev, err := mounts.NewAt(root, "dev", "tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, "mode=755", "size=64k")
	if err != nil {
		return err
	}
	defer unix.Close(dev)
	if err := mounts.AttachDevices(dev, host); err != nil {
		return err
	}
	for _, l := range devLinks {
		if err := unix.Symlinkat(l[0], dev, l[1]); err != nil {
			return fault.Wrap(err, "create /dev/%s", l[1])
		}
	}
	for _, m := range []struct {
		name, kind string
		attr       int
		options    []string
	}{
		{"pts", "devpts", unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC,
			[]string{"newinstance", "ptmxmode=0666", "mode=620", "max=" + strconv.Itoa(limit.Terminals)}},
		{"shm", "tmpfs", mounts.PlainAttr, []string{"mode=1777"}},
		{"mqueue", "mqueue", mounts.PlainAttr, nil},
	} {
		fd, err := mounts.NewAt(dev, m.name, m.kind, m.attr, m.options...)
		if errors.Is(err, unix.ENODEV) && m.kind == "mqueue" {
			continue // a kernel without POSIX message queues
		}
		if err != nil {
			return err
		}
		unix.Close(fd)
	}
	return nil
}

// mountSys shows the number of processors, which runtimes read, and nothing else of /sys.
func mountSys(root int, host *mounts.Host) error {
	sys, err := mounts.NewAt(root, "sys", "tmpfs", mounts.PlainAttr, "mode=755", "size=64k")
	if err != nil {
		return err
	}
	defer unix.Close(sys)
	if host.CPU >= 0 {
		if err := os.MkdirAll("/"+mounts.HostCPU, 0o755); err != nil { // below the new mount
			return fault.Wrap(err, "make /%s", mounts.HostCPU)
		}
		if err := mounts.Attach(host.CPU, root, mounts.HostCPU); err != nil {
			return err
		}
	}
	return fault.Wrap(unix.MountSetattr(sys, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}),
		"make /sys read-only")
}

// inMemory returns the options of a file system in memory with the given mode. A write from outside uses the writer's
// memory, which no limit of the sandbox counts, so the file system has its own limit, which also counts empty files. It
// is a quarter of the memory limit. Writes from inside count towards the memory limit and cannot be reclaimed: before a
// larger file system was full, the kernel would kill all processes, and init last.
func inMemory(g plan.Guest, mode string) []string {
	if g.Memory <= 0 {
		return []string{"mode=" + mode}
	}
	const files, each = 1024, 4 << 10
	size := g.Memory / 4
	inodes := max(files, size/each)
	return []string{"mode=" + mode, "size=" + strconv.FormatInt(size, 10), "nr_inodes=" + strconv.FormatInt(inodes, 10)}
}

func mountRun(g plan.Guest, root int) error {
	run, err := mounts.NewAt(root, "run", "tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, inMemory(g, "755")...)
	if err != nil {
		return err
	}
	unix.Close(run)
	return fillRun(g)
}

// fillRun populates /run.
func fillRun(g plan.Guest) error {
	if err := os.Mkdir("/run/lock", 0o755); err != nil {
		return fault.Wrap(err, "create /run/lock")
	}
	if err := os.Chmod("/run/lock", 0o1777); err != nil {
		return fault.Wrap(err, "make /run/lock writable")
	}
	if !g.Emulate {
		return nil
	}
	return fault.Wrap(os.WriteFile(plan.AptConfig, []byte(aptConfig), 0o644), "write %s", plan.AptConfig)
}

// mountShared mounts directories of the host, which the keeper has made read-only.
func mountShared(dirs []int) error {
	if len(dirs) == 0 {
		return nil
	}
	if err := os.Mkdir(rootspec.SharedAt, 0o755); err != nil {
		return fault.Wrap(err, "make %s", rootspec.SharedAt)
	}
	for i, fd := range dirs {
		at := rootspec.SharedPath(i)
		if err := os.Mkdir(at, 0o755); err != nil {
			return fault.Wrap(err, "make %s", at)
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fault.Wrap(err, "mount %s", at)
		}
		if err := flatten(at); err != nil {
			return fault.Wrap(err, "prepare %s", at)
		}
	}
	return nil
}

// flatten hides the references of an object directory to others, which need not exist inside. The sandbox's own
// repository names all of them.
func flatten(at string) error {
	const none = rootspec.SharedAt + "/none"
	names := at + "/info/alternates"
	switch _, err := os.Lstat(names); {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission): // no other process inside may read it either
		return nil
	case err != nil:
		return err
	}
	if err := os.WriteFile(none, nil, 0o444); err != nil && !errors.Is(err, os.ErrPermission) { // it exists already
		return err
	}
	return unix.Mount(none, names, "", unix.MS_BIND, "")
}

// mountClient mounts the program coppice, which the keeper has made read-only.
func mountClient(program int) error {
	if err := os.Mkdir(rootspec.ClientDir, 0o755); err != nil {
		return fault.Wrap(err, "make %s", rootspec.ClientDir)
	}
	if err := os.WriteFile(plan.ClientAt, nil, 0o555); err != nil {
		return fault.Wrap(err, "make %s", plan.ClientAt)
	}
	return fault.Wrap(unix.MoveMount(program, "", unix.AT_FDCWD, plan.ClientAt, unix.MOVE_MOUNT_F_EMPTY_PATH),
		"mount %s", plan.ClientAt)
}

// mountSelf mounts the directory of the sandbox's own socket.
func mountSelf(dir int) error {
	if err := os.Mkdir(plan.SelfAt, 0o755); err != nil {
		return fault.Wrap(err, "make %s", plan.SelfAt)
	}
	if err := unix.MoveMount(dir, "", unix.AT_FDCWD, plan.SelfAt, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fault.Wrap(err, "mount %s", plan.SelfAt)
	}
	return fault.Wrap(os.Symlink(path.Join(plan.SelfAt, plan.SelfName), plan.SelfSocket), "make %s", plan.SelfSocket)
}

// aptConfig stops apt from switching to the user _apt for downloads. Apt verifies the switch, and it fails where only a
// single id is mapped. See apt.conf(5), APT::Sandbox::User.
const aptConfig = "APT::Sandbox::User \"root\";\n"

func mountTmp(g plan.Guest, root int) error {
	if !g.Tmp {
		return nil
	}
	tmp, err := mounts.NewAt(root, "tmp", "tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, inMemory(g, "1777")...)
	if err != nil {
		return err
	}
	return unix.Close(tmp)
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req)
}
