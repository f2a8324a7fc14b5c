//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/execs"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/notify"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/box/refusals"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// daemon is a running init. Its fields belong to the goroutine of serve, except for the channels and the locks.
type daemon struct {
	link     *initlink.Link
	guest    plan.Guest
	pid1     bool
	ownProc  bool // only with pid1: /proc shows the sandbox's own processes
	self     int  // in tier workspace: the pid of init
	outer    int  // only with pid1: the pid of init in /proc, if that belongs to an outer pid namespace
	pts      int  // the directory of ptmx, O_PATH
	launcher *launcher
	freezer  *freezer
	turns    turns
	programs *execs.Recorder   // nil if programs are not recorded
	refused  *refusals.Summary // nil if refusals are not reported
	onlooker onlooker
	held     *heldFiles       // nil except in tier gvisor
	inet     *notify.Internet // nil except in a locked workspace with rules; open until this process ends

	commands map[int]bool       // commands that were started and not yet reaped
	begun    uint64             // number of commands started so far
	doomed   map[int]bool       // commands whose tree is killed when they exit
	frozen   bool               // frozen for a capture
	waiting  []initlink.Message // spawns and signals that arrived while frozen

	orphans chan int       // pids to be reaped
	reaped  chan struct{}  // answers orphans
	born    chan struct{}  // signals that there may be children again
	ended   chan os.Signal // in tier gvisor: children may have ended
}

