//go:build linux && (amd64 || arm64)

package procs

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/mounttable"
)

// origin identifies the processes of a locked workspace, also when its keeper and its init have ended, by properties
// that a process cannot change: each descends from init, was started later than the keeper, has no_new_privs and more
// filters than the keeper (seccomp(2): both are inherited and cannot be removed), and is in init's namespaces, since
// the filters refuse to enter or to make others. The kernel makes an orphan a child of an ancestor that is a
// subreaper, or of PID 1 (prctl(2), PR_SET_CHILD_SUBREAPER; kernel/exit.c, find_new_reaper). So its parents are
// processes of the same workspace, up to one in Above or PID 1.
type origin struct {
	PIDs    string     `json:"pids"`    // the pid namespace
	Spaces  [2]string  `json:"spaces"`  // other namespaces of init: of inNamespaces
	Filters int        `json:"filters"` // number of the keeper's filters; 0 if the kernel does not tell
	Root    bool       `json:"root"`    // processes may have any user
	Init    instance   `json:"init"`
	Above   []instance `json:"above"` // the keeper, and its ancestors when it started

	uid string // the user of the keeper in the user namespace of this process; unused if Root
}

// instance is a process: a pid, and the time of its start in clock ticks since boot.
type instance struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

func (p Stat) instance() instance { return instance{p.PID, p.start} }

// inNamespaces are the files of namespaces that tell processes of a locked workspace from services of the host.
var inNamespaces = [2]string{"user", "mnt"}

// originOf describes the processes that init, a child of this process, will start. root says that they may have other
// users than this process.
func originOf(init int, root bool) (o origin, err error) {
	if o.PIDs, err = os.Readlink("/proc/self/ns/pid"); err != nil {
		return o, fault.Wrap(err, "identify the pid namespace")
	}
	for i, name := range inNamespaces {
		if o.Spaces[i], err = os.Readlink("/proc/" + strconv.Itoa(init) + "/ns/" + name); err != nil {
			return o, fault.Wrap(err, "identify the namespaces of init")
		}
	}
	p, ok := readStat("/proc/" + strconv.Itoa(init) + "/stat")
	self, known := readStat("/proc/self/stat")
	marks, err := marksOf(os.Getpid())
	if !ok || !known || err != nil {
		return o, fault.New(fault.Internal, "cannot read /proc of this process and its child %d", init).Because(err)
	}
	o.Init, o.Root, o.Filters = p.instance(), root, marks.filters
	for q := self; ; {
		o.Above = append(o.Above, q.instance())
		for { // the parent may exit, which gives the process another one
			up, ok := readStat("/proc/" + strconv.Itoa(q.ppid) + "/stat")
			if ok {
				q = up
				break
			}
			again, ok := readStat("/proc/" + strconv.Itoa(q.PID) + "/stat")
			if !ok || again.ppid == q.ppid { // it has exited; or its parent is in another pid namespace, or hidden
				return o, nil
			}
			q = again
		}
	}
}

// marks are what a process cannot get rid of.
type marks struct {
	noNewPrivs, filtered bool
	filters              int    // 0 if the kernel does not tell
	uids                 string // the four user ids, separated by tabs
}

func marksOf(pid int) (m marks, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return m, err
	}
	for line := range bytes.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "NoNewPrivs":
			m.noNewPrivs = value == "1"
		case "Seccomp":
			m.filtered = value == "2"
		case "Seccomp_filters":
			m.filters, _ = strconv.Atoi(value)
		case "Uid":
			m.uids = value
		}
	}
	return m, nil
}

// hasEnded reports whether err is that a process whose file was read has ended.
func hasEnded(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// marked reports whether a process has what every process of the workspace has except init. What this process may not
// read counts as a mark. It returns false if the process has ended.
func (o origin) marked(pid int) bool {
	m, err := marksOf(pid)
	if err != nil {
		return !hasEnded(err)
	}
	if !m.noNewPrivs || !m.filtered || m.filters > 0 && m.filters <= o.Filters {
		return false
	}
	if !o.Root && m.uids != strings.Join([]string{o.uid, o.uid, o.uid, o.uid}, "\t") {
		return false
	}
	for i, name := range inNamespaces {
		space, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/" + name)
		if err == nil && space != o.Spaces[i] { // a process that is about to end has none
			return false
		}
	}
	return true
}

// includes reports whether a process may belong to the workspace. If its keeper has ended, every process that does is
// included; of others, an orphan that looks the same, such as one of another workspace without a keeper.
func (o origin) includes(p Stat) bool {
	if p.Dead() || p.start < o.Above[0].Start {
		return false
	}
	if p.instance() == o.Init {
		return true
	}
	if !o.marked(p.PID) {
		return false
	}
	q := p
	for range maxDepth {
		switch q.ppid {
		case 1:
			return true
		case 0, os.Getpid(): // a process outside the pid namespace; or this process, which is not a subreaper
			return false
		}
		up, ok := readStat("/proc/" + strconv.Itoa(q.ppid) + "/stat")
		if ok && (up.instance() == o.Init || slices.Contains(o.Above, up.instance())) {
			return true
		}
		if ok && o.marked(up.PID) {
			q = up
			continue
		}
		again, alive := readStat("/proc/" + strconv.Itoa(q.PID) + "/stat")
		if ok && alive && again.ppid == up.PID { // it was the parent while its marks were read
			return false
		}
		if q, alive = readStat("/proc/" + strconv.Itoa(p.PID) + "/stat"); !alive { // otherwise from the beginning
			return false
		}
	}
	return true
}

// left lists the processes that may belong to the workspace, whose keeper has ended: some of them, or none if there is
// none. The error is that this cannot be determined.
//
// A process that starts another and exits, over and over, is in no list of /proc for long. But the kernel gives each
// process a higher number than its parent's, until the numbers begin again, and /proc/loadavg has the last one. So
// left looks at the numbers that were given while it looked, until there are none: then each process that existed at
// the beginning had ended when it was looked at, or was found not to belong to the workspace, and started none that
// was not looked at. Two complete lists come first, since a process whose number is below its parent's can be missing
// in the first: it may not be in /proc yet when its number's turn comes, and its parent no longer when the parent's
// does.
func (o origin) left() (found List, err error) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, fault.Wrap(err, "identify the pid namespace")
	}
	if own != o.PIDs {
		return o.visible()
	}
	if err := canSeeAll(); err != nil {
		return nil, err
	}
	for range busyScans {
		last, err := lastGiven()
		if err != nil {
			return nil, err
		}
		for range 2 {
			pids, err := allPIDs()
			if err != nil {
				return nil, fault.Wrap(err, "list the processes")
			}
			if found = o.among(pids); len(found) > 0 {
				return found, nil
			}
		}
		for {
			now, err := lastGiven()
			if err != nil || now == last {
				return nil, err
			}
			if now < last || now-last > mostGiven {
				break
			}
			var pids []int
			for pid := last + 1; pid <= now; pid++ {
				pids = append(pids, pid)
			}
			if found = o.among(pids); len(found) > 0 {
				return found, nil
			}
			last = now
		}
	}
	return nil, fault.New(fault.Conflict, "processes start faster than they can be looked at")
}

