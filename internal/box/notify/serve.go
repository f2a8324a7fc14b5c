//go:build linux && (amd64 || arm64)

package notify

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Options configure Serve. The zero value promotes without freezing, and does not emulate.
type Options struct {
	// Serving is called once, before the first answer. It may be nil.
	Serving func()
	// Emulate answers the calls of root emulation. Without it the kernel carries them out.
	Emulate bool
	// Freeze stops every process of the sandbox except PID 1, so that none sees a directory that is only partly
	// promoted. It is called with Lock held. Threads that wait for an answer, including the one that is being served,
	// sleep in state D (wchan seccomp_do_user_notification) and count as frozen; use Halt to stop a process that has
	// such threads. Other threads in state D are in the middle of a call and must be waited for, except for parents in
	// vfork. If Freeze is nil, no process is stopped.
	Freeze func() (thaw func(), err error)
	// Asked is called for every execve(2) that may succeed, before it is answered; Unasked if the last one of a thread
	// was interrupted by a signal and not carried out; Began, for a thread that made the call with which libraries
	// start, while the thread waits. The functions delay the caller, so they must be quick, and one goroutine calls
	// them all. Either all are set or none.
	Asked   func(Execution)
	Unasked func(tid int)
	Began   func(tid int)
	// Refusals are the calls that are refused for every caller, and never passed to the kernel; the filter must be
	// built from the same options. Refused is called for each, before it is answered, and must not block; it may be
	// nil.
	Refusals seccomp.Refusals
	Refused  func(Refusal)
	// Sockets are directories of this process's root, without links in their paths. Of the Unix sockets with a path,
	// callers can connect only to those in one of them, and listen on none with an abstract name; see connect.
	Sockets []string
	// Inet makes and connects sockets for callers that have no sockets of the Internet, with the filter of
	// seccomp.NotifyOptions.Inet. If it is nil, such calls are not expected.
	Inet *Internet
	// Terminals opens for callers the slaves of the pseudo terminals that they have made.
	Terminals bool
	// Report is called for promotions, possibly from several goroutines at once, and must not block. It may be nil.
	Report func(Event)
	// Lock is held for reading while a call is received and answered, and for writing during a promotion. All Serve
	// calls of one PID 1 share it. Code that freezes the sandbox in another way, such as a capture, must hold it for
	// writing from before the freeze until the thaw: an answer would resume a frozen caller. If nil, Serve uses its own
	// lock.
	Lock Lock

	hook func() error // called before each step of a promotion; lets tests fail the step
}

// Lock is the interface of sync.RWMutex. Options.Lock may be another implementation.
type Lock interface {
	sync.Locker
	RLock()
	RUnlock()
}

// EventKind is the kind of an Event.
type EventKind string

// The events.
const (
	Promoted EventKind = "promoted" // a directory was made pure upper
	Failed   EventKind = "failed"   // a directory could not be promoted; the kernel returned EXDEV
)

// Event describes a promotion, for logs.
type Event struct {
	Kind  EventKind
	Path  string // absolute, in PID 1's root
	Moved int    // entries that were moved individually
	Bytes int64  // total size of the moved regular files, which were copied up
	Took  time.Duration
	Err   error // set for Failed
}

// Serve answers notifications from listener until ctx is done (it then returns ctx's error) or until no process is left
// that could send any (nil). It does not close listener. Calls that are waiting when it returns get ENOSYS once the
// listener is closed.
//
// /proc must be a proc mount of the callers' pid namespace. If it is not, calls are passed to the kernel or, with
// Emulate, reported as successful.
func Serve(ctx context.Context, file *os.File, opt Options) error {
	if opt.Lock == nil {
		opt.Lock = new(sync.RWMutex)
	}
	if opt.Report == nil {
		opt.Report = func(Event) {}
	}
	if opt.Freeze == nil {
		opt.Freeze = func() (func(), error) { return func() {}, nil }
	}
	ownProc, err := OwnsProc()
	if err != nil {
		return err
	}
	s := &server{listener: listener{int(file.Fd())}, opt: opt, ownProc: ownProc, inet: opt.Inet,
		connecting: make(chan struct{}, maxConnecting), ctx: ctx}
	if s.inet != nil {
		s.connecting = s.inet.connecting
	}
	defer runtime.KeepAlive(file) // its finalizer would close it
	// With a record, each of the many programs that a build starts would keep this processor from its caller.
	if opt.Asked == nil {
		s.syncWakeUp()
	}
	defer s.slow.Wait()
	if s.inet != nil {
		kept, end := context.WithCancel(ctx)
		defer end()
		s.slow.Go(func() { s.inet.kept.run(kept) })
	}
	// The Go scheduler assumes for a while that a thread in poll(2) is working, and watching it costs several times as
	// much as an answer. So the scheduler itself waits, on a descriptor that is registered with it.
	own, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(own, true)
	}
	if err != nil {
		return fault.Wrap(err, "serve system call notifications")
	}
	known := os.NewFile(uintptr(own), "seccomp listener")
	defer known.Close()
	raw, err := known.SyscallConn()
	if err != nil {
		return fault.Wrap(err, "serve system call notifications")
	}
	defer context.AfterFunc(ctx, func() { _ = known.SetReadDeadline(time.Unix(1, 0)) })()
	if opt.Serving != nil {
		opt.Serving()
	}
	var failed error
	err = raw.Read(func(uintptr) (over bool) {
		over, failed = s.drain()
		return over
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(fault.Wrap(err, "wait for system call notifications"), failed)
}

// drain answers notifications until no caller waits. over reports whether there will be no further callers.
func (s *server) drain() (over bool, err error) {
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	for {
		var now unix.Timespec // zero: does not block, and neither do the calls of listener
		n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), 1, uintptr(unsafe.Pointer(&now)), 0,
			0, 0)
		switch {
		case e == unix.EINTR:
			continue
		case e != 0:
			return true, fault.Wrap(e, "poll for system call notifications")
		case n == 0:
			return false, nil
		}
		ready, over := polled(fds[0].Revents)
		if over {
			return true, nil
		}
		if !ready {
			continue
		}
		if err := s.next(); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) {
			return true, fault.Wrap(err, "receive a system call notification")
		}
	}
}

