//go:build linux && (amd64 || arm64)

package guest

import (
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
)

// command is the argument of forkOpenly, with the fields that syscall.ForkExec takes. The command gets its
// own session.
type command struct {
	file      string
	args, env []string
	files     [3]int      // each at least 3
	tty       bool        // files[0] becomes its controlling terminal
	open      unix.Rlimit // RLIMIT_NOFILE
	tasks     unix.Rlimit // RLIMIT_NPROC; zero: that of init
	child     *int32      // where the child's pid is stored before the child runs
}

// forkOpenly is syscall.ForkExec with two differences.
//
// A resource limit belongs to a process, and a lowered hard limit cannot be raised again. So those of commands are set
// between fork and exec, which package syscall does not do, and init keeps its own. And if programs are recorded, other
// threads of this process answer the child's execve. Package syscall would block them, since its thread waits in
// vfork(2) without the Go scheduler's knowledge. So forkOpenly forks like fork(2), which takes longer because it copies
// init's page tables.
//
// Only the launcher's thread calls it, whose confinement the child inherits.
func forkOpenly(c command) (pid int, err error) {
	file, err := unix.BytePtrFromString(c.file)
	if err != nil {
		return 0, err
	}
	argv, err := syscall.SlicePtrFromStrings(c.args)
	if err != nil {
		return 0, err
	}
	envv, err := syscall.SlicePtrFromStrings(c.env)
	if err != nil {
		return 0, err
	}
	for _, f := range c.files {
		if f < 3 {
			return 0, fault.New(fault.Internal, "invalid descriptor %d for a command: must be 3 or higher", f)
		}
	}
	k := &kid{file: file, argv: &argv[0], envv: &envv[0], files: c.files, tty: c.tty, limit: c.open, tasks: c.tasks,
		pid: c.child}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	defer unix.Close(ends[0])
	k.told = ends[1]
	// While the lock is held, no other thread can create a descriptor without close-on-exec. The child must not run
	// init's signal handlers; fork blocks signals.
	syscall.ForkLock.Lock()
	pid, errno := k.fork()
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(argv)
	runtime.KeepAlive(envv)
	unix.Close(ends[1])
	if errno != 0 {
		return 0, errno
	}
	failed := askChild(ends[0], pid, execPatience)
	if failed == nil {
		return pid, nil
	}
	_ = unix.Kill(pid, unix.SIGKILL) // the child has ended, or never would
	for {
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
			return 0, failed
		}
	}
}

// execPatience bounds a child's execve(2), during which init does nothing else. The executed file can block the call:
// in gVisor, a script whose interpreter is a FIFO.
const execPatience = 30 * time.Second

var errTooLong = fault.New(fault.Timeout, "not executed within %v: its interpreter may be a FIFO",
	execPatience)

// execLook is how often a child that has not executed yet is checked. The child already has the ids of the sandbox's
// user, so any process of that user may stop it. Init then kills the child, or it would wait for it.
const execLook = 50 * time.Millisecond

var errHeld = fault.New(fault.Conflict, "a process of the sandbox stopped it before exec")

// isStopped reports whether a child was stopped by a signal.
func isStopped(pid int) bool {
	var info [128]byte // siginfo_t
	_, _, e := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
		unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
	return e == 0 && *(*int32)(unsafe.Pointer(&info[16])) != 0
}

// askChild waits for a child's execve(2). The execve closes the other end of the pipe, and so does the exit of the
// child. The error is the reason that the execve failed.
func askChild(end, pid int, patience time.Duration) error {
	until := time.Now().Add(patience)
	for {
		left := max(time.Until(until), 0)
		held := isStopped(pid) // before the poll: an executed command may be stopped as well
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(end), Events: unix.POLLIN}}, int(min(left, execLook).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0 && left == 0:
			return errTooLong
		case n == 0 && held:
			return errHeld
		case n == 0:
			continue
		}
		break
	}
	var b [4]byte
	switch got, err := readFull(end, b[:]); {
	case err != nil:
		return unix.EIO
	case got == 0:
		return nil
	}
	return unix.Errno(binary.NativeEndian.Uint32(b[:]))
}