// Bounds of left.
const (
	busyScans = 16   // complete scans
	mostGiven = 4096 // numbers that are looked at without a complete scan
)

func (o origin) among(pids []int) (found List) {
	for _, pid := range pids {
		if p, ok := readStat("/proc/" + strconv.Itoa(pid) + "/stat"); ok && o.includes(p) {
			found = append(found, p)
		}
	}
	return found
}

// lastGiven returns the number that was last given to a process or thread in the pid namespace of this process
// (proc_loadavg(5)). Some containers have another file in its place, which is not up to date; in gVisor, it has 0.
func lastGiven() (int, error) {
	f, err := os.Open("/proc/loadavg")
	if err != nil {
		return 0, fault.Wrap(err, "read the last process id")
	}
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return 0, fault.Wrap(err, "inspect /proc/loadavg")
	}
	var buf [128]byte
	n, err := f.Read(buf[:])
	if err != nil {
		return 0, fault.Wrap(err, "read the last process id")
	}
	text := bytes.TrimSpace(buf[:n])
	last, err := strconv.Atoi(string(text[bytes.LastIndexByte(text, ' ')+1:]))
	if err != nil || last <= 0 || fs.Type != unix.PROC_SUPER_MAGIC {
		return 0, fault.New(fault.Conflict, "/proc/loadavg is not the kernel's")
	}
	return last, nil
}

// canSeeAll returns an error unless /proc shows all processes of this process's pid namespace.
func canSeeAll() error {
	if ids, ok := readNamespaced(os.Getpid()); !ok || len(ids.pid) != 1 || ids.pid[0] != os.Getpid() {
		return fault.New(fault.Conflict, "/proc belongs to another pid namespace")
	}
	proc, err := mounttable.List(mountinfo.SingleEntryFilter("/proc"))
	if err != nil {
		return fault.Wrap(err, "examine the mount of /proc")
	}
	for _, m := range proc {
		for option := range strings.SplitSeq(m.VFSOptions, ",") {
			if how, hides := strings.CutPrefix(option, "hidepid="); hides && how != "0" && how != "off" {
				return fault.New(fault.Conflict, "/proc hides processes: it is mounted with %s", option)
			}
		}
	}
	return nil
}

// exitPatience bounds the wait for processes that init has killed, after its own exit.
const exitPatience = 200 * time.Millisecond

// leftWithin waits until no process may be left, and returns what left returns then. It waits up to patience while init
// runs, which may be ending the others.
func (o origin) leftWithin(patience time.Duration) (found List, err error) {
	began := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		found, err = o.left()
		waited := time.Since(began)
		if err != nil || len(found) == 0 || waited > patience || waited > exitPatience && !o.initRuns() {
			return found, err
		}
		time.Sleep(wait)
	}
}

// visible lists the processes in the pid namespace of the workspace, which is not that of this process. A namespace,
// such as that of a container, is visible only from those around it. If it is not, it has ended: a home has one daemon
// at a time, and containers that use a home one after the other do not run at the same time. Its processes have ended
// with it (pid_namespaces(7)).
func (o origin) visible() (found List, err error) {
	pids, err := allPIDs()
	if err != nil {
		return nil, fault.Wrap(err, "list the processes")
	}
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		if space, err := os.Readlink(dir + "/ns/pid"); err != nil || space != o.PIDs {
			continue
		}
		if p, ok := readStat(dir + "/stat"); ok && !p.Dead() {
			found = append(found, p)
		}
	}
	return found, nil
}

func (o origin) initRuns() bool {
	p, ok := readStat("/proc/" + strconv.Itoa(o.Init.PID) + "/stat")
	return ok && p.instance() == o.Init && !p.Dead()
}