// server serves one listener.
type server struct {
	listener
	req     request // used by the goroutine of Serve
	opt     Options
	ownProc bool // whether /proc shows the callers' pid namespace
	slow    sync.WaitGroup

	inet       *Internet // nil without Options.Inet
	ctx        context.Context
	connecting chan struct{} // a token for each connect(2) in progress
	trying     sync.Mutex    // held while a rename is considered; locked after Options.Lock
}

// next receives a notification. It answers it at once if that takes no longer than a check, and otherwise in a
// goroutine. It receives none while the sandbox is frozen: a caller whose call was not received yet can be stopped like
// any other.
func (s *server) next() error {
	s.opt.Lock.RLock()
	defer s.opt.Lock.RUnlock()
	if err := s.receive(&s.req); err != nil {
		return err
	}
	n := &s.req.notification
	v, slow := s.decide(n)
	if v.given {
		return nil
	}
	if slow != nil {
		s.slow.Go(slow)
		return nil
	}
	s.answer(n.id, v)
	return nil
}

// decide returns the answer to n, or a function that determines the answer, sends it, and may take long. The function
// runs while further notifications are received.
func (s *server) decide(n *notification) (verdict, func()) {
	// Not n: the next notification overwrites it, perhaps before the function runs.
	c := caller{s: s, id: n.id, tid: int(n.tid), nr: n.call.nr, args: n.call.args}
	if s.opt.Terminals && c.nr == unix.SYS_IOCTL && uint32(c.args[1]) == unix.TIOCGPTPEER {
		return verdict{}, func() { s.openSlave(c) }
	}
	if do, ok := s.inetCall(c); ok {
		return verdict{}, do
	}
	if v, ok := s.refuse(n); ok {
		return v, nil
	}
	op, known := operations[uint32(n.call.nr)]
	switch {
	case !known:
		return proceed, nil
	case op.execute:
		if s.opt.Asked == nil || !s.ownProc {
			return proceed, nil
		}
		s.execute(c)
		return verdict{given: true}, nil
	case op.begin:
		if s.opt.Began != nil {
			s.opt.Began(c.tid)
		}
		return proceed, nil
	case op.connect:
		return verdict{}, func() { s.connect(c) }
	case op.listen:
		return verdict{}, func() { s.listen(c) }
	case op.rename != nil:
		if !s.ownProc {
			return proceed, nil
		}
		return s.rename(c, op.rename(c.args))
	case !s.opt.Emulate:
		return proceed, nil
	case !s.ownProc:
		return success, nil
	}
	return proceed, func() {
		s.opt.Lock.RLock()
		defer s.opt.Lock.RUnlock()
		s.answer(c.id, op.emulate(c, c.args))
	}
}

// operation describes how the arguments of one call are laid out.
type operation struct {
	rename  func(args [6]uint64) renameArgs
	execute bool
	begin   bool
	connect bool
	listen  bool
	emulate func(c caller, args [6]uint64) verdict
}

// OwnsProc reports whether /proc is a procfs of this process's pid namespace. In a container with a masked /proc, the
// outer one is bound, in which the numbers belong to other processes. A link, or a directory that imitates a procfs, is
// not one.
func OwnsProc() (bool, error) {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return false, nil
	default:
		return false, fault.Wrap(err, "open /proc")
	}
	defer unix.Close(proc)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(proc, &fs); err != nil {
		return false, fault.Wrap(err, "inspect /proc")
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return false, nil
	}
	var self [32]byte
	n, err := unix.Readlinkat(proc, "self", self[:])
	if err == unix.ENOENT { // that pid namespace does not contain this process
		return false, nil
	}
	return err == nil && string(self[:n]) == strconv.Itoa(os.Getpid()), fault.Wrap(err, "read /proc/self")
}

func procPath(tid int, rest string) string {
	return "/proc/" + strconv.Itoa(tid) + "/" + rest
}
