//go:build linux && (amd64 || arm64)

package procs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// OuterSelf returns the pid of this process in /proc, which may belong to an outer pid namespace.
func OuterSelf() (int, error) {
	s, err := os.Readlink("/proc/self")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(s)
}

// ScanOuter is like Scan for a /proc that belongs to an outer pid namespace. self is the pid of init there, as
// OuterSelf returns it. The pids of the list are those in the namespace of init, so that they can be used for signals.
func ScanOuter(self int) (List, error) {
	of, ok := readNamespaced(self)
	if !ok {
		return nil, fmt.Errorf("/proc does not show process %d, the init of the sandbox", self)
	}
	depth := len(of.pid)
	list, err := Scan(self)
	if err != nil {
		return nil, err
	}
	own := map[int]int{self: 1}
	kept := list[:0]
	for _, p := range list {
		ids, ok := readNamespaced(p.PID)
		if !ok || len(ids.pid) < depth || len(ids.pgrp) < depth || len(ids.session) < depth {
			continue // it has ended
		}
		if ids.pid[depth-1] <= 0 {
			continue // it was reaped meanwhile: see readStat
		}
		p.inProc = p.PID
		p.PID, p.pgrp, p.session = ids.pid[depth-1], ids.pgrp[depth-1], ids.session[depth-1]
		own[p.inProc] = p.PID
		kept = append(kept, p)
	}
	for i := range kept {
		kept[i].ppid = own[kept[i].ppid]
	}
	return kept, nil
}

// namespaced are the ids of a process in its pid namespaces, outermost first (proc_pid_status(5)).
type namespaced struct{ pid, pgrp, session []int }

// readNamespaced returns the ids of a process in /proc; false if it has ended.
func readNamespaced(pid int) (ids namespaced, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return ids, false
	}
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		switch string(key) {
		case "NSpid":
			ids.pid = numbers(value)
		case "NSpgid":
			ids.pgrp = numbers(value)
		case "NSsid":
			ids.session = numbers(value)
		}
	}
	return ids, len(ids.pid) > 0
}

func numbers(b []byte) (all []int) {
	for _, f := range bytes.Fields(b) {
		n, err := strconv.Atoi(string(f))
		if err != nil {
			return nil
		}
		all = append(all, n)
	}
	return all
}
