//go:build linux

#include "textflag.h"

// bear is a signal handler that does nothing: handler(sig, info, context).
TEXT bear<>(SB), NOSPLIT|NOFRAME, $0
	RET

// fault handles the signals of faults. It ends the process if the kernel sent the signal,
// since the fault would occur again, and ignores a signal that another process sent.
TEXT fault<>(SB), NOSPLIT|NOFRAME, $0
	MOVL 8(SI), AX         // info.si_code
	CMPL AX, $0            // a process cannot send more than 0: rt_sigqueueinfo(2)
	JLE  borne
	MOVL $2, DI
	MOVL $231, AX          // SYS_exit_group
	SYSCALL
borne:
	RET

// back is where a handler returns to: sigreturn(2).
TEXT back<>(SB), NOSPLIT|NOFRAME, $0
	MOVL $15, AX           // SYS_rt_sigreturn
	SYSCALL
	INT $3

DATA ·bearHandler(SB)/8, $bear<>(SB)
GLOBL ·bearHandler(SB), NOPTR, $8
DATA ·faultHandler(SB)/8, $fault<>(SB)
GLOBL ·faultHandler(SB), NOPTR, $8
DATA ·handlerBack(SB)/8, $back<>(SB)
GLOBL ·handlerBack(SB), NOPTR, $8
