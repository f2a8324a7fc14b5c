//go:build linux

#include "textflag.h"

// func vfork(flags uintptr) (pid int)
//
// The child returns first, on the same stack, and what it calls overwrites the word that
// holds our return address: the parent keeps it in a register (as package syscall does,
// rawVforkSyscall).
TEXT ·vfork(SB), NOSPLIT|NOFRAME, $0-16
	MOVQ flags+0(FP), DI
	XORL SI, SI            // the stack: the same
	XORL DX, DX
	XORL R10, R10
	XORL R8, R8
	MOVL $56, AX           // SYS_clone
	POPQ R12
	SYSCALL
	PUSHQ R12
	MOVQ AX, pid+8(FP)
	RET
