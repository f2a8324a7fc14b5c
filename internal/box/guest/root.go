//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// makeRoot makes the first of trees, a detached mount of the sandbox's files, the
// root, and mounts what belongs to the kernel on it, the next g.Shared, and with g.Self the one after them. It
// gives the walls that came out weaker than planned.
//
// The caller's mount namespace is a copy of the keeper's in a new user
// namespace, so every mount in it is locked; what is mounted here is not.
func makeRoot(g plan.Guest, trees []int) ([]plan.Item, error) {
	tree := trees[0]
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fault.Wrap(err, "make the mounts private")
	}
	host, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Wrap(err, "open the host's root")
	}
	defer unix.Close(host)
	// It has to be mounted somewhere to be pivoted to; the store's directories
	// may be closed to who we are now.
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, "/dev", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, fault.Wrap(err, "attach the root")
	}
	if err := unix.Fchdir(tree); err != nil {
		return nil, fault.Wrap(err, "enter the root")
	}
	// From here the host's tree lies on top of ours, reachable through host
	// alone, until it is taken off below.
	if err := unix.PivotRoot(".", "."); err != nil {
		return nil, fault.Wrap(err, "pivot to the root")
	}
	weak, err := mountKernel(g, host)
	if err != nil {
		return nil, err
	}
	if err := mountShared(trees[1 : 1+g.Shared]); err != nil {
		return nil, err
	}
	if g.Self {
		if err := mountSelf(trees[1+g.Shared]); err != nil {
			return nil, err
		}
	}
	if err := unix.Fchdir(host); err != nil {
		return nil, fault.Wrap(err, "enter the host's root")
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return nil, fault.Wrap(err, "take the host's root off")
	}
	if err := unix.Chdir("/"); err != nil {
		return nil, fault.Wrap(err, "enter the root")
	}
	if g.Hostname != "" {
		if err := unix.Sethostname([]byte(g.Hostname)); err != nil {
			return nil, fault.Wrap(err, "set the host name")
		}
	}
	if g.Loopback {
		if err := loopbackUp(); err != nil {
			return nil, fault.Wrap(err, "bring the loopback interface up")
		}
	}
	return weak, nil
}

// plain are the flags of every mount that holds no programs.
const plain = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

func mountKernel(g plan.Guest, host int) (weak []plan.Item, err error) {
	if weak, err = mountProc(g, host); err != nil {
		return nil, err
	}
	steps := []func(plan.Guest, int) error{mountDev, mountSys, mountRun, mountTmp, mountResolv}
	for _, step := range steps {
		if err := step(g, host); err != nil {
			return nil, err
		}
	}
	untrusted, err := mountTrust(g)
	return append(weak, untrusted...), err
}

// fresh mounts a new file system at an absolute path inside, of which the last
// name is made when it is missing.
func fresh(kind, target string, flags uintptr, data string) error {
	err := unix.Mount(kind, target, kind, flags, data)
	if errors.Is(err, unix.ENOENT) {
		if err := os.Mkdir(target, 0o755); err != nil {
			return fault.Wrap(err, "make mount point %s", target)
		}
		err = unix.Mount(kind, target, kind, flags, data)
	}
	return fault.Wrap(err, "mount %s at %s", kind, target)
}

// bind attaches a file or directory of the host (relative to its root) at an
// absolute path inside. With set, those mount attributes are added.
func bind(host int, source, target string, set uint64) error {
	fd, err := unix.OpenTree(host, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fault.Wrap(err, "open the host's /%s", source)
	}
	defer unix.Close(fd)
	if set != 0 {
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: set}); err != nil {
			return fault.Wrap(err, "restrict /%s", source)
		}
	}
	return fault.Wrap(unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH), "bind /%s at %s", source, target)
}

