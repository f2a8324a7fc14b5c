package daemon

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Locker returns the process that has locked a home. It may not listen yet, during recovery. ok is false if no
// process has locked the home, or if it is not visible from here, as in another PID namespace. Locker checks the lock
// with the kernel (proc_locks(5)), since the pid in a file may belong to another process by now.
func Locker(home string) (pid int, ok bool) {
	pid, held := Holder(home)
	if !held {
		return 0, false
	}
	return pid, Locks(home, pid)
}

// Locks reports whether a process has locked a home. An exiting daemon empties the lock file a moment before it
// unlocks it.
func Locks(home string, pid int) bool {
	st, err := os.Stat(filepath.Join(home, "lock"))
	if err != nil {
		return false
	}
	locks, err := os.ReadFile("/proc/locks")
	return err == nil && hasLocked(locks, pid, st.Sys().(*syscall.Stat_t).Ino)
}

// Peer returns the pid of the process that listens at the other end of a Unix connection, as
// seen from this PID namespace (unix(7), SO_PEERCRED). It returns 0 for a process of another
// PID namespace, and for any other kind of connection.
func Peer(conn net.Conn) int {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) { // fails on a closed connection, which has no peer
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// hasLocked reports whether a process has a flock(2) lock of a file, as in
//
//	1: FLOCK  ADVISORY  WRITE 435 00:27:277 0 EOF
//
// The device is not compared: that of a btrfs subvolume differs from the one that stat(2) returns.
func hasLocked(locks []byte, pid int, inode uint64) bool {
	for line := range bytes.Lines(locks) {
		f := strings.Fields(string(line))
		if len(f) < 6 || f[1] != "FLOCK" || f[3] != "WRITE" || f[4] != strconv.Itoa(pid) {
			continue
		}
		if strings.HasSuffix(f[5], fmt.Sprintf(":%d", inode)) {
			return true
		}
	}
	return false
}
