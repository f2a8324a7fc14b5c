//go:build linux && (amd64 || arm64)

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/execs"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/notify"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/thread"
)

// Main runs init and returns the exit code of the process. When the process exits, the kernel kills everything that
// runs in the sandbox.
func Main() int {
	_ = os.WriteFile("/proc/self/comm", []byte(initlink.Argv0), 0) // for ps
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-init:", err)
		return 1
	}
	return 0
}

func run() error {
	// No inherited descriptor may reach a command. ForkExec keeps only the three that it is given.
	if err := unix.CloseRange(initlink.FD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("mark descriptors: %w", err)
	}
	return Serve(initlink.NewLink(initlink.FD))
}

// Serve runs init at its end of the link: it waits for the plan, carries it out, and then serves the other end's
// messages until that end closes. It may be called once per process.
func Serve(link *initlink.Link) error {
	m, err := link.Recv()
	if err != nil {
		return fmt.Errorf("wait for the plan: %w", err)
	}
	return serveAs(link, m, nil)
}

// serveAs is Serve with a plan that has arrived. already are protections that are weaker than planned.
func serveAs(link *initlink.Link, m initlink.Message, already []plan.Item) error {
	var g plan.Guest
	if err := m.Decode(&g); err != nil {
		return err
	}
	d := &daemon{
		link: link, guest: g, commands: map[int]bool{}, doomed: map[int]bool{},
		orphans: make(chan int), reaped: make(chan struct{}), born: make(chan struct{}, 1),
	}
	weak, err := d.setUp(m)
	weak = append(already, weak...)
	d.guest.Java = nil // already mounted; would be part of every memory image
	if err != nil {
		return errors.Join(err, link.Send(initlink.MsgReady, initlink.Ready{Err: initlink.WireError(err)}))
	}
	if err := link.Send(initlink.MsgReady, initlink.Ready{Weak: plan.Enforced{Items: weak}.Bounded().Items}); err != nil {
		return err
	}
	return d.serve()
}

// setUp sets up the root, the launcher and the listener, in this order. It returns the protections that are weaker than
// planned.
func (d *daemon) setUp(m initlink.Message) (weak []plan.Item, err error) {
	g := d.guest
	if g.Version != plan.Version {
		return nil, fault.New(fault.Version, "unsupported plan version %[2]d: must be %[1]d", plan.Version, g.Version).
			WithHint("coppice was replaced while the daemon ran; restart the daemon: coppice serve")
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fault.Wrap(err, "make init non-dumpable")
	}
	switch g.Tier {
	case plan.TierGvisor:
		err = d.setUpGvisor(g)
	case plan.TierContainer:
		err = d.setUpContained(g, m.FDs)
	case plan.TierWorkspace:
		err = d.setUpWorkspace(g, m.FDs)
	default:
		weak, err = d.setUpRoot(g, m.FDs)
	}
	if err != nil {
		return nil, err
	}
	if err := d.openTerminals(); err != nil {
		return nil, err
	}
	if g.Tasks || g.Lock != nil { // with Lock, the container or the user may have a limit
		thread.Reserve(ownThreads)
	}
	if err := setLimits(g); err != nil {
		return nil, err
	}
	more, err := d.startLauncher(&g)
	if err != nil {
		return nil, err
	}
	weak = append(weak, more...)
	d.freezer = &freezer{scan: d.scan, pid1: d.pid1, blind: d.outer != 0, outside: g.Outside,
		stopAll: func() bool { return d.launcher.signalAll(unix.SIGSTOP) }}
	if l := d.launcher.listener; l != nil {
		more, err := d.answerCalls(l, g)
		if err != nil {
			return nil, err
		}
		weak = append(weak, more...)
	}
	return weak, nil
}

// setUpGvisor completes the root that the conductor has set up.
func (d *daemon) setUpGvisor(g plan.Guest) (err error) {
	d.pid1 = true
	d.ended = make(chan os.Signal, 1)
	signal.Notify(d.ended, unix.SIGCHLD)
	if err := finishRoot(g); err != nil {
		return err
	}
	if d.held, err = hold(g); err != nil {
		return err
	}
	if g.Self {
		return d.listenSelf()
	}
	return nil
}

// setUpWorkspace makes init the subreaper of processes that commands leave behind. It needs no root file system.
//
// With g.Tell, the descriptor of the tally of refused calls came with the plan.
func (d *daemon) setUpWorkspace(g plan.Guest, fds []int) error {
	if g.Tell != (len(fds) == 1) || len(fds) > 1 {
		return fault.New(fault.Internal, "the plan came with %d descriptors", len(fds))
	}
	if g.Tell {
		if err := d.countRefusals(fds[0]); err != nil {
			return err
		}
	}
	if g.Lock != nil {
		if err := makeOwn(g.Lock); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fault.Wrap(err, "become the reaper of orphaned processes")
	}
	d.self = os.Getpid()
	// Commands must not inherit the signals that a daemon started by nohup(1) ignores: execve(2) resets a
	// signal with a handler to its default.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT)
	return nil
}

