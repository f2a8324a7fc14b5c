//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The structures of linux/seccomp.h.
type (
	call struct {
		nr   int32
		arch uint32
		ip   uint64
		args [6]uint64
	}
	notification struct {
		id    uint64
		tid   uint32 // in this pid namespace
		flags uint32
		call  call
	}
	response struct {
		id    uint64
		val   int64
		errno int32 // negated
		flags uint32
	}
)

// request is a notification followed by spare space: the kernel writes as many bytes as its own structure has
// (SECCOMP_GET_NOTIF_SIZES), which may grow.
type request struct {
	notification
	_ [176]byte
}

type listener struct{ fd int }

// ioctl does not block: receive is called only when a notification is pending.
func (l listener) ioctl(req uintptr, p unsafe.Pointer) error {
	if _, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l.fd), req, uintptr(p)); e != 0 {
		return e
	}
	return nil
}

// uninterrupted calls ask until no signal interrupts it. If a listener's lock is contended, a signal, such as those
// by which the Go scheduler preempts goroutines, ends the kernel's wait for the lock with EINTR, and the kernel has
// done nothing (mutex_lock_interruptible in kernel/seccomp.c). A caller whose answer is lost like this waits forever.
func uninterrupted(ask func() error) error {
	for {
		if err := ask(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receive receives the next notification after poll(2) has announced it. ENOENT means that the caller has died in the
// meantime; it must be ignored.
func (l listener) receive(r *request) error {
	*r = request{}
	return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(r))
}

// answer answers a notification with v; errno 0 is success. taken reports whether the caller still waited. If it did
// not, that is not an error.
func (l listener) answer(id uint64, v verdict) (taken bool) {
	r := response{id: id, val: v.value, errno: -int32(v.errno)}
	if v.proceed {
		r = response{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	}
	return uninterrupted(func() error { return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)) }) == nil
}

// valid reports whether the caller still waits. If it is called after /proc/TID or the caller's memory was read, it
// confirms that the data is the caller's, and not that of another process that reuses the number of a dead one.
func (l listener) valid(id uint64) bool {
	return uninterrupted(func() error { return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id)) }) == nil
}

// polled interprets the events that poll(2) returns for a listener and POLLIN. ready means that a notification can be
// received, and over that no process under the filter is left. After POLLERR alone both are false: the kernel returns
// it if a signal interrupts its wait for the listener's lock (seccomp_notify_poll).
func polled(events int16) (ready, over bool) {
	ready = events&unix.POLLIN != 0
	return ready, !ready && events != unix.POLLERR
}

// syncWakeUp makes the kernel run listener and caller on the same CPU (Linux 6.6), which halves the cost of a
// notification. Older kernels return EINVAL.
func (l listener) syncWakeUp() {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS,
		unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
}

// verdict is the answer to one call.
type verdict struct {
	proceed bool          // the kernel carries out the call
	given   bool          // the call was already answered
	later   chan struct{} // if not nil, the call is tried again later, with a place here
	errno   unix.Errno
	value   int64 // what a call that succeeds returns
}

var (
	proceed = verdict{proceed: true}
	success = verdict{}
)

// fail returns the answer for err: its errno, or EIO if it has none.
func fail(err error) verdict {
	var e unix.Errno
	if errors.As(err, &e) && e != 0 {
		return verdict{errno: e}
	}
	return verdict{errno: unix.EIO}
}
