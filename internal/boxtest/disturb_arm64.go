//go:build linux

package boxtest

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const sysFstatat = unix.SYS_FSTATAT

// ntSystemCall is NT_ARM_SYSTEM_CALL (linux/elf.h): the number of the call at which a task has stopped.
const ntSystemCall = 0x404

// entryOf returns the call at which a task has stopped.
func entryOf(tid int) (entry, error) {
	var r unix.PtraceRegs
	err := unix.PtraceGetRegs(tid, &r)
	return entry{int(r.Regs[8]), [5]uint64(r.Regs[:5])}, err
}

// failCall makes the call fail at which a task has stopped.
func failCall(tid int, errno syscall.Errno) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	r.Regs[0] = uint64(-int64(errno))
	if err := unix.PtraceSetRegs(tid, &r); err != nil {
		return err
	}
	none := int32(-1)
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&none)), Len: 4}
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(tid), ntSystemCall,
		uintptr(unsafe.Pointer(&iov)), 0, 0); e != 0 {
		return e
	}
	return nil
}
