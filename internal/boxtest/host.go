//go:build linux && (amd64 || arm64)

package boxtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// hostProcess is a process of a box as seen on the host.
type hostProcess struct {
	pid, parent int
	start       string
	ticks       int // processor time, including that of reaped children
}

type hostProcesses []hostProcess

// hostAll lists all processes of the host.
func hostAll(t testing.TB) (all hostProcesses) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err != nil {
			continue // it has exited
		}
		f := strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
		p := hostProcess{pid: atoi(filepath.Base(filepath.Dir(name))), parent: atoi(f[1]), start: f[19]}
		for _, n := range f[11:15] {
			p.ticks += atoi(n)
		}
		all = append(all, p)
	}
	return all
}

// below lists the descendants of the box's keeper.
func (b *Box) below(t testing.TB) (in hostProcesses) {
	t.Helper()
	st, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, above := hostAll(t), []int{st.PID}
	for len(above) > 0 {
		var next []int
		for _, p := range all {
			if slices.Contains(above, p.parent) {
				in, next = append(in, p), append(next, p.pid)
			}
		}
		above = next
	}
	return in
}

// left returns those that still exist.
func (l hostProcesses) left(t testing.TB) (still hostProcesses) {
	t.Helper()
	now := hostAll(t)
	for _, p := range l {
		if slices.ContainsFunc(now, func(q hostProcess) bool { return q.pid == p.pid && q.start == p.start }) {
			still = append(still, p)
		}
	}
	return still
}

// seconds returns the sum of their processor time.
func (l hostProcesses) seconds() (s float64) {
	for _, p := range l {
		s += float64(p.ticks) / 100 // USER_HZ
	}
	return s
}
