//go:build linux && (amd64 || arm64)

package procs

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestScanOuter lists the processes of another pid namespace in the /proc of this one.
func TestScanOuter(t *testing.T) {
	t.Parallel()
	init := exec.CommandContext(t.Context(), "sh", "-c", "sleep 1000 & setsid sh -c 'sleep 1000 & wait' & wait")
	init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	if err := init.Start(); err != nil {
		t.Skip("needs user-namespaces:", err)
	}
	t.Cleanup(func() { _ = init.Process.Kill(); _ = init.Wait() })
	var list List
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var err error
		if list, err = ScanOuter(init.Process.Pid); err != nil {
			t.Fatal(err)
		}
		if len(list) == 3 && list.leaders() == 1 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("%+v, want three processes, one of which leads a session", list)
		}
	}
	slices.SortFunc(list, func(a, b Stat) int { return a.PID - b.PID })
	for i, p := range list {
		if p.PID != i+2 || p.inProc == 0 || p.HaltedOrGone() {
			t.Errorf("%+v, want pid %d", p, i+2)
		}
	}
	if list[0].ppid != 1 || list[2].ppid != list[1].PID || list[2].session != list[1].PID {
		t.Errorf("%+v: the third is the child of the second, and in its session", list)
	}
	if tree := list.Tree(3); !slices.Equal(tree, []int{3, 4}) {
		t.Errorf("tree of 3: %v", tree)
	}
}

// leaders counts the processes that lead a session.
func (l List) leaders() (n int) {
	for _, p := range l {
		if p.session == p.PID {
			n++
		}
	}
	return n
}
