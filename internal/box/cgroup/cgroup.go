//go:build linux && (amd64 || arm64)

// Package cgroup puts a sandbox into control groups, which freeze it and enforce its limits: of version 2 if one is
// delegated, otherwise of version 1.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/mounttable"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Group is the box's own control group (version 2), which contains init and all other processes of the box. It is below
// the daemon's own group if that was delegated, or at the top for real root. A nil Group does nothing.
type Group struct {
	path  string
	FD    int              // descriptor of the directory, for clone3(2)
	Facts plan.CgroupFacts // controllers that the group offers

	mu   sync.Mutex
	stat int  // descriptor of cpu.stat, once it was read; guarded by mu
	gone bool // the group was removed; guarded by mu
}

// New creates the group. It returns nil if none is delegated to the caller. Any other failure is an error, so that no
// limit is dropped silently.
func New(c plan.Config) (_ *Group, err error) {
	if c.NoCgroup {
		return nil, nil
	}
	parent, err := cgroupParent(c.Caller.Root)
	if err != nil || parent == "" {
		return nil, err
	}
	g := &Group{path: ownPath(parent, c)}
	if made, err := makeOwnGroup(g.path, c); err != nil || !made {
		return nil, fault.Wrap(err, "create the control group of the sandbox")
	}
	if g.FD, err = unix.Open(g.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		_ = os.Remove(g.path)
		return nil, fault.Wrap(err, "open the control group of the sandbox")
	}
	g.Facts.Freeze = true
	if err := g.limit(c); err != nil {
		g.Remove()
		return nil, err
	}
	return g, nil
}

// ownPath returns the path of a box's group below parent.
func ownPath(parent string, c plan.Config) string {
	return filepath.Join(parent, groupPrefix+c.ID+"-"+strconv.Itoa(os.Getpid()))
}

// makeOwnGroup creates a group at an ownPath, and reports like delegated whether it could. An empty group of that name
// is left from a killed keeper with the same pid.
func makeOwnGroup(path string, c plan.Config) (made bool, err error) {
	if err := list(c.RunDir, path); err != nil {
		return false, err
	}
	err = os.Mkdir(path, 0o755)
	if errors.Is(err, os.ErrExist) && os.Remove(path) == nil {
		err = os.Mkdir(path, 0o755)
	}
	return delegated(err)
}

// limit writes the limits of the group, and records which of them its controllers enforce.
func (g *Group) limit(c plan.Config) (err error) {
	if n := c.Limits.Memory; n > 0 {
		if g.Facts.Memory, err = g.set("memory.max", strconv.FormatInt(n, 10)); err != nil {
			return err
		}
		for _, name := range []string{"memory.swap.max", "memory.oom.group"} {
			if _, err := g.set(name, "0"); err != nil {
				return err
			}
		}
	}
	if n := c.Limits.Pids; n > 0 && c.Tier != plan.TierGvisor { // gVisor's kernel has its own tasks, more or fewer
		if g.Facts.Pids, err = g.set("pids.max", strconv.FormatInt(n+plan.OwnTasks, 10)); err != nil {
			return err
		}
	}
	if n := c.Limits.MilliCPUs; n > 0 {
		quota, period := bandwidth(n)
		g.Facts.CPU, err = g.set("cpu.max", quota+" "+period)
	}
	return err
}

// set writes to a file of the group. It returns false if the group lacks the controller.
func (g *Group) set(name, value string) (bool, error) {
	done, err := delegated(g.write(name, value))
	return done, fault.Wrap(err, "limit the control group of the sandbox")
}

// Take moves a process into the group; its future children start there.
func (g *Group) Take(pid int) error {
	return fault.Wrap(g.write("cgroup.procs", strconv.Itoa(pid)), "move the sandbox into its control group")
}

// delegated classifies the error of an access to a file of a control group. It reports false if the caller
// may not use the group or controller; it returns any other error.
func delegated(err error) (bool, error) {
	for _, not := range []unix.Errno{unix.ENOENT, unix.EACCES, unix.EPERM, unix.EROFS, unix.EBUSY, unix.EINVAL,
		unix.EOPNOTSUPP, unix.ENODEV} {
		if errors.Is(err, not) {
			return false, nil
		}
	}
	return err == nil, err
}

// groupMount returns where control groups are mounted: the last mount of a type ("cgroup2", or "cgroup" of
// version 1) that has an option, which for version 1 is its controller. It returns "" if there is none.
func groupMount(kind, option string) (mount string, err error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fault.Wrap(err, "find the control groups")
	}
	defer f.Close()
	mount, err = findGroups(f, kind, option)
	return mount, fault.Wrap(err, "find the control groups")
}

// findGroups is groupMount for the text of mountinfo.
func findGroups(r io.Reader, kind, option string) (mount string, err error) {
	groups, err := mounttable.Parse(r, mountinfo.FSTypeFilter(kind))
	for _, m := range groups {
		if slices.Contains(strings.Split(m.VFSOptions, ","), option) {
			mount = m.Mountpoint
		}
	}
	return mount, err
}

