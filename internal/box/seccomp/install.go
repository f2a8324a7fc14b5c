//go:build linux && (amd64 || arm64)

package seccomp

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Flags for Install (seccomp(2)), as in linux/seccomp.h.
const (
	// AllThreads installs the filter for every thread of the process. A Go program needs that: any of its threads may
	// make the next fork. TSYNC_ESRCH makes it compatible with Listener.
	AllThreads uint = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	// Listener requests a notification descriptor. Only one filter of a process can have one.
	// WAIT_KILLABLE_RECV (5.19) keeps a signal from interrupting a call that the listener has received.
	Listener uint = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	// KeepSpeculation leaves the speculative store bypass mitigation as it is; without it, kernels before
	// 5.16 slow down every filtered process.
	KeepSpeculation uint = unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
)

// Install installs prog for the calling thread (with AllThreads, for the process) and all its children,
// irrevocably. With Listener it returns the notification descriptor, close-on-exec, which the caller owns;
// otherwise -1.
//
// The thread must have no_new_privs set (prctl(2)) or CAP_SYS_ADMIN in its user namespace. If the kernel does not
// support WAIT_KILLABLE_RECV, Install retries without it. An empty prog installs nothing.
func Install(prog []unix.SockFilter, flags uint) (listener int, err error) {
	if len(prog) == 0 {
		return -1, nil
	}
	fp := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	r, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(flags), uintptr(unsafe.Pointer(&fp)))
	if errors.Is(e, unix.EINVAL) && flags&unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV != 0 {
		flags &^= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		r, _, e = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(flags), uintptr(unsafe.Pointer(&fp)))
	}
	if e != 0 {
		return -1, fmt.Errorf("install a seccomp filter of %d instructions: %w", len(prog), e)
	}
	if flags&unix.SECCOMP_FILTER_FLAG_NEW_LISTENER == 0 {
		return -1, nil
	}
	return int(r), nil
}
