//go:build linux && (amd64 || arm64)

package procs

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Between complete scans, EndDescendants looks only for children of this process, which is faster by far.
const roundsPerScan = 16

// EndDescendants kills and reaps all descendants of this process, which must be a child subreaper (prctl(2)). kill, if
// it is not nil, is called first in each round. It returns nil when this process has no child left. Then no descendant
// is left either: when a descendant exits, its children become children of this process. It returns Timeout if some are
// left after patience. Nothing else may wait for children of this process whose status is needed.
//
// A descendant may fork and exit before the signal arrives, over and over. So the signals go to process groups too,
// which the kernel signals as a whole, and a round is short.
func EndDescendants(patience time.Duration, kill func()) error {
	start := time.Now()
	for round := 0; ; round++ {
		if reapAll() {
			return nil
		}
		if kill != nil {
			kill()
		}
		pids := Children()
		if round%roundsPerScan == 0 {
			list, err := Scan(os.Getpid())
			if err != nil {
				return fault.Wrap(err, "list the sandbox's processes")
			}
			for _, p := range list {
				if !p.Dead() {
					pids = append(pids, p.PID)
				}
			}
		}
		for _, pid := range pids {
			killWithGroup(pid)
		}
		if time.Since(start) > patience {
			return fault.New(fault.Timeout, "processes of the sandbox do not end within %s", patience).
				WithHint("see which are left: ps -e -o pid,ppid,stat,wchan,args")
		}
		if round >= roundsPerScan { // those that are left exit, or start others faster than they are killed
			time.Sleep(time.Duration(round%roundsPerScan) * 100 * time.Microsecond)
		}
	}
}

// killWithGroup kills a descendant of this process, and its process group if that is of another session than this
// process: all of a session's groups belong to the sandbox, since each command begins one.
func killWithGroup(pid int) {
	if sid, err := unix.Getsid(pid); err == nil && sid > 1 {
		if own, err := unix.Getsid(0); err == nil && sid != own {
			if pgid, err := unix.Getpgid(pid); err == nil && pgid > 1 {
				_ = unix.Kill(-pgid, unix.SIGKILL)
			}
		}
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// reapAll reaps the children of this process that have exited, and reports whether no child is left.
func reapAll() bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			return true
		case err == nil && pid == 0, err != nil && !errors.Is(err, unix.EINTR):
			return false
		}
	}
}

// Children returns the children of this process (proc_tid_children(5)); none where the kernel does not list them.
// Some may be missing while others exit.
func Children() (pids []int) {
	const tasks = "/proc/self/task"
	threads, _ := os.ReadDir(tasks)
	for _, t := range threads {
		list, _ := os.ReadFile(tasks + "/" + t.Name() + "/children")
		for f := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
