//go:build linux && (amd64 || arm64)

package guest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Addresses of init's own signal handlers, see bear_amd64.s.
var bearHandler, faultHandler, handlerBack uintptr

// sigaction is the kernel's structure.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// Flags of sigaction(2).
const (
	saSigInfo  = 0x4
	saRestorer = 0x04000000 // restorer is set, which amd64 requires
	saOnStack  = 0x08000000
	saRestart  = 0x10000000
)

// bearSignals makes PID 1 survive every signal that is sent inside its pid namespace. The kernel drops a signal to PID
// 1 that has no handler (signal(7); kernel/signal.c, sig_task_ignored). But it does not drop a signal to the process if
// the thread whose number it was sent to blocks signals, as each thread of the Go runtime does at times; the signal
// then ends the process through another thread (complete_signal). A SIGSEGV sent by sigqueue(3) would end the process
// through the runtime's own handler. So every signal has a handler that does nothing.
//
// SIGURG remains with the Go scheduler. Signals that stop a process, or are ignored by default, do not end it. Commands
// inherit none of this: execve(2) resets handlers.
func bearSignals() {
	// All other signals are blocked during the handler, or many would overflow the signal stack.
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
