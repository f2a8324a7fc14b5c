//go:build linux && (amd64 || arm64)

package procs

import (
	"cmp"
	"os"
	"sort"
	"strconv"
)

// List is a list of processes.
type List []Stat

// InProc returns the pids in /proc.
func (l List) InProc() []int {
	pids := make([]int, len(l))
	for i, p := range l {
		pids[i] = cmp.Or(p.inProc, p.PID)
	}
	return pids
}

// Scan lists the processes of a sandbox except init: the descendants of self, or all in /proc
// except pid 1 if self is 0.
func Scan(self int) (List, error) {
	pids, err := allPIDs()
	if err != nil {
		return nil, err
	}
	var list List
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
			if in[p.ppid] && !in[p.PID] {
				in[p.PID], grown = true, true
			}
		}
	}
	kept := list[:0]
	for _, p := range list {
		if in[p.PID] && p.PID != self {
			kept = append(kept, p)
		}
	}
	return kept, nil
}

// allPIDs lists the pids in /proc except 1.
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

// ByDepth returns the processes by their depth in the tree, parents before children.
func (l List) ByDepth() [][]Stat {
	parent := make(map[int]int, len(l))
	for _, p := range l {
		parent[p.PID] = p.ppid
	}
	var levels [][]Stat
	for _, p := range l {
		depth := 0
		// Parents that change during the scan can look like a cycle.
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

// Tree returns the pids of process pid, its session and process group, and all descendants of
// these, in ascending order.
func (l List) Tree(pid int) []int {
	in := map[int]bool{}
	for _, p := range l {
		if p.PID == pid || p.session == pid || p.pgrp == pid {
			in[p.PID] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range l {
			if in[p.ppid] && !in[p.PID] {
				in[p.PID], grown = true, true
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

// PIDs is like Scan but returns only pids, and avoids reading stat files where it can.
func PIDs(self int) ([]int, error) {
	if self == 0 {
		return allPIDs()
	}
	list, err := Scan(self)
	out := make([]int, len(list))
	for i, p := range list {
		out[i] = p.PID
	}
	return out, err
}
