//go:build linux && (amd64 || arm64)

package guest

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
)

// What is kept of the programs of one interval. The bytes are such that the list
// fits into a frame of the keeper (wire.MaxFrame) even where JSON needs six for
// one.
const (
	maxPrograms     = 256
	maxDetails      = 64 // programs in the list above which no detail is added
	maxProgramBytes = 128 << 10
	// maxKnown bounds how many processes are remembered, to find out who was
	// started by whom.
	maxKnown = 4096
	// maxUp is how many processes up a program's origin is looked for.
	maxUp = 16
)

// programs notes the programs that are started, from one freeze to the next. A
// program that was started below another one of the same interval is a detail of
// it: when room is short, details go first. A nil one notes nothing.
type programs struct {
	mu    sync.Mutex
	list  []wire.Program // guarded by mu; oldest first
	bytes int            // guarded by mu; of list
	above map[int]int    // guarded by mu; processes to the nearest program at or above them, 0: none
}

func newPrograms() *programs { return &programs{above: map[int]int{}} }

// add is notify.Options.Began.
func (p *programs) add(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.above) >= maxKnown {
		p.forget()
	}
	parent, ok := p.origin(pid)
	if !ok {
		return
	}
	p.above[pid] = pid
	if parent != 0 && (p.full() || len(p.list) >= maxDetails) {
		if parent != pid {
			p.list[len(p.list)-1].Unlisted++
		}
		return
	}
	n := wire.Program{PID: pid, Parent: parent, Args: arguments(pid), Started: time.Now()}
	if parent == 0 {
		n.Dir, _ = os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	}
	for len(p.list) > 0 && p.full() {
		p.drop()
	}
	p.list = append(p.list, n)
	p.bytes += size(n)
}

func (p *programs) full() bool { return len(p.list) >= maxPrograms || p.bytes >= maxProgramBytes }

// drop takes the oldest detail out of the list, or, when there is none, the
// oldest program. Its neighbour stands for it.
func (p *programs) drop() {
	i := max(0, slices.IndexFunc(p.list, func(n wire.Program) bool { return n.Parent != 0 }))
	gone := p.list[i]
	p.bytes -= size(gone)
	p.list = slices.Delete(p.list, i, i+1)
	if len(p.list) > 0 {
		p.list[max(0, i-1)].Unlisted += 1 + gone.Unlisted
	}
}

// size is about how much of a frame a program takes, if each byte takes one.
func size(n wire.Program) int {
	bytes := 32 + len(n.Dir)
	for _, a := range n.Args {
		bytes += len(a) + 1
	}
	return bytes
}

// origin finds the nearest program of this interval at or above a process. A
// thread that is not its process's first has none: it is not the beginning of a
// program.
func (p *programs) origin(pid int) (found int, ok bool) {
	if found, known := p.above[pid]; known {
		return found, true
	}
	way := make([]int, 0, maxUp)
	for known := false; len(way) < maxUp && pid > 1 && !known; {
		up, ok := parent(pid)
		if !ok {
			if len(way) == 0 {
				return 0, false
			}
			break
		}
		way = append(way, pid)
		pid = up
		found, known = p.above[pid]
	}
	for _, w := range way {
		p.above[w] = found
	}
	return found, true
}

// pidfdInfo is struct pidfd_info (linux/pidfd.h, Linux 6.13).
type pidfdInfo struct {
	mask, cgroup    uint64
	pid, tgid, ppid uint32
	_               [9]uint32
}

const pidfdGetInfo = 0xc040ff0b // _IOWR(0xff, 11, struct pidfd_info)

// parent gives the process that pid is a child of; not of a thread. It asks a
// descriptor, which costs a tenth of what a file of /proc does.
func parent(pid int) (int, bool) {
	// None of these calls blocks, so the Go scheduler need not be told of them.
	fd, _, e := unix.RawSyscall(unix.SYS_PIDFD_OPEN, uintptr(pid), 0, 0)
	if e != 0 {
		return 0, false
	}
	var info pidfdInfo
	_, _, e = unix.RawSyscall(unix.SYS_IOCTL, fd, pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	if e == 0 {
		return int(info.ppid), true
	}
	st, ok := readStat("/proc/" + strconv.Itoa(pid) + "/stat")
	return st.ppid, ok
}

// What is kept of a program's arguments, and the word that stands for the rest.
const (
	maxArgs     = 64
	maxArgBytes = 4 << 10
	cutMark     = "..."
)

// arguments reads those of a process.
func arguments(pid int) []string {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/cmdline", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var buf [maxArgBytes]byte
	n := 0
	for n < len(buf) { // a read ends with a page of the program's
		m, err := unix.Read(fd, buf[n:])
		if err != nil || m <= 0 {
			break
		}
		n += m
	}
	text, whole := strings.CutSuffix(string(buf[:n]), "\x00")
	if n == 0 {
		return nil
	}
	args := strings.SplitN(text, "\x00", maxArgs+1)
	switch {
	case len(args) > maxArgs:
		args[maxArgs] = cutMark
	case !whole || n == len(buf):
		args[len(args)-1] += cutMark
	}
	return args
}

// forget drops the processes that have ended, and all if that does not help.
func (p *programs) forget() {
	for pid := range p.above {
		if unix.Kill(pid, 0) == unix.ESRCH {
			delete(p.above, pid)
		}
	}
	if len(p.above) > maxKnown/2 {
		clear(p.above)
	}
}

// take gives what was noted and begins anew.
func (p *programs) take() []wire.Program {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.list
	p.list, p.bytes, p.above = nil, 0, map[int]int{}
	return list
}
