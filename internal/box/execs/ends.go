//go:build linux && (amd64 || arm64)

package execs

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// ends reports which of a set of processes have ended, by their pidfds. wait(2) would not do: only a parent can wait
// for a process, and init is not the parent of most.
type ends struct {
	poll int      // the epoll instance
	file *os.File // the same, registered with the Go scheduler
	raw  syscall.RawConn
	kick int // an eventfd in the epoll instance, for wake
}

func newEnds() (*ends, error) {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fault.Wrap(err, "watch programs")
	}
	kick, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(poll)
		return nil, fault.Wrap(err, "watch programs")
	}
	e := &ends{poll: poll, kick: kick}
	if err = e.add(kick, 0); err == nil {
		err = unix.SetNonblock(poll, true) // otherwise package os would not use the scheduler's poller
	}
	if err == nil {
		e.file = os.NewFile(uintptr(poll), "programs")
		e.raw, err = e.file.SyscallConn()
	}
	return e, fault.Wrap(err, "watch programs")
}

// add watches the process of a pidfd. The pidfd stays the caller's until remove.
func (e *ends) add(fd, pid int) error {
	return unix.EpollCtl(e.poll, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd), Pad: int32(pid)})
}

// remove stops watching a pidfd, and closes it.
func (e *ends) remove(fd int) {
	_ = unix.EpollCtl(e.poll, unix.EPOLL_CTL_DEL, fd, nil)
	unix.Close(fd)
}

// wake makes wait return.
func (e *ends) wake() {
	one := [8]byte{1}
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(e.kick), uintptr(unsafe.Pointer(&one[0])), uintptr(len(one)))
}

// wait returns when a process has ended or wake was called. Only one goroutine may call it.
func (e *ends) wait() error {
	return e.raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err != nil || n > 0
	})
}

// ready returns the processes that have ended and were not yet removed, as pids by pidfds.
func (e *ends) ready() map[int]int {
	var list [64]unix.EpollEvent
	ended := map[int]int{}
	for {
		n, err := unix.EpollWait(e.poll, list[:], 0)
		if err != nil || n == 0 {
			return ended
		}
		before := len(ended)
		for _, ev := range list[:n] {
			if fd := int(ev.Fd); fd != e.kick {
				ended[fd] = int(ev.Pad)
				continue
			}
			var count [8]byte
			_, _ = unix.Read(e.kick, count[:])
		}
		if len(ended) == before { // all of these were returned before
			return ended
		}
	}
}
