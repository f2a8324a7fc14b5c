//go:build linux && (amd64 || arm64)

package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// Child runs a self-test and returns the exit code of the process. args are a task and its config.
func Child(args []string) int {
	runtime.LockOSThread()
	if len(args) == 0 {
		return 2
	}
	var c config
	if len(args) > 1 {
		if err := json.Unmarshal([]byte(args[1]), &c); err != nil {
			fmt.Fprintln(os.Stderr, "coppice-probe:", err)
			return 2
		}
	}
	var r childReport
	switch task(args[0]) {
	case taskHold:
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	case taskPlain:
		r.Results = tryPlain(c)
	case taskMounts:
		r.Results = tryMounts(c)
	case taskGuest:
		r.Results = tryGuest()
	default:
		return 2
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return 1
	}
	return 0
}

func tried(name, what string, err error) result {
	r := result{Name: name, State: OK, Tried: what}
	if err != nil {
		r.State, r.Detail, r.Errno = answer(err), err.Error(), errnoName(err)
	}
	return r
}

// tryGuest runs as PID 1 of all namespaces.
func tryGuest() []result {
	made := func() error {
		if os.Getpid() != 1 || os.Getuid() != 0 {
			return fmt.Errorf("pid %d, uid %d inside: %w", os.Getpid(), os.Getuid(), unix.EPERM)
		}
		return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	rs := []result{tried(UserNamespaces, "created user, mount, pid, ipc, uts, cgroup and net namespaces", made())}
	dir := "/proc" // any directory will do as a mount point in this namespace
	proc := tried(FreshProc, "mounted proc",
		unix.Mount("proc", dir, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
	if proc.State == Missing {
		// The host's /proc would be bound instead, with its masks, so this is a weakness and not a lack.
		proc.State, proc.Detail = Weak, "the host's /proc is visible, with its masks: it shows processes outside"
	}
	rs = append(rs, proc)
	rs = append(rs, tried(GateLink, "created a network interface whose packets come out of a socket", tryLink()))
	rs = append(rs, tried(Devpts, "mounted a private devpts",
		unix.Mount("devpts", dir, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")))
	return append(rs, tryFilters()...)
}

// tryFilters installs filters for the rest of the process.
func tryFilters() []result {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return []result{tried(Seccomp, "set no_new_privs", err)}
	}
	return []result{
		tried(Seccomp, "installed a filter and was refused by it", trySeccomp()),
		tried(SeccompNotify, "installed a listener", tryNotify()),
	}
}

// tryPlain tries what needs no namespace.
func tryPlain(c config) []result {
	dir, err := os.MkdirTemp(c.Home, ".coppice-probe-")
	if err != nil {
		return append(tryFilters(), tried(Whiteouts, "created a directory in "+c.Home, err))
	}
	defer func() { _ = os.RemoveAll(dir) }()
	rs := append(tryFilters(), tryRemoval(c.Home, dir))
	if !c.Quick {
		rs = append(rs, tried(Reflink, "cloned a file in "+c.Home, tryReflink(dir)))
	}
	return rs
}

// tryLink creates the network device that links the gate of tier supervised. The device is removed with the namespace.
func tryLink() error {
	netns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer netns.Close()
	packets, err := link.Open(netns, 0)
	if err != nil {
		return err
	}
	return packets.Close()
}

// trySeccomp installs a filter under which getppid fails, and calls it.
func trySeccomp() error {
	p := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPPID, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EXDEV)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if _, err := install(p, 0); err != nil {
		return err
	}
	if _, _, e := unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); e != unix.EXDEV {
		return fmt.Errorf("the filter has no effect: %w", unix.ENOSYS)
	}
	return nil
}

// tryNotify asks for a listener. Where a container has installed its own listener, the kernel returns EBUSY.
func tryNotify() error {
	fd, err := install([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}},
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func install(p []unix.SockFilter, flags uintptr) (int, error) {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]} // at most four
	r, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return -1, e
	}
	return int(r), nil
}

// tryMounts runs in its own mount namespace, and tries what is mounted in the home.
func tryMounts(c config) []result {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return []result{tried(Overlay, "made mounts private", err)}
	}
	dir, err := os.MkdirTemp(c.Home, ".coppice-probe-")
	if err != nil {
		return []result{tried(Overlay, "created a directory in "+c.Home, err)}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	rs := []result{
		tried(Overlay, "mounted overlayfs with userxattr, its upper directory in "+c.Home+", and used it", tryOverlay(dir)),
	}
	if c.Root && !c.Quick {
		rs = append(rs, tried(IDMapped, "attached a shifted copy of "+c.Home, tryIDMap(dir)))
	}
	return rs
}

// tryRemoval records a removal in dir as a layer does: as a whiteout, which overlayfs itself refuses, or as a file with
// an attribute.
func tryRemoval(home, dir string) result {
	const what = "recorded a removal in "
	err := unix.Mknod(filepath.Join(dir, "gone"), unix.S_IFCHR, 0)
	if err == nil {
		return tried(Whiteouts, what+home, nil)
	}
	file := filepath.Join(dir, "file")
	if os.WriteFile(file, nil, 0o600) != nil || unix.Setxattr(file, "user.overlay.whiteout", []byte("y"), 0) != nil {
		return tried(Whiteouts, what+home, fmt.Errorf("record a removal: %w", err))
	}
	r := tried(Whiteouts, what+home, nil)
	r.State, r.Detail = Weak, "as files with an attribute, which no driver can mount"
	return r
}

// tryOverlay uses a root as a sandbox does: it reads from the lower layer, writes, removes (a whiteout), and replaces a
// removed directory (an opaque one).
func tryOverlay(dir string) (err error) {
	p := func(s string) string { return filepath.Join(dir, s) }
	for _, d := range []string{"low/d", "up", "work", "m"} {
		if err := os.MkdirAll(p(d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(p("low/d/f"), []byte("low"), 0o644); err != nil {
		return err
	}
	opts := fmt.Sprintf("userxattr,lowerdir=%s,upperdir=%s,workdir=%s", p("low"), p("up"), p("work"))
	if err := unix.Mount("overlay", p("m"), "overlay", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(p("m"), unix.MNT_DETACH)) }()
	if b, err := os.ReadFile(p("m/d/f")); err != nil || string(b) != "low" {
		return fmt.Errorf("read through it: %q: %w", b, errors.Join(err, unix.EIO))
	}
	if err := os.WriteFile(p("m/d/f"), []byte("up"), 0o644); err != nil {
		return fmt.Errorf("copy up: %w", err)
	}
	if err := os.RemoveAll(p("m/d")); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	if err := os.Mkdir(p("m/d"), 0o755); err != nil {
		return fmt.Errorf("create a directory again: %w", err)
	}
	if _, err := os.Lstat(p("m/d/f")); !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("a removed file reappeared: %w", unix.EIO)
	}
	return nil
}

func tryReflink(dir string) error {
	from, err := os.Create(filepath.Join(dir, "from"))
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := from.Write(make([]byte, 65536)); err != nil {
		return err
	}
	to, err := os.Create(filepath.Join(dir, "to"))
	if err != nil {
		return err
	}
	defer to.Close()
	return unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
}

// tryIDMap shifts the ids of a mount by the id map of a child's user namespace (mount_setattr(2), MOUNT_ATTR_IDMAP).
func tryIDMap(dir string) error {
	hold := exec.CommandContext(context.Background(), "/proc/self/exe")
	hold.Args = []string{Argv0, string(taskHold)}
	hold.Env = []string{}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	hold.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	stdin, err := hold.StdinPipe()
	if err != nil {
		return err
	}
	if err := hold.Start(); err != nil {
		return err
	}
	defer func() { stdin.Close(); _ = hold.Wait() }()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", hold.Process.Pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr)
}
