//go:build linux

package escape

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

var archCalls = map[string]uintptr{"iopl": unix.SYS_IOPL, "ioperm": unix.SYS_IOPERM, "modify_ldt": unix.SYS_MODIFY_LDT}

// int80 makes a system call through the 32-bit gate. A kernel without CONFIG_IA32_EMULATION, and some virtual machines,
// have no such gate: the instruction faults (INT n, Intel SDM 2A).
func int80(nr uint32) (result int32, answered bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			result, answered = 0, false
		}
	}()
	return gate(nr), true
}

func gate(nr uint32) int32

// changeCall changes the call at which a traced process has stopped.
func changeCall(pid int, nr, arg0, arg1 uintptr) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &r); err != nil {
		return err
	}
	r.Orig_rax, r.Rdi, r.Rsi = uint64(nr), uint64(arg0), uint64(arg1)
	return unix.PtraceSetRegs(pid, &r)
}

// callResult returns the result of the call.
func callResult(pid int) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &r); err != nil {
		return err
	}
	return failed(r.Rax)
}
