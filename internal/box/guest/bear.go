//go:build linux && (amd64 || arm64)

package guest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Handlers of our own, by their addresses: see bear_amd64.s.
var bearHandler, faultHandler, handlerBack uintptr

// sigaction is the kernel's.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// Flags of sigaction(2).
const (
	saSigInfo  = 0x4
	saRestorer = 0x04000000 // restorer is set, which amd64 wants
	saOnStack  = 0x08000000
	saRestart  = 0x10000000
)

// bearSignals makes PID 1 bear every signal that is made inside of its pid namespace. The
// kernel sends it none that has no handler, and would end it (signal(7); kernel/signal.c,
// sig_task_ignored); but a signal for the process is taken as wanted where the thread whose
// number it was sent to blocks signals, as each of the Go run time's does at times, and then
// ends the process by way of another thread (complete_signal). With the run time's own
// handler, a SIGSEGV made by sigqueue(3) would end it. So all have one that does nothing.
//
// SIGURG stays the Go scheduler's. What stops a process, and what is nothing by default, ends
// none. A command gets none of them: execve(2) gives up handlers.
func bearSignals() {
	// All others wait meanwhile, or many would not fit on the stack for signals.
	a := sigaction{flags: saSigInfo | saOnStack | saRestart, restorer: handlerBack, mask: ^uint64(0)}
	if handlerBack != 0 {
		a.flags |= saRestorer
	}
	for sig := unix.Signal(1); sig <= 64; sig++ {
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGURG:
		case unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCHLD, unix.SIGCONT, unix.SIGWINCH:
			setAction(sig, &sigaction{})
		case unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS:
			a.handler = faultHandler
			setAction(sig, &a)
		default:
			a.handler = bearHandler
			setAction(sig, &a)
		}
	}
}

// setAction sets what happens at a signal, behind the back of the Go run time. It cannot fail
// for one that is neither SIGKILL nor SIGSTOP.
func setAction(sig unix.Signal, a *sigaction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(a)), 0, 8, 0, 0)
}
