//go:build linux

package boxtest

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const sysFstatat = unix.SYS_NEWFSTATAT

// entryOf returns the call at which a task has stopped.
func entryOf(tid int) (entry, error) {
	var r unix.PtraceRegs
	err := unix.PtraceGetRegs(tid, &r)
	return entry{int(r.Orig_rax), [5]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8}}, err
}

// failCall makes the call fail at which a task has stopped.
func failCall(tid int, errno syscall.Errno) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	r.Orig_rax, r.Rax = ^uint64(0), uint64(-int64(errno))
	return unix.PtraceSetRegs(tid, &r)
}
