//go:build linux && (amd64 || arm64)

package guest

import (
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// command is what forkLimited starts: as syscall.ForkExec takes it, in a session of its
// own.
type command struct {
	file      string
	args, env []string
	files     [3]int // none of them below 3
	tty       bool   // files[0] becomes its controlling terminal
	open      uint64 // RLIMIT_NOFILE, both limits
}

// forkLimited is syscall.ForkExec for a command that may have so many files open.
// RLIMIT_NOFILE belongs to a process, and what was given up of the hard limit cannot be
// had again: so it is set between fork and exec, which package syscall does not do, and
// init keeps its own. It forks as fork(2) does, which takes longer than what package
// syscall does by the size of init's page tables.
//
// It is called by the launcher's thread alone, whose confinement the child has.
func forkLimited(c command) (pid int, err error) {
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
			return 0, fault.New(fault.Internal, "a command is given descriptor %d", f)
		}
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return 0, err
	}
	n := min(c.open, own.Max)
	k := &kid{file: file, argv: &argv[0], envv: &envv[0], files: c.files, tty: c.tty, limit: unix.Rlimit{Cur: n, Max: n}}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	k.told = ends[1]
	// No descriptor may be half made meanwhile, and no signal may find our handlers in
	// the child.
	syscall.ForkLock.Lock()
	pid, errno := k.fork()
	syscall.ForkLock.Unlock()
	unix.Close(ends[1])
	runtime.KeepAlive(argv)
	runtime.KeepAlive(envv)
	defer unix.Close(ends[0])
	if errno != 0 {
		return 0, errno
	}
	// The other end is closed by exec, or by the end of the child.
	var b [4]byte
	switch got, err := readFull(ends[0], b[:]); {
	case err != nil:
		_ = unix.Kill(pid, unix.SIGKILL)
		errno = unix.EIO
	case got == 0:
		return pid, nil
	default:
		errno = unix.Errno(binary.NativeEndian.Uint32(b[:]))
	}
	for {
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
			return 0, errno
		}
	}
}

// readFull reads until p is full or there is no more.
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

// kid is all that the child needs, made before there is one: it can use nothing of the
// Go run time.
type kid struct {
	file       *byte
	argv, envv **byte
	files      [3]int
	tty        bool
	limit      unix.Rlimit
	told       int // where it tells what failed
	failed     uint32
	before     uint64 // signal mask
	action     [4]uintptr
}

// fork gives the child's pid, in the parent alone. In the child it does not return, and
// makes system calls only: other threads may have held any lock.
//
//go:norace
//go:nosplit
//go:noinline
func (k *kid) fork() (pid int, errno unix.Errno) {
	all := ^uint64(0)
	if _, _, errno = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&k.before)), 8, 0, 0); errno != 0 {
		return 0, errno
	}
	child, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if child == 0 && errno == 0 {
		k.become()
	}
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&k.before)), 0, 8, 0, 0)
	return int(child), errno
}

// become makes the child the command.
//
//go:norace
//go:nosplit
//go:noinline
func (k *kid) become() {
	var errno unix.Errno
	// Signals are still blocked. Init has no handler but that of SIGURG: dropHandlers.
	if _, _, errno = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGURG), uintptr(unsafe.Pointer(&k.action[0])), 0, 8, 0, 0); errno != 0 {
		goto failed
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
	if _, _, errno = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&k.limit)), 0, 0, 0); errno != 0 {
		goto failed
	}
	if _, _, errno = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&k.before)), 0, 8, 0, 0); errno != 0 {
		goto failed
	}
	_, _, errno = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(k.file)), uintptr(unsafe.Pointer(k.argv)), uintptr(unsafe.Pointer(k.envv)))
failed:
	k.failed = uint32(errno)
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(k.told), uintptr(unsafe.Pointer(&k.failed)), 4)
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 253, 0, 0)
	}
}