// openFiles returns the RLIMIT_NOFILE of commands: the policy's limit, or the limit that init was started with, but
// never more than limit.OpenFilesOfHost of init's hard limit. The Go runtime has raised init's soft limit and does not
// expose the original, but restores it in each child (package syscall): openFiles starts a child, reads its limit
// before it runs, and kills it. In gVisor, init has the limit that the Go runtime of gVisor's own process had raised.
// The caller must have locked its thread, and nothing may be reaped yet.
func openFiles(g plan.Guest) (l unix.Rlimit, err error) {
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return l, fault.Wrap(err, "read the limit of open files")
	}
	most := limit.OpenFilesOfHost(l.Max)
	if g.Tier == plan.TierGvisor {
		most = l.Max // gVisor counts its own descriptors
	}
	if g.Files > 0 {
		n := min(g.Files, most)
		return unix.Rlimit{Cur: n, Max: n}, nil
	}
	if g.Tier == plan.TierGvisor {
		return l, nil
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{initlink.Argv0},
		&syscall.ProcAttr{Sys: &syscall.SysProcAttr{Ptrace: true}})
	if err != nil {
		return unix.Rlimit{Cur: min(l.Cur, leastOpen, most), Max: most}, nil // ptrace is not allowed here
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		for {
			var ws unix.WaitStatus
			if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); !errors.Is(err, unix.EINTR) && (err != nil || !ws.Stopped()) {
				return
			}
		}
	}()
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &l); err != nil {
		return l, fault.Wrap(err, "read the limit of open files of commands")
	}
	return unix.Rlimit{Cur: min(l.Cur, most), Max: min(l.Max, most)}, nil
}

// ownTasks returns the RLIMIT_NPROC of the commands of a locked workspace: less than init's, since the kernel counts
// the tasks of a user, which init, its keeper and the daemon are too. The Go runtime aborts a process that cannot start
// a thread. The result is zero if init has no limit.
func ownTasks() (l unix.Rlimit, err error) {
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &l); err != nil {
		return l, fault.Wrap(err, "read the limit of processes")
	}
	if l.Max == unix.RLIM_INFINITY {
		return unix.Rlimit{}, nil
	}
	most := limit.TasksOfHost(l.Max)
	return unix.Rlimit{Cur: min(l.Cur, most), Max: most}, nil
}

// leastOpen is the default soft limit of most systems.
const leastOpen = 1024

// readFull reads until p is full or the input ends.
func readFull(fd int, p []byte) (n int, err error) {
	for n < len(p) {
		m, err := unix.Read(fd, p[n:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return n, err
		case m == 0 && n > 0:
			return n, io.ErrUnexpectedEOF
		case m == 0:
			return 0, nil
		}
		n += m
	}
	return n, nil
}

// kid holds all that the child needs. It is prepared before the fork because the child can use nothing of the Go
// runtime.
type kid struct {
	file       *byte
	argv, envv **byte
	files      [3]int
	tty        bool
	limit      unix.Rlimit // RLIMIT_NOFILE
	tasks      unix.Rlimit // RLIMIT_NPROC; zero: unchanged
	pid        *int32      // address in the parent, where the child's pid is stored
	told       int         // descriptor to which the child writes the errno of a failure
	failed     uint32
	before     uint64 // the signal mask before the fork
	action     [4]uintptr
}

// fork returns the child's pid in the parent. In the child it does not return. The child makes only system calls,
// because other threads may have held any lock.
//
//go:norace
//go:nosplit
//go:noinline
func (k *kid) fork() (pid int, errno unix.Errno) {
	all := ^uint64(0)
	if _, _, errno = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)),
		uintptr(unsafe.Pointer(&k.before)), 8, 0, 0); errno != 0 {
		return 0, errno
	}
	child, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD|unix.CLONE_PARENT_SETTID), 0,
		uintptr(unsafe.Pointer(k.pid)), 0, 0, 0)
	pid = int(child)
	if pid == 0 && errno == 0 {
		k.become()
	}
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&k.before)), 0, 8,
		0, 0)
	return pid, errno
}

// become makes the child the command.
//
//go:norace
//go:nosplit
//go:noinline
func (k *kid) become() {
	var errno unix.Errno
	// Signals are still blocked.
	for sig := uintptr(1); sig <= 64; sig++ { // fails for SIGKILL and SIGSTOP, which have no handlers
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&k.action[0])), 0, 8, 0, 0)
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); errno != 0 {
		goto failed
	}
	for i := 0; i < 3; i++ {
		if _, _, errno = syscall.RawSyscall(unix.SYS_DUP3, uintptr(k.files[i]), uintptr(i), 0); errno != 0 {
			goto failed
		}
	}
	if k.tty {
		if _, _, errno = syscall.RawSyscall(unix.SYS_IOCTL, 0, uintptr(unix.TIOCSCTTY), 1); errno != 0 {
			goto failed
		}
	}
	if _, _, errno = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&k.limit)), 0,
		0, 0); errno != 0 {
		goto failed
	}
	if k.tasks.Max != 0 {
		if _, _, errno = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, uintptr(unsafe.Pointer(&k.tasks)), 0,
			0, 0); errno != 0 {
			goto failed
		}
	}
	if _, _, errno = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&k.before)), 0,
		8, 0, 0); errno != 0 {
		goto failed
	}
	_, _, errno = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(k.file)), uintptr(unsafe.Pointer(k.argv)),
		uintptr(unsafe.Pointer(k.envv)))
failed:
	k.failed = uint32(errno)
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(k.told), uintptr(unsafe.Pointer(&k.failed)), 4)
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 253, 0, 0)
	}
}