// What of /proc is hidden or cannot be written, as runc has it
// (libcontainer/specconv/example.go): they tell of, or change, the whole machine.
var (
	procHiddenFiles = []string{"kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "interrupts"}
	procHiddenDirs  = []string{"acpi", "asound", "scsi"}
	procReadOnly    = []string{"bus", "fs", "irq", "sys", "sysrq-trigger"}
)

func mountProc(g plan.Guest, host int) (weak []plan.Item, err error) {
	err = fresh("proc", "/proc", plain, "")
	if errors.Is(err, unix.EPERM) {
		// The outer /proc has mounts of others on it, which a new one would
		// uncover (mount_namespaces(7)): we are in a container.
		fd, e := unix.OpenTree(host, "proc", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if e != nil {
			return nil, errors.Join(err, fault.Wrap(e, "open the outer /proc"))
		}
		defer unix.Close(fd)
		if e := unix.MoveMount(fd, "", unix.AT_FDCWD, "/proc", unix.MOVE_MOUNT_F_EMPTY_PATH); e != nil {
			return nil, errors.Join(err, fault.Wrap(e, "bind the outer /proc"))
		}
		return []plan.Item{{Name: "proc", State: plan.Weak,
			Detail: "the outer /proc is shown, because parts of it are masked here; ps shows nothing of the sandbox, and its processes can be stopped but not watched"}}, nil
	}
	if err != nil {
		return nil, err
	}
	if g.PidMax > 0 {
		if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte(strconv.Itoa(g.PidMax)), 0); err != nil {
			return nil, fault.Wrap(err, "limit the number of processes")
		}
	}
	for _, name := range procHiddenFiles {
		// Looked for first: to let go of a mount that was attached nowhere is
		// slow (it waits for RCU).
		if _, err := os.Lstat("/proc/" + name); err != nil {
			continue
		}
		if err := bind(host, "dev/null", "/proc/"+name, unix.MOUNT_ATTR_RDONLY); err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	for _, name := range procHiddenDirs {
		err := unix.Mount("tmpfs", "/proc/"+name, "tmpfs", plain|unix.MS_RDONLY, "size=0,nr_inodes=1")
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fault.Wrap(err, "hide /proc/%s", name)
		}
	}
	ro := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	for _, name := range procReadOnly {
		p := "/proc/" + name
		err := unix.Mount(p, p, "", unix.MS_BIND, "")
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = unix.MountSetattr(unix.AT_FDCWD, p, 0, ro)
		}
		if err != nil {
			return nil, fault.Wrap(err, "make %s read-only", p)
		}
	}
	return nil, nil
}

// devices are the only ones there are.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

var devLinks = [][2]string{
	{"pts/ptmx", "/dev/ptmx"},
	{"/proc/self/fd", "/dev/fd"},
	{"/proc/self/fd/0", "/dev/stdin"},
	{"/proc/self/fd/1", "/dev/stdout"},
	{"/proc/self/fd/2", "/dev/stderr"},
}

// bindDevices binds devices of the host's into /dev.
func bindDevices(host int, names []string) error {
	for _, d := range names {
		fd, err := unix.Open("/dev/"+d, unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o666)
		if err != nil {
			return fault.Wrap(err, "make /dev/%s", d)
		}
		unix.Close(fd)
		if err := bind(host, "dev/"+d, "/dev/"+d, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return err
		}
	}
	return nil
}

func mountDev(g plan.Guest, host int) error {
	if err := fresh("tmpfs", "/dev", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return err
	}
	if err := bindDevices(host, devices); err != nil {
		return err
	}
	for _, l := range devLinks {
		if err := os.Symlink(l[0], l[1]); err != nil {
			return fault.Wrap(err, "make %s", l[1])
		}
	}
	if err := fresh("devpts", "/dev/pts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"); err != nil {
		return err
	}
	if err := fresh("tmpfs", "/dev/shm", plain, "mode=1777"); err != nil {
		return err
	}
	if err := fresh("mqueue", "/dev/mqueue", plain, ""); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

// mountSys shows how many processors there are, which run-time systems ask for,
// and nothing else of /sys.
func mountSys(_ plan.Guest, host int) error {
	if err := fresh("tmpfs", "/sys", plain, "mode=755,size=64k"); err != nil {
		return err
	}
	const cpu = "sys/devices/system/cpu"
	if err := os.MkdirAll("/"+cpu, 0o755); err != nil {
		return fault.Wrap(err, "make /%s", cpu)
	}
	if err := bind(host, cpu, "/"+cpu, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return fault.Wrap(unix.MountSetattr(unix.AT_FDCWD, "/sys", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}), "make /sys read-only")
}

// inMemory gives the options of a file system in memory of that mode. What is
// written to it from outside is memory of who writes, which no limit of the
// sandbox counts; so it is limited itself, its empty files too. It has a quarter of the
// limit: what is written from inside counts, and the kernel, which cannot take it back,
// would kill all that runs, and init last, before a larger one were full.
func inMemory(g plan.Guest, mode string) string {
	if g.Memory <= 0 {
		return "mode=" + mode
	}
	const files, each = 1024, 4 << 10
	size := g.Memory / 4
	return "mode=" + mode + ",size=" + strconv.FormatInt(size, 10) + ",nr_inodes=" + strconv.FormatInt(max(files, size/each), 10)
}

func mountRun(g plan.Guest, _ int) error {
	if err := fresh("tmpfs", "/run", unix.MS_NOSUID|unix.MS_NODEV, inMemory(g, "755")); err != nil {
		return err
	}
	return fillRun(g)
}

// fillRun puts what belongs into /run.
func fillRun(g plan.Guest) error {
	if err := os.Mkdir("/run/lock", 0o755); err != nil {
		return fault.Wrap(err, "make /run/lock")
	}
	if err := os.Chmod("/run/lock", 0o1777); err != nil {
		return fault.Wrap(err, "make /run/lock writable")
	}
	if !g.Emulate {
		return nil
	}
	return fault.Wrap(os.WriteFile(plan.AptConfig, []byte(aptConfig), 0o644), "write %s", plan.AptConfig)
}

// mountShared shows directories of the host, which the keeper has made read-only.
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
			return fault.Wrap(err, "show %s", at)
		}
		if err := flatten(at); err != nil {
			return fault.Wrap(err, "prepare %s", at)
		}
	}
	return nil
}

