//go:build linux && (amd64 || arm64)

package box_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
)

// pidsGroup makes a control group with a limit of tasks, as containers have one, and removes it when the test ends.
func pidsGroup(t *testing.T) (dir string) {
	t.Helper()
	for _, parent := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir = filepath.Join(parent, "coppice-test-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, "pids.max")); err == nil {
			t.Cleanup(func() {
				if err := os.Remove(dir); err != nil {
					t.Error(err)
				}
			})
			return dir
		}
		_ = os.Remove(dir)
	}
	t.Skip("needs pids-cgroup: to limit the tasks of a sandbox and its monitor")
	return ""
}

// inGroup returns the processes of a control group, or the number in another file of it.
func inGroup(t *testing.T, dir, name string) []int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for f := range bytes.FieldsSeq(text) {
		n, err := strconv.Atoi(string(f))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// TestLocked_EndsAtLimitOfContainer uses up the tasks of a container, in which the monitor is too, and checks that the
// sandbox has ended only if no process is left.
func TestLocked_EndsAtLimitOfContainer(t *testing.T) { //nolint:paralleltest // may leave processes without a monitor
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: to make system calls")
	}
	group := pidsGroup(t)
	b := (boxtest.Tier{Config: locked}).Start(t)
	keeper, init := monitors(t, b)
	for _, pid := range []int{keeper, init} {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			left := inGroup(t, group, "cgroup.procs")
			if len(left) == 0 {
				return
			}
			for _, pid := range left {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
	most := inGroup(t, group, "pids.current")[0] + 20
	if err := os.WriteFile(filepath.Join(group, "pids.max"), []byte(strconv.Itoa(most)), 0); err != nil {
		t.Fatal(err)
	}
	full := b.Open(t, wire.ExecRequest{Cmd: []string{"python3", "-c", `
import os, time
for i in range(40): # more than the limit
    try: child = os.fork()
    except BlockingIOError: print('no more', flush=True); break
    if child == 0: os.closerange(0, 3); time.sleep(1000)
time.sleep(1000)`}})
	boxtest.WaitOutput(t, full, "no more")
	var asking sync.WaitGroup
	for range 100 { // which needs more threads, if the monitor has none left
		asking.Go(func() {
			if s, err := b.Exec(t.Context(), wire.ExecRequest{Cmd: []string{"true"}}); err == nil {
				_, _, _ = wire.ReadFrame(s, nil)
				s.Close()
			}
		})
		asking.Go(func() { _, _ = b.Procs(t.Context()) })
		asking.Go(func() { _, _ = b.Status(t.Context()) })
	}
	asking.Wait()
	err := b.Stop(t.Context(), 0)
	if err == nil {
		<-b.Gone()
	}
	left := inGroup(t, group, "cgroup.procs")
	switch {
	case err == nil && len(left) > 0:
		t.Errorf("stopped, and %d processes are left", len(left))
	case err != nil && (len(left) == 0 || !fault.Is(err, fault.Conflict)):
		t.Errorf("%d processes are left: %v", len(left), err)
	}
	t.Logf("stop: %v", err)
}

// monitors returns the pids of the keeper and the init of a workspace.
func monitors(t *testing.T, b *boxtest.Box) (keeper, init int) {
	t.Helper()
	init, err := strconv.Atoi(strings.TrimSpace(b.Sh(t, "echo $PPID").Stdout))
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", init))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	keeper, err = strconv.Atoi(strings.Fields(after)[1])
	if err != nil {
		t.Fatal(err)
	}
	return keeper, init
}
