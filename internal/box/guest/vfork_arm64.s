//go:build linux

#include "textflag.h"

// func vfork(flags uintptr) (pid int)
//
// The child returns first, on the same stack; our return address is in a register.
TEXT ·vfork(SB), NOSPLIT|NOFRAME, $0-16
	MOVD flags+0(FP), R0
	MOVD ZR, R1            // the stack: the same
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD $220, R8          // SYS_clone
	SVC
	MOVD R0, pid+8(FP)
	RET
