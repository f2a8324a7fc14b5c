//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi"
	"gvisor.dev/gvisor/pkg/abi/linux"
	abisentry "gvisor.dev/gvisor/pkg/abi/sentry"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	sentry "gvisor.dev/gvisor/pkg/sentry/kernel"

	"github.com/coppice-dev/coppice/internal/box/refusals"
	"github.com/coppice-dev/coppice/internal/box/seccomp"
)

// calls are the system calls of commands that the sandbox's kernel must not carry out as usual: those that
// seccomp.Inner refuses or emulates, and signals to init. Init itself is exempt.
//
// They are entries of that kernel's system call table, not a filter inside the sandbox. gVisor evaluates a filter
// before ptrace(2) lets a tracer change the call (doSyscall of its pkg/sentry/kernel), and at every clone compiles it
// again for each number, which takes a millisecond (populateCache). And a filter can recognize init's threads only by
// number.
type calls struct {
	answers  atomic.Pointer[seccomp.Answers]
	refusals atomic.Pointer[refusals.Summary] // nil if refusals are not reported
	files    atomic.Pointer[fileCalls]        // nil if those of files are not reported
}

// newCalls returns calls that answer most strictly until answerAs is called.
func newCalls() *calls {
	c := &calls{}
	c.answerAs(false, seccomp.Options{})
	return c
}

// answerAs answers as seccomp.Inner does.
func (c *calls) answerAs(emulate bool, o seccomp.Options) {
	a := seccomp.Inner(emulate, o)
	c.answers.Store(&a)
}

// install replaces the entries in the table of this process's kernel, which must not have started.
func (c *calls) install() error {
	table, ok := sentry.LookupSyscallTable(abi.Linux, arch.Host)
	if !ok {
		return fmt.Errorf("gVisor has no system call table for %v", arch.Host)
	}
	for nr := range fileOps {
		c.watch(table, nr)
	}
	emulated := seccomp.Inner(true, seccomp.Options{}) // the calls of all options
	for nr := range emulated {
		if nr > abisentry.MaxSyscallNum {
			return fmt.Errorf("gVisor has no system call %d", nr)
		}
		c.precede(table, uintptr(nr), c.byRules)
	}
	for _, nr := range signalCalls {
		c.precede(table, nr, bySignal)
	}
	c.precede(table, unix.SYS_PIDFD_SEND_SIGNAL, byPIDFD)
	table.Init()
	return nil
}

// answer is the result of a call of a task other than init.
type answer struct {
	err  error  // nil for success
	told string // the name of the call if the refusal must be reported, or ""
}

// decision decides a call. nil leaves it to the kernel.
type decision func(t *sentry.Task, sysno uintptr, args arch.SyscallArguments) *answer

// precede makes decide run before a call.
func (c *calls) precede(table *sentry.SyscallTable, nr uintptr, decide decision) {
	call := table.Table[nr]
	next := call.Fn
	if next == nil {
		next = func(t *sentry.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *sentry.SyscallControl, error) {
			r, err := table.Missing(t, sysno, args)
			return r, nil, err
		}
	}
	call.Fn = func(t *sentry.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *sentry.SyscallControl, error) {
		a := decide(t, sysno, args)
		if a == nil || isInit(t) {
			return next(t, sysno, args)
		}
		if a.told != "" {
			c.tell(t, a)
		}
		return 0, nil, a.err
	}
	table.Table[nr] = call
}

// isInit reports whether a task is a thread of PID 1. Every command is in the same pid namespace as init.
func isInit(t *sentry.Task) bool { return t.ThreadGroup() == t.Kernel().GlobalInit() }