// setUpRoot builds the root from the descriptors that came with the plan: the root's tree, the shared directories of
// the host, the program coppice, the directory of the sandbox's own socket, and the tally of refused calls.
func (d *daemon) setUpRoot(g plan.Guest, fds []int) (weak []plan.Item, err error) {
	d.pid1 = true
	want := 1 + g.Shared
	for _, more := range []bool{g.Client, g.Self, g.Tell} {
		if more {
			want++
		}
	}
	if len(fds) != want {
		return nil, fault.New(fault.Internal, "the plan came with %d descriptors, expected %d", len(fds), want)
	}
	trees := fds
	if g.Tell {
		trees = fds[:want-1]
		if err := d.countRefusals(fds[want-1]); err != nil {
			return nil, err
		}
	}
	if weak, err = MakeRoot(g, trees); err != nil {
		return nil, err
	}
	bearSignals()
	return weak, nil
}

// openTerminals opens the directory in which terminals are created.
func (d *daemon) openTerminals() (err error) {
	pts := "/dev" // the host's /dev/pts/ptmx may be inaccessible
	if d.pid1 {
		pts = "/dev/pts" // the rest of /dev can be replaced from inside
	}
	d.pts, err = unix.Open(pts, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return fault.Wrap(err, "open the directory of terminals")
}

// startLauncher starts the thread from which commands are forked. It clears the settings in g and d of records that are
// not possible on this host, and returns them as weak items.
func (d *daemon) startLauncher(g *plan.Guest) (weak []plan.Item, err error) {
	if d.pid1 {
		if d.ownProc, err = notify.OwnsProc(); err != nil {
			return nil, err
		}
		if !d.ownProc {
			if d.outer, err = procs.OuterSelf(); err != nil {
				return nil, fault.Wrap(err, "find init in the host's /proc")
			}
		}
	}
	if g.Trace && !d.ownProc {
		g.Trace = false
		weak = append(weak, plan.Item{Name: "programs", State: plan.Off, Detail: "the host's /proc is visible, " +
			"which does not show what runs inside; snapshots are labelled by the paths that changed"})
	}
	if d.launcher, err = newLauncher(*g); err != nil {
		return nil, err
	}
	if why := d.launcher.closed; why != nil {
		weak = append(weak, plan.Item{Name: "unix sockets", State: plan.Weak, Detail: "none can be made but pairs, since " +
			"init cannot check where they connect to: " + why.Error()})
	}
	if g.Tell && d.launcher.refusals == nil {
		d.refused = nil
		weak = append(weak, plan.Item{Name: "denials", State: plan.Off, Detail: "refused system calls " +
			"are not recorded: " + d.launcher.untold.Error()})
	}
	return weak, nil
}

// answerCalls starts to answer the calls of commands about which the kernel notifies l.
func (d *daemon) answerCalls(l *os.File, g plan.Guest) (weak []plan.Item, err error) {
	var left []*notify.Left
	if d.pid1 { // only then directories of layers are moved
		if left, err = notify.Recover(); err != nil {
			return nil, err
		}
	}
	// What could not be undone may not have been created by Coppice: a sandbox must not be able to prevent its own
	// start by the files that it writes. No data is lost.
	if len(left) > 0 {
		first := strconv.Quote(limit.Cut(left[0].Error(), limit.MessagePath))
		weak = append(weak, plan.Item{Name: "renames", State: plan.Weak, Detail: first +
			": directories of lower layers are not moved (EXDEV: programs copy them) until /" +
			rootspec.Workshop + " is removed"})
	}
	opt := notify.Options{Emulate: g.Emulate, Lock: &d.turns, Freeze: d.freezer.forPromotion}
	if g.Lock != nil {
		if d.inet, err = internet(g.Lock, d.scan); err != nil {
			return nil, err
		}
		opt.Sockets, opt.Terminals, opt.Inet = sockets(g.Lock), true, d.inet
	}
	if d.refused != nil {
		opt.Refusals, opt.Refused = d.launcher.refusals, d.callRefused
	}
	if g.Trace {
		if d.programs, err = execs.New(d.link, d.launcher.isChild); err != nil {
			return nil, err
		}
		opt.Asked, opt.Unasked, opt.Began = d.programs.Asked, d.programs.Unasked, d.programs.Began
		go d.programs.Watch()
	}
	return weak, d.serveNotifications(l, opt)
}

// serveNotifications starts to answer the calls of commands, and continues until this process exits: nothing outlives
// PID 1. If serving fails later, this process exits too, since commands would wait for answers forever.
func (d *daemon) serveNotifications(l *os.File, opt notify.Options) error {
	serving, failed := make(chan struct{}), make(chan error, 1)
	opt.Serving = func() { close(serving) }
	go func() {
		err := notify.Serve(context.Background(), l, opt)
		failed <- err
		select {
		case <-serving:
			if err != nil {
				fmt.Fprintln(os.Stderr, "coppice-init: notifications:", err)
				d.link.Shutdown()
			}
		default:
		}
	}()
	select {
	case <-serving:
		return nil
	case err := <-failed:
		return err
	}
}

// setLimits sets the limits that commands inherit. Resource limits belong to the whole process, so they also apply to
// init; package plan leaves room for it.
func setLimits(g plan.Guest) error {
	for what, n := range map[int]uint64{unix.RLIMIT_NPROC: g.NProc, unix.RLIMIT_DATA: g.Data} {
		if n > 0 {
			if err := unix.Setrlimit(what, &unix.Rlimit{Cur: n, Max: n}); err != nil {
				return fault.Wrap(err, "set resource limit %d", what)
			}
		}
	}
	return nil
}

// ownThreads is how many threads init starts before the first command. When the sandbox has reached its limit of tasks,
// no more can be created.
const ownThreads = 16
