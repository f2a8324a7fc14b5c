//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notified runs a command under a seccomp filter whose listener, this process, is notified of each openat(2), and
// answers that the kernel continues. It is the least that an observer of opens in a tier without a kernel of its own
// costs: it neither reads a path nor looks for a file.
func notified(cmd []string) error {
	name, err := exec.LookPath(cmd[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // only this thread, and the processes that it starts, are under the filter
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	fd, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return fmt.Errorf("install a filter: %w", e)
	}
	failed := make(chan error, 1)
	go func() { failed <- proceedAll(int(fd)) }()
	pid, err := syscall.ForkExec(name, cmd, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return err
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
	}
	if ws.ExitStatus() != 0 {
		return fmt.Errorf("%s: exit code %d", cmd[0], ws.ExitStatus())
	}
	return nil
}

// proceedAll answers notifications until it fails.
func proceedAll(fd int) error {
	runtime.LockOSThread()
	for {
		// struct seccomp_notif, with room for what newer kernels add; its first field is the id.
		var n [256]byte
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n[0])))
		switch {
		case errors.Is(e, unix.EINTR), errors.Is(e, unix.ENOENT):
			continue
		case e != 0:
			return fmt.Errorf("receive a notification: %w", e)
		}
		r := struct {
			id    uint64
			val   int64
			errno int32
			flags uint32
		}{id: *(*uint64)(unsafe.Pointer(&n[0])), flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		_, _, e = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
		if e != 0 && !errors.Is(e, unix.ENOENT) {
			return fmt.Errorf("answer a notification: %w", e)
		}
	}
}
