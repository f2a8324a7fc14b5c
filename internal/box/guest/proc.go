//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"os"
	"sort"
	"strconv"

	"golang.org/x/sys/unix"
)

// process is one line of /proc, as proc_pid_stat(5) has it.
type process struct {
	pid, ppid, pgrp, session, threads int
	state                             byte
	cpu, start                        uint64 // clock ticks: of processor time, and of its start since boot
	rss                               int64  // pages
}

// dead says that it runs no more and waits for its parent.
func (p process) dead() bool { return (p.state == 'Z' || p.state == 'X') && p.threads <= 1 }

type processes []process

func (l processes) pids() []int {
	pids := make([]int, len(l))
	for i, p := range l {
		pids[i] = p.pid
	}
	return pids
}

// scan lists the processes of the sandbox but init: with self 0 all that /proc
// has but 1, else the descendants of self.
func scan(self int) (processes, error) {
	pids, err := allPIDs()
	if err != nil {
		return nil, err
	}
	var list processes
	for _, pid := range pids {
		if p, ok := readStat("/proc/" + strconv.Itoa(pid) + "/stat"); ok {
			list = append(list, p)
		}
	}
	if self == 0 {
		return list, nil
	}
	in := map[int]bool{self: true}
	for grown := true; grown; {
		grown = false
		for _, p := range list {
			if in[p.ppid] && !in[p.pid] {
				in[p.pid], grown = true, true
			}
		}
	}
	kept := list[:0]
	for _, p := range list {
		if in[p.pid] && p.pid != self {
			kept = append(kept, p)
		}
	}
	return kept, nil
}

// allPIDs lists what /proc has but 1.
func allPIDs() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != 1 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// readStat gives the process or thread whose stat file is at path, unless it is
// gone.
func readStat(path string) (process, bool) {
	var buf [512]byte
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return process{}, false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf[:])
	if err != nil || n <= 0 {
		return process{}, false
	}
	p, _, ok := parseStat(buf[:n])
	return p, ok
}

// parseStat takes the beginning of a stat file apart. The name, in parentheses, may
// hold anything.
func parseStat(line []byte) (p process, name []byte, ok bool) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return process{}, nil, false
	}
	f := bytes.Fields(line[end+1:])
	if len(f) < 22 {
		return process{}, nil, false
	}
	num := func(b []byte) int { v, _ := strconv.Atoi(string(b)); return v }
	count := func(b []byte) uint64 { v, _ := strconv.ParseUint(string(b), 10, 64); return v }
	return process{
		pid: num(line[:open-1]), state: f[0][0], ppid: num(f[1]), pgrp: num(f[2]), session: num(f[3]), threads: num(f[17]),
		cpu: count(f[11]) + count(f[12]), start: count(f[19]), rss: int64(num(f[21])),
	}, line[open+1 : end], true
}

// killRounds bounds KillDescendants: what forks faster than it is killed for that
// long has a limit of processes to be stopped by.
const killRounds = 1000

// KillDescendants kills whatever descends from the process pid, a child subreaper
// (prctl(2)), so that orphans are its descendants too. A process may fork between
// the look and the signal; so it looks again until none is left.
func KillDescendants(pid int) {
	for range killRounds {
		list, err := scan(pid)
		if err != nil {
			return
		}
		alive := false
		for _, p := range list {
			if !p.dead() {
				alive = true
				_ = unix.Kill(p.pid, unix.SIGKILL)
			}
		}
		if !alive {
			return
		}
	}
}

// byDepth orders parents before children.
func (l processes) byDepth() [][]process {
	parent := make(map[int]int, len(l))
	for _, p := range l {
		parent[p.pid] = p.ppid
	}
	var levels [][]process
	for _, p := range l {
		depth := 0
		// A list that was read while processes moved may hold a circle.
		for up, known := parent[p.ppid]; known && depth < len(l); up, known = parent[up] {
			depth++
		}
		for len(levels) <= depth {
			levels = append(levels, nil)
		}
		levels[depth] = append(levels[depth], p)
	}
	return levels
}

// tree gives pid, its session and process group, and all descendants of these,
// parents first.
func (l processes) tree(pid int) []int {
	in := map[int]bool{}
	for _, p := range l {
		if p.pid == pid || p.session == pid || p.pgrp == pid {
			in[p.pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range l {
			if in[p.ppid] && !in[p.pid] {
				in[p.pid], grown = true, true
			}
		}
	}
	pids := make([]int, 0, len(in))
	for p := range in {
		pids = append(pids, p)
	}
	sort.Ints(pids)
	return pids
}
