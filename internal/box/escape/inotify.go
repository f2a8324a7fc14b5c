//go:build linux && (amd64 || arm64)

package escape

import (
	"bufio"
	"fmt"
	"io"
	"runtime"

	"golang.org/x/sys/unix"
)

// HoldWord is the first argument that makes the attacker's binary call HoldInotify.
const HoldWord = "hold-inotify"

// holders is how many users of the sandbox HoldInotify becomes.
const holders = 64

// HoldInotify makes as many inotify instances as it can, as each user of the sandbox that
// it can become, prints how many each has and in all, and holds them until in ends.
func HoldInotify(in io.Reader, out io.Writer) int {
	runtime.LockOSThread() // raw setresuid(2) changes this thread alone
	const keep = ^uintptr(0)
	most, all := 0, 0
	for uid := range uintptr(holders) {
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uid, keep); uid > 0 && e != 0 {
			continue
		}
		n := 0
		for ; n < 1<<16; n++ {
			if _, err := unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
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
