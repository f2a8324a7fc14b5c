//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
)

// onlooker answers looks beside serve, which never waits for it: there may be many
// processes to look at, and the memory of some may answer slowly or never. Lists of
// processes, which read that memory, are made apart from ports. Its goroutines end
// with this process.
type onlooker struct {
	link   *initlink.Link
	self   int
	pid1   bool
	ownNet bool // the network namespace is the sandbox's own
	blind  bool // /proc does not show the sandbox's processes

	lists, ports chan initlink.Look
}

// maxLooks is how many looks wait for their turn.
const maxLooks = 64

func (o *onlooker) start(d *daemon) {
	*o = onlooker{
		link: d.link, self: d.self, pid1: d.pid1, ownNet: d.pid1 && d.guest.Loopback, blind: d.pid1 && !d.ownProc,
		lists: make(chan initlink.Look, maxLooks), ports: make(chan initlink.Look, maxLooks),
	}
	go o.serveLists()
	go o.servePorts()
}

// look passes a Look on to who answers it.
func (d *daemon) look(m initlink.Message) error {
	defer m.Close()
	var l initlink.Look
	if err := m.Obey(&l); err != nil {
		_ = m.Decode(&l) // who asks
		return d.link.Send(initlink.MsgSeen, initlink.Seen{ID: l.ID, Err: initlink.WireError(err)})
	}
	queue := d.onlooker.ports
	switch l.What {
	case initlink.LookSignal:
		if d.frozen { // what it ends or begins would be half of a snapshot
			d.waiting = append(d.waiting, m)
			return nil
		}
		return d.link.Send(initlink.MsgSeen, initlink.Seen{ID: l.ID, Err: initlink.WireError(d.onlooker.signal(l))})
	case initlink.LookProcesses:
		queue = d.onlooker.lists
	case initlink.LookPorts, initlink.LookDial:
	default:
		return d.link.Send(initlink.MsgSeen, initlink.Seen{ID: l.ID, Err: initlink.WireError(initlink.Older("cannot look at %q", l.What))})
	}
	select {
	case queue <- l:
		return nil
	default:
		return d.link.Send(initlink.MsgSeen, initlink.Seen{ID: l.ID, Err: initlink.WireError(fault.New(fault.Conflict, "the sandbox's processes are looked at already, %d times", maxLooks).
			WithHint("try again"))})
	}
}

// serveLists answers LookProcesses.
func (o *onlooker) serveLists() {
	r := newArgReader()
	for l := range o.lists {
		s, err := o.processes(r)
		s.ID, s.Err = l.ID, initlink.WireError(err)
		_ = o.link.Send(initlink.MsgSeen, s) // the keeper is gone; so are we in a moment
	}
}

// servePorts answers LookPorts and LookDial.
func (o *onlooker) servePorts() {
	for l := range o.ports {
		if l.What == initlink.LookDial {
			o.answerDial(l)
			continue
		}
		s, err := o.listPorts(l.Port)
		s.ID, s.Err = l.ID, initlink.WireError(err)
		_ = o.link.Send(initlink.MsgSeen, s) // the keeper is gone; so are we in a moment
	}
}

func (o *onlooker) answerDial(l initlink.Look) {
	fd, err := o.dial(l.Port)
	s := initlink.Seen{ID: l.ID, Err: initlink.WireError(err), Shared: !o.ownNet}
	if err != nil {
		_ = o.link.Send(initlink.MsgSeen, s) // the keeper is gone; so are we in a moment
		return
	}
	defer unix.Close(fd)
	if err := o.link.Send(initlink.MsgSeen, s, fd); initlink.NotPassed(err) {
		s.Err = initlink.WireError(fault.Wrap(err, "hand over a connection to port %d", l.Port))
		_ = o.link.Send(initlink.MsgSeen, s) // the keeper is gone; so are we in a moment
	}
}

// signal sends a signal to one process of the sandbox. The descriptor stands for the
// process that had the pid when it was made: as long as that one is there, what is
// read by the pid is its own.
func (o *onlooker) signal(l initlink.Look) error {
	if l.PID <= 1 || l.PID == o.self {
		return fault.New(fault.Denied, "process %d is not to be signalled: it is none, or it holds the sandbox together", l.PID).
			WithHint("to end all processes: coppice stop NAME")
	}
	none := fault.New(fault.NotFound, "the sandbox has no process %d", l.PID).WithHint("list them with: coppice ps NAME")
	fd, err := unix.PidfdOpen(l.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // EINVAL, ENOENT: a thread
		return none
	}
	if err != nil {
		return fault.Wrap(err, "find process %d", l.PID)
	}
	defer unix.Close(fd)
	if o.blind && l.Start != 0 {
		return o.blindness()
	}
	if !o.blind { // else all that we can name is in our own pid namespace
		p, ok := readStat("/proc/" + strconv.Itoa(l.PID) + "/stat")
		if !ok || unix.PidfdSendSignal(fd, 0, nil, 0) != nil {
			return none
		}
		if l.Start != 0 && p.start != l.Start {
			return fault.New(fault.NotFound, "process %d has ended, and another one has its number now", l.PID).WithHint("list them again with: coppice ps NAME")
		}
		if !o.pid1 && !o.ours(p) {
			return none
		}
		if p.dead() {
			return fault.New(fault.NotFound, "process %d has ended, and waits for its parent", l.PID).WithHint("list them with: coppice ps NAME")
		}
	}
	err = unix.PidfdSendSignal(fd, syscall.Signal(l.Signal), nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return none
	}
	return fault.Wrap(err, "signal process %d", l.PID)
}

// maxDepth is how far up an ancestor is looked for; a circle, of processes that
// moved while they were looked at, ends there.
const maxDepth = 4096

// ours reports whether a process descends from us. Orphans become our children, so
// each of our descendants has a way up to us.
func (o *onlooker) ours(p process) bool {
	for range maxDepth {
		switch {
		case p.ppid == o.self:
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

func (o *onlooker) blindness() error {
	return fault.New(fault.Unsupported, "the sandbox's processes cannot be seen here: parts of the outer /proc are masked, so that it is shown inside").
		WithHint("start coppice in a container whose /proc is not masked; see what this host allows: coppice probe")
}

// readSmall reads the beginning of a file of /proc into buf.
func readSmall(path string, buf []byte) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) {
		k, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || k <= 0 {
			break
		}
		n += k
	}
	return buf[:n]
}

// pageSize is what proc_pid_stat(5) counts memory in.
var pageSize = int64(os.Getpagesize())
