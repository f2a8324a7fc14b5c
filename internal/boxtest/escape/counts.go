//go:build linux && (amd64 || arm64)

package escape

import (
	"bufio"
	"fmt"
	"io"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HoldWord is the first argument that makes the attacker's binary call Hold. The second argument is a key of holds.
const HoldWord = "hold"

// holders is the number of sandbox users that Hold becomes.
const holders = 64

// holds are functions that create one more object that the kernel counts, per user or for the machine.
var holds = map[string]func() error{
	"inotify": func() error {
		_, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		return err
	},
	"terminals": func() error {
		_, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		return err
	},
	"timers": func() error { // each has a preallocated signal
		var id int32
		_, _, e := unix.RawSyscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
		return orNil(e)
	},
	"aio": func() error {
		var id uint64
		_, _, e := unix.RawSyscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&id)), 0)
		return orNil(e)
	},
	"rights": passInFlight,
}

func orNil(e unix.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

// Rights is the largest number of descriptors in one message (SCM_MAX_FD of net/scm.h).
const Rights = 253

// passInFlight sends Rights descriptors that are never received.
func passInFlight() error {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(p[0]) // the other end holds the descriptors
	return unix.Sendmsg(p[0], []byte{0}, unix.UnixRights(make([]int, Rights)...), nil, unix.MSG_DONTWAIT)
}

// Hold creates as many objects as it can, as each user of the sandbox that it can become. It prints the number for each
// user and the total, and holds the objects until in ends.
func Hold(what string, in io.Reader, out io.Writer) int {
	one := holds[what]
	if one == nil {
		return 2
	}
	runtime.LockOSThread() // raw setresuid(2) changes only this thread
	const keep = ^uintptr(0)
	most, all := 0, 0
	for uid := range uintptr(holders) {
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uid, keep); uid > 0 && e != 0 {
			continue
		}
		n := 0
		for ; n < 1<<18; n++ {
			if one() != nil {
				break
			}
		}
		most, all = max(most, n), all+n
		_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep)
	}
	tell(out, fmt.Sprintf("%d %d", most, all))
	_, _ = bufio.NewReader(in).ReadString('\n')
	return 0
}
