//go:build linux

package cli_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/seccomp"
)

// The kinds of a pod.
const (
	podUser     = "user"     // an ordinary user without capabilities
	podRoot     = "root"     // uid 0 without capabilities
	podReadOnly = "readonly" // podUser with a root file system that is read-only but for $WORK, and a masked /proc
	podMasked   = "masked"   // only the masked /proc of a container: no filter, and the caller's own ids
	podOpen     = "open"     // podUser without the filter: namespaces are allowed
)

// podID is the uid and the gid of podUser, podReadOnly and podOpen if the caller is root.
const podID = 4242

// inpod is "inpod KIND PROGRAM ARGS...". It runs a program as in a container of the kind: without capabilities, with
// no_new_privs, and under a filter like the RuntimeDefault profile of Kubernetes for a container without capabilities.
func inpod() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: inpod user|root|readonly|masked|open PROGRAM ARGS...")
		os.Exit(125)
	}
	runtime.LockOSThread() // namespaces, ids and capabilities are those of a thread, and execve(2) keeps them
	err := enterPod(os.Args[1])
	if err == nil {
		var p string
		if p, err = exec.LookPath(os.Args[2]); err == nil {
			err = unix.Exec(p, os.Args[2:], os.Environ())
		}
	}
	fmt.Fprintln(os.Stderr, "inpod:", err)
	os.Exit(125)
}

func enterPod(kind string) error {
	if kind == podReadOnly || kind == podMasked {
		if err := containerMounts(kind == podReadOnly, os.Getenv("WORK")); err != nil {
			return err
		}
		if kind == podMasked {
			return nil
		}
	}
	if os.Getuid() == 0 {
		id := podID
		if kind == podRoot {
			id = 0
		}
		if err := dropAll(id); err != nil {
			return err
		}
	}
	if kind == podOpen {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	_, err := seccomp.Install(runtimeDefault(), seccomp.AllThreads)
	return err
}

// dropAll gives up all capabilities, also those that execve(2) would give to uid 0, and takes the id.
func dropAll(id int) error {
	for c := uintptr(0); c < 64; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := errors.Join(unix.Setgroups(nil), unix.Setresgid(id, id, id), unix.Setresuid(id, id, id)); err != nil {
		return fmt.Errorf("become %d: %w", id, err)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&head, &none[0]); err != nil {
		return fmt.Errorf("drop the capabilities: %w", err)
	}
	return nil
}

// What container engines mask and make read-only by default.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
	}
	readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// containerMounts masks /proc in a new mount namespace; with readOnly, the root is read-only there, except for work.
func containerMounts(readOnly bool, work string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare the mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if readOnly {
		if err := unix.Mount(work, work, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", work, err)
		}
		ro := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &ro); err != nil {
			return fmt.Errorf("make the root read-only: %w", err)
		}
		rw := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
		for _, dir := range []string{work, "/proc", "/dev"} {
			if err := unix.MountSetattr(unix.AT_FDCWD, dir, 0, &rw); err != nil {
				return fmt.Errorf("make %s writable: %w", dir, err)
			}
		}
	}
	for _, p := range maskedPaths {
		st, err := os.Stat(p)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err == nil && st.IsDir():
			err = unix.Mount("tmpfs", p, "tmpfs", unix.MS_RDONLY, "")
		case err == nil:
			err = unix.Mount("/dev/null", p, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("mask %s: %w", p, err)
		}
	}
	for _, p := range readOnlyPaths {
		if _, err := os.Stat(p); errors.Is(err, os.ErrNotExist) {
			continue
		}
		err := unix.Mount(p, p, "", unix.MS_BIND|unix.MS_REC, "")
		if err == nil {
			err = unix.Mount("", p, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|
				unix.MS_NOEXEC, "")
		}
		if err != nil {
			return fmt.Errorf("make %s read-only: %w", p, err)
		}
	}
	return nil
}

// runtimeDefault is a filter that refuses what the profile RuntimeDefault refuses to a container without capabilities,
// as far as a sandbox could need it.
func runtimeDefault() []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		bits   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		answer = unix.BPF_RET | unix.BPF_K

		offNr, offFlags = 0, 16 // in struct seccomp_data; clone(2) has its flags in the first argument
		namespaces      = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	)
	op := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	when := func(code uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: code, K: k, Jt: yes, Jf: no}
	}
	allow := op(answer, unix.SECCOMP_RET_ALLOW)
	refuse := func(e unix.Errno) unix.SockFilter { return op(answer, unix.SECCOMP_RET_ERRNO|uint32(e)) }
	f := []unix.SockFilter{
		op(load, offNr),
		when(equal, unix.SYS_CLONE3, 0, 1), refuse(unix.ENOSYS),
		when(equal, unix.SYS_CLONE, 0, 4), op(load, offFlags), when(bits, namespaces, 0, 1), refuse(unix.EPERM), allow,
	}
	for _, nr := range []uint32{
		unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_OPEN_TREE,
		unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
		unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_TREE_ATTR, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT, unix.SYS_IO_URING_SETUP,
		unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_PIDFD_GETFD,
	} {
		f = append(f, when(equal, nr, 0, 1), refuse(unix.EPERM))
	}
	return append(f, allow)
}

// cmdPod is "pod KIND". It prepares the script's directories for programs that the script runs with "inpod KIND", and
// stops their sandboxes and their daemon at the end of the script.
func cmdPod(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: pod KIND")
	}
	kind, work := args[0], ts.Getenv("WORK")
	if os.Getuid() == 0 && (kind == podUser || kind == podReadOnly || kind == podOpen) {
		ts.Check(reachable(strings.Split(ts.Getenv("PATH"), ":")[0]))
		ts.Check(reachable(work))
		ts.Check(filepath.WalkDir(work, func(p string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(p, podID, podID))
		}))
	}
	ts.Defer(func() {
		run := func(args ...string) string {
			cmd := exec.Command("inpod", append([]string{kind, "coppice"}, args...)...)
			cmd.Dir = work
			cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "WORK=" + work, "HOME=" + ts.Getenv("HOME"),
				"COPPICE_HOME=" + ts.Getenv("COPPICE_HOME"), "COPPICE_EXEC_PATH=" + ts.Getenv("COPPICE_EXEC_PATH")}
			out, _ := cmd.Output()
			return string(out)
		}
		if names := strings.Fields(run("ls", "-q")); len(names) > 0 {
			run(append([]string{"rm", "--force"}, names...)...)
		}
		run("serve", "--stop")
	})
}

// reachable lets all users pass through the directories of this process that lead to dir.
func reachable(dir string) error {
	for top := filepath.Clean(os.TempDir()); dir != top && dir != "/"; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		if err == nil && st.Mode().Perm()&0o011 != 0o011 {
			err = os.Chmod(dir, st.Mode().Perm()|0o011)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
