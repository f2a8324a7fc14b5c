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
}

// dead says that it runs no more and waits for its parent.
func (p process) dead() bool { return (p.state == 'Z' || p.state == 'X') && p.threads <= 1 }

type processes []process

// scan lists the processes of the sandbox but init: with self 0 all that /proc
// has but 1, else the descendants of self.
func scan(self int) (processes, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var list processes
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == 1 {
			continue
		}
		if p, ok := readStat("/proc/" + name + "/stat"); ok {
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
	line := buf[:n]
	// The name is in parentheses and may hold anything.
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 1 || end < 0 {
		return process{}, false
	}
	f := bytes.Fields(line[end+1:])
	if len(f) < 18 {
		return process{}, false
	}
	num := func(b []byte) int { v, _ := strconv.Atoi(string(b)); return v }
	return process{
		pid: num(line[:open-1]), state: f[0][0], ppid: num(f[1]), pgrp: num(f[2]), session: num(f[3]), threads: num(f[17]),
	}, true
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