// byRules decides by c.answers.
func (c *calls) byRules(_ *sentry.Task, sysno uintptr, args arch.SyscallArguments) *answer {
	var a [6]uint64
	for i := range a {
		a[i] = args[i].Uint64()
	}
	do, told := c.answers.Load().Answer(uint32(sysno), a)
	switch {
	case do == seccomp.Allow:
		return nil
	case do == seccomp.Pretend:
		return &answer{}
	case do&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO:
		return &answer{err: unix.Errno(do & unix.SECCOMP_RET_DATA), told: told}
	}
	return &answer{err: unix.EPERM, told: told}
}

// tell counts a refusal for the calling task.
func (c *calls) tell(t *sentry.Task, a *answer) {
	r := c.refusals.Load()
	if r == nil {
		return
	}
	one := refusals.Refusal{Call: a.told}
	errors.As(a.err, &one.Errno)
	addRefusal(r, t, one)
}

// addRefusal adds a refusal of the calling task.
func addRefusal(r *refusals.Summary, t *sentry.Task, one refusals.Refusal) {
	one.Command = commandOf(t)
	if exe := t.MemoryManager().Executable(); exe != nil {
		one.Program = exe.MappedName(t)
		exe.DecRef(t)
	}
	r.Add(one, func() int { return int(t.ThreadGroup().ID()) })
}

// maxUp is how many sessions above a task are searched.
const maxUp = 64

// commandOf returns the session of a task. If a descendant of a command created that session, it returns the session of
// a process above it, as far as those processes are running.
func commandOf(t *sentry.Task) refusals.Session {
	for range maxUp {
		ns := t.PIDNamespace()
		s := t.ThreadGroup().Session()
		if s == nil {
			break
		}
		id := ns.IDOfSession(s)
		leader := ns.TaskWithID(sentry.ThreadID(id))
		if leader == nil {
			return refusals.Session{Leader: int(id)}
		}
		up := leader.Parent()
		if up == nil || isInit(up) {
			return refusals.Session{Leader: int(id), Lives: true}
		}
		t = up
	}
	return refusals.Session{}
}

// signalCalls are the calls that signal or open the process or thread whose number is their first argument.
var signalCalls = []uintptr{unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO,
	unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_OPEN}

// bySignal blocks signals to init. Signals to groups are left to the kernel: init is alone in its group, and kill(2)
// with -1 does not signal it.
func bySignal(t *sentry.Task, _ uintptr, args arch.SyscallArguments) *answer {
	id := sentry.ThreadID(args[0].Int())
	if id <= 0 {
		return nil
	}
	switch target := t.PIDNamespace().TaskWithID(id); {
	case target == nil: // also for a target that is just starting, which may be a thread of init
		return &answer{err: unix.ESRCH}
	case isInit(target):
		return &answer{err: unix.EPERM}
	}
	return nil
}

// byPIDFD implements pidfd_send_signal(2), so that the target is determined from the file that is then used: other
// threads can replace the descriptor in between. The file may be a directory of /proc. Init does not make this call.
func byPIDFD(t *sentry.Task, _ uintptr, args arch.SyscallArguments) *answer {
	sig, at, flags := linux.Signal(args[1].Int()), args[2].Pointer(), args[3].Uint()
	switch flags {
	case 0, linux.PIDFD_SIGNAL_THREAD, linux.PIDFD_SIGNAL_THREAD_GROUP, linux.PIDFD_SIGNAL_PROCESS_GROUP:
	default:
		return &answer{err: unix.EINVAL}
	}
	if sig != 0 && !sig.IsValid() {
		return &answer{err: unix.EINVAL}
	}
	file := t.GetFile(args[0].Int())
	if file == nil {
		return &answer{err: unix.EBADF}
	}
	defer file.DecRef(t)
	if target, err := sentry.PIDFDTask(file); err == nil && isInit(target) {
		return &answer{err: unix.EPERM}
	}
	var info *linux.SignalInfo
	if at != 0 {
		info = &linux.SignalInfo{}
		if _, err := info.CopyIn(t, at); err != nil {
			return &answer{err: err}
		}
	}
	return &answer{err: t.PIDFDSendSignal(file, sig, info, flags)}
}
