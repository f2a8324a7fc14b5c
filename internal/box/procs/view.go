//go:build linux && (amd64 || arm64)

package procs

import (
	"errors"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
)

// View is init's view of the processes of its sandbox. Its methods may be called from several goroutines, except for
// Processes, which only one goroutine at a time may call.
type View struct {
	self   int  // the pid of init if it is not PID 1
	ownNet bool // whether the network namespace is the sandbox's own
	blind  bool // whether /proc lacks the sandbox's processes
	net    Network
	args   *argReader
}

// Network has the listening TCP sockets of a sandbox that are none to the kernel.
type Network interface {
	// Listening calls each for each listening socket, perhaps also for one that no process has open any more.
	Listening(each func(at netip.AddrPort, inode uint64))
	// Dial is View.Dial. It returns Timeout instead of a socket whose connection would have to wait.
	Dial(port uint16) (int, error)
}

// NewView returns the view of a sandbox whose processes are the descendants of process self, or all others in /proc if
// self is 0. ownNet says that the sandbox has its own network namespace, and blind that /proc does not show its
// processes. A net that is not nil takes the place of the kernel's network. NewView starts a goroutine that runs until
// this process ends.
func NewView(self int, ownNet, blind bool, net Network) *View {
	return &View{self: self, ownNet: ownNet, blind: blind, net: net, args: newArgReader()}
}

// SharesNet reports whether the sandbox shares the network of the host.
func (v *View) SharesNet() bool { return !v.ownNet && v.net == nil }

// Signal sends a signal to one process of the sandbox, as l specifies. The pidfd refers to the process that had the pid
// when it was opened. While that process exists, whatever /proc shows for the pid is about it.
func (v *View) Signal(l initlink.Look) error {
	if l.PID <= 1 || l.PID == v.self {
		return fault.New(fault.Denied, "cannot signal process %d: not a process of the sandbox, or its init",
			l.PID).
			WithHint("to stop all processes: coppice stop NAME")
	}
	none := fault.New(fault.NotFound, "process %d not found in the sandbox", l.PID).
		WithHint("list them: coppice process ls NAME")
	fd, err := unix.PidfdOpen(l.PID, 0)
	// pidfd_open(2) returns EINVAL or ENOENT for a thread.
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return none
	}
	if err != nil {
		return fault.Wrap(err, "find process %d", l.PID)
	}
	defer unix.Close(fd)
	if v.blind && l.Start != 0 {
		return v.blindness()
	}
	if !v.blind { // if blind, pidfd_open has found only processes of this pid namespace
		p, ok := readStat("/proc/" + strconv.Itoa(l.PID) + "/stat")
		if !ok || unix.PidfdSendSignal(fd, 0, nil, 0) != nil {
			return none
		}
		if l.Start != 0 && p.start != l.Start {
			return fault.New(fault.NotFound, "process %d has exited, and its number belongs to another process", l.PID).
				WithHint("list them again: coppice process ls NAME")
		}
		if v.self != 0 && !v.ours(p) {
			return none
		}
		if p.Dead() {
			return fault.New(fault.NotFound, "process %d has exited, and waits for its parent", l.PID).
				WithHint("list them: coppice process ls NAME")
		}
	}
	err = unix.PidfdSendSignal(fd, syscall.Signal(l.Signal), nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return none
	}
	return fault.Wrap(err, "signal process %d", l.PID)
}

// maxDepth bounds the search for an ancestor. Parents that change during the search can look like a cycle.
const maxDepth = 4096

// ours reports whether a process descends from init. Orphans become children of init, so each
// descendant has a chain of parents up to it.
func (v *View) ours(p Stat) bool {
	for range maxDepth {
		switch {
		case p.ppid == v.self:
			return true
		case p.ppid <= 1:
			return false
		}
		var ok bool
		if p, ok = readStat("/proc/" + strconv.Itoa(p.ppid) + "/stat"); !ok {
			return false
		}
	}
	return false
}

func (v *View) blindness() error {
	return fault.New(fault.Unsupported,
		"cannot see the sandbox's processes: parts of the host's /proc are masked, so it is visible inside").
		WithHint("start coppice in a container whose /proc is not masked; see what this host allows: coppice system probe")
}
