//go:build linux && (amd64 || arm64)

package procs

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// Stat is a process or thread as in /proc/PID/stat (proc_pid_stat(5)).
type Stat struct {
	PID, ppid, pgrp, session, threads int
	state                             byte
	cpu, start                        uint64 // clock ticks: processor time, and time of its start since boot
	rss                               int64  // pages

	inProc int // its pid in /proc, if that belongs to an outer pid namespace; otherwise 0
}

// dir returns the directory of the process in /proc.
func (p Stat) dir() string {
	if p.inProc != 0 {
		return "/proc/" + strconv.Itoa(p.inProc)
	}
	return "/proc/" + strconv.Itoa(p.PID)
}

// Dead reports whether the process has ended and its parent has not waited for it.
func (p Stat) Dead() bool { return (p.state == 'Z' || p.state == 'X') && p.threads <= 1 }

// readStat reads the stat file at path. It reports false if the process or thread has ended.
//
// gVisor's stat file of a process that has been reaped since it was opened has pid 0, but still the process group of
// the process. That pid must not be used: kill(2) takes 0 as the process group of the caller.
func readStat(path string) (Stat, bool) {
	var buf [512]byte
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Stat{}, false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf[:])
	if err != nil || n <= 0 {
		return Stat{}, false
	}
	p, _, ok := parseStat(buf[:n])
	return p, ok && p.PID > 0
}

// parseStat parses the beginning of a stat file. The name, in parentheses, may hold any bytes.
func parseStat(line []byte) (p Stat, name []byte, ok bool) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return Stat{}, nil, false
	}
	f := bytes.Fields(line[end+1:])
	if len(f) < 22 {
		return Stat{}, nil, false
	}
	num := func(b []byte) int { v, _ := strconv.Atoi(string(b)); return v }
	count := func(b []byte) uint64 { v, _ := strconv.ParseUint(string(b), 10, 64); return v }
	return Stat{
		PID: num(line[:open-1]), state: f[0][0], ppid: num(f[1]), pgrp: num(f[2]), session: num(f[3]), threads: num(f[17]),
		cpu: count(f[11]) + count(f[12]), start: count(f[19]), rss: int64(num(f[21])),
	}, line[open+1 : end], true
}
