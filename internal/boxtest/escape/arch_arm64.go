//go:build linux

package escape

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

var archCalls = map[string]uintptr{}

// int80 has no counterpart: a 64-bit process cannot make 32-bit calls.
func int80(uint32) (result int32, answered bool) { return 0, false }

// ntSystemCall is NT_ARM_SYSTEM_CALL (linux/elf.h): the number of the call at which a traced process has stopped.
const ntSystemCall = 0x404

// changeCall changes the call at which a traced process has stopped.
func changeCall(pid int, nr, arg0, arg1 uintptr) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &r); err != nil {
		return err
	}
	r.Regs[0], r.Regs[1], r.Regs[8] = uint64(arg0), uint64(arg1), uint64(nr)
	number := int32(nr)
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&number)), Len: 4}
	return errors.Join(unix.PtraceSetRegs(pid, &r),
		sys(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(pid), ntSystemCall, ptr(&iov)))
}

// callResult returns the result of the call.
func callResult(pid int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &r); err != nil {
		return err
	}
	return failed(r.Regs[0])
}
