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

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Options configure Serve. The zero value promotes without freezing, and does
// not emulate.
type Options struct {
	// Emulate answers the calls of root emulation. Without it they are handed
	// to the kernel.
	Emulate bool
	// Freeze stops every process of the sandbox but PID 1, so that none sees a
	// directory that is half promoted. It is called with Lock held. Threads that
	// wait for an answer, the served one among them, sleep in state D (wchan
	// seccomp_do_user_notification) and count as frozen; use Halt
	// to stop a process that has some.
	// Other threads in state D are in the middle of a call and have to be waited
	// for, but for parents in vfork. nil: nobody is stopped.
	Freeze func() (thaw func(), err error)
	// Report is told about promotions; it may be called from several goroutines
	// at once, and must not block. nil: nobody is told.
	Report func(Event)
	// Lock is held for reading while a call is answered, and for writing during a
	// promotion. It is shared by all Serve calls of one PID 1, and whoever else
	// freezes the sandbox, as a capture does, has to hold it for writing from
	// before that until the thaw: an answer would set a frozen caller going. nil: a lock of its own.
	Lock *sync.RWMutex

	hook func() error // called before each step of a promotion; tests fail there
}

// EventKind says what happened.
type EventKind string

// The events.
const (
	Promoted EventKind = "promoted" // a directory was made pure upper
	Failed   EventKind = "failed"   // it could not be; the kernel answered EXDEV
)

// Event is something that PID 1 may want to log.
type Event struct {
	Kind  EventKind
	Path  string // absolute, in PID 1's root
	Moved int    // entries that were moved one by one
	Bytes int64  // size of the regular files among them, which were copied up
	Took  time.Duration
	Err   error // with Failed
}

// Serve answers notifications from listener until ctx is done (it then gives
// ctx's error) or no process is left that could send any (nil). It does not
// close listener. Calls that wait when it ends get ENOSYS once the listener is
// closed.
//
// /proc must be a proc mount of the callers' pid namespace; where it is not,
// everything is handed to the kernel, or with Emulate said to have succeeded.
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
	stop := make([]int, 2)
	if err := unix.Pipe2(stop, unix.O_CLOEXEC); err != nil {
		return fault.Wrap(err, "serve system call notifications")
	}
	defer unix.Close(stop[0])
	released := context.AfterFunc(ctx, func() { _, _ = unix.Write(stop[1], []byte{0}) })
	defer func() {
		if !released() {
			_ = context.Cause(ctx) // the write has been made or is being made; the pipe is large enough
		}
		unix.Close(stop[1])
	}()

	defer runtime.KeepAlive(file) // whose finalizer closes it
	// Fd puts the description into blocking mode, which is what receive wants.
	s := &server{listener: listener{int(file.Fd())}, opt: opt, ownProc: ownsProc()}
	s.syncWakeUp()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer s.slow.Wait()
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(stop[0]), Events: unix.POLLIN}}
	var req request
	for {
		if _, err := unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return fault.Wrap(err, "wait for system call notifications")
		}
		switch {
		case fds[1].Revents != 0:
			return ctx.Err()
		case fds[0].Revents&unix.POLLIN != 0:
			err := s.receive(&req)
			switch {
			case err == nil:
				s.dispatch(&req.notification)
			case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR):
			default:
				return fault.Wrap(err, "receive a system call notification")
			}
		case fds[0].Revents != 0:
			return nil // POLLHUP: the last process under the filter is gone
		}
	}
}

// server serves one listener.
type server struct {
	listener
	opt     Options
	ownProc bool // /proc shows the callers' pid namespace
	slow    sync.WaitGroup
}

// dispatch answers n at once where that takes no more than a look, and in a
// goroutine otherwise.
func (s *server) dispatch(n *notification) {
	s.opt.Lock.RLock()
	v, slow := s.decide(n)
	if slow == nil {
		s.answer(n.id, v)
	}
	s.opt.Lock.RUnlock()
	if slow != nil {
		s.slow.Go(slow)
	}
}

// decide gives the answer to n, or the function that finds it, answers, and may
// take its time.
func (s *server) decide(n *notification) (verdict, func()) {
	op, known := operations[uint32(n.call.nr)]
	c := caller{s: s, id: n.id, tid: int(n.tid)}
	switch {
	case !known:
		return proceed, nil
	case op.rename != nil:
		if !s.ownProc {
			return proceed, nil
		}
		return s.rename(c, op.rename(n.call.args))
	case !s.opt.Emulate:
		return proceed, nil
	case !s.ownProc:
		return success, nil
	}
	args := n.call.args
	return proceed, func() {
		s.opt.Lock.RLock()
		defer s.opt.Lock.RUnlock()
		s.answer(c.id, op.emulate(c, args))
	}
}

// operation says how one call's arguments are laid out.
type operation struct {
	rename  func(args [6]uint64) renameArgs
	emulate func(c caller, args [6]uint64) verdict
}

// ownsProc reports whether /proc is of this process's pid namespace: in a
// container with a masked /proc the outer one is bound, in which the numbers
// mean other processes.
func ownsProc() bool {
	self, err := os.Readlink("/proc/self")
	return err == nil && self == strconv.Itoa(os.Getpid())
}

func procPath(tid int, rest string) string {
	return "/proc/" + strconv.Itoa(tid) + "/" + rest
}