// serve handles messages until the link to the keeper closes.
func (d *daemon) serve() error {
	defer d.endWorkspace()
	in := make(chan initlink.Message)
	gone := make(chan error, 1)
	go func() {
		for {
			m, err := d.link.Recv()
			if err != nil {
				// Now, because serve may be waiting for a command that another one has stopped. And again when serve
				// returns, because it may have started one more meanwhile.
				d.endWorkspace()
				gone <- err
				return
			}
			in <- m
		}
	}()
	if d.ended != nil {
		go d.reapSignalled()
	} else {
		go d.reap()
	}
	d.onlooker.start(d)
	for {
		var err error
		select {
		case m := <-in:
			err = d.handle(m)
		case pid := <-d.orphans:
			err = d.collect(pid)
			d.reaped <- struct{}{}
		case <-d.refused.Due():
			err = d.refused.Tell(d.link)
		case err := <-gone:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		if err != nil {
			return err
		}
	}
}

// reap finds children that have exited, without releasing their pids. serve releases them, so that it never signals a
// pid that belongs to another process by then.
func (d *daemon) reap() {
	for {
		pid, err := waitid(0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			<-d.born
		case err != nil:
			fmt.Fprintln(os.Stderr, "coppice-init: wait:", err)
			<-d.born
		default:
			d.orphans <- pid
			<-d.reaped
		}
	}
}

// reapSignalled is reap for gVisor, where system calls are expensive. No thread waits in a system call, which the Go
// scheduler would poll at short intervals.
func (d *daemon) reapSignalled() {
	for range d.ended {
		for {
			pid, err := waitid(unix.WNOHANG)
			if err != nil && !errors.Is(err, unix.ECHILD) {
				fmt.Fprintln(os.Stderr, "coppice-init: wait:", err)
			}
			if err != nil || pid == 0 {
				break
			}
			d.orphans <- pid
			<-d.reaped
		}
	}
}

// waitid returns a child that has exited, without reaping it. With WNOHANG it returns 0 if none has.
func waitid(flags uintptr) (pid int, err error) {
	var info [128]byte // siginfo_t
	_, _, e := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
		unix.WEXITED|unix.WNOWAIT|unix.WALL|flags, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(*(*int32)(unsafe.Pointer(&info[16]))), nil // si_pid
}

func (d *daemon) collect(pid int) error {
	if d.doomed[pid] {
		delete(d.doomed, pid)
		d.killTree(pid, unix.SIGKILL)
	}
	var ws unix.WaitStatus
	var used unix.Rusage
	got, err := unix.Wait4(pid, &ws, unix.WALL|unix.WNOHANG, &used)
	if err == nil && got == pid {
		d.programs.Reaped(pid, uint32(ws))
	}
	if err != nil || got != pid || !d.commands[pid] {
		return nil //nolint:nilerr // an orphan whose parent is gone
	}
	delete(d.commands, pid)
	alone := d.childless()
	if alone {
		d.settle()
		d.programs.Label() // a capture now need not freeze, and its label names the command
	}
	if _, err := d.programs.Tell(); err != nil { // starts are reported before the exit
		return err
	}
	if err := d.refused.Tell(d.link); err != nil {
		return err
	}
	return d.link.Send(initlink.MsgExited,
		initlink.Exited{PID: pid, Status: uint32(ws), Alone: alone, Used: resources(&used)})
}

// resources returns the resources that a reaped process used.
func resources(u *unix.Rusage) wire.Resources {
	return wire.Resources{UserMicros: u.Utime.Nano() / 1e3, SystemMicros: u.Stime.Nano() / 1e3,
		MaxRSSBytes: u.Maxrss << 10}
}

// settle waits until no notification of a dead caller is being served. While the sandbox is frozen there is none.
func (d *daemon) settle() {
	if !d.frozen {
		d.turns.Lock()
		d.turns.Unlock() //nolint:staticcheck // only waits until no turn is taken
	}
}

func (d *daemon) handle(m initlink.Message) error {
	switch m.Kind {
	case initlink.MsgSpawn:
		if d.frozen {
			d.waiting = append(d.waiting, m)
			return nil
		}
		return d.spawn(m)
	case initlink.MsgKill:
		var k initlink.Kill
		err := m.Obey(&k)
		if err == nil {
			err = d.kill(k)
		}
		if err != nil { // the keeper expects no answer
			fmt.Fprintln(os.Stderr, "coppice-init:", err)
		}
		return nil
	case initlink.MsgFreeze:
		return d.freeze()
	case initlink.MsgThaw:
		return d.thaw()
	case initlink.MsgMap:
		return d.link.Send(initlink.MsgMapped, d.freezer.mapped())
	case initlink.MsgHold:
		return d.hold()
	case initlink.MsgCount:
		n, err := d.count()
		if err != nil {
			return err
		}
		return d.link.Send(initlink.MsgCounted, initlink.Counted{Procs: n})
	case initlink.MsgLook:
		return d.look(m)
	case initlink.MsgRekey:
		return d.rekey(m)
	case initlink.MsgClock:
		n, err := d.clock()
		return d.link.Send(initlink.MsgClocked, initlink.Clocked{Clock: n, Err: initlink.WireError(err)})
	}
	m.Close()
	return d.link.Send(initlink.MsgUnknown,
		initlink.Unknown{Kind: m.Kind, Err: initlink.WireError(initlink.Older("does not support message %q", byte(m.Kind)))})
}

func (d *daemon) spawn(m initlink.Message) error {
	defer m.Close()
	var s initlink.Spawn
	if err := m.Obey(&s); err != nil {
		return d.link.Send(initlink.MsgSpawned, initlink.Spawned{Err: initlink.WireError(err)})
	}
	files := m.FDs
	var send []int
	if s.TTY {
		master, slave, err := d.terminal(s.Size)
		if err != nil {
			return d.link.Send(initlink.MsgSpawned, initlink.Spawned{Err: initlink.WireError(err)})
		}
		defer unix.Close(master)
		defer unix.Close(slave)
		files, send = []int{slave, slave, slave}, []int{master}
	}
	switch len(files) {
	case 2:
		null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return d.link.Send(initlink.MsgSpawned, initlink.Spawned{Err: initlink.WireError(fault.Wrap(err, "open /dev/null"))})
		}
		defer unix.Close(null)
		files = []int{null, files[0], files[1]}
	case 3:
		if !s.TTY {
			files = []int{files[2], files[0], files[1]}
		}
	default:
		return fmt.Errorf("malformed spawn: %d descriptors", len(files))
	}
	if len(s.Cmd) == 0 {
		return d.link.Send(initlink.MsgSpawned,
			initlink.Spawned{Err: initlink.WireError(fault.New(fault.Invalid, "command is required"))})
	}
	d.turns.starting.Lock()
	d.programs.Starting(s.Exec)
	r := d.launcher.start(s, files)
	d.turns.starting.Unlock()
	if r.PID == 0 {
		return d.link.Send(initlink.MsgSpawned, r)
	}
	d.commands[r.PID] = true
	d.begun++
	select {
	case d.born <- struct{}{}:
	default:
	}
	err := d.link.Send(initlink.MsgSpawned, r, send...)
	if !initlink.NotPassed(err) {
		return err
	}
	// The command cannot run without a client at its terminal.
	delete(d.commands, r.PID)
	d.killTree(r.PID, unix.SIGKILL)
	return d.link.Send(initlink.MsgSpawned,
		initlink.Spawned{Err: initlink.WireError(fault.Wrap(err, "pass the command's terminal"))})
}

// terminal creates a pseudo terminal in the sandbox's own devpts.
func (d *daemon) terminal(size *wire.Size) (master, slave int, err error) {
	if master, err = unix.Openat(d.pts, "ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		return -1, -1, fault.Wrap(err, "open a terminal")
	}
	defer func() {
		if err != nil {
			unix.Close(master)
		}
	}()
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, -1, fault.Wrap(err, "unlock a terminal")
	}
	fd, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if e != 0 {
		return -1, -1, fault.Wrap(e, "open the slave of a terminal")
	}
	slave = int(fd)
	if u := d.guest.User; d.pid1 && int(u.UID) != os.Getuid() {
		if err := unix.Fchown(slave, int(u.UID), -1); err != nil {
			unix.Close(slave)
			return -1, -1, fault.Wrap(err, "change the owner of a terminal")
		}
	}
	if size != nil {
		ws := &unix.Winsize{Row: size.Rows, Col: size.Cols}
		_ = unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, ws)
	}
	return master, slave, nil
}

