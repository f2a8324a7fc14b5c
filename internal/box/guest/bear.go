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

// bearSignals makes PID 1 survive every signal that is sent inside its pid namespace. The kernel sends it
// none that has no handler, and would end it (signal(7); kernel/signal.c, sig_task_ignored). But a signal for
// the process is not ignored if the thread with the number that it was sent to blocks signals, as each thread
// of the Go runtime does at times; it then ends the process through another thread (complete_signal). With
// the runtime's own handler, a SIGSEGV sent by sigqueue(3) would end it. So every signal has a handler that
// does nothing.
//
// SIGURG stays the Go scheduler's. Signals that stop a process, or are ignored by default, do not end it.
// Commands inherit none of this: execve(2) resets handlers.
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

// setAction sets the action for a signal without the knowledge of the Go runtime. It cannot fail for a signal
// other than SIGKILL and SIGSTOP.
func setAction(sig unix.Signal, a *sigaction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(a)), 0, 8, 0, 0)
}
