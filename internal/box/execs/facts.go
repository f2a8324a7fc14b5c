//go:build linux && (amd64 || arm64)

package execs

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/procs"
)

// fileID identifies a file among all files that exist at the same time.
type fileID struct{ dev, ino uint64 }

// fileOf returns the file that a process executes, as reported by the kernel. ok is false if the process has ended.
func fileOf(pid int) (id fileID, ok bool) {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/exe", &st)
	return fileID{st.Dev, st.Ino}, err == nil
}

// readLink reads a link in /proc, or returns nil.
func readLink(name string) []byte {
	var buf [MaxProgramPath]byte
	n, err := unix.Readlink(name, buf[:])
	if err != nil {
		return nil
	}
	return bytes.Clone(buf[:n])
}

// arguments reads the beginning of the arguments of a process. cut is the number of bytes that follow.
func arguments(pid int) (args []byte, cut int64) {
	var buf [MaxProgramArgs]byte
	got := procs.Cmdline(pid, buf[:])
	if len(got) == len(buf) {
		cut = max(0, argumentBytes(pid)-int64(len(buf)))
	}
	return bytes.Clone(got), cut
}

// argumentBytes returns the size of the arguments that the kernel has recorded for a process.
func argumentBytes(pid int) int64 {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
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