func (d *daemon) kill(k initlink.Kill) error {
	sig := syscall.Signal(k.Signal)
	switch k.Whom {
	case initlink.KillAll:
		d.killAll(sig)
		return nil
	case initlink.KillGroup, initlink.KillTree:
	default:
		return initlink.Older("cannot signal %q", k.Whom)
	}
	if !d.commands[k.PID] {
		return nil
	}
	if k.Doom {
		d.doomed[k.PID] = true
	}
	if k.Whom == initlink.KillGroup {
		_ = unix.Kill(-k.PID, sig) // the command leads the group in which it was started
		return nil
	}
	d.killTree(k.PID, sig)
	return nil
}

// scan lists the processes of the sandbox, without init.
func (d *daemon) scan() (procs.List, error) {
	if d.outer != 0 {
		return procs.ScanOuter(d.outer)
	}
	return procs.Scan(d.self)
}

func (d *daemon) killTree(pid int, sig syscall.Signal) {
	list, err := d.scan()
	if err != nil {
		_ = unix.Kill(-pid, sig)
		return
	}
	for _, p := range list.Tree(pid) {
		_ = unix.Kill(p, sig)
	}
}

// killAll signals every process of the sandbox but init.
func (d *daemon) killAll(sig syscall.Signal) {
	if d.pid1 {
		_ = unix.Kill(-1, sig)
		return
	}
	if d.launcher.signalAll(sig) {
		return
	}
	list, err := d.scan()
	if err != nil {
		return
	}
	for _, p := range list {
		_ = unix.Kill(p.PID, sig)
	}
}

// endPatience bounds the wait for processes that were killed. Those that are left become children of the keeper.
const endPatience = 2 * time.Second

// endWorkspace kills every process of the sandbox and waits until none is left, where the kernel does not kill them
// when init exits.
func (d *daemon) endWorkspace() {
	if d.pid1 {
		return
	}
	err := procs.EndDescendants(endPatience, func() { d.launcher.signalAll(unix.SIGKILL) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "coppice-init:", err)
	}
}

func (d *daemon) count() (int, error) {
	if d.childless() {
		return 0, nil
	}
	list, err := d.scan()
	n := 0
	for _, p := range list {
		if !p.Dead() || d.commands[p.PID] { // the Exited of a command must precede a count without it
			n++
		}
	}
	return n, err
}

// childless reports, with one call, whether init is the only process: all others are its descendants.
func (d *daemon) childless() bool {
	_, err := waitid(unix.WNOHANG)
	return errors.Is(err, unix.ECHILD)
}

func (d *daemon) freeze() error {
	if d.frozen {
		return d.link.Send(initlink.MsgFrozen,
			initlink.Frozen{Err: initlink.WireError(fault.New(fault.Conflict, "the sandbox is already frozen"))})
	}
	d.turns.Lock()
	f, err := d.freezer.freeze(d.childless())
	if err != nil {
		d.turns.Unlock()
		return d.link.Send(initlink.MsgFrozen, initlink.Frozen{Err: initlink.WireError(err)})
	}
	d.frozen = true
	f.Programs = d.programs.Label()
	if d.guest.Tier == plan.TierGvisor { // a frozen process cannot be asked later
		if f.Procs, err = d.count(); err == nil {
			f.Clock, err = d.clock()
		}
		if err != nil {
			d.frozen = false
			d.turns.Unlock()
			return d.link.Send(initlink.MsgFrozen, initlink.Frozen{Err: initlink.WireError(err)})
		}
	}
	return d.link.Send(initlink.MsgFrozen, f)
}

func (d *daemon) hold() error {
	if !d.frozen {
		err := initlink.WireError(fault.New(fault.Conflict, "the sandbox is not frozen"))
		return d.link.Send(initlink.MsgHeld, initlink.Held{Frozen: initlink.Frozen{Err: err}})
	}
	h, err := d.freezer.hold()
	if err != nil {
		h.Err = initlink.WireError(err)
	}
	return d.link.Send(initlink.MsgHeld, h)
}

func (d *daemon) thaw() error {
	if d.frozen {
		d.frozen = false
		d.freezer.thaw()
		d.turns.Unlock()
	}
	if err := d.link.Send(initlink.MsgThawed, nil); err != nil {
		return err
	}
	waiting := d.waiting
	d.waiting = nil
	for _, m := range waiting {
		if err := d.handle(m); err != nil {
			return err
		}
	}
	return nil
}
