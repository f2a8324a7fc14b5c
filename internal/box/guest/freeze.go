//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/notify"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// freezePatience bounds the wait for processes to stop. A process that waits for a dead network file system cannot be
// stopped.
const freezePatience = 10 * time.Second

// resend is how often processes that do not stop are sent SIGSTOP again: until their own turn comes, others can
// continue them (SIGCONT).
const resend = 2 * time.Millisecond

// freezer freezes every process. Its methods are called with the turns held for writing.
//
// BUG(signals): without a control group, freezing uses SIGSTOP and SIGCONT. A timer that sends SIGCONT to its own
// process (timer_create(2)) continues it. hold notices that, so that no snapshot is taken meanwhile, but a hostile
// program can write during an in-place rewind. A process with a handler for SIGCONT runs it at thaw, and a process that
// is traced by another inside shows the stop to its tracer. Parents are stopped before their children and continued
// after them, so that no shell sees a stopped child.
type freezer struct {
	scan    func() (procs.List, error) // lists the processes
	stopAll func() bool                // stops all processes at once, and reports whether it can
	pid1    bool
	blind   bool // /proc belongs to an outer pid namespace
	outside bool // the keeper freezes the control group for captures

	stopped []int          // pids that the freezer stopped, parents first; guarded by the turns
	marks   map[int]uint64 // List.Switches of the stopped processes; guarded by the turns
}

// forPromotion is notify.Options.Freeze.
func (f *freezer) forPromotion() (thaw func(), err error) {
	if _, err := f.stop(); err != nil {
		f.thaw()
		return nil, err
	}
	return f.thaw, nil
}

// freeze stops every process for a capture. Unless it fails, thaw must follow.
func (f *freezer) freeze(childless bool) (initlink.Frozen, error) {
	if f.outside {
		return initlink.Frozen{}, nil // init has completed what it began
	}
	var list procs.List
	f.marks = nil
	if !childless {
		var err error
		if list, err = f.stop(); err != nil {
			f.thaw()
			return initlink.Frozen{}, err
		}
	}
	return initlink.Frozen{Procs: len(list), Written: f.written(list)}, nil
}

// hold reports whether a process has run since the last call of freeze or hold, as one does that a timer continues.
// Then it stops all processes again. A process that has stopped again is noticed, except in the instant in which the
// kernel has marked it as stopped and has not taken the processor from it yet.
func (f *freezer) hold() (h initlink.Held, err error) {
	list, err := f.scan()
	if err != nil {
		return h, fault.Wrap(err, "list the sandbox's processes")
	}
	list = slices.DeleteFunc(list, procs.Stat.Dead)
	moves := func(p procs.Stat) bool { return !p.Halted() }
	if slices.ContainsFunc(list, moves) || !maps.Equal(list.Switches(), f.marks) {
		h.Ran = true
		if list, err = f.stop(); err != nil {
			return h, err
		}
	}
	h.Procs, h.Written = len(list), f.written(list)
	return h, nil
}

// written returns the files that the frozen processes of list can write through mappings.
func (f *freezer) written(list procs.List) initlink.Mapped {
	if !f.pid1 {
		return procs.WrittenBy(list.InProc(), nil, true) // paths and inodes are those of the host
	}
	return procs.WrittenBy(list.InProc(), rootspec.Reserved, false)
}

// mapped returns the files that all processes have mapped. The processes are frozen.
func (f *freezer) mapped() initlink.Mapped {
	list, err := f.scan()
	if err != nil {
		return initlink.Mapped{All: true}
	}
	return procs.MappedBy(list.InProc())
}

// thaw ends a freeze.
func (f *freezer) thaw() {
	for _, pid := range slices.Backward(f.stopped) {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
	f.stopped, f.marks = nil, nil
}

// calmScans is how many scans in a row must find no new and no running process if others of the host start processes
// meanwhile, so that it cannot be determined that the sandbox started none. No process may have run between them.
const calmScans = 2

// stop stops every process, parents first, and sets marks. It returns when a scan has found no new and no running
// process, and no process can have been created during that scan. If that cannot be determined, it returns after
// calmScans such scans in a row, before each of which it stopped what the scan may miss: a process that starts another
// and exits, over and over, is in no list for long.
func (f *freezer) stop() (procs.List, error) {
	start := time.Now()
	seen := map[int]bool{} // stopped by the freezer, or found stopped
	swept := false
	for calm, round := 0, 0; ; round++ {
		// Not in the first scan, which stops parents before their children.
		if round > 0 && f.stopAll() {
			swept = true
		}
		made := f.lastPID()
		list, err := f.scan()
		if err != nil {
			return nil, fault.Wrap(err, "list the sandbox's processes")
		}
		list = slices.DeleteFunc(list, procs.Stat.Dead)
		quiet := true
		for _, level := range list.ByDepth() {
			var moving procs.List
			for _, p := range level {
				if seen[p.PID] && p.Halted() {
					continue
				}
				quiet = false
				if !seen[p.PID] && p.Stopped() && !swept {
					seen[p.PID] = true // stopped by another process
					continue
				}
				// Held processes too: they stop as soon as they are released.
				if !slices.Contains(f.stopped, p.PID) {
					f.stopped = append(f.stopped, p.PID)
				}
				seen[p.PID] = true
				if err := f.halt(p.PID); err != nil {
					return nil, fault.Wrap(err, "stop process %d", p.PID)
				}
				moving = append(moving, p)
			}
			sent := time.Now()
			for wait := 10 * time.Microsecond; ; wait = min(2*wait, 500*time.Microsecond) {
				moving = slices.DeleteFunc(moving, procs.Stat.HaltedOrGone)
				if len(moving) == 0 {
					break
				}
				if time.Since(start) > freezePatience {
					return nil, fault.New(fault.Timeout, "%d processes do not stop, such as %s", len(moving),
						describe(moving[:1])).
						WithHint("it is blocked in the kernel, perhaps on a network file system; see: coppice exec NAME -- ps -eo " +
							"pid,stat,wchan,args")
				}
				time.Sleep(wait)
				if time.Since(sent) < resend {
					continue
				}
				sent = time.Now()
				for _, p := range moving {
					if err := f.halt(p.PID); err != nil {
						return nil, fault.Wrap(err, "stop process %d", p.PID)
					}
				}
			}
		}
		if quiet {
			before := f.marks
			f.marks = list.Switches()
			if calm++; calm >= calmScans && maps.Equal(f.marks, before) || made != "" && made == f.lastPID() {
				return list, nil
			}
		} else {
			calm = 0
		}
		if time.Since(start) > freezePatience {
			return nil, fault.New(fault.Timeout, "processes start or continue faster than they can be stopped").
				WithHint("stop the sandbox: coppice stop NAME")
		}
	}
}

// halt stops a process. Where /proc does not show the threads by their ids here, no call waits for an answer of init.
func (f *freezer) halt(pid int) error {
	if !f.blind {
		return notify.Halt(pid)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// lastPID returns the process id that was last allocated in this pid namespace. It changes with every process and
// thread that is created, in tier workspace with those of the host too. It is "" if it is not known.
func (f *freezer) lastPID() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return string(b[bytes.LastIndexByte(b, ' ')+1:])
}

// describe names the first process of a list.
func describe(list procs.List) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(list.InProc()[0]) + "/comm")
	return strconv.Itoa(list[0].PID) + " " + strconv.Quote(strings.TrimSpace(string(b)))
}
