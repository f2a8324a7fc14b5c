//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// restart is ERESTARTSYS of the kernel. To a thread with a signal it is EINTR, or the call begins again after the
// handler (SA_RESTART in sigaction(2)), as if the kernel had waited. Without a signal the caller would see it.
const restart = unix.Errno(512)

// Times between the checks whether a caller still waits.
const (
	firstCheck = 20 * time.Millisecond
	lastCheck  = 200 * time.Millisecond
)

// waiting is a wait on behalf of a caller. While the kernel waits for this process, it shows a thread no signal but
// SIGKILL (seccomp.Listener). So a wait looks for signals from time to time.
type waiting struct {
	c        caller
	blocking bool      // the socket is one whose calls wait
	until    time.Time // the end of the wait; zero for none
	pause    time.Duration
}

// wait begins a wait for a socket, as long as its option of a timeout says.
func (s *server) wait(c caller, socket int, option int) *waiting {
	w := &waiting{c: c, pause: firstCheck}
	flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0)
	w.blocking = err == nil && flags&unix.O_NONBLOCK == 0
	if t, err := unix.GetsockoptTimeval(socket, unix.SOL_SOCKET, option); err == nil && w.blocking && t.Nano() > 0 {
		w.until = time.Now().Add(time.Duration(t.Nano()))
	}
	return w
}

// next returns when the next check is due.
func (w *waiting) next() time.Time {
	at := time.Now().Add(w.pause)
	w.pause = min(2*w.pause, lastCheck)
	if !w.until.IsZero() && w.until.Before(at) {
		return w.until
	}
	return at
}

// over returns why the wait is over: EAGAIN after its time, EINTR or restart for a signal, ESRCH if the caller has died
// or nothing is served any more; 0 if it is not.
func (w *waiting) over() unix.Errno {
	switch {
	case !w.c.s.valid(w.c.id), w.c.s.ctx.Err() != nil:
		return unix.ESRCH
	case !w.until.IsZero() && !time.Now().Before(w.until):
		return unix.EAGAIN
	case w.blocking:
		return w.c.signalled()
	}
	return 0
}

// signalled returns what interrupted returns for the calling thread; 0 if nothing is known.
func (c caller) signalled() unix.Errno {
	f, err := c.status()
	if err != nil {
		return 0
	}
	return interrupted(f)
}

// interrupted returns ESRCH if the thread of a status (proc_pid_status(5)) dies, restart if a signal waits for it,
// EINTR if one waits for its process, of which the kernel may have chosen another thread to take it, and 0 for none.
// SIGKILL waits for each thread that dies of any signal, shortly before the kernel forgets its call. The first thread
// is chosen if it does not block the signal (complete_signal in kernel/signal.c). SIGSTOP does not count, which a
// freeze sends to all threads.
func interrupted(f map[string]string) unix.Errno {
	set := func(name string) uint64 {
		v, _ := strconv.ParseUint(f[name], 16, 64)
		return v
	}
	seen := ^(set("SigBlk") | 1<<(unix.SIGSTOP-1) | 1<<(unix.SIGCONT-1))
	own, shared := set("SigPnd")&seen, set("ShdPnd")&seen
	switch {
	case (own|shared)&(1<<(unix.SIGKILL-1)) != 0:
		return unix.ESRCH
	case own != 0, shared != 0 && f["Pid"] == f["Tgid"]:
		return restart
	case shared != 0:
		return unix.EINTR
	}
	return 0
}

// attempt carries out a call that waits for a socket until poll(2) returns one of some events. try must not block;
// EAGAIN lets the caller wait, unless its socket does not.
func (s *server) attempt(c caller, socket int, events int16, try func() error) error {
	err := try()
	if !errors.Is(err, unix.EAGAIN) {
		return err
	}
	option := unix.SO_RCVTIMEO
	if events == unix.POLLOUT {
		option = unix.SO_SNDTIMEO
	}
	w := s.wait(c, socket, option)
	if !w.blocking {
		return err
	}
	if !c.slot.move(s.inet.waiting) { // a call that waits must not keep others from being served
		return errCrowded
	}
	own, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	err = unix.SetNonblock(own, true)
	known := os.NewFile(uintptr(own), "wait for a peer")
	defer known.Close()
	if err == nil {
		err = unix.EpollCtl(own, unix.EPOLL_CTL_ADD, socket, &unix.EpollEvent{Events: uint32(events)})
	}
	raw, rerr := known.SyscallConn()
	if err = errors.Join(err, rerr); err != nil {
		return err
	}
	for {
		err := known.SetReadDeadline(w.next())
		if err == nil {
			err = raw.Read(func(uintptr) bool { return ready(socket, events) })
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if errno := w.over(); errno != 0 {
			return errno
		}
		if err := try(); !errors.Is(err, unix.EAGAIN) {
			return err
		}
		time.Sleep(time.Millisecond) // another caller was faster
	}
}

// attemptWith is attempt for a call with flags, which does not wait if MSG_DONTWAIT is among them.
func (s *server) attemptWith(c caller, socket int, events int16, flags int, try func() error) error {
	if flags&unix.MSG_DONTWAIT != 0 {
		return try()
	}
	return s.attempt(c, socket, events, try)
}

// errCrowded means that too many calls wait already. The call is tried again from time to time.
var errCrowded = errors.New("too many calls wait for a peer")

// ready reports whether poll(2) returns one of some events, an error or a hangup.
func ready(socket int, events int16) bool {
	fds := []unix.PollFd{{Fd: int32(socket), Events: events}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}
