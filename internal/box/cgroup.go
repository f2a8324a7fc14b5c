//go:build linux && (amd64 || arm64)

package box

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
)

// cgroup is the box's own control group (version 2), with init and everything
// else of the box in it. It is made beside the daemon's own where that was
// delegated to us, or by real root at the top. The nil one does nothing.
type cgroup struct {
	path  string
	fd    int // of the directory, for clone3
	facts plan.CgroupFacts
}

// newCgroup makes the group, or gives nil where none can be made.
func newCgroup(c plan.Config) *cgroup {
	if c.NoCgroup {
		return nil
	}
	parent, err := cgroupParent(c.Caller.Root)
	if err != nil {
		return nil
	}
	g := &cgroup{path: filepath.Join(parent, "coppice-"+c.ID+"-"+strconv.Itoa(os.Getpid()))}
	if err := os.Mkdir(g.path, 0o755); err != nil {
		return nil
	}
	if g.fd, err = unix.Open(g.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		_ = os.Remove(g.path)
		return nil
	}
	g.facts.Freeze = true
	if n := c.Limits.Memory; n > 0 {
		g.facts.Memory = g.write("memory.max", strconv.FormatInt(n, 10)) == nil
		_ = g.write("memory.swap.max", "0")
		_ = g.write("memory.oom.group", "0")
	}
	if n := c.Limits.Pids; n > 0 {
		g.facts.Pids = g.write("pids.max", strconv.FormatInt(n+plan.OwnTasks, 10)) == nil
	}
	return g
}

// cgroupParent finds where groups can be made, and hands the controllers down as
// far as the kernel lets us.
func cgroupParent(root bool) (string, error) {
	mount := ""
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		// 41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw
		front, back, _ := strings.Cut(s.Text(), " - ")
		if w := strings.Fields(front); strings.HasPrefix(back, "cgroup2 ") && len(w) > 4 {
			mount = w[4]
		}
	}
	if mount == "" {
		return "", errors.New("no control groups of version 2")
	}
	if root {
		dir := filepath.Join(mount, "coppice")
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
		for _, d := range []string{mount, dir} {
			for _, controller := range []string{"+memory", "+pids"} {
				_ = os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte(controller), 0)
			}
		}
		return dir, nil
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join(mount, own), nil
		}
	}
	return "", errors.New("no control group of version 2")
}

func (g *cgroup) write(name, value string) error {
	return os.WriteFile(filepath.Join(g.path, name), []byte(value), 0)
}

// remove removes the group, whose processes are gone or going.
func (g *cgroup) remove() {
	if g == nil || g.path == "" {
		return
	}
	var err error
	for range 50 {
		if err = os.Remove(g.path); err == nil || errors.Is(err, os.ErrNotExist) {
			err = nil
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper: the control group stays:", err)
	}
	unix.Close(g.fd)
	g.path = ""
}

// cgroupPatience is how long the group is waited for to freeze.
const cgroupPatience = 10 * time.Second

// freeze stops everything in the group.
func (g *cgroup) freeze() error {
	if err := g.write("cgroup.freeze", "1"); err != nil {
		return fault.Wrap(err, "freeze the control group")
	}
	start := time.Now()
	for wait := 10 * time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(g.path, "cgroup.events"))
		if err != nil {
			return fault.Wrap(err, "freeze the control group")
		}
		if bytes.Contains(b, []byte("frozen 1")) || wait == time.Millisecond && g.stands() {
			return nil
		}
		if time.Since(start) > cgroupPatience {
			_ = g.thaw()
			return fault.New(fault.Timeout, "the sandbox's processes do not freeze").
				WithHint("one of them waits for the kernel, perhaps for a network file system; see: coppice exec NAME -- ps -eo pid,stat,wchan,args")
		}
		time.Sleep(wait)
	}
}

// stands reports whether every task is frozen, or waits for init, which is: the
// kernel does not count the latter as frozen.
func (g *cgroup) stands() bool {
	b, err := os.ReadFile(filepath.Join(g.path, "cgroup.threads"))
	if err != nil {
		return false
	}
	for tid := range strings.FieldsSeq(string(b)) {
		if !guest.Held(tid) {
			return false
		}
	}
	return true
}

func (g *cgroup) thaw() error {
	return fault.Wrap(g.write("cgroup.freeze", "0"), "thaw the control group")
}

// pids lists the processes of the group.
func (g *cgroup) pids() ([]int, error) {
	b, err := os.ReadFile(filepath.Join(g.path, "cgroup.procs"))
	if err != nil {
		return nil, fault.Wrap(err, "list the control group")
	}
	var pids []int
	for f := range strings.FieldsSeq(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("list the control group: %w", err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