// flatten covers what a directory of objects says of others, which need not be there
// inside: the sandbox's own repository names all of them.
func flatten(at string) error {
	const none = rootspec.SharedAt + "/none"
	names := at + "/info/alternates"
	switch _, err := os.Lstat(names); {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission): // nor may anybody else inside
		return nil
	case err != nil:
		return err
	}
	if err := os.WriteFile(none, nil, 0o444); err != nil && !errors.Is(err, os.ErrPermission) { // of the one before
		return err
	}
	return unix.Mount(none, names, "", unix.MS_BIND, "")
}

// mountSelf shows the directory of the sandbox's own socket.
func mountSelf(dir int) error {
	if err := os.Mkdir(plan.SelfAt, 0o755); err != nil {
		return fault.Wrap(err, "make %s", plan.SelfAt)
	}
	if err := unix.MoveMount(dir, "", unix.AT_FDCWD, plan.SelfAt, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fault.Wrap(err, "show %s", plan.SelfAt)
	}
	return fault.Wrap(os.Symlink(path.Join(plan.SelfAt, plan.SelfName), plan.SelfSocket), "make %s", plan.SelfSocket)
}

// aptConfig keeps apt from becoming the user _apt for its downloads, which it
// checks it has become, and which a single mapped id cannot be. See apt.conf(5),
// APT::Sandbox::User.
const aptConfig = "APT::Sandbox::User \"root\";\n"

func mountTmp(g plan.Guest, _ int) error {
	if !g.Tmp {
		return nil
	}
	return fresh("tmpfs", "/tmp", unix.MS_NOSUID|unix.MS_NODEV, inMemory(g, "1777"))
}

// mountResolv makes the host's resolvers known, with the host's network alone.
// Where /etc/resolv.conf points into /run, which is ours, the file is made there;
// else one of ours is bound over it, so that nothing of it gets into the history.
func mountResolv(g plan.Guest, _ int) error {
	if len(g.Resolv) == 0 {
		return nil
	}
	const name = "/etc/resolv.conf"
	if have, err := os.ReadFile(name); err == nil && bytes.Equal(have, g.Resolv) {
		return nil
	}
	if target, err := os.Readlink(name); err == nil {
		if !path.IsAbs(target) {
			target = path.Join("/etc", target)
		}
		if target = path.Clean(target); strings.HasPrefix(strings.TrimPrefix(target, "/var"), "/run/") {
			if err := os.MkdirAll(path.Dir(target), 0o755); err != nil {
				return fault.Wrap(err, "make the directory of %s", target)
			}
			return fault.Wrap(os.WriteFile(target, g.Resolv, 0o644), "write %s", target)
		}
	}
	if _, err := os.Stat(name); err != nil {
		return nil //nolint:nilerr // there is no file to lay ours over
	}
	const ours = "/run/coppice-resolv.conf"
	if err := os.WriteFile(ours, g.Resolv, 0o644); err != nil {
		return fault.Wrap(err, "write %s", ours)
	}
	return fault.Wrap(unix.Mount(ours, name, "", unix.MS_BIND, ""), "bind %s", name)
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
