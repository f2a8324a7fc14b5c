//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fileID tells a file from all others that there are at the same time.
type fileID struct{ dev, ino uint64 }

// fileOf gives the file that a process executes, as the kernel has it; ok is false for one
// that is gone.
func fileOf(pid int) (id fileID, ok bool) {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/exe", &st)
	return fileID{st.Dev, st.Ino}, err == nil
}

// readLink reads a link of /proc.
func readLink(name string) []byte {
	var buf [MaxProgramPath]byte
	n, err := unix.Readlink(name, buf[:])
	if err != nil {
		return nil
	}
	return bytes.Clone(buf[:n])
}

// arguments reads the beginning of those of a process, and says how many bytes more
// there are.
func arguments(dir string) (args []byte, cut int64) {
	var buf [MaxProgramArgs]byte
	got := readSmall(dir+"cmdline", buf[:])
	if len(got) == len(buf) {
		cut = max(0, argumentBytes(dir)-int64(len(buf)))
	}
	return bytes.Clone(got), cut
}

// argumentBytes is how many bytes of arguments the kernel has put down for a process.
func argumentBytes(dir string) int64 {
	line, err := os.ReadFile(dir + "stat")
	if err != nil {
		return 0
	}
	f := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
	if len(f) < 47 {
		return 0
	}
	from, err1 := strconv.ParseInt(string(f[45]), 10, 64) // arg_start, the 48th of proc_pid_stat(5)
	to, err2 := strconv.ParseInt(string(f[46]), 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return to - from
}

// pidfdInfo is struct pidfd_info (linux/pidfd.h, Linux 6.13).
type pidfdInfo struct {
	mask, cgroup    uint64
	pid, tgid, ppid uint32
	_               [8]uint32 // ids
	exit            int32     // Linux 6.15
}

const (
	pidfdGetInfo  = 0xc040ff0b // _IOWR(0xff, 11, struct pidfd_info)
	pidfdInfoExit = 1 << 3
)

// pidfdOpen gives a descriptor of a process, or less than 0. Neither it nor what is
// done with the descriptor blocks, so the Go scheduler need not be told.
func pidfdOpen(pid int) int {
	fd, _, e := unix.RawSyscall(unix.SYS_PIDFD_OPEN, uintptr(pid), 0, 0)
	if e != 0 {
		return -1
	}
	return int(fd)
}

// parentOf gives the process that pid, whose descriptor fd is, is a child of. Asking the
// descriptor costs a tenth of what a file of /proc does.
func parentOf(fd, pid int) (int, bool) {
	var info pidfdInfo
	if _, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info))); e == 0 {
		return int(info.ppid), true
	}
	st, ok := readStat("/proc/" + strconv.Itoa(pid) + "/stat")
	return st.ppid, ok
}

// parent gives the process that pid is a child of; not of a thread.
func parent(pid int) (int, bool) {
	fd := pidfdOpen(pid)
	if fd < 0 {
		return 0, false
	}
	defer unix.Close(fd)
	return parentOf(fd, pid)
}