// cgroupParent finds the directory in which groups can be created, and delegates the controllers to it as far as the
// kernel permits. It returns "" if the caller may use none.
func cgroupParent(root bool) (string, error) {
	mount, err := groupMount("cgroup2", "rw")
	if err != nil || mount == "" {
		return "", err
	}
	if !root {
		own, err := ownGroup("")
		if err != nil || own == "" {
			return "", err
		}
		return filepath.Join(mount, own), nil
	}
	dir := filepath.Join(mount, "coppice")
	if made, err := makeGroup(dir); err != nil || !made {
		return "", err
	}
	for _, d := range []string{mount, dir} {
		for _, controller := range []string{"+memory", "+pids", "+cpu"} {
			if _, err := delegated(os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte(controller), 0)); err != nil {
				return "", fault.Wrap(err, "delegate the controller %s", controller[1:])
			}
		}
	}
	return dir, nil
}

// makeGroup creates a control group unless it exists. It returns false if none can be created there.
func makeGroup(dir string) (bool, error) {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrExist) {
		return true, nil
	}
	made, err := delegated(err)
	return made, fault.Wrap(err, "create a control group")
}

// ownGroup returns the group of this process, relative to the mount of a controller of version 1, or of version 2 for
// "". It returns "" if there is none.
func ownGroup(controller string) (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fault.Wrap(err, "find the daemon's control group")
	}
	for line := range strings.Lines(string(b)) {
		// 4:memory:/user.slice
		// 0::/user.slice
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 &&
			slices.Contains(strings.Split(f[1], ","), controller) {
			return f[2], nil
		}
	}
	return "", nil
}

// Hits counts how often a group has reached its limits.
type Hits struct{ memory, pids int64 }

// Hits returns the counts of the group; a count that cannot be read is 0.
func (g *Group) Hits() (h Hits) {
	if g == nil {
		return h
	}
	if g.Facts.Memory {
		h.memory = count(filepath.Join(g.path, "memory.events"), "oom_kill")
	}
	if g.Facts.Pids {
		h.pids = count(filepath.Join(g.path, "pids.events"), "max")
	}
	return h
}

// Since returns the names of the limits that were reached after before.
func (h Hits) Since(before Hits) (names []string) {
	if h.memory > before.memory {
		names = append(names, wire.LimitMemory)
	}
	if h.pids > before.pids {
		names = append(names, wire.LimitPids)
	}
	return names
}

// Plus returns the sum of h and o.
func (h Hits) Plus(o Hits) Hits { return Hits{h.memory + o.memory, h.pids + o.pids} }

// count reads one value from a file of counters. It returns 0 if there is none.
func count(file, key string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

func (g *Group) write(name, value string) error {
	return os.WriteFile(filepath.Join(g.path, name), []byte(value), 0)
}

// Remove removes the group, whose processes have exited or are exiting.
func (g *Group) Remove() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return
	}
	removeOwn(g.path)
	unix.Close(g.FD)
	if g.stat != 0 {
		unix.Close(g.stat)
		g.stat = 0
	}
	g.gone = true
}

// removeOwn removes a control group whose processes have exited or are exiting.
func removeOwn(path string) {
	if err := removeGroup(path, 50*time.Millisecond); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper: could not remove the control group:", err)
	}
}

// cgroupPatience bounds the wait for the group to freeze.
const cgroupPatience = 10 * time.Second

// Freeze freezes all processes of the group.
func (g *Group) Freeze() error {
	if err := g.write("cgroup.freeze", "1"); err != nil {
		return fault.Wrap(err, "freeze the control group")
	}
	start := time.Now()
	for wait := 10 * time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(g.path, "cgroup.events"))
		if err != nil {
			return fault.Wrap(err, "freeze the control group")
		}
		if bytes.Contains(b, []byte("frozen 1")) || wait == time.Millisecond && g.Frozen() {
			return nil
		}
		if time.Since(start) > cgroupPatience {
			_ = g.Thaw()
			return fault.New(fault.Timeout, "the sandbox's processes cannot be frozen").
				WithHint("one is blocked in the kernel, perhaps on a network file system; see: coppice exec NAME -- ps -eo " +
					"pid,stat,wchan,args")
		}
		time.Sleep(wait)
	}
}

// Frozen reports whether every task is frozen, or waits for init, which is frozen. The kernel does not count the latter
// as frozen.
func (g *Group) Frozen() bool {
	b, err := os.ReadFile(filepath.Join(g.path, "cgroup.threads"))
	if err != nil {
		return false
	}
	for tid := range strings.FieldsSeq(string(b)) {
		if !procs.Held(tid) {
			return false
		}
	}
	return true
}

// Thaw thaws the processes of the group.
func (g *Group) Thaw() error {
	return fault.Wrap(g.write("cgroup.freeze", "0"), "thaw the control group")
}

// PIDs returns the pids of the processes of the group.
func (g *Group) PIDs() ([]int, error) {
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

// Usage returns the processor time of the group so far, in microseconds. cpu.stat exists without any controller
// (cgroup-v2.rst). It is read often, so the file stays open.
func (g *Group) Usage() (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return 0, fault.New(fault.Unavailable, "the control group no longer exists")
	}
	if g.stat == 0 {
		fd, err := unix.Openat(g.FD, "cpu.stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, fault.Wrap(err, "read the control group's time")
		}
		g.stat = fd
	}
	var b [64]byte
	k, err := unix.Pread(g.stat, b[:], 0)
	if err != nil {
		return 0, fault.Wrap(err, "read the control group's time")
	}
	word, _, _ := bytes.Cut(bytes.TrimPrefix(b[:k], []byte("usage_usec ")), []byte("\n"))
	n, err := strconv.ParseUint(string(word), 10, 64)
	return n, fault.Wrap(err, "read the control group's time")
}
