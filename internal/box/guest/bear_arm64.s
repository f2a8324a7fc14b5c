//go:build linux

#include "textflag.h"

// bear is a signal handler that does nothing: handler(sig, info, context). Without
// SA_RESTORER it returns to the vDSO, which calls sigreturn(2).
TEXT bear<>(SB), NOSPLIT|NOFRAME, $0
	RET

// fault handles the signals of faults. It ends the process if the kernel sent the signal,
// since the fault would occur again, and ignores a signal that another process sent.
TEXT fault<>(SB), NOSPLIT|NOFRAME, $0
	MOVW 8(R1), R2         // info.si_code
	CMPW $0, R2            // a process cannot send more than 0: rt_sigqueueinfo(2)
	BLE  borne
	MOVD $2, R0
	MOVD $94, R8           // SYS_exit_group
	SVC
borne:
	RET

DATA ·bearHandler(SB)/8, $bear<>(SB)
GLOBL ·bearHandler(SB), NOPTR, $8
DATA ·faultHandler(SB)/8, $fault<>(SB)
GLOBL ·faultHandler(SB), NOPTR, $8
DATA ·handlerBack(SB)/8, $0
GLOBL ·handlerBack(SB), NOPTR, $8
